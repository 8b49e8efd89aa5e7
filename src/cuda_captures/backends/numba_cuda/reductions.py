"""Atomic operations of numba-cuda whose result nobody uses, in LLVM IR that has been emitted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from llvmlite import ir
from numba.cuda import stubs

from cuda_captures.backends.reductions import reduction

from .pointers import through_global

WORD = ir.IntType(64)
NAMES = ("add", "and_", "or_", "xor", "max", "min", "nanmax", "nanmin")
ATOMICS = frozenset(getattr(stubs.atomic, name) for name in NAMES)  # those whose lowering may be one atomic operation
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


def without_result(emitted: list[tuple[Any, Any]], result: Any, cc: tuple[int, int]) -> Any:
    """Make a reduction of an atomic operation that was emitted, and give what stands for its result from now on.

    Parameters
    ----------
    emitted
        Instructions, each with its block.
    result
        Of the call that they were emitted for.  It is left alone if it is no atomic operation, or one that has no
        reduction.
    cc
        Compute capability to compile for.
    """
    position = next((at for at, (_, one) in enumerate(emitted) if one is result), None)
    found = reduction(operation_of(result), str(result.type), cc) if position is not None else None
    if position is None or found is None:
        return result
    text, constraints = found
    block, value = emitted[position][0], result.operands[-1]
    pointer = through_global(block, result, len(result.operands) - 2)  # a call's first is the function
    address = ir.CastInstr(block, "ptrtoint", pointer, WORD)
    assembly = ir.InlineAsm(ir.FunctionType(ir.VoidType(), [WORD, value.type]), text, constraints, side_effect=True)
    call = ir.CallInstr(block, assembly, [address, value])
    address.metadata, call.metadata = dict(result.metadata), dict(result.metadata)
    place = block.instructions.index(result)
    block.instructions[place : place + 1] = [address, call]
    nothing = ir.Constant(result.type, None)
    for _, later in emitted[position:]:
        later.replace_usage(result, nothing)
    return nothing


def operation_of(instruction: Any) -> str:
    """What an atomic operation is to LLVM; nothing for any other instruction."""
    if isinstance(instruction, ir.AtomicRMW):
        return str(instruction.operation)
    called = getattr(instruction, "callee", None)
    return "fadd" if getattr(called, "name", "").startswith(ADDITION) else ""
