"""On the GPU: atomic operations on captured arrays, with and without a use for what they return."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import cuda_captures
from conftest import COMPILERS
from edits import on_own_pages
from generated import namespace

pytestmark = pytest.mark.gpu

BINS, THREADS = 64, 1 << 18


def captured(cuda: Any, array: np.ndarray, policy: str) -> Any:
    """An array as it is captured, and how to read what a kernel made of it."""
    if policy == "device":
        on_device = cuda.to_device(array)
        return on_device, on_device.copy_to_host
    if policy == "mapped":
        array = cuda_captures.mapped(on_own_pages(array))
    return array, lambda: array


@pytest.mark.parametrize("policy", ["live", "mapped", "device"])
@pytest.mark.parametrize("dtype", ["int32", "uint64", "float32", "float64"])
@pytest.mark.parametrize("used", [False, True])
def test_additions(cuda: Any, dtype: str, policy: str, used: bool) -> None:
    bins, read = captured(cuda, np.zeros(BINS, dtype), policy)
    source = f"""
        @cuda.jit
        def kernel(where, out):
            i = cuda.grid(1)
            if i < where.size:
                {"out[i] = " * used}cuda.atomic.add(bins, where[i], 1)
    """
    kernel = namespace(source, cuda=cuda, bins=bins)["kernel"]
    where = np.random.default_rng(0).integers(0, BINS, THREADS)
    out = cuda.to_device(np.zeros(THREADS))
    kernel[THREADS // 256, 256](cuda.to_device(where), out)
    cuda.synchronize()
    counts = np.bincount(where, minlength=BINS)
    assert np.array_equal(read(), counts)
    if used:
        before = out.copy_to_host()
        for number in range(BINS):
            assert np.array_equal(np.sort(before[where == number]), np.arange(counts[number]))


@pytest.mark.parametrize("name", ["max", "min", "and_", "or_", "xor"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_other_operations(cuda: Any, name: str, dtype: str) -> None:
    state = np.full(BINS, 12345, dtype)
    source = f"""
        @cuda.jit(device=True)
        def change(where, value):
            cuda.atomic.{name}(state, where, value)

        @cuda.jit
        def kernel(where, values):
            i = cuda.grid(1)
            if i < where.size:
                change(where[i], values[i])
    """
    kernel = namespace(source, cuda=cuda, state=state)["kernel"]
    generator = np.random.default_rng(1)
    where, values = generator.integers(0, BINS, THREADS), generator.integers(-(1 << 30), 1 << 30, THREADS).astype(dtype)
    expected = state.copy()
    ufunc = {"max": np.maximum, "min": np.minimum, "and_": np.bitwise_and, "or_": np.bitwise_or, "xor": np.bitwise_xor}
    ufunc[name].at(expected, where, values)
    kernel[THREADS // 256, 256](cuda.to_device(where), cuda.to_device(values))
    assert np.array_equal(state, expected)


def test_a_thread_sees_its_own_operations_in_order(cuda: Any) -> None:
    state = np.arange(THREADS, dtype=np.int32)

    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        if i < out.size:
            state[i] += 1
            cuda.atomic.add(state, i, 10)
            out[i] = state[i]
            state[i] *= 2
            cuda.atomic.max(state, i, 100)
            out[i] += state[i]

    out = np.zeros(THREADS, np.int32)
    kernel[THREADS // 256, 256](out)
    added = np.arange(THREADS, dtype=np.int32) + 11
    assert np.array_equal(state, np.maximum(2 * added, 100))
    assert np.array_equal(out, added + np.maximum(2 * added, 100))


def test_views_and_several_dimensions(cuda: Any) -> None:
    state = np.zeros((6, 8), np.float64)
    odd = state[::-2, 1::3]

    @cuda.jit
    def kernel():
        i = cuda.grid(1)
        cuda.atomic.add(odd, (i % 3, i % 2), 1.0)

    kernel[8, 96]()
    expected = np.zeros((6, 8))
    expected[::-2, 1::3][:, :2] = 8 * 96 / 6
    assert np.array_equal(state, expected)


RUNTIME = """
import numpy as np, cuda_captures, sys
from importlib import import_module
cuda_captures.enable()
cuda = import_module(sys.argv[1])
table = np.arange(100.0)

@cuda.jit
def kernel(out):
    i = cuda.grid(1)
    if i < out.size:
        own = np.empty(4, np.float64)
        for j in range(4):
            own[j] = table[i] * j
        out[i] = own[1] + own[3]

for factor in (1.0, 2.0):
    table *= factor
    out = np.zeros(50)
    kernel[1, 64](out)
    assert np.array_equal(out, 4 * table[:50]), out
if len(sys.argv) > 2:
    from numba.cuda.memory_management.nrt import rtsys
    stats = rtsys.get_allocation_stats()
    assert stats.alloc == stats.free >= 100, stats
print("right")
"""


@pytest.mark.parametrize("counted", [False, True])
def test_arrays_that_a_kernel_allocates(compiler: str, counted: bool) -> None:
    """Upstream's runtime for them is started in each module that is loaded."""
    words = ["counted"] if counted else []
    if counted and compiler != "numba-cuda":
        pytest.skip("only numba-cuda counts allocations")
    environment = {"NUMBA_CUDA_ENABLE_NRT": "1", "NUMBA_CUDA_NRT_STATS": str(int(counted))}
    command = [sys.executable, "-W", "ignore", "-c", RUNTIME, COMPILERS[compiler], *words]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("right\n"), done.stdout + done.stderr
