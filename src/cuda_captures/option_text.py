"""Options of a compiler as lines of the key.

A device function has up to forty options, nearly always the same ones; their text is kept (at most 256 of them, the
least recently used go first; any thread may ask).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import FunctionType
from typing import Any

from cuda_captures.values import PLAIN, Unidentifiable, text_of

_READS_SOURCE = ("experimental_ast_transforms",)  # of numba-cuda-mlir


def options_text(label: str, options: Mapping[str, Any], reasons: list[str]) -> str:
    """Options as lines ``label name = value``, in the order of their names.

    Parameters
    ----------
    reasons
        Gets a reason for each option that no text can stand for.
    """
    values = [tuple(value) if type(value) is list else value for value in options.values()]
    if all(map(_exact, values)):
        try:
            return _known_text(label, tuple(options), tuple(values), tuple(map(type, values)))
        except Unidentifiable:
            pass
    lines = []
    for name in sorted(options):
        try:
            lines.append(_line(label, name, options[name]))
        except Unidentifiable as why:
            reasons.append(f"{label} `{name}`: {why}")
    return "\n".join(lines)


def has_positions(options: Any) -> bool:
    """Whether code compiled with these options says where in the source it comes from."""
    return isinstance(options, Mapping) and bool(options.get("debug") or options.get("lineinfo"))


def _exact(value: Any) -> bool:
    """Whether a value of the same type that is equal to this one is the same to a compiler."""
    kind = type(value)
    if kind is tuple:
        return all(type(item) is str or type(item) is int for item in value)
    return kind is FunctionType or (kind in PLAIN and kind is not float and kind is not complex)


@lru_cache(maxsize=256)
def _known_text(label: str, names: tuple[str, ...], values: tuple[Any, ...], types: tuple[type, ...]) -> str:
    """Lines of options; ``types`` tells ``0`` from ``False``, which are equal."""
    options = sorted(zip(names, values, strict=True), key=_name)
    return "\n".join(_line(label, name, value) for name, value in options)


def _name(option: tuple[str, Any]) -> str:
    return option[0]


def _line(label: str, name: str, value: Any) -> str:
    if name in _READS_SOURCE and value:
        raise Unidentifiable("the source text is compiled, not the bytecode")
    return f"{label} {name} = {_value_text(value)}"


def _value_text(value: Any) -> str:
    """A value of an option: containers are read once, by the compiler, so their contents count."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value_text, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!a}: {_value_text(value[key])}" for key in sorted(value)) + "}"
    return text_of(value)
