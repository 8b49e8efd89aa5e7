"""Which kind of thing a captured name means."""

from __future__ import annotations

import enum
import sys
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from cuda_captures.captures import Kind
from cuda_captures.libraries import known_library_object, library_object, library_of, remember
from cuda_captures.members import has_members
from cuda_captures.places import (
    MISSING,
    AttributePlace,
    GlobalPlace,
    ModulePlace,
    Place,
    function_of,
)
from cuda_captures.storage import of_numba
from cuda_captures.values import CONTAINERS, PLAIN, Unidentifiable, text_of


def is_device_array(value: object) -> bool:
    """Whether a value is an array in device memory: one with ``__cuda_array_interface__``.

    A tensor of a library that can have either has it only where it is on a device.
    """
    if isinstance(value, (type, ModuleType)):
        return False
    if of_numba(value):
        return True
    try:
        return hasattr(value, "__cuda_array_interface__")
    except Exception:  # a device array that its library does not hand out now; who binds it says why
        return hasattr(type(value), "__cuda_array_interface__")


def classify(value: Any, place: Place) -> tuple[Kind, str, str]:
    """Kind of what a place holds, with its text (empty: made when it is asked for) and the reason why it has none.

    Never raises: what goes wrong in looking at a value is the reason why it is unknown.
    """
    if type(value) in PLAIN:
        return "value", "", ""
    known = known_library_object(value)
    if known is not None:
        return "library", known, ""
    if value is MISSING:
        if isinstance(place, ModulePlace):
            return "unknown", "", "it is imported in the body, and the module is not loaded yet"
        return "missing", "missing", ""
    if isinstance(value, np.ndarray):
        return _array(place)
    if isinstance(value, ModuleType):
        return _module(value)
    if isinstance(value, tuple) and not _spelt_out(value):
        return "tuple", "", ""
    if type(value) is FunctionType:
        library = library_object(value)
        return ("library", library, "") if library else ("function", "", "")
    if function_of(value) is not None:
        return "function", "", ""
    if isinstance(value, (np.generic, np.dtype, enum.Enum)):
        return _other(value, place)
    try:
        if hasattr(value, "__cuda_array_interface__"):
            return _array(place)
    except Exception as error:  # a property of some other library
        return "unknown", "", f"its __cuda_array_interface__ cannot be read: {error}"
    if has_members(value):
        return "object", "", ""
    return _other(value, place)


def classify_whole(value: Any, place: Place) -> tuple[Kind, str, str]:
    """As :func:`classify`, of a class that is used as a whole: called, say, or passed on."""
    return _other(value, place)


def _array(place: Place) -> tuple[Kind, str, str]:
    if not place.followed:
        return "unknown", "", "it is an array as a default value, which is compiled in; name it in the body instead"
    return "array", "", ""


def _module(module: ModuleType) -> tuple[Kind, str, str]:
    library = library_of(module)
    if library is None:
        return "module", f"module {module.__name__!a}", ""
    text = f"module {module.__name__!a}, {library}"
    remember(module, text)
    return "library", text, ""


def _other(value: Any, place: Place) -> tuple[Kind, str, str]:
    try:
        text = text_of(value, place.name)
    except Unidentifiable as reason:
        text = _part_of_library(value, place)
        return ("library", text, "") if text else ("unknown", "", str(reason))
    of_library = known_library_object(value) is not None or isinstance(value, (BuiltinFunctionType, MethodType))
    return ("library" if of_library else "value"), text, ""


def _part_of_library(value: Any, place: Place) -> str:
    """An object that does not know its name, by the name that a library's module has for it; empty if it has none.

    Only objects of classes of libraries: others were put there by somebody else.
    """
    if isinstance(place, AttributePlace):
        module: ModuleType | None = place.module
    elif isinstance(place, GlobalPlace):
        module = sys.modules.get(str(place.namespace.get("__name__")))
        if module is None or vars(module) is not place.namespace:
            return ""
    else:
        return ""
    assert module is not None
    home = sys.modules.get(type(value).__module__)
    library = library_of(module)
    if library is None or home is None or library_of(home) is None or isinstance(value, CONTAINERS):
        return ""
    return f"library {module.__name__}.{place.name}, {library}"


def _spelt_out(value: tuple[Any, ...]) -> bool:
    """Whether a tuple holds only what text can stand for, so that it needs no captures for its items."""
    return all(
        type(item) in PLAIN
        or (isinstance(item, tuple) and _spelt_out(item))
        or isinstance(item, (np.generic, np.dtype))
        for item in value
    )
