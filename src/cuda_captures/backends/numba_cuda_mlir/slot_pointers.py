"""Which slot a pointer came from, in the dialect that is handed to NVVM."""

from __future__ import annotations

from typing import Any

from numba_cuda_mlir._mlir import ir
from numba_cuda_mlir._mlir.dialects import llvm

from .lowering import GLOBAL_SPACE

POINTER_ARITHMETIC = frozenset({"llvm.getelementptr", "llvm.addrspacecast", "llvm.bitcast", "llvm.inttoptr"})


def slot_behind(pointer: Any) -> str | None:
    """The slot that a pointer was made from by nothing but arithmetic; None for any other."""
    while True:
        operation = pointer.owner
        if isinstance(operation, ir.Block):
            return None
        if operation.name in POINTER_ARITHMETIC:
            pointer = operation.operands[0]
        elif operation.name == "llvm.load":
            return symbol_of(operation.operands[0])
        else:
            return None


def symbol_of(address: Any) -> str | None:
    """The symbol whose memory an address is in; None if it is not known."""
    operation = address.owner
    while not isinstance(operation, ir.Block) and operation.name == "llvm.getelementptr":
        operation = operation.operands[0].owner
    if isinstance(operation, ir.Block) or operation.name != "llvm.mlir.addressof":
        return None
    return str(operation.attributes["global_name"]).lstrip("@")


def in_global_memory(pointer: Any) -> Any:
    """A pointer to global memory, from one that came from a slot."""
    if llvm.PointerType(pointer.type).address_space == GLOBAL_SPACE:
        return pointer
    return llvm.addrspacecast(llvm.PointerType.get(GLOBAL_SPACE), pointer)
