"""Where Python looks a name up: places, which can be read again at each launch.

A place holds strongly what it needs to be read (a namespace, a cell, a module) and nothing that it leads to.  Places
are equal by identity of that, so two functions of one module that name one global have the same place.  They never
change and may be used from any thread.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Hashable, Iterator
from types import CellType, FunctionType, ModuleType
from typing import Any, Final

from cuda_captures.members import frozen_fields


class _Missing:
    """What a place holds that holds nothing: a deleted global, an emptied cell."""

    def __repr__(self) -> str:
        return "<missing>"


MISSING: Final = _Missing()

Step = tuple[Any, ...]
Recipe = tuple[Step, ...]


class Place:
    """Where Python looks a name up.

    Attributes
    ----------
    key
        Equal for equal places; holds addresses, so it is good for one process and while the place lives.
    name
        The captured name, as one would write it.
    step
        What leads here from the function, module or tuple above; a recipe is a tuple of steps.
    """

    __slots__ = ("key", "name", "step")

    key: Hashable
    name: str
    step: Step

    followed = True  # whether a launch looks again

    @property
    def root(self) -> Place:
        """The place that a launch looks at: the tuple's or frozen object's for what is in it, else the place itself."""
        return self

    @property
    def parents(self) -> Iterator[Place]:
        """The places of the tuples and objects that this one is in, outwards."""
        place = self
        while isinstance(place, (ItemPlace, MemberPlace)):
            place = place.parent
            yield place

    def read(self) -> Any:
        """What the name means now.

        Raises
        ------
        NameError
            As Python would, with its text, where the name means nothing.
        AttributeError
            For an attribute that a module does not have.
        """
        raise NotImplementedError

    def peek(self) -> Any:
        """What the name means now, or ``MISSING``."""
        try:
            return self.read()
        except (NameError, AttributeError, TypeError, IndexError, ImportError):
            return MISSING

    def item(self, index: int) -> ItemPlace:
        """The place of an item of the tuple that is here."""
        fields = getattr(type(self.peek()), "_fields", ())
        return ItemPlace(self, index, fields[index] if index < len(fields) else None)

    def member(self, name: str) -> MemberPlace:
        """The place of an attribute of the object that is here."""
        return MemberPlace(self, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class GlobalPlace(Place):
    """A global name: in a namespace, or else among its builtins."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: dict[str, Any], name: str) -> None:
        self.namespace = namespace
        self.name = name
        self.key = ("global", id(namespace), name)
        self.step = ("global", name)

    @property
    def builtins(self) -> dict[str, Any]:
        """Where Python looks next."""
        found = self.namespace.get("__builtins__", builtins)
        return vars(found) if isinstance(found, ModuleType) else found

    def read(self) -> Any:
        value = self.peek()
        if value is MISSING:
            raise NameError(f"name {self.name!r} is not defined", name=self.name)
        return value

    def peek(self) -> Any:
        value = self.namespace.get(self.name, MISSING)
        return self.builtins.get(self.name, MISSING) if value is MISSING else value


class CellPlace(Place):
    """A closure cell."""

    __slots__ = ("cell",)

    def __init__(self, cell: CellType, name: str) -> None:
        self.cell = cell
        self.name = name
        self.key = ("cell", id(cell))
        self.step = ("cell", name)

    def read(self) -> Any:
        try:
            return self.cell.cell_contents
        except ValueError:
            raise NameError(EMPTY_CELL.format(name=self.name), name=self.name) from None

    def peek(self) -> Any:
        try:
            return self.cell.cell_contents
        except ValueError:
            return MISSING


class AttributePlace(Place):
    """An attribute of a module."""

    __slots__ = ("module",)

    def __init__(self, module: ModuleType, name: str) -> None:
        self.module = module
        self.name = name
        self.key = ("attribute", id(module), name)
        self.step = ("attribute", name)

    def read(self) -> Any:
        return getattr(self.module, self.name)

    def peek(self) -> Any:
        return getattr(self.module, self.name, MISSING)


class ModulePlace(Place):
    """A module that a function imports in its body."""

    __slots__ = ()

    followed = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.key = ("module", name)
        self.step = ("module", name)

    def read(self) -> Any:
        try:
            return sys.modules[self.name]
        except KeyError:
            raise ModuleNotFoundError(f"No module named {self.name!r}", name=self.name) from None

    def peek(self) -> Any:
        return sys.modules.get(self.name, MISSING)


class DefaultPlace(Place):
    """The default value of a parameter."""

    __slots__ = ("function", "which")

    followed = False

    def __init__(self, function: FunctionType, which: int | str, name: str) -> None:
        self.function = function
        self.which = which
        self.name = name
        self.key = ("default", id(function), which)
        self.step = ("default", which, name)

    def read(self) -> Any:
        value = self.peek()
        if value is MISSING:
            raise NameError(f"parameter {self.name!r} has no default", name=self.name)
        return value

    def peek(self) -> Any:
        if isinstance(self.which, str):
            return (self.function.__kwdefaults__ or {}).get(self.which, MISSING)
        defaults = self.function.__defaults__ or ()
        return defaults[self.which] if self.which < len(defaults) else MISSING


class ItemPlace(Place):
    """An item of a tuple or named tuple."""

    __slots__ = ("field", "followed", "index", "parent")

    def __init__(self, parent: Place, index: int, field: str | None = None) -> None:
        self.parent = parent
        self.index = index
        self.field = field
        self.name = f"{parent.name}[{index}]" if field is None else f"{parent.name}.{field}"
        self.key = (*parent.key, index)  # type: ignore[misc]
        self.followed = parent.followed
        self.step = ("item", index)

    @property
    def root(self) -> Place:
        return self.parent.root

    def read(self) -> Any:
        items = self.parent.read()
        if not isinstance(items, tuple) or self.index >= len(items):
            raise NameError(f"name {self.parent.name!r} is no tuple with an item {self.index} now", name=self.name)
        return items[self.index]


class MemberPlace(Place):
    """An attribute of an object: of a dataclass instance, a simple namespace or a class.

    A field of a frozen dataclass stays what it is for as long as its owner is the same; any other attribute can be
    bound anew, so a launch looks at it itself.
    """

    __slots__ = ("attribute", "followed", "parent", "stays")

    def __init__(self, parent: Place, attribute: str) -> None:
        self.parent = parent
        self.attribute = attribute
        self.name = f"{parent.name}.{attribute}"
        self.key = (*parent.key, f".{attribute}")  # type: ignore[misc]
        self.followed = parent.followed
        self.stays = attribute in frozen_fields(parent.peek())
        self.step = ("member", attribute)

    @property
    def root(self) -> Place:
        return self.parent.root if self.stays else self

    def read(self) -> Any:
        return getattr(self.parent.read(), self.attribute)


EMPTY_CELL = "cannot access free variable '{name}' where it is not associated with a value in enclosing scope"


def function_of(value: Any) -> FunctionType | None:
    """The Python function of a dispatcher, or a function itself; None for anything else.

    A dispatcher is known by its ``py_func``: no compiler is imported for it.
    """
    if type(value) is FunctionType:
        return value
    if isinstance(value, (type, ModuleType)):
        return None
    try:
        function = getattr(value, "py_func", None)
    except Exception:  # some object's own __getattr__; then it is no dispatcher
        return None
    return function if type(function) is FunctionType else None
