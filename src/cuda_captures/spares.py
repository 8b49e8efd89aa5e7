"""Loaded modules that no launch uses any more, kept to be filled anew.

Loading a module and unloading it takes the driver ten times as long as writing its slots.  A kernel whose names keep
being bound to new arrays lets go of one module instance for each that it makes, so the module goes round.  Kernels
that share code share its spare modules too: one that is made, launched once and dropped, as in a function that makes
its kernel each time it is called, loads nothing but the first time.

That is right only where the order of things on the device is known: every launch of the old instance, the writing of
the slots and the next launch are all on the legacy default stream, on which nothing can be captured into a graph.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any

KEPT = 2  # for the same use in the same context: one goes round, and another thread may be rebinding as well


class Spares:
    """The spare modules of one piece of code.

    Any thread may give and take, finalisers too: nothing here waits.  They are unloaded when the last kernel that
    uses the code, and its last instance, are gone.
    """

    def __init__(self, code: Any = None) -> None:
        self.code = code  # held, so that its identity stays its own
        self._kept: dict[tuple[int, Hashable], list[tuple[Any, Any]]] = {}

    def give(self, context: Any, loaded: Any) -> None:
        """Keep a module that nothing can launch any more; with enough of them, let go of it."""
        kept = self._kept.setdefault((id(context), loaded.apart), [])
        if len(kept) < KEPT:
            kept.append((context, loaded))  # the context too, so that its identity stays its own

    def take(self, context: Any, apart: Hashable) -> Any:
        """A module in a context, or None; ``apart`` is what a toolchain says tells them apart."""
        try:
            return self._kept[id(context), apart].pop()[1]
        except (KeyError, IndexError):
            return None


# Weak: those who use the code hold its spares, and code does not, or it would keep itself.
_of_code: weakref.WeakValueDictionary[int, Spares] = weakref.WeakValueDictionary()


def spares_of(code: Any) -> Spares:
    """The spare modules of some code, one object for all that use it; to be held by them."""
    found = _of_code.get(id(code))
    return found if found is not None else _of_code.setdefault(id(code), Spares(code))
