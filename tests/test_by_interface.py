"""A device array whose DLPack export fails is typed by its CUDA Array Interface."""

from __future__ import annotations

from typing import Any

import pytest

import cuda_captures


class Failing:
    """As JAX's arrays are for a caller who wants no synchronisation."""

    def __init__(self, nbytes: int = 64) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes // 8,),
            "typestr": "<f8",
            "data": (1 << 30, False),
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, **_: Any) -> Any:
        raise RuntimeError("invalid resource handle")


def test_such_an_array_is_captured(cuda: Any) -> None:
    table = Failing()

    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = table[i]

    (row,) = cuda_captures.explain(kernel, "void(float64[::1])").rows
    assert (row.name, row.dtype, row.shape, row.policy) == ("table", "float64", (8,), "device")


def test_bools_that_give_strides_are_captured(cuda: Any) -> None:
    """Upstream asks their type for a number of bits, which it has not."""
    interface = {"shape": (2, 3), "typestr": "|b1", "data": (1 << 30, False), "version": 3, "strides": (1, 2)}
    mask = type("Mask", (), {"__cuda_array_interface__": interface})()

    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        if i < out.size and mask[i % 2, 1]:
            out[i] = 1.0

    (row,) = cuda_captures.explain(kernel, "void(float64[::1])").rows
    assert (row.name, row.dtype, row.shape, row.strides) == ("mask", "bool", (2, 3), (1, 2))


def test_the_error_of_one_that_has_no_interface_is_its_own(cuda: Any) -> None:
    table = Failing()
    del table.__cuda_array_interface__

    @cuda.jit
    def kernel(out):
        out[0] = table[0]

    with pytest.raises(Exception, match=r"invalid resource handle|`table`"):
        cuda_captures.explain(kernel, "void(float64[::1])")
