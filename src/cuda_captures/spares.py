"""Loaded modules that no launch uses any more, kept to be filled anew.

Loading a module and unloading it takes the driver ten times as long as writing its slots.  A kernel whose names keep
being bound to new arrays lets go of one module instance for each that it makes, so the module goes round.

That is right only where the order of things on the device is known: every launch of the old instance, the writing of
the slots and the next launch are all on the legacy default stream, on which nothing can be captured into a graph.
"""

from __future__ import annotations

from typing import Any

KEPT = 2  # of the same code in the same context: one goes round, and another thread may be rebinding as well


class Spares:
    """The spare modules of one kernel.

    Any thread may give and take, finalisers too: nothing here waits.  They are unloaded when the kernel and its last
    instance are gone.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], list[tuple[Any, Any, Any]]] = {}

    def give(self, context: Any, code: Any, loaded: Any) -> None:
        """Keep a module that nothing can launch any more; with enough of them, let go of it."""
        kept = self._kept.setdefault((id(context), id(code)), [])
        if len(kept) < KEPT:
            kept.append((context, code, loaded))  # held, so that their identities stay theirs

    def take(self, context: Any, code: Any) -> Any:
        """A module of some code in a context, or None."""
        try:
            return self._kept[id(context), id(code)].pop()[2]
        except (KeyError, IndexError):
            return None
