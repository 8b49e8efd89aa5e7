"""Which bytes of a piece of host memory were edited since they were last sent to a device.

======================  ============================================================================================
way                     for
======================  ============================================================================================
``"unwritable"``        ``bytes``: nobody can write them.  An array with ``flags.writeable`` False is not enough:
                        views made before the flag was taken away can still write, and its owner can set it again.
``"bytes"``             small arrays: compared with what was sent
``"pages"``             private anonymous memory, where Linux can tell which pages were written
``"digest"``            everything else: compared by digest with what was sent
======================  ============================================================================================

Limits of ``"pages"``.  Linux notes a page as written when it is looked up for writing; who has looked it up before can
write it later, unseen.

- A device writes memory that is page-locked for it.  Ask CUDA, and say so with :func:`forbid_pages`.  Memory that is
  pinned with Linux's knowledge (RDMA, io_uring's registered buffers) is noticed, for the whole process: ``VmPin``.
- Reads from files opened with ``O_DIRECT`` look the pages up when they begin.  A poll *during* such a read into the
  array misses what comes after it, about every second time when tried; a poll before or after it misses nothing.
  Ordinary reads, ``readinto`` and ``recv`` of any kind are noticed page by page.
- Other processes that write this one's memory: debuggers and ``process_vm_writev``, for the microseconds of one call;
  those that have attached to it by XPMEM, always.

Where that happens, force ``"digest"``.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from cuda_captures.errors import CaptureError, about
from cuda_captures.page_book import allow_pages, forbid_pages
from cuda_captures.pages import CannotWatch
from cuda_captures.spans import Range, Spans
from cuda_captures.ways import ComparedBytes, ComparedDigests, Unwritable, WatchedPages, Way

__all__ = ["Range", "Watch", "allow_pages", "forbid_pages", "watch"]

SMALL = 64 << 10
"""Bytes up to which an array is compared: that takes 2 us then, as long as a scan, and its neighbours in the heap are
not slowed down by write-protection."""

WRONG = (
    "an edit of a captured NumPy array went unnoticed: bytes {start:,} to {stop:,} from address {address:#x} differ "
    "from what the device has, and the watch ({way}: {why}) did not say so.\n"
    "Something writes the array past the operating system: a device that its memory is page-locked for, O_DIRECT or "
    "another process. Mark the array with cuda_captures.mapped(...) or copy into an array that only Python writes.\n"
    "The next launch sends everything again."
)

CLOSED = 0  # no process that could be asked about has this number

Buffer = Any  # collections.abc.Buffer, from Python 3.12 on


class Watch:
    """Tells what to send of the host's bytes from ``start`` to ``stop``, for one copy of them.

    Made by :func:`watch`.

    Attributes
    ----------
    start, stop
        Addresses.
    way
        ``"unwritable"``, ``"bytes"``, ``"pages"`` or ``"digest"``.  May change when a watch can no longer keep its
        promise in the old way; everything is sent again then.
    why
        One clause: why in this way.
    cost
        About how long a poll takes that finds nothing, in seconds.

    Notes
    -----
    One caller at a time; edits may happen at any time in any thread.  The memory must be there while :meth:`poll`
    and :meth:`received` run: whoever holds the watch looks after its owner, and makes another watch when
    ``ndarray.resize`` has moved it.  In a forked child every watch begins anew with everything.
    Closed by :meth:`close` or when it is collected.
    """

    def __init__(
        self, start: int, stop: int, owner: np.ndarray[Any, Any] | None, way: str | None, verify: bool
    ) -> None:
        self.start, self.stop = start, stop
        self._forced = way
        self._untouchable = _of_bytes(start, stop, owner)
        self._verify = verify
        self._begin()

    def _begin(self, refused: str = "") -> None:
        self._pid = os.getpid()
        self._way, self.why = self._chosen(refused)
        # Of the bytes themselves: of a block that is sent in part, a digest would know nothing any more.
        self._check = ComparedBytes(self.start, self.stop) if self._verify else None

    def _chosen(self, refused: str) -> tuple[Way, str]:
        start, stop, forced = self.start, self.stop, self._forced
        size = stop - start
        if refused:
            return ComparedDigests(start, stop), refused
        if not size:
            return Unwritable(start, stop), "there is nothing in it"
        if forced == "unwritable" and not self._untouchable:
            raise ValueError("only memory of bytes objects is known to be unwritable")
        if forced == "unwritable" or (forced is None and self._untouchable):
            return Unwritable(start, stop), "nobody can write a bytes object"
        if forced == "bytes" or (forced is None and size <= SMALL):
            return ComparedBytes(start, stop), f"compared with what was sent, {size:,} bytes"
        if forced == "digest":
            return ComparedDigests(start, stop), "as asked for"
        try:
            return WatchedPages(start, stop), "private memory, whose written pages the kernel tells"
        except CannotWatch as reason:
            if forced == "pages":
                raise ValueError(f"its pages cannot be watched: {reason}") from None
            return ComparedDigests(start, stop), str(reason)

    @property
    def way(self) -> str:
        return self._way.way

    @property
    def cost(self) -> float:
        return self._way.cost

    def __repr__(self) -> str:
        return f"<Watch of {self.stop - self.start:,} bytes by {self.way}: {self.why}>"

    def poll(self) -> list[Range]:
        """What may differ from what was last sent.

        Returns
        -------
        list of Range
            Offsets, ascending; all that was edited before the call, and everything the first time.  A range is
            returned again until :meth:`sent` or :meth:`received` has covered it.  An edit during the call or after
            it, also while the caller reads the bytes, is in what the next poll returns.

        Raises
        ------
        CaptureError
            When verifying, if an edit went unnoticed; and if the memory is not there any more.
        """
        if self._pid != os.getpid():
            self._forked()
        if self._check is not None:
            return self._verified(self._check)
        try:
            return self._way.poll()
        except CannotWatch as reason:
            return self._without_pages(str(reason))

    def _forked(self) -> None:
        if self._pid == CLOSED:
            raise ValueError("the watch is closed")
        self._begin()

    def _without_pages(self, reason: str) -> list[Range]:
        self._way.close()
        self._begin(reason)
        return self._way.poll()

    def _verified(self, check: ComparedBytes) -> list[Range]:
        # In this order: what is edited in between can only be missing from the first.
        missing = Spans(check.differing())
        try:
            ranges = self._way.poll()
        except CannotWatch as reason:
            return self._without_pages(str(reason))
        for start, stop in ranges:
            missing.remove(start, stop)
        if missing:
            start, stop = missing.ranges()[0]
            text = WRONG.format(start=start, stop=stop, address=self.start, way=self.way, why=self.why)
            error = about(self.start, CaptureError(text))
            self._way.close()
            self._begin()
            raise error
        return ranges

    def sent(self, offset: int, data: Buffer) -> None:
        """Note that bytes are on the device now.

        Parameters
        ----------
        offset
            Of the first byte.
        data
            What was sent itself, read from the host after the last poll.  The host may hold something else by now.
        """
        if not (view := memoryview(data)).nbytes or self._pid == CLOSED:
            return
        view = view.cast("B")
        self._way.sent(offset, view)
        if self._check is not None:
            self._check.sent(offset, view)

    def receiving(self, offset: int, nbytes: int) -> None:
        """Make ready for bytes from the device; :meth:`received` must follow.

        Need not be called, but makes writing much of the host's memory several times as fast.

        Parameters
        ----------
        offset, nbytes
            Where they will be written.
        """
        if nbytes and self._pid == os.getpid():
            self._way.receiving(offset, nbytes)

    def received(self, offset: int, data: Buffer) -> None:
        """Note that the device's bytes were written into the host's memory.

        Parameters
        ----------
        offset
            Of the first byte.
        data
            What the device has there.  Where the host has something else, somebody edited it meanwhile, and it is
            sent by the next launch.
        """
        if not (view := memoryview(data)).nbytes or self._pid == CLOSED:
            return
        view = view.cast("B")
        if self._pid != os.getpid():
            self._forked()
        try:
            self._way.received(offset, view)
        except CannotWatch as reason:
            self._without_pages(str(reason))
            return
        if self._check is not None:
            self._check.received(offset, view)

    def close(self) -> None:
        """Let go of what is held in the system; idempotent.  After it :meth:`poll` is an error."""
        self._pid = CLOSED
        self._way.close()


def watch(
    start: int, stop: int, owner: np.ndarray[Any, Any] | None, *, way: str | None = None, verify: bool = False
) -> Watch:
    """Watch the host's bytes from ``start`` to ``stop``, in the cheapest way that is safe.

    Parameters
    ----------
    start, stop
        Addresses of the first byte and of the one after the last.
    owner
        An array over this memory, whose chain of bases tells whether anybody can write it; not held.
    way
        Force a way.
    verify
        Whether every poll is checked against a second copy of what was sent.

    Raises
    ------
    ValueError
        If the way that is forced cannot be used; with the reason.
    """
    if way not in (None, "unwritable", "bytes", "pages", "digest"):
        raise ValueError(f"way must be unwritable, bytes, pages or digest (got {way!r})")
    return Watch(start, stop, owner, way, verify)


def _of_bytes(start: int, stop: int, owner: np.ndarray[Any, Any] | None) -> bool:
    """Whether memory lies inside of a bytes object."""
    base: Any = owner
    while isinstance(base, np.ndarray):
        base = base.base
    while isinstance(base, memoryview):
        base = base.obj
    if type(base) is not bytes:
        return False
    low = int(np.frombuffer(base, np.uint8).ctypes.data) if base else 0
    return low <= start and stop <= low + len(base)
