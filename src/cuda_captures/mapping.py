"""NumPy arrays that the device uses in place: their pages are page-locked and mapped, nothing is copied.

Pages are registered with the driver once, however many arrays lie on them, and unregistered when the last array that
was mapped there goes.  Pages that somebody else has registered are used and left alone.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from dataclasses import dataclass
from typing import Any

from cuda_captures import driver
from cuda_captures.device import Context, context_of, page_locked, relaxed_capture
from cuda_captures.driver import DriverError
from cuda_captures.errors import CaptureError, about
from cuda_captures.extents import MOVED, Array, Extent, Root, extent
from cuda_captures.users import Users
from cuda_captures.watch import allow_pages, forbid_pages

CANNOT_MAP = (
    "the memory of a captured NumPy array marked `mapped` ({nbytes:,} bytes) cannot be page-locked for the device: "
    "{why}\n"
    "Memory that is read-only, file-backed or shared often cannot. Use the policy 'live' (the default), or copy the "
    "array to memory of its own: array = array.copy()"
)


@dataclass(eq=False)
class _Registration:
    """Pages that the driver knows.

    ``users`` counts the mapped arrays on them; ``ours`` says whether to unregister them when there are none.
    Touched under ``_lock`` only.
    """

    start: int
    stop: int
    ours: bool
    context: Context
    users: int = 0


_registrations: list[_Registration] = []  # of disjoint pages
_lock = threading.RLock()  # may be taken again: an array can go, by collection, while its holder works


def _register(bounds: Extent, context: Context) -> list[_Registration]:
    """Have all pages of an interval registered; returns what holds them, each used once more."""
    start = bounds[0] // mmap.PAGESIZE * mmap.PAGESIZE
    stop = -(-bounds[1] // mmap.PAGESIZE) * mmap.PAGESIZE
    made: list[_Registration] = []
    with _lock:
        found = sorted(
            (one for one in _registrations if one.start < stop and start < one.stop), key=lambda one: one.start
        )
        for one in found:
            one.users += 1  # first of all, so that none of them goes meanwhile
        try:
            reached = start
            for one in list(found):
                if reached < one.start:
                    made.append(_add(reached, one.start, context))
                reached = max(reached, one.stop)
            if reached < stop:
                made.append(_add(reached, stop, context))
        except BaseException:
            _unregister(found + made)
            raise
    for one in made:
        # Before anybody knows where the device finds them.  Not under the lock, which a finalizer may wait for.
        forbid_pages(one.start, one.stop, "mapped for a device, which may write it unseen by the page tables")
    return found + made


def _add(start: int, stop: int, context: Context) -> _Registration:
    ours = True
    try:
        with relaxed_capture():
            driver.calls.host_register(start, stop - start)
    except DriverError as error:
        if error.code != "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED":
            raise
        ours = False
        if not (page_locked(start) and page_locked(stop - 1)):
            raise CaptureError("another library has page-locked part of it") from error
    registration = _Registration(start, stop, ours, context, users=1)
    _registrations.append(registration)
    return registration


def _unregister(held: list[_Registration]) -> None:
    """Let go of registrations; those that nobody uses any more are undone, once the device is through with them."""
    if driver.forked():
        return
    with _lock:
        for one in held:
            one.users -= 1
            if one.users or one not in _registrations:
                continue
            _registrations.remove(one)
            allow_pages(one.start, one.stop)
            if not one.ours:
                continue
            try:
                with context_of(one.context.id, one.context.device) as alive:
                    if alive:
                        with relaxed_capture():
                            driver.calls.context_synchronize()
                            driver.calls.host_unregister(one.start)
            except CaptureError:
                pass  # the context is broken or gone, and the registration with it


class MappedMirror:
    """Host memory that the device uses in place; the interface is that of :class:`cuda_captures.copies.Mirror`.

    Parameters
    ----------
    bounds
        Addresses of the first host byte and of the one after the last.
    root
        The array that keeps this memory alive; held weakly.
    context
        The current context.

    Raises
    ------
    CaptureError
        If the memory cannot be page-locked; nothing is held then.

    Notes
    -----
    The pages are let go of when the last holder goes, or just before the array's memory does; the device is waited
    for then.  Any thread may call any method.
    """

    policy = "mapped"
    way = "mapped"
    why = "used in place by the device"
    cost = 0.1e-6
    verify = False
    uploads = uploaded = downloads = downloaded = 0  # nothing is copied

    def __init__(self, bounds: Extent, root: Array, context: Context) -> None:
        self.start, self.stop = bounds
        self.nbytes = self.stop - self.start
        self.context = context
        self.device = context.device
        self.superseded = False
        self.users = Users()
        self._root = Root(root, self)
        try:
            held = _register(bounds, context)
        except CaptureError as error:
            raise CaptureError(CANNOT_MAP.format(nbytes=self.nbytes, why=error)) from error
        self._let_go = weakref.finalize(self, _unregister, held)
        self._let_go.atexit = False
        offsets = {driver.calls.host_device_pointer(one.start) - one.start for one in held}
        if len(offsets) != 1:
            self._let_go()
            raise CaptureError(CANNOT_MAP.format(nbytes=self.nbytes, why="its pages lie apart on the device"))
        self._shift: int = offsets.pop()

    def lost(self) -> None:
        """The array goes; runs in whatever thread that happens."""
        self.superseded = True
        self._let_go()

    @property
    def roots(self) -> list[Array]:
        """The living array that keeps the memory."""
        array = self._root.alive()
        return [] if array is None else [array]

    def covers(self, bounds: Extent) -> bool:
        """Whether some host bytes are all mapped."""
        return self.start <= bounds[0] and bounds[1] <= self.stop

    def address_of(self, array: Array) -> int:
        """Device address of an array's first element."""
        if not self.covers(extent(array)):
            self.superseded = True
            raise about(self.start, CaptureError(MOVED))
        return int(array.__array_interface__["data"][0]) + self._shift

    def refresh(self, stream: int, capturing: bool | None = None, writes: bool = False) -> None:
        """Nothing to send; only looks whether the memory is still there."""
        if self._root.alive() is None:
            self.superseded = True
            self._let_go()

    def used(self, stream: int, owner: Any, capturing: bool | None = None, writes: Any = ()) -> None:
        """Nothing to note: before the pages go, the whole device is waited for."""

    def unused(self) -> None:
        """Nothing to note."""

    def forsake(self, array: Array) -> None:
        """Nothing to give up: what a kernel writes is in the array."""

    def copy_back(self, array: Array, stream: int, owner: Any = None) -> None:
        """Nothing to copy: what the kernel wrote is in the array once the stream is synchronised."""


def _forget() -> None:
    global _lock
    _registrations.clear()
    _lock = threading.RLock()


driver.after_fork(_forget)
