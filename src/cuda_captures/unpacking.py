"""Kernels that arrive in this process: put together again, with the arrays that came along or are here already."""

from __future__ import annotations

import io
import os
import pickle
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cuda_captures import arrivals, mirrors
from cuda_captures.errors import CaptureError
from cuda_captures.policy import Policy


class Note(NamedTuple):
    """What is said of an array that travels.

    Parameters
    ----------
    policy
        Of its marker, or None.
    private
        Whether it is written where it goes, and so is not to be shared there.
    """

    policy: Policy | None
    private: bool


@dataclass(frozen=True)
class Reference:
    """Stands for an array that is already where the kernel goes.

    Parameters
    ----------
    key
        Of its contents, :func:`cuda_captures.arrivals.content_key`.
    where
        Who has it.
    """

    key: str
    where: str


def arrive(payload: bytes, arrays: Sequence[Any], notes: Sequence[Any], chosen: Sequence[Any], once: bool) -> Any:
    """The kernel that has arrived; captures are enabled for it, as they were where it comes from.

    Parameters
    ----------
    payload
        The kernel without its arrays.
    arrays
        The arrays, or references to what is here.
    notes
        What is said of each.
    chosen
        The settings of the process that it comes from.
    once
        Whether what is the same as something that came before is that very kernel, while it lives: the compiler's own
        rule, by which kernels that it never lets go of do not pile up.

    Returns
    -------
    object
        The kernel; or, if what it refers to is not here, a :class:`Waiting` that can be sent on.
    """
    found = []
    for array in arrays:
        if isinstance(array, Reference):
            array = arrivals.kept(array.key)
            if array is None:
                return Waiting(payload, tuple(arrays), tuple(notes), tuple(chosen), once)
        found.append(array)
    from cuda_captures import backends, control  # which know compilers; this module is imported without any

    if not backends.present():
        return Waiting(payload, tuple(arrays), tuple(notes), tuple(chosen), once)
    if not backends.enabled():
        control.enable(*chosen)
    told = [Note(*note) for note in notes]
    ready = [
        arrivals.with_policy(array if note.private else arrivals.shared(array), note.policy)
        for array, note in zip(found, told, strict=True)
    ]
    if any(note.private for note in told):
        return _Unpacker(io.BytesIO(payload), ready).load()
    key = (payload, *map(id, ready))
    kernel = _came.get(key) if once else None
    if kernel is None:
        kernel = _Unpacker(io.BytesIO(payload), ready).load()
        if once:
            _came[key] = kernel  # it holds the arrays, so identities stay theirs
    _hold(key, kernel, ready)
    return kernel


_came: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()

HELD_KERNELS = 16
HELD_BYTES = 1 << 30
"""What came last is held, at most so many kernels and bytes of their arrays (but always the last): the next task finds
its tables, and their device copies, even if no other task is at work meanwhile."""

_held: OrderedDict[Any, tuple[Any, Sequence[Any]]] = OrderedDict()


def _hold(key: Any, kernel: Any, arrays: Sequence[Any]) -> None:
    dropped = []  # let go of without the lock
    with _lock:
        _held.setdefault(key, (kernel, arrays))  # the older of two equal ones has been launched
        _held.move_to_end(key)
        while len(_held) > HELD_KERNELS or (len(_held) > 1 and _held_bytes() > HELD_BYTES):
            dropped.append(_held.popitem(last=False))


def _let_go() -> None:
    with _lock:
        dropped = list(_held.values())
        _held.clear()
    dropped.clear()


mirrors.SPARE_COPIES.append(_let_go)


def _held_bytes() -> int:
    return sum({id(array): array.nbytes for _, arrays in _held.values() for array in arrays}.values())


_lock = threading.Lock()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # another thread may have held it; that thread does not exist here


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)  # also where nobody has used the driver


class _Unpacker(pickle.Unpickler):
    """Puts arrays where the luggage took them."""

    def __init__(self, file: io.BytesIO, arrays: Sequence[Any]) -> None:
        super().__init__(file)
        self.arrays = arrays

    def persistent_load(self, number: Any) -> Any:
        return self.arrays[number]


class Waiting:
    """A kernel in a process that has not got its tables, or no compiler: a scheduler, that passes it on.

    It can be pickled again.  Whoever launches it, or looks at it, gets the kernel once the tables are here, and until
    then an error.
    """

    def __init__(
        self, payload: bytes, arrays: Sequence[Any], notes: Sequence[Any], chosen: Sequence[Any], once: bool
    ) -> None:
        self._came = payload, arrays, notes, chosen, once

    def __reduce_ex__(self, protocol: Any) -> Any:
        return arrive, self._came

    def kernel(self) -> Any:
        """The kernel.

        Raises
        ------
        CaptureError
            If its tables are not here.
        CaptureVersionError
            If no compiler is.
        """
        found = arrive(*self._came)
        if isinstance(found, Waiting):
            references = [one for one in self._came[1] if isinstance(one, Reference)]
            missing = next((one for one in references if arrivals.kept(one.key) is None), None)
            if missing is None:
                from cuda_captures import backends

                backends.enable()  # says that there is no compiler
                return self.kernel()
            digest, _, form = missing.key.partition(" ")
            raise CaptureError(ABSENT.format(form=form, digest=digest[:8], where=missing.where))
        return found

    def __getitem__(self, configuration: Any) -> Any:
        return self.kernel()[configuration]

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.kernel()(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what libraries look for in any object; it can be had of the kernel alone
            raise AttributeError(f"a kernel that waits for its tables has no {name!r}")
        return getattr(self.kernel(), name)


ABSENT = """\
this kernel was pickled for {where}, and refers to a table that was sent there: {form} (contents {digest}…).
This process has not got it. Send the kernel to a worker of that cluster, or pickle it after
`cuda_captures.dask.unshare(client)`: then its tables go along."""
