"""Memrefs, made of a pointer, a shape and strides."""

from __future__ import annotations

from typing import Any

from numba_cuda_mlir._mlir import ir
from numba_cuda_mlir._mlir.dialects import arith, builtin, llvm, memref
from numba_cuda_mlir._mlir.extras import types as mlir_types
from numba_cuda_mlir.lowering_utilities import memref_descriptor_type


def memref_of(kind: Any, pointer: Any, shape: list[Any], strides: list[Any], without_gaps: bool = False) -> Any:
    """A memref of a type, from its data pointer, its shape and its strides in elements.

    Of an array without gaps, in C order, the compiler is told so: some of its passes take no other arrays.
    """
    descriptor = llvm.UndefOp(memref_descriptor_type(len(shape))).result
    for position, value in (
        ([0], pointer),
        ([1], pointer),
        ([2], word(0)),
        *(([3, dimension], extent) for dimension, extent in enumerate(shape)),
        *(([4, dimension], stride) for dimension, stride in enumerate(strides)),
    ):
        descriptor = inserted(descriptor, position, value)
    if not without_gaps or ir.MemRefType(kind).layout == identity(kind).layout:
        return builtin.unrealized_conversion_cast([kind], [descriptor])
    packed = builtin.unrealized_conversion_cast([identity(kind)], [descriptor])
    return memref.cast(kind, packed)


def identity(kind: Any) -> Any:
    """The type of memrefs without gaps, in C order."""
    kind = ir.MemRefType(kind)
    return ir.MemRefType.get(kind.shape, kind.element_type, memory_space=kind.memory_space)


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
