"""The work on the device, as kernels: what stands after the ``*`` is captured, or in the argument form passed.

``cuda`` is that of the compiler; :mod:`benchmarks.pieces` makes each form from the source here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

cuda: Any = None


def gather(where, out, *, table, size):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = table[where[i] % size]


def stencil(out, *, field):
    j, i = cuda.grid(2)
    if i > 0 and i < field.shape[0] - 1 and j > 0 and j < field.shape[1] - 1:
        out[i, j] = field[i - 1, j] + field[i + 1, j] + field[i, j - 1] + field[i, j + 1] - 4 * field[i, j]


def walk(seeds, out, *, field, side, steps):
    i = cuda.grid(1)
    if i < out.size:
        state = seeds[i]
        x = side // 2
        y = side // 2
        total = 0.0
        for _ in range(steps):
            state = np.uint32(state ^ (state << 13))
            state = np.uint32(state ^ (state >> 17))
            state = np.uint32(state ^ (state << 5))
            x = (x + ((state >> 8) & 1) * 2 - 1) & (side - 1)
            y = (y + ((state >> 9) & 1) * 2 - 1) & (side - 1)
            total += field[y, x]
        out[i] = total


def fir(signal, out, *, taps):
    i = cuda.grid(1)
    if i < out.size:
        total = np.float32(0)
        for k in range(16):
            total += taps[k] * signal[i + k]
        out[i] = total


def eight(where, out, *, a, b, c, d, e, f, g, h, size):
    i = cuda.grid(1)
    if i < out.size:
        k = where[i] % size
        out[i] = a[k] + b[k] + c[k] + d[k] + e[k] + f[k] + g[k] + h[k]


def records(where, out, *, cells, size):
    i = cuda.grid(1)
    if i < out.size:
        cell = cells[where[i] % size]
        out[i] = cell.density * cell.length + cell.kind


def histogram(values, *, bins, size):
    i = cuda.grid(1)
    if i < values.size:
        cuda.atomic.add(bins, values[i] % size, 1)
