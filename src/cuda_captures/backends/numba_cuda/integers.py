"""What is known of integers and NVVM is not told: bounds of special registers, and quotients that 32 bits hold."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

WORD = ir.IntType(64)


def divided(builder: Any, value: Any, typed: Any, divisor: int) -> tuple[Any, Any]:
    """Quotient and remainder, of 64 bits, of an integer of at most 32, as Python rounds: down.

    The compiler divides in 64 bits, which takes 22 instructions for a constant divisor where 32 bits take 4, and it
    does not see that the remainder is not negative.
    """
    narrow, by = ir.IntType(32), ir.IntType(32)(divisor)
    if value.type.width < 32:
        value = (builder.sext if typed.signed else builder.zext)(value, narrow)
    if not typed.signed:
        quotient, remainder = builder.udiv(value, by), builder.urem(value, by)
        return builder.zext(quotient, WORD), builder.zext(remainder, WORD)
    quotient, remainder = builder.sdiv(value, by), builder.srem(value, by)
    below = builder.icmp_signed("<", remainder, narrow(0))
    quotient = builder.sub(quotient, builder.zext(below, narrow))
    remainder = builder.select(below, builder.add(remainder, by), remainder)
    return builder.sext(quotient, WORD), builder.zext(remainder, WORD)


# What special registers may hold: from, and below (CUDA C++ Programming Guide, technical specifications per compute
# capability; the same from 5.0 on).
SPECIAL_REGISTER = "llvm.nvvm.read.ptx.sreg."
BELOW = {"x": 1024, "y": 1024, "z": 64}  # threads of a block
BLOCKS = {"x": (1 << 31) - 1, "y": 65535, "z": 65535}
REGISTERS = {
    **{f"tid.{axis}": (0, limit) for axis, limit in BELOW.items()},
    **{f"ntid.{axis}": (1, limit + 1) for axis, limit in BELOW.items()},
    **{f"ctaid.{axis}": (0, limit) for axis, limit in BLOCKS.items()},
    **{f"nctaid.{axis}": (1, limit + 1) for axis, limit in BLOCKS.items()},
    "laneid": (0, 32),
    "warpsize": (32, 33),
}


def bound_special_registers(function: Any) -> None:
    """Say what special registers may hold, as CUDA C++ says it: what is counted from them is not negative.

    An index that is not negative needs no wrapping around, and the elements beside it are at constant offsets.
    """
    bound: set[Any] = set()
    for block in function.blocks:
        for instruction in block.instructions:
            if isinstance(instruction, ir.CallInstr) and isinstance(instruction.callee, ir.Function):
                held = REGISTERS.get(instruction.callee.name.removeprefix(SPECIAL_REGISTER))
                if held is not None:
                    bounds = [ir.Constant(instruction.type, value) for value in held]
                    instruction.set_metadata("range", function.module.add_metadata(bounds))
                    bound.add(instruction)
            elif isinstance(instruction, ir.CastInstr) and instruction.operands[0] in bound:
                instruction.opname = "zext" if instruction.opname == "sext" else instruction.opname


def next_in_range(context: Any, builder: Any, iterator: Any, value: Any, returned: Any) -> Any:
    """The next number of a range, and whether there is one.

    The count goes on below zero where there is none.  The compiler keeps it there, which LLVM makes a choice of two
    counts in each round: a loop whose rounds it cannot count, with five instructions of 64 bits that do nothing else.
    """
    state = context.make_helper(builder, iterator, value=value)
    count, number = builder.load(state.count), builder.load(state.iter)
    builder.store(builder.sub(count, count.type(1)), state.count)
    builder.store(builder.add(number, state.step), state.iter)
    pair = context.make_helper(builder, returned)
    pair.first, pair.second = number, builder.icmp_signed(">", count, count.type(0))
    return pair._getvalue()
