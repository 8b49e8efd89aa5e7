"""Pointers to global memory in LLVM IR that has been emitted."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

GLOBAL_SPACE = 1  # NVVM IR specification, address spaces


def through_global(block: Any, instruction: Any, operand: int) -> Any:
    """Let an access go through a pointer to global memory, which is returned.

    Address arithmetic on integers, as numba does for strided arrays, hides from NVVM what the pointer was made from.
    """
    pointer = instruction.operands[operand]
    if pointer.type.addrspace != 0:
        return pointer
    cast = ir.CastInstr(block, "addrspacecast", pointer, pointer.type.pointee.as_pointer(GLOBAL_SPACE))
    block.instructions.insert(block.instructions.index(instruction), cast)
    instruction.replace_usage(pointer, cast)
    return cast
