"""Kernels made from one code object, as a factory makes them: what is known of one says what the next one is.

A kernel that differs from a living one in nothing but the arrays in its closure needs no walk and no key.  That is so
where each of its cells holds an array of the same form or the very object that the other's cell holds, and every other
name still means what it meant for the other.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from types import FunctionType
from typing import Any

from cuda_captures.code import Use
from cuda_captures.discovery import CellPlace, Place
from cuda_captures.variants import Variant

__all__ = ["Siblings", "moved"]


class Siblings:
    """Of each code object the kernel that was bound last, weakly.

    Any thread may ask and tell.  Nothing is kept alive: an entry goes with its kernel, which holds the code object, so
    that an identity in here is always that of a living one.
    """

    def __init__(self) -> None:
        self._last: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def of(self, function: FunctionType, likeness: Hashable) -> Any:
        """The specialisations of a kernel made from the same code object, for arguments and options alike; or None."""
        found = self._last.get(id(function.__code__))
        return found if found is not None and found.likeness == likeness else None

    def tell(self, specialisations: Any) -> None:
        """Let others made from this kernel's code object know it."""
        self._last[id(specialisations.function.__code__)] = specialisations


def moved(variant: Variant, one: FunctionType, other: FunctionType) -> Variant | None:
    """The specialisation of one function as the one of another function made from the same code object.

    Returns
    -------
    Variant or None
        None where only a walk can tell.  What the names of arrays hold is not looked at.
    """
    if not variant.plain or other.__code__ is not one.__code__ or other.__globals__ is not one.__globals__:
        return None
    if other.__defaults__ or other.__kwdefaults__:
        return None
    theirs, ours = one.__closure__ or (), other.__closure__ or ()
    numbers = {id(cell): number for number, cell in enumerate(theirs)}
    seen = set()

    def place_of(place: Place) -> Place | None:
        """A place as the other function has it."""
        if isinstance(place, CellPlace) and id(place.cell) in numbers:
            number = numbers[id(place.cell)]
            seen.add(number)
            return CellPlace(ours[number], place.name)
        if any(isinstance(one, CellPlace) and id(one.cell) in numbers for one in place.parents):
            return None  # part of what a cell holds, and that can be bound anew
        return place

    frozen: list[tuple[Place, Any]] = []
    for place, value in variant.frozen:
        same = place_of(place)
        if same is None or same.peek() is not value:
            return None
        frozen.append((same, value))
    arrays: list[tuple[Use, Place]] = []
    for use, place in variant.arrays:
        same = place_of(place)
        if same is None:
            return None
        arrays.append((use, same))
    if len(seen) < len(numbers):
        return None
    return Variant(variant.code, tuple(frozen), tuple(arrays), plain=True)
