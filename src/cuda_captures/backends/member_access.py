"""Attributes of captured objects, taken at compile time in numba's intermediate representation.

``config.table`` becomes what the attribute means, a stand-in of its own; so do constant indices of tuples of objects.
What is left, an object as a whole, becomes a named tuple.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from cuda_captures.errors import CaptureTypingError, pointer
from cuda_captures.held_objects import STANDS_IN, HeldObject, holds_object


class MemberAccess:
    """The pass over one function.

    Parameters
    ----------
    front_end
        The compiler's.
    func_ir
        The function, with stand-ins where it names arrays and objects.
    function
        As its author wrote it.
    """

    def __init__(self, front_end: Any, func_ir: Any, function: Any) -> None:
        self.front_end = front_end
        self.func_ir = func_ir
        self.function = function

    def resolve(self) -> None:
        """Replace what can be taken at compile time, and refuse what objects do not allow.

        Raises
        ------
        CaptureTypingError
            Naming the object, the attribute, the line, and what to write instead.
        """
        expression, named = self.front_end.nodes("Expr"), self.front_end.nodes("Global", "FreeVar")
        assignments = self.front_end.assignments(self.func_ir)
        objects = False
        for assign in assignments:
            if isinstance(assign.value, expression):
                objects |= self.take(assign)
            objects |= isinstance(assign.value, named) and holds_object(assign.value.value)
        if not objects:
            return
        self.refuse_binding()
        while self.front_end.drop_unused(self.func_ir, holds_object):
            pass
        for assign in assignments:
            if isinstance(assign.value, named) and holds_object(assign.value.value):
                node = self.front_end.ir.Global(assign.value.name, self.front_end.whole(assign.value.value), assign.loc)
                self.front_end.assign(self.func_ir, assign, node)

    def take(self, assign: Any) -> bool:
        """Let an assignment of an attribute or item of an object assign what that means; whether it did."""
        expr = assign.value
        if expr.op not in TAKING:
            return False
        owner = self.value_of(expr.func if expr.op == "call" else expr.value)
        if isinstance(owner, HeldObject):
            if expr.op == "getattr":
                self.replace(assign, f"{owner.name}.{expr.attr}", owner.member(expr.attr, assign.loc.line))
                return True
            if owner.is_class:
                return False
            where = pointer(self.function, owner.name, assign.loc.line)
            text = CALLED if expr.op == "call" else INDEXED
            raise CaptureTypingError(text.format(name=owner.name, kind=owner.kind, where=where))
        if expr.op != "call" and isinstance(owner, (tuple, ModuleType)):
            item = self.value_of(assign.target)
            if holds_object(item):
                self.replace(assign, getattr(item, "name", assign.target.name), item)
                return True
        return False

    def replace(self, assign: Any, name: str, value: Any) -> None:
        self.front_end.type_stand_ins(value)
        self.front_end.assign(self.func_ir, assign, self.front_end.ir.Global(name, value, assign.loc))

    def refuse_binding(self) -> None:
        """Refuse statements that bind an attribute of an object."""
        for block in self.func_ir.blocks.values():
            for statement in block.body:
                if type(statement).__name__ not in ("SetAttr", "DelAttr"):
                    continue
                owner = self.value_of(statement.target)
                if isinstance(owner, HeldObject):
                    where = pointer(self.function, owner.name, statement.loc.line)
                    text = BINDS.format(name=owner.name, attribute=statement.attr, kind=owner.kind, where=where)
                    raise CaptureTypingError(text)

    def value_of(self, variable: Any) -> Any:
        return self.front_end.value_of(self.func_ir, variable)


TAKING = frozenset({"getattr", "getitem", "static_getitem", "getiter", "exhaust_iter", "call"})


def refuse_of_tuples(inferer: Any, func_ir: Any, function: Any, cause: BaseException) -> None:
    """Say what is wrong, after type inference failed, with an attribute of an object that was passed on.

    Parameters
    ----------
    inferer
        The compiler's type inference.
    func_ir, function
        What it typed.
    cause
        What it raised.

    Raises
    ------
    CaptureTypingError
        Naming the attribute, the line, and what to write instead.
    """
    for statement, variable, attribute, binds in _accesses(func_ir):
        known = inferer.typevars.get(variable)
        kind: Any = getattr(known.getone(), "instance_class", None) if known is not None and known.defined else None
        if kind is None or not getattr(kind, STANDS_IN, False):
            continue
        where = pointer(function, attribute, statement.loc.line)
        if binds:
            text = BINDS_PASSED_ON.format(attribute=attribute, kind=kind.__name__, where=where)
        elif attribute not in kind._fields:
            present = ", ".join(f"`{name}`" for name in kind._fields) or "none"
            text = PASSED_ON.format(attribute=attribute, kind=kind.__name__, where=where, present=present)
        else:
            continue
        raise CaptureTypingError(text) from cause


def _accesses(func_ir: Any) -> Iterator[tuple[Any, str, str, bool]]:
    """Statements that take or bind an attribute, each with the variable, the attribute, and whether it binds."""
    for block in func_ir.blocks.values():
        for statement in block.body:
            expr = getattr(statement, "value", None)
            if type(statement).__name__ == "SetAttr":
                yield statement, statement.target.name, statement.attr, True
            elif type(expr).__name__ == "Expr" and expr is not None and expr.op == "getattr":
                yield statement, expr.value.name, expr.attr, False


BINDS = """\
a kernel binds attribute `{attribute}` of `{name}` (a {kind}), which is captured: attributes are read at launch.
  {where}
Write into an array that the attribute holds (`{name}.{attribute}[...] = value`), or pass an array as an argument."""

BINDS_PASSED_ON = """\
attribute `{attribute}` of a captured {kind}, which was passed on as a whole, is bound: attributes are read at launch.
  {where}
Write into an array that the attribute holds (`captured.{attribute}[...] = value`), or pass an array as an argument."""

INDEXED = """\
`{name}` (a {kind}) is indexed, unpacked or iterated over, and kernels take attributes of captured objects only.
  {where}
Name the attribute (`{name}.attribute`), or capture a tuple instead."""

CALLED = """\
`{name}` (a {kind}) is called, and kernels run no code of captured objects.
  {where}
Write a device function that is given what it needs."""

PASSED_ON = """\
attribute `{attribute}` of a captured {kind}, which was passed on as a whole, is nothing that can be passed on so.
  {where}
What can is arrays, numbers, and tuples and objects of these, here: {present}. Name the attribute where the object is
captured (`captured.{attribute}`), where any kind of value can be used, or compute it outside and capture the result."""
