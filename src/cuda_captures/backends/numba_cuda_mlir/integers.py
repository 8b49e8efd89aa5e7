"""What is known of integers and NVVM is not told: threads are counted from zero, and quotients that 32 bits hold."""

from __future__ import annotations

from typing import Any

from numba_cuda_mlir._mlir.dialects import arith, llvm, memref
from numba_cuda_mlir._mlir.extras import types as mlir_types
from numba_cuda_mlir.lowering_utilities import convert, index_of


def divided_by(value: Any, typed: Any, divisor: int) -> tuple[Any, Any]:
    """Quotient and remainder, of 64 bits, of an integer of at most 32, as Python rounds: down.

    The compiler divides in 64 bits, which takes 22 instructions for a constant divisor where 32 bits take 4, and it
    does not see that the remainder is not negative.
    """
    narrow, wide = mlir_types.i32(), mlir_types.i64()
    if typed.bitwidth < 32:
        value = (arith.extsi if typed.signed else arith.extui)(narrow, value)
    by, zero = arith.constant(narrow, divisor), arith.constant(narrow, 0)
    if not typed.signed:
        return arith.extui(wide, arith.divui(value, by)), arith.extui(wide, arith.remui(value, by))
    quotient, remainder = arith.divsi(value, by), arith.remsi(value, by)
    below = arith.cmpi(arith.CmpIPredicate.slt, remainder, zero)
    quotient = arith.subi(quotient, arith.extui(narrow, below))
    remainder = arith.select(below, arith.addi(remainder, by), remainder)
    return arith.extsi(wide, quotient), arith.extui(wide, remainder)


def not_negative(value: Any) -> None:
    """Say that an integer is not negative: an index needs no wrapping around then.

    The compiler counts the threads of a grid in 32 bits with a sign, and reads special registers in ways that hide
    what they may hold.
    """
    zero = arith.constant(value.type, 0)
    llvm.intr_assume(arith.cmpi(arith.CmpIPredicate.sge, value, zero), [], [])


def next_in_range(iterated: Any) -> Any:
    """The next number of a range, and whether there is one, as the compiler passes them on.

    The count goes on below zero where there is none.  The compiler keeps it there by a choice of two counts in each
    round: a loop whose rounds LLVM cannot count, with five instructions of 64 bits that do nothing else.
    """
    state = iterated._memref
    kind = state.type.element_type
    count, number = iterated.count, iterated.iter
    valid = arith.cmpi(arith.CmpIPredicate.sgt, count, arith.constant(kind, 0))
    memref.store(arith.subi(count, arith.constant(kind, 1)), state, [index_of(3)])
    memref.store(arith.addi(number, iterated.step), state, [index_of(4)])
    pair = memref.alloca(mlir_types.memref(2, kind), [], [])
    memref.store(number, pair, [index_of(0)])
    memref.store(convert(valid, kind), pair, [index_of(1)])
    return pair
