"""Replacing attributes of a compiler, and putting them back.

Used by the backends alone, under the lock of ``backends``.
"""

from __future__ import annotations

from typing import Any

_ABSENT = object()


class Patches:
    """Attributes that were replaced, in order; :meth:`undo` restores them in reverse."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, new: Any) -> Any:
        """Set ``owner.name`` to ``new``; returns what it was before, None where only instances had it."""
        self._replaced.append((owner, name, vars(owner).get(name, _ABSENT)))
        before = getattr(owner, name, None)
        setattr(owner, name, new)
        return before

    def undo(self) -> None:
        """Put everything back as it was."""
        while self._replaced:
            owner, name, before = self._replaced.pop()
            if before is _ABSENT:
                delattr(owner, name)  # it was inherited
            else:
                setattr(owner, name, before)
