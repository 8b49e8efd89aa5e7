"""Memrefs: made of a pointer, a shape and strides; and told what the layout of an argument says."""

from __future__ import annotations

from typing import Any

from numba_cuda_mlir import types
from numba_cuda_mlir._mlir import ir
from numba_cuda_mlir._mlir.dialects import arith, builtin, llvm
from numba_cuda_mlir._mlir.extras import types as mlir_types
from numba_cuda_mlir.lowering_utilities import memref_descriptor_type


def memref_of(kind: Any, pointer: Any, shape: list[Any], strides: list[Any]) -> Any:
    """A memref of a type, from its data pointer, its shape and its strides in elements."""
    descriptor = llvm.UndefOp(memref_descriptor_type(len(shape))).result
    for position, value in (
        ([0], pointer),
        ([1], pointer),
        ([2], word(0)),
        *(([3, dimension], extent) for dimension, extent in enumerate(shape)),
        *(([4, dimension], stride) for dimension, stride in enumerate(strides)),
    ):
        descriptor = inserted(descriptor, position, value)
    return builtin.unrealized_conversion_cast([kind], [descriptor])


def has_no_gaps(typed: Any) -> bool:
    """Whether the layout of an array says how it lies in memory; strides of what is no number may count bytes."""
    array = isinstance(typed, types.Array) and typed.ndim > 0
    return array and typed.layout in ("C", "F") and isinstance(typed.dtype, types.Number)


def without_gaps(array: Any, typed: Any) -> Any:
    """An array that is passed to a kernel, of which the compiler does not know what its layout says.

    Its elements start where its memory does, and those along one axis follow each other.
    """
    axis = typed.ndim - 1 if typed.layout == "C" else 0
    descriptor = builtin.unrealized_conversion_cast([memref_descriptor_type(typed.ndim)], [array])
    descriptor = inserted(inserted(descriptor, [2], word(0)), [4, axis], word(1))
    return builtin.unrealized_conversion_cast([array.type], [descriptor])


def inserted(descriptor: Any, position: list[int], value: Any) -> Any:
    """A descriptor with another value somewhere in it."""
    return llvm.insertvalue(container=descriptor, value=value, position=ir.DenseI64ArrayAttr.get(position))


def word(value: int) -> Any:
    """A constant of 64 bits."""
    return arith.constant(mlir_types.i64(), value)


def divided(value: Any, unit: int) -> Any:
    """A multiple of a number of bytes, as that many."""
    if unit & (unit - 1):
        return arith.divsi(value, word(unit))
    return value if unit == 1 else arith.shrsi(value, word(unit.bit_length() - 1))
