"""Options and linked code as the key sees them, the same for both compilers."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Any

import xxhash

from cuda_captures.key import Unkeyable


def options_of(options: Mapping[str, Any], outside: Collection[str], linkable: type) -> dict[str, Any]:
    """The options that change the code, linked code by a digest of its contents.

    Parameters
    ----------
    options
        All options of a kernel.
    outside
        Names of those that do not change the code.
    linkable
        The compiler's class of code to be linked.

    Raises
    ------
    Unkeyable
        For linked code with callbacks, whose effect cannot be seen, or that cannot be read.
    """
    found = {name: value for name, value in options.items() if name not in outside}
    found["link"] = tuple(linked(item, linkable) for item in options.get("link") or ())
    return found


_PLAIN = frozenset({bool, int, str, type(None)})


def plain_options(options: Mapping[str, Any], outside: Collection[str]) -> Hashable:
    """Options that change the code, if nothing but switches, numbers and text are set; None otherwise."""
    found: list[Any] = []
    for name, value in options.items():
        if name in outside:
            continue
        kind = type(value)
        if kind in _PLAIN:
            found += (name, kind, value)
        elif value or kind not in (list, tuple):
            return None
    return tuple(found)


def linked(item: Any, linkable: type) -> str:
    """A digest of a piece of code that is linked in."""
    if isinstance(item, linkable):
        code: Any = item
        if code.setup_callback or code.teardown_callback:
            raise Unkeyable([f"linked code `{code.name}` has a callback"])
        data = code.data
        return digest(data.encode() if isinstance(data, str) else bytes(data), type(item).__name__)
    if not isinstance(item, str):
        raise Unkeyable([f"linked code `{item!r}` cannot be identified"])
    try:
        with open(item, "rb") as file:
            return digest(file.read(), item.rpartition(".")[2])
    except OSError as error:  # upstream says what it thinks of that
        raise Unkeyable([f"linked file `{item}` cannot be read: {error}"]) from None


def digest(data: bytes, kind: str) -> str:
    """A short text that stands for some bytes."""
    return f"{kind}:{xxhash.xxh3_128_hexdigest(data)}"
