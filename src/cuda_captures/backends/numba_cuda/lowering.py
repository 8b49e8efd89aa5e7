"""Captured arrays in numba-cuda's lowering: an array value whose pointer is loaded from a slot."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.lowering import CUDALower
from numba.cuda.target import CUDATargetContext

from cuda_captures.backends.known_integers import DIVIDING, FLOORED, known_integer, narrow_divisor
from cuda_captures.backends.refusals import refuse_writes
from cuda_captures.session import Captured, current
from cuda_captures.slots import Slot
from cuda_captures.writes import Effects, effects_of

from .effects import DIALECT
from .front_end import FRONT_END
from .integers import bound_special_registers, divided, next_in_range
from .pointers import GLOBAL_SPACE, through_global
from .reductions import ATOMICS, read_in, without_result

CONSTANT_SPACE = 4  # NVVM IR specification, address spaces
WORD = ir.IntType(64)

upstream_make_constant_array = CUDATargetContext.make_constant_array
upstream_get_getattr = CUDATargetContext.get_getattr


def make_constant_array(self: Any, builder: Any, aryty: Any, arr: Any) -> Any:
    """An array value: through a slot for a captured array, in constant memory for anything else."""
    if not isinstance(arr, Captured):
        return upstream_make_constant_array(self, builder, aryty, arr)
    self.active_code_library.record(arr)
    if arr.slot is None:
        return upstream_make_constant_array(self, builder, aryty, arr.value)
    return array_in_slot(self, builder, aryty, arr)


def array_in_slot(context: Any, builder: Any, aryty: Any, captured: Captured) -> Any:
    """The array value of a captured array.

    The pointer is loaded as one to global memory and then cast to a generic one, so that NVVM emits ``ld.global``.
    """
    signature, slot = captured.signature, captured.slot
    assert slot is not None
    words = slot_words(builder, slot)
    array = context.make_array(aryty)(context, builder)
    pointer = builder.inttoptr(words[0], ir.PointerType(array.data.type.pointee, addrspace=GLOBAL_SPACE))
    data = builder.addrspacecast(pointer, array.data.type)
    if slot.general:
        shape, strides = words[1 : 1 + slot.ndim], words[1 + slot.ndim :]
        strides = contiguous_strides(context, builder, signature, shape, strides)
    else:
        shape = [context.get_constant(types.intp, extent) for extent in signature.shape or ()]
        strides = [context.get_constant(types.intp, stride) for stride in signature.strides or ()]
    context.populate_array(
        array,
        data=data,
        shape=shape,
        strides=strides,
        itemsize=context.get_constant(types.intp, signature.dtype.itemsize),
        parent=None,
        meminfo=None,
    )
    return array._getvalue()


def contiguous_strides(context: Any, builder: Any, signature: Any, shape: list[Any], strides: list[Any]) -> list[Any]:
    """Strides from a general slot; the innermost one of a contiguous array is the item size, known now."""
    if signature.layout not in ("C", "F") or not strides:
        return strides
    strides = list(strides)
    strides[-1 if signature.layout == "C" else 0] = context.get_constant(types.intp, signature.dtype.itemsize)
    return strides


def slot_words(builder: Any, slot: Slot) -> list[Any]:
    """The words of a slot, loaded once per function, in its entry block."""
    loaded = vars(builder.function).setdefault("_cuda_captures_loaded", {})
    if slot.symbol not in loaded:
        symbol = slot_symbol(builder.module, slot)
        with builder.goto_entry_block():
            loaded[slot.symbol] = [
                builder.load(builder.gep(symbol, [WORD(0), WORD(index)])) for index in range(slot.words)
            ]
    return list(loaded[slot.symbol])


def slot_symbol(module: Any, slot: Slot) -> Any:
    """The declaration of a slot in a module; its definition joins at the link."""
    known = module.globals.get(slot.symbol)
    if known is not None:
        return known
    symbol = ir.GlobalVariable(module, ir.ArrayType(WORD, slot.words), slot.symbol, addrspace=CONSTANT_SPACE)
    symbol.linkage = "external"
    symbol.align = 8
    return symbol


def get_getattr(self: Any, typ: Any, attr: str) -> Any:
    """Lowering of an attribute; arrays of modules come through slots."""
    captured = FRONT_END.module_capture(typ.pymod, attr) if isinstance(typ, types.Module) else None
    if captured is None:
        return upstream_get_getattr(self, typ, attr)

    def lowered(context: Any, builder: Any, typ: Any, value: Any, attr: str) -> Any:
        return context.get_constant_generic(builder, context.typing_context.resolve_value_type(captured), captured)

    return lowered


class CaptureLower(CUDALower):  # type: ignore[misc]
    """Lowering that knows what a function writes, and lets accesses to captured arrays go through global memory."""

    effects: Effects | None = None

    def lower(self) -> None:
        if current() is not None:
            self.effects = effects_of(self.func_ir.blocks.values(), self.fndesc.typemap, DIALECT)
            refuse_writes(self.effects, self.func_ir.func_id.func)
            self.library.record_effects(self.effects)
        super().lower()

    def lower_normal_function(self, fndesc: Any) -> None:
        super().lower_normal_function(fndesc)
        if self.effects is not None:
            bound_special_registers(self.function)

    def lower_binop(self, resty: Any, expr: Any, op: Any) -> Any:
        divisor = self.known_divisor(expr) if op in DIVIDING and self.effects is not None else None
        if divisor is None:
            return super().lower_binop(resty, expr, op)
        quotient, remainder = divided(self.builder, self.loadvar(expr.lhs.name), self.typeof(expr.lhs.name), divisor)
        return self.context.cast(self.builder, quotient if op in FLOORED else remainder, types.int64, resty)

    def known_divisor(self, expr: Any) -> int | None:
        """The divisor of a division that 32 bits hold, if it is known."""
        known = known_integer(types, self.func_ir, expr.rhs, self.typeof(expr.rhs.name), self.captured_in)
        return narrow_divisor(types, self.typeof(expr.lhs.name), self.fndesc.calltypes[expr].return_type, known)

    def lower_expr(self, resty: Any, expr: Any) -> Any:
        if expr.op == "iternext" and self.effects is not None:
            iterator = self.typeof(expr.value.name)
            if isinstance(iterator, types.RangeIteratorType):
                return next_in_range(self.context, self.builder, iterator, self.loadvar(expr.value.name), resty)
        captured = self.captured_in(expr.value) if expr.op in LOADING else None
        if not captured:
            return super().lower_expr(resty, expr)
        with self.emitted() as instructions:
            lowered = super().lower_expr(resty, expr)
        for block, instruction in instructions:
            if isinstance(instruction, ir.LoadInstr) and not on_stack(instruction.operands[0]):
                through_global(block, instruction, 0)
                if self.nobody_writes(captured):
                    instruction.set_metadata("invariant.load", self.builder.module.add_metadata([]))
        self.builder.position_at_end(self.builder.block)  # which has grown behind the builder's back
        return lowered

    def lower_assign(self, ty: Any, inst: Any) -> Any:
        if not self.is_reduction(inst):
            return super().lower_assign(ty, inst)
        with self.emitted() as instructions:
            lowered = super().lower_assign(ty, inst)
        lowered = without_result(instructions, lowered, self.flags.compute_capability)
        self.builder.position_at_end(self.builder.block)
        return lowered

    def is_reduction(self, inst: Any) -> bool:
        """Whether an atomic operation is on a captured array, and nobody uses what it returns."""
        call = inst.value
        if getattr(call, "op", None) != "call" or not call.args or not self.captured_in(call.args[0]):
            return False
        called = getattr(self.typeof(call.func.name), "typing_key", None)
        if called not in ATOMICS or (self.flags.debuginfo and not self.flags.dbg_directives_only):
            return False
        return inst.target.name not in self.used

    @functools.cached_property
    def used(self) -> frozenset[str]:
        """The variables of this function that are read."""
        return frozenset(read_in(self.func_ir.blocks.values()))

    def lower_inst(self, inst: Any) -> Any:
        target = getattr(inst, "target", None)
        if type(inst).__name__ not in STORING or not self.captured_in(target):
            return super().lower_inst(inst)
        with self.emitted() as instructions:
            lowered = super().lower_inst(inst)
        for block, instruction in instructions:
            if isinstance(instruction, ir.StoreInstr) and not on_stack(instruction.operands[1]):
                through_global(block, instruction, 1)
        self.builder.position_at_end(self.builder.block)
        return lowered

    def captured_in(self, variable: Any) -> set[Captured]:
        """The captured arrays that a variable refers to; none if it may refer to anything else, or to constants."""
        if self.effects is None:
            return set()
        captured = self.effects.only_captured(variable.name)
        return captured if all(one.slot is not None for one in captured) else set()

    def nobody_writes(self, captured: set[Captured]) -> bool:
        """Whether captured arrays are copies of NumPy arrays, none of which this function writes."""
        assert self.effects is not None
        written = self.effects.written
        return all(one.on_host and one.policy in ("live", "snapshot") and one not in written for one in captured)

    @contextlib.contextmanager
    def emitted(self) -> Iterator[list[tuple[Any, Any]]]:
        """The instructions that are emitted meanwhile at the current place and in new blocks, each with its block."""
        block, function = self.builder.block, self.builder.function
        start, blocks = len(block.instructions), len(function.blocks)
        found: list[tuple[Any, Any]] = []
        yield found
        found += [(block, instruction) for instruction in block.instructions[start:]]
        found += [(added, instruction) for added in function.blocks[blocks:] for instruction in added.instructions]


LOADING = frozenset({"getitem", "static_getitem", "typed_getitem", "getattr"})
STORING = frozenset({"SetItem", "StaticSetItem", "SetAttr"})


def on_stack(pointer: Any) -> bool:
    """Whether a pointer is into a local variable, or into a slot."""
    while isinstance(pointer, (ir.GEPInstr, ir.CastInstr)):
        pointer = pointer.operands[0]
    return isinstance(pointer, (ir.AllocaInstr, ir.GlobalVariable))
