"""Captured arrays in numba-cuda's front end: after interpretation of the bytecode, and in type inference."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from numba import cuda
from numba.cuda.core import ir
from numba.cuda.core.interpreter import Interpreter
from numba.cuda.core.typeinfer import TypeInferer

from cuda_captures.discovery import CellPlace, GlobalPlace, Place
from cuda_captures.errors import CaptureTypingError, pointer
from cuda_captures.session import Captured, Session, current, holds_array
from cuda_captures.writes import captured_in, effects_of

from .effects import DIALECT
from .stand_ins import TYPING_ERRORS, module_capture, type_stand_ins

upstream_interpret = Interpreter.interpret


def interpret(self: Any, bytecode: Any) -> Any:
    """The front end's translation of bytecode, with stand-ins where a function names an array."""
    func_ir = upstream_interpret(self, bytecode)
    session = current()
    if session is not None:
        stand_in_arrays(func_ir, session)
    return func_ir


def stand_in_arrays(func_ir: Any, session: Session) -> None:
    """Put stand-ins where a function names arrays: globals and free variables, bare and in tuples.

    The nodes keep their stand-ins through every later copy and inlining, which is what ties a use to its place.
    """
    function = func_ir.func_id.func
    for block in func_ir.blocks.values():
        for assign in block.find_insts(ir.assign_types):
            node = assign.value
            if isinstance(node, ir.global_types + ir.freevar_types) and holds_array(node.value):
                node.value = session.stand_in(place_of(function, node), node.value, function)
                type_stand_ins(node.value)
    ask_for_constants(func_ir, session)


def place_of(function: Any, node: Any) -> Place:
    """Where Python looks up the name of a global or free variable of a function."""
    if isinstance(node, ir.freevar_types):
        return CellPlace(function.__closure__[function.__code__.co_freevars.index(node.name)], node.name)
    return GlobalPlace(function.__globals__, node.name)


def ask_for_constants(func_ir: Any, session: Session) -> None:
    """Turn ``cuda.const.array_like(captured)`` into a capture under the policy ``constant``.

    The call is replaced by the constant itself, so that the array needs no slot for it.
    """
    for block in func_ir.blocks.values():
        for assign in block.find_insts(ir.assign_types):
            if isinstance(assign.value, ir.expr_types) and assign.value.op == "call":
                captured = constant_asked_for(func_ir, assign.value)
                if captured is not None:
                    asked = assign.value.args[0]
                    constant = session.capture(captured.place, captured.value, captured.function, "constant")
                    type_stand_ins(constant)
                    assign.value = ir.Global(captured.name, constant, assign.loc)
                    func_ir._definitions[assign.target.name] = [assign.value]
                    forget_unused(func_ir, asked.name)


def forget_unused(func_ir: Any, name: str) -> None:
    """Drop the definition of a variable that nothing uses any more, and what was there only for it.

    A captured array that is asked for as a constant alone then needs neither slot nor device copy.
    """
    for block in func_ir.blocks.values():
        if any(name in {used.name for used in uses(statement)} for statement in block.body):
            return
    for block in func_ir.blocks.values():
        for statement in block.find_insts(ir.assign_types):
            if statement.target.name == name:
                block.remove(statement)
                func_ir._definitions.pop(name, None)
                for used in uses(statement):
                    forget_unused(func_ir, used.name)
                return


def uses(statement: Any) -> list[Any]:
    """The variables that a statement reads."""
    if isinstance(statement, ir.assign_types):
        value = statement.value
        return [value] if isinstance(value, ir.var_types) else list(getattr(value, "list_vars", list)())
    return list(statement.list_vars())


def constant_asked_for(func_ir: Any, call: Any) -> Captured | None:
    """The captured array that a call asks to be constant, if the call is ``cuda.const.array_like`` of one."""
    if len(call.args) != 1 or call.kws or value_of(func_ir, call.func) is not cuda.const.array_like:
        return None
    captured = value_of(func_ir, call.args[0])
    return captured if isinstance(captured, Captured) else None


def value_of(func_ir: Any, variable: Any) -> Any:
    """What a variable holds, as far as its definitions tell: globals, module attributes, items of tuples; or None."""
    definitions = func_ir._definitions.get(variable.name, [])
    if len(definitions) != 1:
        return None
    node = definitions[0]
    if isinstance(node, ir.global_types + ir.freevar_types + ir.const_types):
        return node.value
    if isinstance(node, ir.var_types):
        return value_of(func_ir, node)
    if isinstance(node, ir.expr_types):
        if node.op == "getattr":
            owner = value_of(func_ir, node.value)
            if isinstance(owner, ModuleType):
                captured = module_capture(owner, node.attr)
                return getattr(owner, node.attr, None) if captured is None else captured
            return getattr(owner, node.attr, None) if isinstance(owner, (tuple, type)) else None
        if node.op in ("getitem", "static_getitem"):
            owner = value_of(func_ir, node.value)
            index = node.index if isinstance(node.index, int) else None
            if node.op == "getitem":
                index = value_of(func_ir, node.index)
            if isinstance(owner, tuple) and isinstance(index, int) and -len(owner) <= index < len(owner):
                return owner[index]
    return None


class CaptureTypeInferer(TypeInferer):  # type: ignore[misc]
    """Type inference that leaves captured arrays writable where the rule says so.

    Upstream types NumPy arrays, and every array inside a tuple, as read-only.
    """

    def typeof_global(self, inst: Any, target: Any, gvar: Any) -> None:
        if not captured_in(gvar.value):
            if current() is not None and isinstance(gvar.value, (list, set, dict)):  # upstream cannot lower these
                raise CaptureTypingError(self.container(gvar))
            super().typeof_global(inst, target, gvar)
            return
        typed = self.resolve_value_type(inst, gvar.value)
        if self.typevars[target.name].locked:
            self.typevars[target.name].add_type(typed, loc=inst.loc)
        else:
            self.lock_type(target.name, typed, loc=inst.loc)
        self.assumed_immutables.add(inst)

    def container(self, gvar: Any) -> str:
        where = pointer(self.func_id.func, gvar.name)
        return CONTAINER.format(name=gvar.name, kind=type(gvar.value).__name__, where=where)

    def propagate(self, raise_errors: bool = True) -> Any:
        try:
            return super().propagate(raise_errors=raise_errors)
        except TYPING_ERRORS as error:
            if current() is not None:
                refuse_writes(effects_of(self.func_ir.blocks.values(), None, DIALECT), self.func_id.func, error)
            raise


def refuse_writes(effects: Any, function: Any, cause: BaseException | None = None) -> None:
    """Refuse a function that for certain writes a captured array that may not be written.

    Raises
    ------
    CaptureTypingError
        Naming the array, the line of the write, why it may not be written, and the ways out.
    """
    for captured, statement in effects.certainly.items():
        if isinstance(captured, Captured) and captured.signature.readonly:
            reason, cure = READONLY[captured.policy if captured.policy in READONLY else "flags"]
            where = pointer(function, captured.name, statement.loc.line)
            raise CaptureTypingError(
                WRITES.format(name=captured.name, where=where, reason=reason, cure=cure.format(name=captured.name))
            ) from cause


CONTAINER = """\
`{name}` is a {kind}, and kernels cannot capture a {kind}: its items are Python objects that may change one by one.
  {where}
Make it an array, which is captured by reference: `{name} = np.array({name})`."""

WRITES = """\
a kernel writes `{name}`, {reason}.
  {where}
{cure}"""

READONLY = {
    "flags": (
        "which is not writeable (its flags.writeable is False)",
        "Capture a writeable array: `{name} = {name}.copy()`, or `{name}.flags.writeable = True` if it owns its data.",
    ),
    "snapshot": (
        "which is captured under the policy `snapshot`: kernels read a copy, and would write into that",
        "Write `cuda_captures.live({name})`, so that what kernels write comes back to it.",
    ),
    "constant": (
        "which is captured under the policy `constant`: constant memory cannot be written",
        "Write `cuda_captures.live({name})`, so that what kernels write comes back to it.",
    ),
}
