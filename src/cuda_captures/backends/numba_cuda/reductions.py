"""Atomic operations of numba-cuda whose result nobody uses, in LLVM IR that has been emitted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from llvmlite import ir

from cuda_captures.backends.reductions import reduction

from .pointers import through_global

WORD = ir.IntType(64)
ADDITION = "llvm.nvvm.atomic.load.add."  # upstream's spelling for floating-point numbers


def read_in(blocks: Iterable[Any]) -> Iterator[str]:
    """Names of the variables that are read in blocks of a function."""
    for block in blocks:
        for statement in block.body:
            read = statement.value if type(statement).__name__ == "Assign" else statement
            if type(statement).__name__ != "Del" and hasattr(read, "list_vars"):
                yield from (variable.name for variable in read.list_vars())
            elif type(read).__name__ == "Var":
                yield read.name


def without_results(emitted: list[tuple[Any, Any]]) -> None:
    """Make reductions of the atomic operations among instructions, each given with its block."""
    for position, (block, instruction) in enumerate(emitted):
        found = reduction(operation_of(instruction), str(instruction.type))
        if found is None:
            continue
        text, constraints = found
        value = instruction.operands[-1]
        pointer = through_global(block, instruction, len(instruction.operands) - 2)  # a call's first is the function
        address = ir.CastInstr(block, "ptrtoint", pointer, WORD)
        assembly = ir.InlineAsm(ir.FunctionType(ir.VoidType(), [WORD, value.type]), text, constraints, side_effect=True)
        place = block.instructions.index(instruction)
        block.instructions[place : place + 1] = [address, ir.CallInstr(block, assembly, [address, value])]
        for _, later in emitted[position:]:
            later.replace_usage(instruction, ir.Constant(instruction.type, None))


def operation_of(instruction: Any) -> str:
    """What an atomic operation is to LLVM; nothing for any other instruction."""
    if isinstance(instruction, ir.AtomicRMW):
        return str(instruction.operation)
    called = getattr(instruction, "callee", None)
    return "fadd" if called is not None and called.name.startswith(ADDITION) else ""
