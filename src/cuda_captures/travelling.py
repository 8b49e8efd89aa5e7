"""Kernels on their way to another process: what they capture goes along, each array once, and is shared there.

A kernel is pickled by value, as the compilers do it: its function, what that names, and the device functions that it
calls.  Its arrays are left to the pickler that pickles the kernel, which knows which it has had already (so kernels
that share an array send it once) and may send their bytes out of band (protocol 5).

Who may write an array that arrives?

- One that its kernel captures as ``live`` or ``mapped``, by a marker or by ``captures=``: it is private to that
  pickle, and as writeable as pickle makes it.
- Nobody, otherwise: it is read-only, and one array for all kernels of the process that brought the same contents.  So
  a task can change no other task's table; one that tries is told so, by NumPy or when its kernel is compiled.

Arrays in device memory travel as copies in host memory, and arrive as NumPy arrays.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuda_captures import arrivals
from cuda_captures.discovery import discover
from cuda_captures.host_copies import host_copy
from cuda_captures.policy import MarkedArray, Policy, policy_of, unmarked
from cuda_captures.settings import current as settings
from cuda_captures.unpacking import Note, Reference, arrive

WRITTEN: tuple[Policy, ...] = ("live", "mapped")


@dataclass(frozen=True)
class Shared:
    """Who has an array of some contents already.

    Parameters
    ----------
    where
        For people.
    reference
        Weak, to what connects this process with it.
    connected
        Whether that still does.
    """

    where: str
    reference: weakref.ref[Any]
    connected: Callable[[Any], bool]

    @property
    def of(self) -> Any:
        """What connects this process with it, or None."""
        found = self.reference()
        return found if found is not None and self.connected(found) else None


REFERENCES: dict[str, Shared] = {}
"""Contents that need not be sent, as they are where kernels are sent to: by key (see ``dask``)."""


class Luggage:
    """The arrays of one kernel that is being packed: each is numbered once.

    Parameters
    ----------
    private
        Identities of arrays that the kernel may write where it goes.
    """

    def __init__(self, private: frozenset[int]) -> None:
        self.private = private
        self.arrays: list[Any] = []
        self.notes: list[Note] = []
        self._numbers: dict[int, int] = {}
        self._held: list[Any] = []  # so that identities stay theirs

    def number(self, value: Any) -> int | None:
        """The number of an array, new or known; None for anything else."""
        if type(value).__module__ == "builtins":  # most of what is pickled, and modules, whose attributes may be lazy
            return None
        known = self._numbers.get(id(value))
        if known is not None:
            return known
        array, policy = array_of(value)
        if array is None:
            return None
        self._held.append(value)
        private = id(value) in self.private
        self.arrays.append(array if private else _referred(array))
        self.notes.append(Note(policy, private))
        self._numbers[id(value)] = len(self.arrays) - 1
        return len(self.arrays) - 1


class Packed:
    """A kernel that is being copied or pickled; which of both, only pickling tells.

    Parameters
    ----------
    kernel
        The kernel.
    again
        Makes another one of the same function, as the compiler does it.
    pack
        Writes a kernel to bytes, without what the luggage takes.
    once
        Whether the compiler makes one kernel of all that come from the same one.
    """

    def __init__(
        self, kernel: Any, again: Callable[[Any], Any], pack: Callable[[Any, Luggage], bytes], once: bool
    ) -> None:
        self.kernel = kernel
        self.again = again
        self.pack = pack
        self.once = once

    def __deepcopy__(self, memo: Any) -> Packed:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        luggage = Luggage(written_arrays(self.kernel))
        payload = self.pack(self.kernel, luggage)
        chosen = settings()
        return arrive, (
            payload,
            tuple(luggage.arrays),
            tuple(map(tuple, luggage.notes)),
            (chosen.host, chosen.follow, chosen.verify, chosen.peer),
            self.once,
        )


def unpacked(kernel: Any) -> Any:
    """What a kernel is reduced to makes of itself: the kernel that has arrived, or a copy in this process."""
    return kernel.again(kernel.kernel) if isinstance(kernel, Packed) else kernel


def written_arrays(kernel: Any) -> frozenset[int]:
    """Identities of the arrays that a kernel captures under a policy by which it may write them."""
    policies = getattr(kernel, "targetoptions", {}).get("captures")
    return frozenset(
        id(capture.value)
        for capture in discover(kernel).arrays
        if isinstance(capture.value, np.ndarray)
        and policy_of(capture.value, capture.place.name, policies, "") in WRITTEN
    )


def array_of(value: Any) -> tuple[Any, Policy | None]:
    """A host array for a value that is an array, and the policy of its marker; None for what is none."""
    if isinstance(value, np.ndarray) and not _on_device(value):
        if value.dtype.hasobject or isinstance(value, np.ma.MaskedArray):
            return None, None
        if isinstance(value, MarkedArray):
            return unmarked(value), value.capture_policy
        return value, None
    if _on_device(value):
        return _copied(value), None
    return None, None


def _on_device(value: Any) -> bool:
    if isinstance(value, type):
        return False
    if hasattr(type(value), "__cuda_ndarray__") and not hasattr(type(value), "__cuda_array_interface__"):
        return True  # the simulator's
    try:
        return hasattr(value, "__cuda_array_interface__")
    except Exception:  # it is not handed out, so nobody can copy it
        return False


def _copied(value: Any) -> np.ndarray[Any, Any]:
    """A device array in host memory; the copy that is being pickled already, if it is equal."""
    copy = host_copy(value)
    known = _copies.get(id(value))
    before = known() if known is not None else None
    if before is not None and _layout(before)[1:] == _layout(copy)[1:] and before.tobytes() == copy.tobytes():
        return before
    number = id(value)
    _copies[number] = arrivals.held_in(_copies, number, copy)
    return copy


_copies: dict[int, weakref.ref[np.ndarray[Any, Any]]] = {}  # by the identity of the device array


def _layout(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    return array.__array_interface__["data"][0], array.shape, array.strides, array.dtype


def _referred(array: Any) -> Any:
    """A reference, if somebody has said that these contents are where kernels are sent to."""
    if REFERENCES and arrivals.sharable(array):
        key = arrivals.content_key(array)
        shared = REFERENCES.get(key)
        if shared is not None and shared.of is not None:
            return Reference(key, shared.where)
        REFERENCES.pop(key, None)
    return array
