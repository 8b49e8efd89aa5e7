"""What a function sees: a static walk over everything that a kernel names.

The walk reads the bytecode and resolves names as Python does (local, closure, global, builtin), through attributes of
modules, tuples, named tuples, defaults, and every device function and plain function reached.  Nothing is executed
but the reading of names.  A :class:`Discovery` belongs to who asked for it; the walk keeps nothing between calls but
what :mod:`~cuda_captures.names` knows of code objects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Literal

import numpy as np

from cuda_captures.libraries import library_object, library_of
from cuda_captures.names import Chain, names_of
from cuda_captures.places import (
    MISSING,
    AttributePlace,
    CellPlace,
    DefaultPlace,
    GlobalPlace,
    ItemPlace,
    ModulePlace,
    Place,
    Recipe,
    follow,
    function_of,
)
from cuda_captures.values import PLAIN, Unidentifiable, text_of, why_not

__all__ = [
    "MISSING",
    "AttributePlace",
    "Capture",
    "CellPlace",
    "DefaultPlace",
    "Discovery",
    "GlobalPlace",
    "ItemPlace",
    "ModulePlace",
    "Place",
    "Reached",
    "discover",
    "follow",
    "is_device_array",
]

Kind = Literal["array", "value", "tuple", "function", "module", "library", "missing", "unknown"]


@dataclass(eq=False, slots=True)
class Capture:
    """One name that a function reached by the walk gets from outside.

    Parameters
    ----------
    place
        Where Python looks it up.
    path
        How the kernel reaches it, for people: ``("device function `scatter`", "closure `sigma`", "[0]")``.
    recipe
        The same for :func:`follow`: steps from the kernel's function, good in another process.
    value
        What it means now; ``MISSING`` for a deleted global or an emptied cell.
    kind
        ``"array"``; ``"value"``: one that the key spells out; ``"tuple"``: one that holds arrays, functions or what
        the key cannot spell, whose items are captures of their own; ``"function"``: walked, or of a library if
        ``text`` is set; ``"module"``: a user's; ``"library"``: identified by name and version; ``"missing"``;
        ``"unknown"``.
    function
        The Python function that names it.
    text
        What the key has of it, for ``"value"`` and ``"library"``.
    why
        For ``"unknown"``: the reason.
    """

    place: Place
    path: tuple[str, ...]
    recipe: Recipe
    value: Any
    kind: Kind
    function: FunctionType
    text: str = ""
    why: str = ""


@dataclass(eq=False, slots=True)
class Reached:
    """One function that the walk came to.

    Parameters
    ----------
    function
        The Python function.
    dispatcher
        The compiler's object around it, if it has one.
    number
        Its place in the order of the walk; the kernel is 0.
    path, recipe
        How the kernel reaches it first.
    names
        What it names: a label such as ``"global table"`` and the number of the capture in ``Discovery.captures``.
    """

    function: FunctionType
    dispatcher: Any
    number: int
    path: tuple[str, ...]
    recipe: Recipe
    names: list[tuple[str, int]] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Discovery:
    """Everything that a function sees.

    Parameters
    ----------
    function
        The kernel's Python function.
    captures
        Every name once per place, in the order of the walk, which is the same for functions of equal code.
    reached
        The functions, the kernel first.
    by_place
        Captures by the keys of their places.
    """

    function: FunctionType
    captures: list[Capture] = field(default_factory=list)
    reached: list[Reached] = field(default_factory=list)
    by_place: dict[Hashable, Capture] = field(default_factory=dict)

    @property
    def functions(self) -> list[FunctionType]:
        """The Python functions reached, the kernel first."""
        return [one.function for one in self.reached]

    @property
    def arrays(self) -> list[Capture]:
        """Captured arrays."""
        return [capture for capture in self.captures if capture.kind == "array"]

    @property
    def unknown(self) -> list[Capture]:
        """What cannot be identified; code that depends on it can be neither shared nor cached."""
        return [capture for capture in self.captures if capture.kind == "unknown"]

    def path_of(self, place: Place) -> tuple[str, ...]:
        """How the kernel reaches a place; empty if it does not."""
        capture = self.by_place.get(place.key)
        return capture.path if capture is not None else ()


def discover(function: Any) -> Discovery:
    """Find out what a kernel or function sees.

    Parameters
    ----------
    function
        A Python function, or a dispatcher (an object whose ``py_func`` is one).

    Raises
    ------
    TypeError
        For anything else.
    """
    python = function_of(function)
    if python is None:
        raise TypeError(f"discover() takes a Python function or a kernel, not {type(function).__qualname__}")
    walk = _Walk(Discovery(python))
    walk.reach(python, None if function is python else function, (), ())
    walk.run()
    return walk.found


def is_device_array(value: object) -> bool:
    """Whether a value is an array in device memory: one with ``__cuda_array_interface__``.

    A tensor of a library that can have either has it only where it is on a device.
    """
    return not isinstance(value, (type, ModuleType)) and hasattr(value, "__cuda_array_interface__")


class _Walk:
    """One walk in progress; belongs to one call of :func:`discover`."""

    def __init__(self, found: Discovery) -> None:
        self.found = found
        self.queue: deque[Reached] = deque()
        self.numbers: dict[tuple[int, int], Reached] = {}
        self.positions: dict[Hashable, int] = {}
        self.stored: dict[int, tuple[Capture, Reached, str]] = {}

    def run(self) -> None:
        more = True
        while more:
            while self.queue:
                self.visit(self.queue.popleft())
            more = self.visit_stored_modules()

    def reach(self, function: FunctionType, dispatcher: Any, path: tuple[str, ...], recipe: Recipe) -> None:
        """Note a function, to be visited once."""
        key = (id(function), id(dispatcher))
        if key not in self.numbers:
            reached = Reached(function, dispatcher, len(self.numbers), path, recipe)
            self.numbers[key] = reached
            self.found.reached.append(reached)
            self.queue.append(reached)

    def visit(self, reached: Reached) -> None:
        """Capture what one function names."""
        function = reached.function
        code, namespace = function.__code__, function.__globals__
        names = names_of(code)
        for name, use in names.cells.items():
            assert function.__closure__ is not None
            cell = function.__closure__[code.co_freevars.index(name)]
            self.name(reached, CellPlace(cell, name), f"closure `{name}`", f"closure {name}", use.chains)
        for name, use in names.globals.items():
            self.name(reached, GlobalPlace(namespace, name), f"global `{name}`", f"global {name}", use.chains)
        for (level, name), use in names.imports.items():
            absolute = _absolute(namespace, level, name)
            self.name(reached, ModulePlace(absolute), f"import `{absolute}`", f"import {absolute}", use.chains)
        for place, label in _defaults(function, code):
            self.name(reached, place, f"default of `{place.name}`", label, {(): None})

    def name(self, reached: Reached, place: Place, step: str, label: str, chains: dict[Chain, None]) -> None:
        """Capture one name of a function, and the attributes that the function takes of it at once."""
        path = (*reached.path, step)
        capture = self.capture(reached, place, path, reached.recipe, label)
        if isinstance(capture.value, ModuleType):
            for chain in chains:
                self.attributes(reached, capture, label, chain)

    def capture(
        self, reached: Reached, place: Place, path: tuple[str, ...], recipe: Recipe, label: str, known: Any = MISSING
    ) -> Capture:
        """The capture of a place; what is new is classified, and its items captured."""
        key = place.key
        number = self.positions.get(key)
        if number is not None:
            reached.names.append((label, number))
            return self.found.captures[number]
        value = place.peek() if known is MISSING else known
        kind, text, why = _classify(value, place)
        capture = Capture(place, path, (*recipe, place.step), value, kind, reached.function, text, why)
        number = self.positions[key] = len(self.found.captures)
        self.found.captures.append(capture)
        self.found.by_place[key] = capture
        reached.names.append((label, number))
        if kind == "function":
            self.function(capture)
        elif kind == "tuple":
            self.items(reached, capture, label)
        return capture

    def function(self, capture: Capture) -> None:
        function = function_of(capture.value)
        assert function is not None
        plain = function is capture.value
        path = capture.path
        if capture.place.root is capture.place:  # say what it is; an item of a tuple keeps its index
            kind = "function" if plain else "device function"
            path = (*path[:-1], f"{kind} `{capture.place.name}`")
        self.reach(function, None if plain else capture.value, path, capture.recipe)

    def items(self, reached: Reached, capture: Capture, label: str) -> None:
        """Capture the items of a tuple."""
        fields = getattr(type(capture.value), "_fields", ())
        for index, item in enumerate(capture.value):
            field_name = fields[index] if index < len(fields) else None
            place = ItemPlace(capture.place, index, field_name)
            step = f"[{index}]" if field_name is None else f".{field_name}"
            path = (*capture.path, step)
            inner = self.capture(reached, place, path, capture.recipe, label + step, item)
            if isinstance(item, ModuleType):
                self.attributes(reached, inner, label + step, ())

    def attributes(self, reached: Reached, capture: Capture, label: str, chain: Chain) -> None:
        """Capture attributes of a module along a chain; a module at its end is stored or passed on."""
        while chain and isinstance(capture.value, ModuleType):
            capture, label = self.attribute(reached, capture, label, chain[0])
            chain = chain[1:]
        if isinstance(capture.value, ModuleType):
            self.stored.setdefault(id(capture.value), (capture, reached, label))

    def attribute(self, reached: Reached, capture: Capture, label: str, name: str) -> tuple[Capture, str]:
        place = AttributePlace(capture.value, name)
        label = f"{label}.{name}"
        path = (*capture.path[:-1], f"module `{capture.place.name}`", f"attribute `{name}`")
        return self.capture(reached, place, path, capture.recipe, label), label

    def visit_stored_modules(self) -> bool:
        """Capture of stored modules every attribute that any function reached could mean; False if none was new.

        Which function gets a module that is passed on is not followed: names that all code together uses cover it.
        """
        if not self.stored:
            return False
        before = len(self.found.captures)
        wanted: set[str] = set()
        for one in self.found.reached:
            wanted |= names_of(one.function.__code__).attributes
        for capture in self.found.captures:
            if type(capture.value) is str and capture.value.isidentifier():
                wanted.add(capture.value)
        for capture, reached, label in list(self.stored.values()):
            for name in sorted(wanted):
                place = AttributePlace(capture.value, name)
                if place.key not in self.positions and place.peek() is not MISSING:
                    self.attributes(reached, capture, label, (name,))
        return len(self.found.captures) > before


def _absolute(namespace: dict[str, Any], level: int, name: str) -> str:
    """The absolute name of an imported module."""
    if level == 0:
        return name
    package = namespace.get("__package__") or namespace.get("__name__", "").rpartition(".")[0]
    base = package.split(".")
    return ".".join([*base[: len(base) - level + 1], *([name] if name else [])])


def _defaults(function: FunctionType, code: CodeType) -> Iterator[tuple[DefaultPlace, str]]:
    defaults = function.__defaults__
    if defaults:
        first = code.co_argcount - len(defaults)
        for index in range(len(defaults)):
            name = code.co_varnames[first + index] if first + index >= 0 else f"default {index}"
            yield DefaultPlace(function, index, name), f"default {name}"
    if function.__kwdefaults__:
        for name in sorted(function.__kwdefaults__):
            yield DefaultPlace(function, name, name), f"default {name}"


def _classify(value: Any, place: Place) -> tuple[Kind, str, str]:
    """Kind of what a name means, with its text or the reason why it has none."""
    kind = type(value)
    if kind in PLAIN:
        return "value", text_of(value), ""
    if value is MISSING:
        return "missing", "", ""
    if isinstance(value, np.ndarray):
        return _array(place)
    if isinstance(value, ModuleType):
        library = library_of(value)
        return ("library", f"module {value.__name__}, {library}", "") if library else ("module", "", "")
    if kind is FunctionType:
        library = library_object(value, place.name)
        return ("library", library, "") if library else ("function", "", "")
    if isinstance(value, tuple) and not _spelt_out(value):
        return "tuple", "", ""
    if isinstance(value, (BuiltinFunctionType, MethodType)):
        library = library_object(value, place.name)
        return ("library", library, "") if library else ("unknown", "", why_not(value))
    if function_of(value) is not None:
        return "function", "", ""
    if is_device_array(value):
        return _array(place)
    try:
        text = text_of(value, place.name)
    except Unidentifiable as reason:
        if isinstance(place, AttributePlace) and (library := library_of(place.module)) is not None:
            return "library", f"{place.module.__name__}.{place.name}, {library}", ""
        return "unknown", "", str(reason)
    if text.startswith(("library ", "type ")):
        return "library", text, ""
    return "value", text, ""


def _array(place: Place) -> tuple[Kind, str, str]:
    if isinstance(place.root, DefaultPlace):
        return "unknown", "", "it is an array as a default value, which is compiled in; name it in the body instead"
    return "array", "", ""


def _spelt_out(value: tuple[Any, ...]) -> bool:
    """Whether a tuple holds only what text can stand for, so that it needs no captures for its items."""
    return all(
        type(item) in PLAIN
        or (isinstance(item, tuple) and _spelt_out(item))
        or isinstance(item, (np.generic, np.dtype))
        for item in value
    )
