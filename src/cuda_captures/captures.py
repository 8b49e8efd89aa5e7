"""What the walk hands out: captures, the functions that it reached, and both together.

Plain records.  They hold what they describe (values, functions) strongly, so a discovery should not be kept longer
than it is used.  References go upwards only (a capture to what it is reached from), so that arrays are let go of at
once and not when the garbage collector comes by.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any, Literal

from cuda_captures.names import names_of
from cuda_captures.places import Place, Recipe
from cuda_captures.values import text_of

Kind = Literal["array", "value", "tuple", "object", "function", "module", "library", "missing", "unknown"]


@dataclass(eq=False, slots=True)
class Capture:
    """One name that a function reached by the walk gets from outside.

    Parameters
    ----------
    place
        Where Python looks it up.
    origin
        What the place is reached from: a function, a module, a tuple or an object.
    step
        The last step of the path.
    value
        What it means now; ``MISSING`` for a deleted global or an emptied cell.
    kind
        ``"array"``; ``"value"``: one that the key spells out; ``"tuple"``: one that holds arrays, functions or what
        the key cannot spell, whose items are captures of their own; ``"object"``: a dataclass instance, a simple
        namespace or a class, whose attributes are, as far as they are read; ``"function"``: one that is walked;
        ``"module"``: a user's; ``"library"``: something of a library, identified by name and version;
        ``"missing"``; ``"unknown"``.
    function
        The Python function that names it.
    why
        For ``"unknown"``: the reason.
    number
        For ``"function"``: its number among the functions reached.
    """

    place: Place
    origin: Reached | Capture
    step: str
    value: Any
    kind: Kind
    function: FunctionType
    _text: str = ""
    why: str = ""
    number: int = -1

    @property
    def path(self) -> tuple[str, ...]:
        """How the kernel reaches it, for people: ``("device function `scatter`", "closure `sigma`", "[0]")``."""
        origin = self.origin
        if isinstance(origin, Capture) and isinstance(origin.value, ModuleType):
            return (*origin.path[:-1], f"module `{origin.place.name}`", self.step)
        return (*origin.path, self.step)

    @property
    def recipe(self) -> Recipe:
        """How :func:`~cuda_captures.recipes.follow` reaches it: steps that hold in another process too."""
        return (*self.origin.recipe, self.place.step)

    @property
    def text(self) -> str:
        """What the key says of a ``"value"`` or of something of a library."""
        return self._text or text_of(self.value)


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
        Its position in the order of the walk; the kernel's is 0.
    via
        The capture that led to it first; None for the kernel, and for what no name leads to.
    """

    function: FunctionType
    dispatcher: Any
    number: int
    via: Capture | None

    @property
    def path(self) -> tuple[str, ...]:
        """How the kernel reaches it; empty for the kernel."""
        if self.via is None:
            return (f"function `{self.function.__name__}`",) if self.number else ()
        kind = "function" if self.dispatcher is None else "device function"
        path = self.via.path
        if self.via.place.root is self.via.place:  # say what it is; an item of a tuple keeps its index
            path = path[:-1]
        return (*path, f"{kind} `{self.via.place.name}`")

    @property
    def recipe(self) -> Recipe:
        if self.via is None:
            return (("function", self.function.__name__),) if self.number else ()  # a step that leads nowhere
        return self.via.recipe


@dataclass(eq=False, slots=True)
class Discovery:
    """Everything that a function sees.

    Parameters
    ----------
    function
        The kernel's Python function.
    captures
        Names, once per place, in the order of the walk, which is the same for functions of equal code.
    fixed
        What a function got when it was made (defaults) or imports in its body; never looked at again.
    reached
        The functions, the kernel first.
    by_place
        Captures of both kinds by the keys of their places.
    names
        For each function reached what it names, in the order of the walk: labels such as ``"global table"`` with
        their captures.
    """

    function: FunctionType
    captures: list[Capture] = field(default_factory=list)
    fixed: list[Capture] = field(default_factory=list)
    reached: list[Reached] = field(default_factory=list)
    by_place: dict[Hashable, Capture] = field(default_factory=dict)
    names: list[dict[str, Capture]] = field(default_factory=list)

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
        return [capture for capture in self.by_place.values() if capture.kind == "unknown"]

    @property
    def plain_functions(self) -> list[Capture]:
        """Functions that are called without a dispatcher.

        A compiler knows such a function only if an implementation was registered for it elsewhere, which neither
        this walk nor the key sees: who compiles has to look.
        """
        return [one.via for one in self.reached if one.dispatcher is None and one.via is not None]

    @property
    def asks_for_constants(self) -> bool:
        """Whether some function may copy captured arrays into constant memory: it names ``array_like``."""
        return any("array_like" in names_of(one.function.__code__).attributes for one in self.reached) or any(
            getattr(one.value, "__name__", "") == "array_like"
            for one in self.by_place.values()
            if one.kind in ("library", "function")
        )
