"""What a function sees: a static walk over everything that a kernel names.

The walk reads the bytecode and resolves names as Python does (local, closure, global, builtin), through attributes of
modules, dataclass instances, simple namespaces and classes, tuples, named tuples, defaults, and every device function
and plain function reached.  Nothing is executed but the reading of names.  A :class:`Discovery` belongs to who asked
for it; the walk keeps nothing between calls but what :mod:`~cuda_captures.names` knows of code objects and
:mod:`~cuda_captures.libraries` of libraries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from cuda_captures.captures import Capture, Discovery, Kind, Reached
from cuda_captures.kinds import classify, classify_whole, is_device_array
from cuda_captures.members import has_members, why_no_member
from cuda_captures.names import Chain, Use, names_of, strings_in
from cuda_captures.places import (
    MISSING,
    AttributePlace,
    CellPlace,
    DefaultPlace,
    GlobalPlace,
    ItemPlace,
    MemberPlace,
    ModulePlace,
    Place,
    function_of,
)
from cuda_captures.recipes import follow

__all__ = [
    "MISSING",
    "AttributePlace",
    "Capture",
    "CellPlace",
    "DefaultPlace",
    "Discovery",
    "GlobalPlace",
    "ItemPlace",
    "Kind",
    "MemberPlace",
    "ModulePlace",
    "Place",
    "Reached",
    "discover",
    "follow",
    "is_device_array",
]


def discover(function: Any, also: Iterable[FunctionType] = ()) -> Discovery:
    """Find out what a kernel or function sees.

    Parameters
    ----------
    function
        A Python function, or a dispatcher (an object whose ``py_func`` is one).
    also
        Functions that are known to be compiled with it, though no name leads to them.

    Raises
    ------
    TypeError
        For anything else.
    """
    python = function_of(function)
    if python is None:
        raise TypeError(f"discover() takes a Python function or a kernel, not {type(function).__qualname__}")
    walk = _Walk(Discovery(python))
    walk.reach(python, None if function is python else function, None)
    for one in also:
        walk.reach(one, None, None)
    walk.run()
    return walk.found


class _Walk:
    """One walk in progress; belongs to one call of :func:`discover`."""

    def __init__(self, found: Discovery) -> None:
        self.found = found
        self.queue: deque[Reached] = deque()
        self.reached: dict[tuple[int, int], Reached] = {}
        # Modules and objects that are stored or passed on, each with who first did so and its label there.
        self.stored: dict[Hashable, tuple[Capture, Reached, str]] = {}

    def run(self) -> None:
        while self.queue:
            while self.queue:
                self.visit(self.queue.popleft())
            if self.stored:
                self.visit_stored()

    def reach(self, function: FunctionType, dispatcher: Any, via: Capture | None) -> Reached:
        """Note a function, to be visited once."""
        key = (id(function), id(dispatcher))
        reached = self.reached.get(key)
        if reached is None:
            reached = self.reached[key] = Reached(function, dispatcher, len(self.reached), via)
            self.found.reached.append(reached)
            self.found.names.append({})
            self.queue.append(reached)
        return reached

    def visit(self, reached: Reached) -> None:
        """Capture what one function names."""
        function = reached.function
        code, namespace = function.__code__, function.__globals__
        names = names_of(code)
        closure = function.__closure__ or ()
        for use in names.cells:
            self.name(reached, CellPlace(closure[use.index], use.name), use)
        for use in names.globals:
            self.name(reached, GlobalPlace(namespace, use.name), use)
        for use in names.imports:
            self.name(reached, ModulePlace(_absolute(namespace, use.index, use.name)), use)
        if function.__defaults__ or function.__kwdefaults__:
            for place in _defaults(function, code):
                self.name(reached, place, Use(place.name, f"default of `{place.name}`", f"default {place.name}", 0))

    def name(self, reached: Reached, place: Place, use: Use) -> None:
        """Capture one name of a function, and the attributes that the function takes of it at once."""
        capture = self.capture(reached, place, reached, use.step, use.label)
        if isinstance(capture.value, ModuleType) or capture.kind == "object":
            for chain in use.chains or ((),):
                self.attributes(reached, capture, use.label, chain)

    def capture(self, reached: Reached, place: Place, origin: Reached | Capture, step: str, label: str) -> Capture:
        """The capture of a place for a function; what is new is classified, and its items captured."""
        names = self.found.names[reached.number]
        capture = self.found.by_place.get(place.key)
        if capture is not None:
            names[label] = capture
            return capture
        value = place.peek()
        kind, text, why = classify(value, place)
        capture = Capture(place, origin, step, value, kind, reached.function, text, why)
        self.found.by_place[place.key] = capture
        (self.found.captures if place.followed else self.found.fixed).append(capture)
        names[label] = capture
        if kind == "function":
            function = function_of(value)
            assert function is not None
            capture.number = self.reach(function, None if function is value else value, capture).number
        elif kind == "tuple":
            self.items(reached, capture, label)
        return capture

    def items(self, reached: Reached, capture: Capture, label: str) -> None:
        """Capture the items of a tuple."""
        fields = getattr(type(capture.value), "_fields", ())
        for index in range(len(capture.value)):
            field_name = fields[index] if index < len(fields) else None
            place = ItemPlace(capture.place, index, field_name)
            step = f"[{index}]" if field_name is None else f".{field_name}"
            inner = self.capture(reached, place, capture, step, label + step)
            self.attributes(reached, inner, label + step, ())

    def attributes(self, reached: Reached, capture: Capture, label: str, chain: Chain) -> None:
        """Capture attributes of a module or an object along a chain; what is at its end is stored or passed on."""
        for name in chain:
            place = _attribute_place(capture, name)
            if place is None:
                return
            label = f"{label}.{name}"
            step = f".{name}" if isinstance(place, MemberPlace) else f"attribute `{name}`"
            capture = self.capture(reached, place, capture, step, label)
        if isinstance(capture.value, ModuleType):
            self.stored.setdefault(id(capture.value), (capture, reached, label))
        elif capture.kind == "object":
            if isinstance(capture.value, type):
                capture.kind, capture._text, capture.why = classify_whole(capture.value, capture.place)
            self.stored.setdefault(capture.place.key, (capture, reached, label))

    def visit_stored(self) -> None:
        """Capture every attribute of stored modules and objects that any function reached could mean.

        Which function gets what is passed on is not followed: names that all code together uses cover it.
        """
        more = True
        while more:
            more = False
            wanted = sorted(self.attribute_names())
            for capture, reached, label in list(self.stored.values()):
                for name in wanted:
                    place = _attribute_place(capture, name)
                    if place is None or place.key in self.found.by_place:
                        continue
                    value = place.peek()
                    if value is MISSING or _leads_back(capture, value):
                        continue
                    self.attributes(reached, capture, label, (name,))
                    more = True

    def attribute_names(self) -> set[str]:
        """Every name that could be taken of a module or object: attributes, and strings for ``getattr``."""
        wanted: set[str] = set()
        for one in self.found.reached:
            wanted |= names_of(one.function.__code__).attributes
        for capture in self.found.by_place.values():
            if capture.kind == "value":
                wanted.update(filter(str.isidentifier, strings_in(capture.value)))
        return wanted


def _attribute_place(owner: Capture, name: str) -> Place | None:
    """The place of an attribute of a module or an object; None where there is none that a kernel could read."""
    if isinstance(owner.value, ModuleType):
        return AttributePlace(owner.value, name)
    if has_members(owner.value) and not why_no_member(owner.value, name):
        return owner.place.member(name)
    return None


def _leads_back(owner: Capture | Reached, value: Any) -> bool:
    """Whether an object is its owner, or an owner of that: following such attributes would never end."""
    while isinstance(owner, Capture):
        if owner.value is value and owner.kind == "object":
            return True
        owner = owner.origin
    return False


def _absolute(namespace: dict[str, Any], level: int, name: str) -> str:
    """The absolute name of an imported module, by the rules of the import statement."""
    if level == 0:
        return name
    package = namespace.get("__package__")
    if not package:
        package = namespace.get("__name__", "")
        if "__path__" not in namespace:
            package = package.rpartition(".")[0]
    base = package.split(".")
    return ".".join(filter(None, [*base[: len(base) - level + 1], name]))


def _defaults(function: FunctionType, code: CodeType) -> Iterator[DefaultPlace]:
    count = len(function.__defaults__ or ())
    for index in range(count):
        yield DefaultPlace(function, index, code.co_varnames[code.co_argcount - count + index])
    for name in sorted(function.__kwdefaults__ or ()):
        yield DefaultPlace(function, name, name)
