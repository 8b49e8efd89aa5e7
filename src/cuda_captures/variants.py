"""What one specialisation of a kernel was compiled from, and whether the names still mean that."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cuda_captures.code import Code, Use
from cuda_captures.contents import contents_of
from cuda_captures.discovery import MISSING, AttributePlace, Capture, Discovery, Place
from cuda_captures.libraries import library_of
from cuda_captures.signature import ArraySignature
from cuda_captures.spares import Spares, spares_of
from cuda_captures.values import enum_class


@dataclass(eq=False)
class Variant:
    """One specialisation: code, and what the names that are no slots meant when it was compiled.

    Parameters
    ----------
    frozen
        Places with the objects they held: scalars, functions, modules, tuples.  They are held here, so that an
        identity test can never be fooled by another object at the same address.
    arrays
        The captured arrays, each with its place.
    constants
        Arrays whose contents were compiled in, as they were then.
    plain
        Whether ``frozen`` and ``arrays`` are all that the code depends on, but for bytecode, options and target.

    Attributes
    ----------
    spares
        The spare modules of the code, held for as long as this is.
    """

    code: Code
    frozen: tuple[tuple[Place, Any], ...]
    arrays: tuple[tuple[Use, Place], ...]
    constants: tuple[Constant, ...] = ()
    plain: bool = False
    spares: Spares = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.spares = spares_of(self.code)

    def read_arrays(self) -> list[Any] | None:
        """What the names of arrays mean now; None if another name means something that the code was not made for."""
        for place, value in self.frozen:
            now = place.peek()
            if now is not value:
                if now is MISSING:
                    place.read()  # raises what Python does
                return None
        if not all(constant.holds() for constant in self.constants):
            return None
        return [place.read() for _, place in self.arrays]


@dataclass(eq=False)
class Constant:
    """An array whose contents may be compiled in: at most as large as constant memory.

    Parameters
    ----------
    place
        Where it is.
    form
        What it was like, and under which policy.
    contents
        The bytes of its elements then.
    signature
        Gives the form that a name's array has now.
    """

    place: Place
    form: ArraySignature
    contents: bytes
    signature: Callable[[str, Any], ArraySignature]

    def holds(self) -> bool:
        """Whether the array of this name still has the contents that were compiled in."""
        array = self.place.read()
        if not isinstance(array, np.ndarray) or self.signature(self.place.name, array) != self.form:
            return False
        return contents_of(array) == self.contents


def followed(capture: Capture) -> bool:
    """Whether a launch looks again at what a captured name means.

    Attributes of library modules are not followed: they are taken to stay what their version says.  What a module of
    the user's own has from a library is.
    """
    if capture.kind == "array":
        return False
    place = capture.place
    return capture.kind != "library" or not isinstance(place, AttributePlace) or library_of(place.module) is None


def frozen_of(discovery: Discovery, arrays: Sequence[tuple[Use, Place]]) -> tuple[tuple[Place, Any], ...]:
    """Places with what they hold that the code was compiled from, each once; a tuple stands for its items."""
    bare = {place.key for _, place in arrays if place.root is place}
    found: dict[Hashable, tuple[Place, Any]] = {}
    for capture in discovery.captures:
        root = capture.place.root
        if root.key in bare or (capture.kind == "array" and root is capture.place):
            continue
        if followed(capture) or root is not capture.place:
            known = discovery.by_place.get(root.key)  # another thread may have bound something else since
            found.setdefault(root.key, (root, root.peek() if known is None else known.value))
    return tuple(found.values())


def roots(arrays: Sequence[tuple[Use, Place]], values: Sequence[Any]) -> list[tuple[Place, Any]]:
    """Bare arrays, each place once; those inside tuples are covered by their tuple."""
    found = {place.key: (place, value) for (_, place), value in zip(arrays, values, strict=True) if place.root is place}
    return list(found.values())


def value_token(capture: Capture) -> Hashable:
    """A hashable that is equal for meanings for which the same code is right.

    Values by their text, which tells types, signs of zeros and bits of NaNs apart, and members of enumerations by these
    as well; tuples and objects by their
    class, as what is in them are captures of their own; others by identity, which is safe while a specialisation
    holds them.
    """
    if capture.kind in ("value", "library"):
        return capture.text, id(enum_class(capture.value))
    if capture.kind == "tuple":
        return type(capture.value), len(capture.value)
    if capture.kind == "object" and not isinstance(capture.value, type):
        return (type(capture.value),)
    return type(capture.value), id(capture.value)
