"""Captured arrays in numba-cuda-mlir's lowering: a memref whose pointer is loaded from a slot."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba_cuda_mlir import types
from numba_cuda_mlir._mlir import ir
from numba_cuda_mlir._mlir.dialects import arith, func, gpu, llvm
from numba_cuda_mlir._mlir.extras import types as mlir_types
from numba_cuda_mlir.lowering_utilities import RangeObject, memref_data_pointer
from numba_cuda_mlir.mlir_lowering import MLIRLower
from numba_cuda_mlir.numba_cuda.intrinsics import grid

from cuda_captures.backends.known_integers import DIVIDING, FLOORED, known_integer, narrow_divisor
from cuda_captures.backends.refusals import refuse_writes
from cuda_captures.errors import CaptureTypingError, pointer
from cuda_captures.session import Captured, current, refuse_constants_over_limit
from cuda_captures.slots import SYMBOL_PREFIX, Slot, definitions
from cuda_captures.writes import captured_in, effects_of

from .effects import DIALECT
from .front_end import FRONT_END, original
from .integers import divided_by, next_in_range, not_negative
from .memrefs import divided, memref_of, word
from .recorded import CONSTANTS, KEY, USES, Recorded, use_of

CONSTANT_SPACE, GLOBAL_SPACE = 4, 1  # NVVM IR specification, address spaces
WRITES = "numba_cuda_mlir.capture_writes"  # attribute of a function: slots that it writes
INVARIANT = "numba_cuda_mlir.capture_invariant"  # attribute of a slot: nobody writes its array while the kernel runs

NAMED = FRONT_END.nodes("Global", "FreeVar", "Const")


class CaptureLower(MLIRLower):  # type: ignore[misc]
    """Lowering with captures; without a session it is upstream's."""

    recorded: Recorded | None = None
    _line: int | None = None  # of the assignment that is lowered

    def lower_to_mlir(self) -> None:
        if current() is not None:
            effects = effects_of(self.func_ir.blocks.values(), self.fndesc.typemap, DIALECT)
            refuse_writes(effects, original(self.func_ir.func_id.func))
            self.recorded = Recorded(effects)
            self._memrefs: dict[Captured, Any] = {}
            self._words: dict[str, list[Any]] = {}
            self._contents: list[Any] = []  # upstream tells constants apart by identity while it lowers
        super().lower_to_mlir()

    def _create_resolved_linker(self) -> Any:
        linker = super()._create_resolved_linker()
        if self.recorded is not None:
            self.finish(self.recorded, linker)
        return linker

    # where a function gets an array from

    def lower_assign(self, assign_inst: Any) -> None:
        value: Any = assign_inst.value
        self._line = assign_inst.loc.line
        if isinstance(value, NAMED) and captured_in(value.value):
            typed = self.get_numba_type(assign_inst.target.name)
            self.store_var(assign_inst.target, self.captured_value(value.value, typed))
        else:
            super().lower_assign(assign_inst)

    def lower_getattr_assign(self, target: Any, value: Any, attr: str) -> None:
        typed = self.get_numba_type(value.name)
        captured = FRONT_END.module_capture(typed.pymod, attr) if isinstance(typed, types.Module) else None
        if captured is not None:
            self.store_var(target, self.captured_value(captured, self.get_numba_type(target.name)))
        elif self.recorded is not None and isinstance(typed, types.Array) and attr == "ndim":
            # Upstream knows it of arguments, by a rewriting that looks for them.
            self.store_var(target, arith.constant(self.get_mlir_type(target), typed.ndim))
        else:
            super().lower_getattr_assign(target, value, attr)

    def lower_getiter_expr_assign(self, target: Any, value: Any) -> None:
        typed = self.get_numba_type(value.name)
        captured = self.recorded.effects.only_captured(value.name) if self.recorded is not None else set()
        if captured and isinstance(typed, types.BaseTuple) and any(isinstance(one, types.BaseTuple) for one in typed):
            name = min(one.name for one in captured).partition("[")[0]
            where = pointer(original(self.func_ir.func_id.func), name, self._line)
            raise CaptureTypingError(ITERATED.format(name=name, where=where))
        super().lower_getiter_expr_assign(target, value)

    def lower_call_expr_assign(self, target: Any, fn: Any, args: Any, kws: Any, expr: Any = None) -> None:
        super().lower_call_expr_assign(target, fn, args, kws, expr)
        if self.recorded is not None and getattr(self.get_numba_type(fn.name), "typing_key", None) is grid:
            counted = self.load_var(target)
            for count in counted if isinstance(counted, tuple) else (counted,):
                not_negative(count)

    def lower_binop_expr_assign(self, target: Any, fn: Any, lhs: Any, rhs: Any) -> None:
        divisor = self.known_divisor(target, lhs, rhs) if fn in DIVIDING and self.recorded is not None else None
        if divisor is None:
            super().lower_binop_expr_assign(target, fn, lhs, rhs)
        else:
            quotient, remainder = divided_by(self.load_var(lhs), self.get_numba_type(lhs.name), divisor)
            self.store_var(target, quotient if fn in FLOORED else remainder)

    def lower_iternext_expr_assign(self, target: Any, value: Any) -> None:
        iterated = self.load_var(value)
        if self.recorded is None or not isinstance(iterated, RangeObject):
            super().lower_iternext_expr_assign(target, value)
        else:
            self.store_var(target, next_in_range(iterated))

    def known_divisor(self, target: Any, dividend: Any, divisor: Any) -> int | None:
        """The divisor of a division that 32 bits hold, if it is known."""
        known = known_integer(types, self.func_ir, divisor, self.get_numba_type(divisor.name), self.only_captured)
        return narrow_divisor(types, self.get_numba_type(dividend.name), self.get_numba_type(target.name), known)

    def only_captured(self, variable: Any) -> set[Captured]:
        """The captured arrays that a variable may be; none if it may be anything else."""
        assert self.recorded is not None
        return self.recorded.effects.only_captured(variable.name)

    def captured_value(self, value: Any, typed: Any) -> Any:
        """The value of a captured array, or of a tuple with one somewhere in it."""
        if isinstance(value, Captured):
            known = self._memrefs.get(value)
            if known is None:
                with ir.InsertionPoint.at_block_begin(self.mlir_funcOp.entry_block):
                    known = self._memrefs[value] = self.memref_of(value)
            return known
        if isinstance(value, tuple):
            kinds = self._tuple_element_types(typed)
            return tuple(self.captured_value(item, kind) for item, kind in zip(value, kinds, strict=True))
        return self.lower_literal_if_needed(value, typed)

    # what it gets

    def memref_of(self, captured: Captured) -> Any:
        """The memref of a captured array; made once per function, in its entry block."""
        if captured.slot is None:
            pointer, shape, strides = self.constant_of(captured)
        else:
            pointer, shape, strides = self.array_in_slot(captured, captured.slot)
        packed = captured.signature.layout == "C" and isinstance(captured.typed.dtype, types.Number)
        return memref_of(self.get_mlir_type(captured.typed), pointer, shape, strides, packed)

    def array_in_slot(self, captured: Captured, slot: Slot) -> tuple[Any, list[Any], list[Any]]:
        """Pointer, shape and strides (in elements) of an array that is found through a slot.

        The pointer is loaded as one to global memory and then cast to a generic one, so that NVVM emits ``ld.global``.
        """
        signature = captured.signature
        words = self.slot_words(captured, slot)
        pointer = llvm.inttoptr(llvm.PointerType.get(GLOBAL_SPACE), words[0])
        pointer = llvm.addrspacecast(llvm.PointerType.get(), pointer)
        unit = self.stride_unit(captured)
        if not slot.general:
            extents, steps = signature.shape or (), signature.strides or ()
            return pointer, list(map(word, extents)), [word(step // unit) for step in steps]
        shape = words[1 : 1 + slot.ndim]
        strides = [divided(stride, unit) for stride in words[1 + slot.ndim :]]
        if signature.layout in ("C", "F") and strides:  # the innermost one is known now
            strides[-1 if signature.layout == "C" else 0] = word(signature.dtype.itemsize // unit)
        return pointer, shape, strides

    def stride_unit(self, captured: Captured) -> int:
        """What strides count, in bytes: the elements of the memref, which for records and strings are bytes."""
        opaque = isinstance(captured.typed.dtype, (types.Record, types.CharSeq, types.UnicodeCharSeq))
        return 1 if opaque else captured.signature.dtype.itemsize

    def slot_words(self, captured: Captured, slot: Slot) -> list[Any]:
        """The words of a slot; loaded once per function, as the insertion point is in its entry block."""
        words = self._words.get(slot.symbol)
        if words is None:
            assert self.recorded is not None
            self.recorded.uses[slot.symbol] = use_of(captured)
            array = ir.Type.parse(f"!llvm.array<{slot.words} x i64>")
            self.declare(slot, array)
            space = llvm.PointerType.get(CONSTANT_SPACE)
            symbol = llvm.mlir_addressof(space, slot.symbol)
            words = [
                llvm.load(
                    res=mlir_types.i64(),
                    addr=llvm.getelementptr(space, symbol, [], [0, index], array, None),
                    alignment=8,
                    invariant=True,
                )
                for index in range(slot.words)
            ]
            self._words[slot.symbol] = words
        return list(words)

    def declare(self, slot: Slot, array: Any) -> None:
        """Declare a slot in the module; its definition joins at the link."""
        block = self.gpu_block
        if any(is_slot(operation) and operation.sym_name.value == slot.symbol for operation in block):
            return
        with ir.InsertionPoint.at_block_begin(block):
            external = ir.Attribute.parse("#llvm.linkage<external>")
            llvm.GlobalOp(array, slot.symbol, external, addr_space=CONSTANT_SPACE, alignment=8)

    def constant_of(self, captured: Captured) -> tuple[Any, list[Any], list[Any]]:
        """Pointer, shape and strides of an array in constant memory, which is asked for; laid out without gaps."""
        array, order = captured.value, "F" if captured.signature.layout == "F" else "C"
        contents = np.ascontiguousarray(array.ravel(order=order))
        self._contents.append(contents)
        try:
            literal = self.lower_array_literal(contents, None)
        except TypeError as error:  # upstream's, for records and strings
            text = NOT_COMPILED_IN.format(name=captured.name, reason=error, where=captured.where())
            raise CaptureTypingError(text) from error
        pointer = memref_data_pointer(literal)
        symbol = self._constant_array_globals[id(contents)]
        assert self.recorded is not None
        self.recorded.constants[symbol] = CONSTANTS[symbol] = captured
        packed = np.empty(array.shape, "u1", order).strides  # type: ignore[call-overload]
        unit = array.itemsize // self.stride_unit(captured)
        return pointer, list(map(word, array.shape)), [word(stride * unit) for stride in packed]

    # the whole function

    @property
    def gpu_block(self) -> Any:
        return self.mlir_gpu_module.bodyRegion.blocks[0]

    def finish(self, recorded: Recorded, linker: Any) -> None:
        """Collect what this function and those cloned into it capture, and define the slots for the link."""
        self.metadata[KEY] = recorded
        written = {one.slot.symbol for one in recorded.effects.written if isinstance(one, Captured) and one.slot}
        for operation in self.gpu_block:
            if isinstance(operation, llvm.GlobalOp):
                symbol = operation.sym_name.value
                if is_slot(operation):
                    recorded.uses[symbol] = USES[symbol]
                elif symbol in CONSTANTS:
                    recorded.constants[symbol] = CONSTANTS[symbol]
            elif isinstance(operation, (func.FuncOp, gpu.GPUFuncOp)) and WRITES in operation.attributes:
                written |= {one.value for one in operation.attributes[WRITES]}
        recorded.written = frozenset(written)
        if written:
            self.mlir_funcOp.attributes[WRITES] = ir.ArrayAttr.get([ir.StringAttr.get(one) for one in sorted(written)])
        if self._is_kernel:
            refuse_constants_over_limit(recorded.constants.values())
            self.mark_invariant(recorded)
        if recorded.uses:
            linker.add_ptx(definitions(use.slot for use in recorded.uses.values()).encode(), "capture_slots")

    def mark_invariant(self, recorded: Recorded) -> None:
        """Mark the slots of NumPy copies, unless the kernel writes one: two names may be bound to one array."""
        on_host = {symbol for symbol, use in recorded.uses.items() if use.signature.memory == "host"}
        if recorded.written & on_host:
            return
        for operation in self.gpu_block:
            if is_slot(operation):
                symbol = operation.sym_name.value
                if symbol in on_host and recorded.uses[symbol].signature.policy in ("live", "snapshot"):
                    operation.attributes[INVARIANT] = ir.UnitAttr.get()


NOT_COMPILED_IN = """\
numba-cuda-mlir does not compile the contents of `{name}` in: {reason}.
  {where}
Leave out `constant(...)`, `captures="constant"` or `cuda.const.array_like(...)`: a captured array then stays in
global memory."""

ITERATED = """\
numba-cuda-mlir does not iterate over `{name}`, a tuple of tuples or of objects.
  {where}
Count its items: `for index in range(len({name})): ... {name}[index] ...`."""


def is_slot(operation: Any) -> bool:
    """Whether an operation declares a slot."""
    return isinstance(operation, llvm.GlobalOp) and operation.sym_name.value.startswith(SYMBOL_PREFIX)
