"""Compiled code: what a kernel was compiled to, without any address and without any contents.

Code is shared: kernel objects with equal keys use one :class:`Code`, whoever made them, each with its own module
instances.  The table of shared code is weak: code goes with the last kernel that uses it.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cuda_captures.discovery import Place, follow
from cuda_captures.key import ArraySignature, Key
from cuda_captures.slots import Slot


@dataclass(eq=False)
class Use:
    """One captured array as compiled code uses it.

    Parameters
    ----------
    slot
        Where the code finds it.
    place
        Where it was read when this was compiled; None in shared code, which has a recipe instead.
    signature
        What the code assumes of it.
    recipe
        The steps from the kernel to the place; None if the place cannot be found again from the kernel.
    name
        The captured name.
    written
        Whether the code may write it.
    """

    slot: Slot
    place: Place | None
    signature: ArraySignature
    recipe: tuple[Any, ...] | None = None
    name: str = ""
    written: bool = False

    def place_for(self, function: Any) -> Place:
        """Where the array is for a kernel that uses the code."""
        if self.place is not None:
            return self.place
        assert self.recipe is not None
        return follow(function, self.recipe)


@dataclass(eq=False)
class Code:
    """What a kernel was compiled to.

    Parameters
    ----------
    uses
        The captured arrays.
    product
        The backend's compiled kernel.
    key
        What the code was compiled from; None for code that cannot be shared.
    why_private
        For code without a key: the reasons, each with a name.
    single
        Whether every kernel is compiled for itself: because the compiler warned, so that each author is warned, or
        because the code depends on the launch configuration.
    source
        How it was come by: ``"compiled"``, or ``"disk"``.
    number
        Of all code of the process, in the order of its making.
    """

    uses: tuple[Use, ...]
    product: Any
    key: Key | None = None
    why_private: tuple[str, ...] = ()
    constant_bytes: int = 0
    single: bool = False
    source: str = "compiled"
    number: int = field(default_factory=itertools.count().__next__)


class CodeTable:
    """Shared code by key, held weakly: it goes with the last kernel that uses it.

    Looking up takes no lock; code is made under the compiler's own lock, so once per key.
    """

    def __init__(self) -> None:
        self._codes: weakref.WeakValueDictionary[str, Code] = weakref.WeakValueDictionary()

    def get(self, key: Key) -> Code | None:
        """The code of a key, if any kernel still uses it."""
        return self._codes.get(key.digest)

    def add(self, code: Code) -> None:
        """Share code; it must have a key."""
        assert code.key is not None
        self._codes[code.key.digest] = code

    def __iter__(self) -> Iterator[Code]:
        return iter(list(self._codes.values()))

    def __len__(self) -> int:
        return len(self._codes)
