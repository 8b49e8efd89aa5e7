"""Atomic operations on captured arrays whose result nobody uses: reductions, in PTX.

The driver's assembler makes a reduction of an atomic operation by itself where it sees that the address is a kernel's
parameter, and not where the address comes from a slot or is a number: a histogram took 1.29 times as long as with its
bins as an argument (H200, ``ATOMG`` in place of ``REDG``).  PTX ISA, ``red``: the same operation without a result.

Both compilers leave the scope of integer operations open, which NVVM takes for the device below compute capability 10.0
and for the system from there on.
"""

from __future__ import annotations

CONSTRAINTS = {"i32": "r", "i64": "l", "float": "f", "double": "d"}

_INTEGERS = {
    "add": {"i32": "add.u32", "i64": "add.u64"},
    "and": {"i32": "and.b32", "i64": "and.b64"},
    "or": {"i32": "or.b32", "i64": "or.b64"},
    "xor": {"i32": "xor.b32", "i64": "xor.b64"},
    "max": {"i32": "max.s32", "i64": "max.s64"},
    "min": {"i32": "min.s32", "i64": "min.s64"},
    "umax": {"i32": "max.u32", "i64": "max.u64"},
    "umin": {"i32": "min.u32", "i64": "min.u64"},
}
_REDUCTIONS = {**_INTEGERS, "fadd": {"float": "add.f32", "double": "add.f64"}}


def reduction(operation: str, kind: str, cc: tuple[int, int]) -> tuple[str, str] | None:
    """A line of PTX and the constraints of its operands: the address in global memory, as an integer, and the value.

    Parameters
    ----------
    operation
        As LLVM's ``atomicrmw`` names it.
    kind
        LLVM's type of the value.
    cc
        Compute capability to compile for.

    Returns
    -------
    None where there is no such reduction.
    """
    instruction = _REDUCTIONS.get(operation, {}).get(kind)
    if instruction is None:
        return None
    scope = ".relaxed.sys" if operation in _INTEGERS and cc >= (10, 0) else ""
    return f"red{scope}.global.{instruction} [$0], $1;", f"l,{CONSTRAINTS[kind]},~{{memory}}"
