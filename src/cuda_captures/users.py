"""Who uses a device copy."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_lock = threading.RLock()  # nobody waits for it: a finalizer may run while it is held, and bind a kernel


def _unlock() -> None:
    global _lock
    _lock = threading.RLock()  # another thread may have held it at the fork


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


class _User(weakref.ref[Any]):
    __slots__ = ("name",)

    name: str


class Users:
    """The users of a device copy and their names, for reports; held weakly.

    One list, as there may be a copy for each of thousands of kernels, and all that is held is looked through by the
    garbage collector.  Any thread may call any method.
    """

    __slots__ = ("_known", "_limit")

    def __init__(self) -> None:
        self._known: list[_User] = []
        self._limit = 16  # so many are noted before those that are gone are looked for

    def note(self, user: Any, name: str) -> None:
        """Note somebody, who may be known already."""
        noted = _User(user)
        noted.name = name
        self._known.append(noted)
        if len(self._known) > self._limit and _lock.acquire(blocking=False):
            try:
                count = len(self._known)
                self._known[:count] = _living(self._known[:count])  # others may append meanwhile
                self._limit = max(16, 2 * len(self._known))
            finally:
                _lock.release()

    def names(self) -> list[str]:
        """The name of each user that is still there."""
        return [user.name for user in _living(self._known.copy())]


def _living(users: list[_User]) -> list[_User]:
    return list({id(there): one for one in users if (there := one()) is not None}.values())
