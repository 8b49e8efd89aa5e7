"""Finding a place again in another process, or from another kernel of the same code: recipes, and following them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from cuda_captures.members import has_members, why_no_member
from cuda_captures.places import (
    AttributePlace,
    CellPlace,
    DefaultPlace,
    GlobalPlace,
    ModulePlace,
    Place,
    Recipe,
    Step,
    function_of,
)


def follow(function: Any, recipe: Recipe) -> Place:
    """Find a place again, from a function that has the same code as the one that the recipe was made for.

    Parameters
    ----------
    function
        A kernel: a Python function, or a dispatcher.
    recipe
        The steps, from a :class:`~cuda_captures.discovery.Capture`.

    Raises
    ------
    LookupError
        If a step leads nowhere.
    """
    value = function
    place: Place | None = None
    for step in recipe:
        if place is not None:
            value = place.peek()
        place = _step(place, value, step)
    if place is None:
        raise LookupError("an empty recipe leads to no place")
    return place


def _step(place: Place | None, value: Any, step: Step) -> Place:
    kind, name = step[0], step[1]
    if kind == "module":
        return ModulePlace(name)
    if kind == "item":
        if place is not None and isinstance(value, tuple) and name < len(value):
            return place.item(name)
    elif kind == "member":
        if place is not None and has_members(value) and not why_no_member(value, name):
            return place.member(name)
    elif kind == "attribute":
        if isinstance(value, ModuleType):
            return AttributePlace(value, name)
    else:
        function = function_of(value)
        if function is not None:
            if kind == "global":
                return GlobalPlace(function.__globals__, name)
            if kind == "default":
                return DefaultPlace(function, name, step[2])
            if kind == "cell" and name in function.__code__.co_freevars:
                assert function.__closure__ is not None
                return CellPlace(function.__closure__[function.__code__.co_freevars.index(name)], name)
    where = repr(value) if place is None else f"`{place.name}`"
    raise LookupError(f"no {kind} {name!r} at {where}")
