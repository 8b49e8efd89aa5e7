"""Atomic operations of numba-cuda-mlir whose result nobody uses, before NVVM makes PTX of a module."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from numba_cuda_mlir._mlir import ir
from numba_cuda_mlir._mlir.dialects import llvm
from numba_cuda_mlir.mlir.util import find_ops

from cuda_captures.backends.reductions import reduction

from .slot_pointers import in_global_memory, slot_behind

LLVM_TYPES = {"i32": "i32", "i64": "i64", "f32": "float", "f64": "double"}


def reduce_unused(module: Any, slots: Collection[str], cc: tuple[int, int]) -> None:
    """Make reductions of atomic operations on captured arrays, in place.

    Parameters
    ----------
    slots
        Symbols through which the module finds captured arrays.
    cc
        Compute capability to compile for.
    """
    for found in find_ops(module, lambda operation: operation.name == "llvm.atomicrmw"):
        operation = getattr(found, "operation", found)
        pointer, value = operation.operands
        made = reduction(operation_of(operation), LLVM_TYPES.get(str(value.type), ""), cc)
        if made is None or any(True for _ in operation.results[0].uses) or slot_behind(pointer) not in slots:
            continue
        text, constraints = made
        with ir.InsertionPoint(operation), operation.location:
            address = llvm.ptrtoint(ir.IntegerType.get_signless(64), in_global_memory(pointer))
            llvm.inline_asm(None, [address, value], text, constraints, has_side_effects=True)
        operation.erase()


def operation_of(atomic: Any) -> str:
    """What an atomic operation is to LLVM; nothing if a scope is asked for."""
    if "syncscope" in atomic.attributes:
        return ""
    return llvm.AtomicBinOp(ir.IntegerAttr(atomic.attributes["bin_op"]).value).name.lstrip("_")
