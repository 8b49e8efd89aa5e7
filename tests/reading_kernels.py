"""Kernels that several tests make: factories, so that each captures an array of its own."""

from __future__ import annotations

from typing import Any


def reading(cuda: Any, table: Any) -> Any:
    """``kernel(out)``, which copies a captured array."""

    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = table[i]

    return kernel
