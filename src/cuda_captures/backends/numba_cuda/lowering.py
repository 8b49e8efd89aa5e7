"""Captured arrays in numba-cuda's lowering: an array value whose pointer is loaded from a slot."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.lowering import CUDALower
from numba.cuda.target import CUDATargetContext, CUDATypingContext

from cuda_captures.session import Captured, current
from cuda_captures.slots import Slot
from cuda_captures.writes import Effects, captured_in, effects_of

from .effects import DIALECT
from .front_end import refuse_writes
from .stand_ins import module_capture

CONSTANT_SPACE, GLOBAL_SPACE = 4, 1  # NVVM IR specification, address spaces
WORD = ir.IntType(64)

upstream_make_constant_array = CUDATargetContext.make_constant_array
upstream_get_getattr = CUDATargetContext.get_getattr
upstream_resolve_module_constants = CUDATypingContext.resolve_module_constants


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
        shape = [context.get_constant(types.intp, extent) for extent in signature.shape]
        strides = [context.get_constant(types.intp, stride) for stride in signature.strides]
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


def resolve_module_constants(self: Any, typ: Any, attr: str) -> Any:
    """Type of an attribute of a module."""
    captured = module_capture(typ.pymod, attr)
    if captured is None:
        return upstream_resolve_module_constants(self, typ, attr)
    return self.resolve_value_type(captured)


def get_getattr(self: Any, typ: Any, attr: str) -> Any:
    """Lowering of an attribute; arrays of modules come through slots."""
    captured = module_capture(typ.pymod, attr) if isinstance(typ, types.Module) else None
    if captured is None:
        return upstream_get_getattr(self, typ, attr)

    def lowered(context: Any, builder: Any, typ: Any, value: Any, attr: str) -> Any:
        return context.get_constant_generic(builder, context.typing_context.resolve_value_type(captured), captured)

    return lowered


class CaptureLower(CUDALower):  # type: ignore[misc]
    """Lowering that knows which captured arrays a function writes, and marks loads from those that nobody writes."""

    effects: Effects | None = None

    def lower(self) -> None:
        if current() is not None:
            self.effects = effects_of(self.func_ir.blocks.values(), self.fndesc.typemap, DIALECT)
            refuse_writes(self.effects, self.func_ir.func_id.func)
            self.library.record_effects(self.effects)
        super().lower()

    def lower_expr(self, resty: Any, expr: Any) -> Any:
        if expr.op not in LOADING or not self.only_reads(expr.value.name):
            return super().lower_expr(resty, expr)
        block, function = self.builder.block, self.builder.function
        start, blocks = len(block.instructions), len(function.blocks)
        lowered = super().lower_expr(resty, expr)
        mark_invariant(self.builder.module, block.instructions[start:])
        for added in function.blocks[blocks:]:
            mark_invariant(self.builder.module, added.instructions)
        return lowered

    def only_reads(self, variable: str) -> bool:
        """Whether a variable refers to copies of NumPy arrays only, none of which this function writes."""
        if self.effects is None:
            return False
        captured = self.effects.only_captured(variable)
        return bool(captured) and all(
            one.on_host and one.policy in ("live", "snapshot") and one not in self.effects.written for one in captured
        )


LOADING = frozenset({"getitem", "static_getitem", "typed_getitem", "getattr"})


def mark_invariant(module: Any, instructions: list[Any]) -> None:
    """Mark loads of elements as invariant: NVVM then emits ``ld.global.nc``.

    Loads from the stack, where unoptimised code keeps its variables, are not.
    """
    for instruction in instructions:
        if isinstance(instruction, ir.LoadInstr) and not on_stack(instruction.operands[0]):
            instruction.set_metadata("invariant.load", module.add_metadata([]))


def on_stack(pointer: Any) -> bool:
    """Whether a pointer is into a local variable, or into a slot."""
    while isinstance(pointer, (ir.GEPInstr, ir.CastInstr)):
        pointer = pointer.operands[0]
    return isinstance(pointer, (ir.AllocaInstr, ir.GlobalVariable))


__all__ = ["CaptureLower", "captured_in", "get_getattr", "make_constant_array", "resolve_module_constants"]
