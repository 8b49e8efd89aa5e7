"""Captured arrays in numba's front end, which both compilers have a copy of.

After interpretation of the bytecode, stand-ins replace arrays in the nodes of numba's intermediate representation;
type inference leaves them writable where the rule says so.  A :class:`FrontEnd` tells how one compiler spells it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from cuda_captures.backends.member_access import MemberAccess, refuse_of_tuples
from cuda_captures.backends.refusals import (
    UNTYPED,
    note_place,
    refuse_container,
    refuse_object,
    refuse_undefined,
    refuse_writes,
    refuse_writes_of_callees,
)
from cuda_captures.discovery import AttributePlace, CellPlace, GlobalPlace, Place
from cuda_captures.errors import CaptureTypingError
from cuda_captures.held_objects import HeldObject, holds_object, whole
from cuda_captures.members import has_members, why_no_member
from cuda_captures.session import Captured, Session, current, may_hold_array
from cuda_captures.writes import Dialect, captured_in, effects_of


def as_written(function: Any) -> Any:
    """The function that a compiled function was made from: itself, unless a compiler rewrites source."""
    return function


def nothing_known(value: Any) -> bool:
    """A compiler without types for objects of the user's."""
    return False


def nothing_refused(captured: Captured) -> None:
    """A compiler that takes every array that it can type."""


@dataclass(frozen=True)
class FrontEnd:
    """One compiler's copy of numba's front end.

    Parameters
    ----------
    ir
        The module of the intermediate representation.
    typeof
        The compiler's type of an array that is named from outside.
    array_type
        The compiler's class ``types.Array``.
    errors
        What type inference raises.
    array_like
        ``cuda.const.array_like``.
    refuse
        Raises for arrays that the compiler types and yet cannot read.
    knows
        Whether the compiler has a type of its own for an object, registered by its author.
    original
        The function as its author wrote it, which has the namespace and the cells that a launch looks at.
    """

    ir: ModuleType
    typeof: Callable[[Any], Any]
    array_type: Callable[..., Any]
    errors: tuple[type[BaseException], ...]
    array_like: Any
    refuse: Callable[[Captured], None] = nothing_refused
    knows: Callable[[Any], bool] = nothing_known
    original: Callable[[Any], Any] = as_written

    def nodes(self, *names: str) -> Any:
        """The classes of some kinds of node, as ``isinstance`` takes them; numba-cuda's come with numba's own."""
        return tuple(
            kind
            for name in names
            for kind in getattr(self.ir, f"{name.lower()}_types", None) or (getattr(self.ir, name),)
        )

    def stand_in_arrays(self, func_ir: Any, session: Session) -> None:
        """Put stand-ins where a function names arrays: globals and free variables, bare and in tuples.

        The nodes keep their stand-ins through every later copy and inlining, which is what ties a use to its place.
        """
        function = self.original(func_ir.func_id.func)
        session.seen.saw(function)
        named = self.nodes("Global", "FreeVar")
        for assign in self.assignments(func_ir):
            node: Any = assign.value
            if (
                isinstance(node, named)
                and may_hold_array(node.value)
                and not self.left_alone(node.name, node.value, session)
            ):
                place = place_of(function, node.name)
                if place is not None:
                    node.value = session.stand_in(place, node.value, function)
                    self.type_stand_ins(node.value)
        MemberAccess(self, func_ir, function).resolve()
        self.ask_for_constants(func_ir, session)

    def left_alone(self, name: str, value: Any, session: Session) -> bool:
        """Whether the compiler has a type of its own for an object, or for one in a tuple; noted in the session."""
        if isinstance(value, tuple):
            return any(self.left_alone(name, item, session) for item in value)
        if not has_members(value) or not self.knows(value):
            return False
        session.unseen.append(f"`{name}` is of a type that was registered with the compiler, which the key cannot see")
        return True

    def type_stand_ins(self, value: Any) -> None:
        """Give stand-ins the compiler's type of their array.

        Raises
        ------
        CaptureTypingError
            With the compiler's message, and the variable's name, for an array that the compiler cannot type.
        """
        for captured in captured_in(value):
            if captured.typed is None:
                captured.typed = self.type_of(captured)

    def type_of(self, captured: Captured) -> Any:
        """The type of a captured array: as an argument's, but read-only if it may not be written."""
        failures: tuple[type[BaseException], ...] = (ValueError, *self.errors)
        try:
            typed = self.typeof(captured.value)
        except failures as error:
            raise CaptureTypingError(
                UNTYPED.format(name=captured.name, where=captured.where(), reason=str(error).strip())
            ) from error
        self.refuse(captured)
        form = captured.signature  # which knows alignment too; upstream takes every array for aligned
        return self.array_type(typed.dtype, typed.ndim, form.layout, readonly=form.readonly, aligned=form.aligned)

    def module_capture(self, module: Any, name: str) -> Any:
        """The stand-in for an array that is an attribute of a module, or for what holds one; None for anything else.

        As the compiler takes it as a whole: a named tuple for an object.
        """
        held = self.held_in_module(module, name)
        made = self.whole(held)
        return None if made is vars(module).get(name) else made

    def held_in_module(self, module: Any, name: str) -> Any:
        """The same, with objects whose attributes can still be taken one by one."""
        session = current()
        value = vars(module).get(name)
        if session is None or not may_hold_array(value) or self.left_alone(name, value, session):
            return None
        stand_in = session.stand_in(AttributePlace(module, name), value, session.discovery.function)
        self.type_stand_ins(stand_in)
        return stand_in

    def whole(self, stand_in: Any) -> Any:
        """A stand-in without objects: named tuples for them."""
        if not holds_object(stand_in):
            return stand_in
        made = whole(stand_in, self.takes)
        self.type_stand_ins(made)
        return made

    def takes(self, item: Any) -> bool:
        """Whether the compiler takes something as an item of a tuple that stands for an object."""
        if isinstance(item, tuple):
            return all(map(self.takes, item))
        return isinstance(
            item, (Captured, bool, int, float, complex, np.number, np.bool_, np.datetime64, np.timedelta64)
        )

    def ask_for_constants(self, func_ir: Any, session: Session) -> None:
        """Turn ``cuda.const.array_like(captured)`` into a capture under the policy ``constant``.

        The call is replaced by the constant itself, so that the array needs no slot for it.
        """
        asked = False
        for assign in self.assignments(func_ir):
            if isinstance(assign.value, self.nodes("Expr")) and assign.value.op == "call":
                captured = self.constant_asked_for(func_ir, assign.value)
                if captured is not None:
                    constant = session.capture(captured.place, captured.value, captured.function, "constant")
                    self.type_stand_ins(constant)
                    self.assign(func_ir, assign, self.ir.Global(captured.name, constant, assign.loc))
                    asked = True
        while asked:
            asked = self.drop_unused(func_ir)

    def assignments(self, func_ir: Any) -> list[Any]:
        """The assignments of a function."""
        kind = self.nodes("Assign")
        return [assign for block in func_ir.blocks.values() for assign in block.find_insts(kind)]

    def assign(self, func_ir: Any, assign: Any, value: Any) -> None:
        """Let an assignment assign something else."""
        assign.value = value
        func_ir._definitions[assign.target.name] = [value]

    def drop_unused(self, func_ir: Any, dropping: Callable[[Any], Any] = captured_in) -> bool:
        """Put zeros where a capture is named and nothing uses what is named; whether there was any."""
        used = set()
        for block in func_ir.blocks.values():
            for statement in block.body:
                target = statement.target.name if isinstance(statement, self.nodes("Assign")) else None
                used |= {variable.name for variable in statement.list_vars() if variable.name != target}
        dropped = False
        for assign in self.assignments(func_ir):
            if assign.target.name not in used and dropping(self.value_of(func_ir, assign.target)):
                self.assign(func_ir, assign, self.ir.Const(0, assign.loc))
                dropped = True
        return dropped

    def constant_asked_for(self, func_ir: Any, call: Any) -> Captured | None:
        """The captured array that a call asks to be constant, if the call is ``cuda.const.array_like`` of one."""
        if len(call.args) != 1 or call.kws or self.value_of(func_ir, call.func) is not self.array_like:
            return None
        captured = self.value_of(func_ir, call.args[0])
        return captured if isinstance(captured, Captured) else None

    def value_of(self, func_ir: Any, variable: Any) -> Any:
        """What a variable holds, as far as its definitions tell: globals, attributes of modules, items of tuples."""
        definitions = func_ir._definitions.get(variable.name, [])
        if len(definitions) != 1:
            return None
        node: Any = definitions[0]
        if isinstance(node, self.nodes("Global", "FreeVar", "Const")):
            return node.value
        if isinstance(node, self.nodes("Var")):
            return self.value_of(func_ir, node)
        if not isinstance(node, self.nodes("Expr")):
            return None
        if node.op == "getattr":
            return self.attribute_of(self.value_of(func_ir, node.value), node.attr)
        if node.op in ("getitem", "static_getitem"):
            owner = self.value_of(func_ir, node.value)
            index = node.index if isinstance(node.index, int) else None
            if node.op == "getitem":
                index = self.value_of(func_ir, node.index)
            if isinstance(owner, tuple) and isinstance(index, int) and -len(owner) <= index < len(owner):
                return owner[index]
        return None

    def attribute_of(self, owner: Any, name: str) -> Any:
        """An attribute of a module, class or tuple; of a module's arrays the stand-in."""
        if isinstance(owner, HeldObject):
            return None if why_no_member(owner.value, name) else owner.member(name)
        if isinstance(owner, ModuleType):
            captured = self.held_in_module(owner, name)
            return getattr(owner, name, None) if captured is None else captured
        return getattr(owner, name, None) if isinstance(owner, (tuple, type)) else None


def place_of(function: Any, name: str) -> Place | None:
    """Where Python looks up a name that a function gets from outside; None if it is in neither place.

    A compiler that rewrites source may turn a closure's variable into a global one, so the cells are asked first.
    """
    if name in function.__code__.co_freevars:
        return CellPlace(function.__closure__[function.__code__.co_freevars.index(name)], name)
    place = GlobalPlace(function.__globals__, name)
    return place if may_hold_array(place.peek()) else None


def is_put_in(name: str, made: Any, written: Any) -> bool:
    """Whether a compiler that rewrote a function's source put a name in, for a value that it evaluated itself."""
    if made is written or name in written.__code__.co_freevars:
        return False
    return name in made.__globals__ and name not in written.__globals__


class CaptureInference:
    """Type inference that leaves captured arrays writable where the rule says so; to be put before a compiler's own.

    Upstream types NumPy arrays, and every array inside a tuple, as read-only.
    """

    dialect: Dialect
    front_end: FrontEnd

    def typeof_global(self: Any, inst: Any, target: Any, gvar: Any) -> None:
        function = self.front_end.original(self.func_id.func)
        if not is_put_in(gvar.name, self.func_id.func, function):
            refuse_container(gvar, function)
        if not captured_in(gvar.value):
            try:
                super().typeof_global(inst, target, gvar)  # type: ignore[misc]
            except self.front_end.errors as error:
                refuse_undefined(gvar, function, error)
                refuse_object(gvar, function, error)
                raise
            return
        typed = self.resolve_value_type(inst, gvar.value)
        if self.typevars[target.name].locked:
            self.typevars[target.name].add_type(typed, loc=inst.loc)
        else:
            self.lock_type(target.name, typed, loc=inst.loc)
        self.assumed_immutables.add(inst)

    def propagate(self: Any, raise_errors: bool = True) -> Any:
        try:
            return super().propagate(raise_errors=raise_errors)  # type: ignore[misc]
        except self.front_end.errors as error:
            if current() is not None:
                effects = effects_of(self.func_ir.blocks.values(), None, self.dialect)
                function = self.front_end.original(self.func_id.func)
                refuse_writes(effects, function, error)
                refuse_writes_of_callees(self.front_end, self.func_ir, effects, function, error)
                refuse_of_tuples(self, self.func_ir, function, error)
                note_place(error, function)
            raise
