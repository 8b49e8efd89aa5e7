"""Arrays that came from another process with the kernels that capture them: equal ones are one array here.

A kernel that is sent to a process a hundred times brings its table a hundred times.  The first becomes this process's
array of that content: it lies in a ``bytes`` object, which nobody can write, so it is copied to a device once and
never looked at again.  Those that come later are dropped for it, as long as somebody uses it.

Tables are held weakly, but for those that :func:`keep` was told to.  Any thread may call anything here.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

import numpy as np
import xxhash

from cuda_captures.digests import digests
from cuda_captures.policy import MarkedArray, Policy, constant, live, mapped, snapshot
from cuda_captures.values import dtype_text

__all__ = [
    "arrived",
    "content_key",
    "forget",
    "held_in",
    "keep",
    "kept",
    "memory_of",
    "order_of",
    "present",
    "sharable",
    "shared",
    "with_policy",
]

Array = np.ndarray[Any, Any]

_MARKERS = {"live": live, "snapshot": snapshot, "mapped": mapped, "constant": constant}
PIECE = 1 << 20  # bytes that are digested at once

_lock = threading.Lock()  # never taken by what may run in a finalizer
_known: dict[str, weakref.ref[Array]] = {}  # by content
_marked: dict[tuple[int, Policy], weakref.ref[MarkedArray]] = {}  # by the identity of the array that is marked
_came_as: dict[int, tuple[weakref.ref[Array], weakref.ref[Array]]] = {}  # what arrived, and what it was dropped for
_numbers: dict[int, weakref.ref[Array]] = {}  # the same, by identity
_kept: dict[str, tuple[Array, int]] = {}


def sharable(array: object) -> bool:
    """Whether an array's contents are its bytes, and all that it is."""
    return type(array) in (np.ndarray, np.memmap, np.recarray) and not array.dtype.hasobject  # type: ignore[attr-defined]


def content_key(array: Array) -> str:
    """Text that is equal for arrays of equal contents, dtype, shape and order; made from a digest of 128 bits."""
    pieces = _pieces(memory_of(array))
    digest = xxhash.xxh3_128_hexdigest(b"".join(digests(pieces)))
    kind = " recarray" if type(array) is np.recarray else ""
    return f"{digest} {dtype_text(array.dtype)} {array.shape} {order_of(array)}{kind}"


def shared(array: Array) -> Array:
    """This process's array with the contents of one that has just arrived.

    Parameters
    ----------
    array
        What arrived.  It is made read-only: whoever got it along with a kernel and edits it would be the only one to
        see the edit.

    Returns
    -------
    numpy.ndarray
        Read-only, and the same object for the same contents while anybody holds it.
    """
    if not sharable(array) or arrived(array):
        return array
    known = _came_as.get(id(array))
    if known is not None and known[0]() is array and not array.flags.writeable:
        before = known[1]()
        if before is not None:
            return before
    key = content_key(array)
    with _lock:
        found = _here(key)
        if found is None:
            found = _unwritable(array)
            _note(key, found)
    array.flags.writeable = False
    number = id(array)
    _came_as[number] = held_in(_came_as, number, array), weakref.ref(found)
    return found


def with_policy(array: Array, policy: Policy | None) -> Array:
    """An array under a policy: a marked view of it, the same one each time; the array itself without a policy."""
    if policy is None:
        return array
    key = id(array), policy
    reference = _marked.get(key)
    view = reference() if reference is not None else None
    if view is None or view.base is None or not _same_memory(view, array):
        view = _MARKERS[policy](array)
        _marked[key] = held_in(_marked, key, view)
    return view


def keep(array: Array) -> str:
    """Hold this process's array of some contents until :func:`forget`; returns its key."""
    found = shared(array)
    key = content_key(found)
    with _lock:
        _, count = _kept.get(key, (found, 0))
        _kept[key] = found, count + 1
    return key


def kept(key: str) -> Array | None:
    """The array of some contents that this process was told to keep."""
    held = _kept.get(key)
    return held[0] if held is not None else None


def present(key: str) -> Array | None:
    """This process's array of some contents, if there is one, whoever holds it."""
    with _lock:
        return _here(key)


def arrived(array: object) -> bool:
    """Whether this is what kernels of this process share, because it came with one of them."""
    reference = _numbers.get(id(array))
    return reference is not None and reference() is array


def forget(key: str) -> None:
    """Undo one :func:`keep`.  The array goes when nobody else uses it."""
    with _lock:
        held = _kept.pop(key, None)
        if held is not None and held[1] > 1:
            _kept[key] = held[0], held[1] - 1


def _here(key: str) -> Array | None:
    reference = _known.get(key)
    return reference() if reference is not None else None


def _note(key: str, array: Array) -> None:
    _known[key] = held_in(_known, key, array)
    _numbers[id(array)] = held_in(_numbers, id(array), array)


def held_in(table: dict[Any, Any], key: Any, value: Any) -> weakref.ref[Any]:
    """A weak reference to a value; with the value goes its entry in a table, unless that is another's by then."""

    def gone(reference: weakref.ref[Any]) -> None:
        entry = table.get(key)
        if entry is reference or (isinstance(entry, tuple) and entry[0] is reference):
            table.pop(key, None)

    return weakref.ref(value, gone)


def _unwritable(array: Array) -> Array:
    """An array of the same contents in memory that nobody can write; itself if it is that."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if type(base) is bytes and type(array) is np.ndarray:
        return array
    made: Array = np.ndarray(array.shape, array.dtype, bytes(memory_of(array)), order=order_of(array))
    return made.view(np.recarray) if type(array) is np.recarray else made


def order_of(array: Array) -> Any:
    """``"C"`` or ``"F"``: the order in which the bytes of an array travel."""
    return "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"


def memory_of(array: Array) -> memoryview:
    """The bytes of the elements, in the order in which they lie."""
    if not array.nbytes:
        return memoryview(b"")
    plain = array.view(np.ndarray)
    ordered = plain.T if order_of(array) == "F" else np.ascontiguousarray(plain)
    return memoryview(ordered.reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def _pieces(memory: memoryview) -> list[memoryview]:
    return [memory[start : start + PIECE] for start in range(0, len(memory), PIECE)]


def _same_memory(one: Array, other: Array) -> bool:
    first, second = one.__array_interface__, other.__array_interface__
    return bool(first["data"][0] == second["data"][0] and one.shape == other.shape)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # another thread may have held it; that thread does not exist here


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)  # also where nobody has used the driver
