"""Argument types as text for the key, the same for both compilers' copies of numba's types."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

from cuda_captures.key import Unkeyable

# Types whose text says all that the code depends on.
SPELT_OUT = (
    *("Number", "Boolean", "NPDatetime", "NPTimedelta", "NoneType", "CharSeq", "UnicodeCharSeq", "IntegerLiteral"),
    *("BooleanLiteral", "Record", "NestedArray"),  # a record's has fields, types, offsets, size and alignment
)


def signature_text(types: ModuleType, argtypes: Iterable[Any]) -> str:
    """Argument types as text for the key.

    Parameters
    ----------
    types
        The compiler's copy of numba's types.
    argtypes
        The types.

    Raises
    ------
    Unkeyable
        For types that refer to objects: functions, classes, pointers of unknown origin.
    """
    return "(" + ", ".join(type_text(types, typed, position) for position, typed in enumerate(argtypes)) + ")"


def type_text(types: ModuleType, typed: Any, position: int) -> str:
    """One argument type as text."""
    if isinstance(typed, types.Array) and not isinstance(typed, types.NestedArray):
        access = "mutable" if typed.mutable else "readonly"
        aligned = "aligned" if typed.aligned else "unaligned"
        return f"array({type_text(types, typed.dtype, position)}, {typed.ndim}d, {typed.layout}, {access}, {aligned})"
    if isinstance(typed, types.BaseTuple):
        names = getattr(typed, "fields", ())
        items = ", ".join(type_text(types, item, position) for item in typed.types)
        return f"tuple{tuple(names)}({items})"
    if isinstance(typed, tuple(getattr(types, name) for name in SPELT_OUT)):
        return str(typed)
    raise Unkeyable([f"argument {position} has the type {typed}, which refers to an object"])
