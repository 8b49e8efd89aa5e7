"""Everybody in this process who wants to know which pages were written, in one book.

A scan that finds a page written protects it again, so the next scan does not find it: what one watch finds, all
others that cover the page must be told.  That is what the book is for.
"""

from __future__ import annotations

import os
import threading
from collections import deque

from cuda_captures.address_space import NotMapped, pinned_kilobytes, why_not_private
from cuda_captures.errors import CaptureError, about
from cuda_captures.interest import Interest
from cuda_captures.intervals import Intervals
from cuda_captures.page_trial import proven_writes
from cuda_captures.pages import CannotWatch, PageWrites, Scan
from cuda_captures.spans import Range, Spans

GONE = (
    "the memory of a captured NumPy array is gone: {reason}.\n"
    "It was unmapped while the array, or an array that it is a view of, still refers to it; capture a copy instead."
)


class PageBook:
    """The page watches of one process.

    Attributes
    ----------
    lock
        Held while anything in here is read or changed.  Reentrant, for a signal handler that comes in between.
    scanning
        Whose pages are being scanned.  Set before a scan and taken away when all it found has been noted; an
        exception in between, ``KeyboardInterrupt`` for instance, leaves it for :meth:`make_sure`.
    pid
        Of the process whose pages these are.

    Raises
    ------
    CannotWatch
        If pages cannot be watched in this process.

    Notes
    -----
    Any thread may use it.  There is one a process, made at the first need by :func:`page_book`; a forked child makes
    its own, with no watch in it.  Lives until the interpreter exits, and the kernel then takes it all away.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.scanning: Interest | None = None
        self._writes: PageWrites = proven_writes()
        self._interests: Intervals[Interest] = Intervals()
        self._leaving: deque[Interest] = deque()
        self._changing = False

    def add(self, low: int, high: int) -> Interest:
        """Begin to watch whole pages; all of them count as written.

        Raises
        ------
        CannotWatch
            With the reason why writes to this memory could go unnoticed.
        """
        with self.lock:
            self._drain()
            refused = _why_forbidden(low, high)
            if refused:
                raise CannotWatch(refused)
            self._look(low, high)
            self._changing = True
            try:
                return self._added(low, high)
            finally:
                self._changing = False

    def _added(self, low: int, high: int) -> Interest:
        self._writes.register(low, high)
        interest = Interest(low, high, self._writes.scan(low, high))
        interest.doubt()
        interest.near = tuple(self._interests.overlapping(low, high))
        self._interests.add(low, high, interest)
        for other in interest.near:
            other.near += (interest,)
        return interest

    def forget(self, interest: Interest) -> None:
        """No longer watch for somebody; what nobody else watches becomes ordinary memory again.

        May be called from a finalizer in any thread at any moment: it never waits.
        """
        self._leaving.append(interest)
        if self.pid == os.getpid() and self.lock.acquire(blocking=False):
            try:
                if self.scanning is None:
                    self._drain()
            finally:
                self.lock.release()

    def collect(self, interest: Interest, scan: Scan, count: int) -> list[Range]:
        """What a scan has found and what others have found before; tells those who watch the same pages.

        Parameters
        ----------
        interest
            Whose scan it was.
        scan
            Of all of its pages or of some.
        count
            What ``scan.run()`` returned.

        Returns
        -------
        list of Range
            Addresses, in no order.

        Raises
        ------
        CannotWatch
            These pages cannot be watched any longer.

        Notes
        -----
        The lock is held, and has been since before the scan.
        """
        self._drain()
        found: list[Range] = []
        if count > 0:
            try:
                found = self._writes.found(scan, count)
            except OSError:
                count = -1
        if count < 0:
            self._renew(interest)
        for other in interest.near:
            for start, stop in found:
                other.told.add(max(start, other.low), min(stop, other.high))
        if interest.refused:
            raise CannotWatch(interest.refused)
        if found:
            # Pages that were pinned for a device since they were last protected have been written, as Linux sees
            # it.  From then on it sees nothing.
            _refuse_pinned()
        found += interest.told.ranges()
        interest.told.clear()
        return found

    def part(self, low: int, high: int) -> Scan:
        """A scan of some of the pages of an interest."""
        return self._writes.scan(low, high)

    def unprotect(self, low: int, high: int) -> None:
        """Count whole pages as written, before they are: that costs less than to find it out page by page."""
        with self.lock:
            self._writes.unprotect(low, high)

    def make_sure(self) -> None:
        """Make up for a scan that was broken off: what it found may be forgotten, so everything is in doubt."""
        interest = self.scanning
        if interest is not None:
            for each in (interest, *interest.near):
                each.doubt()
        self.scanning = None

    def _renew(self, interest: Interest) -> None:
        """Watch pages again that the kernel no longer watches: they were given back and came anew."""
        for each in (interest, *interest.near):
            each.doubt()
        self._writes.mend()
        self._look(interest.low, interest.high)
        self._writes.register(interest.low, interest.high)
        # What this does not protect counts as written, and what it finds is in doubt already.
        if interest.scan.run() < 0:
            raise CannotWatch("the memory is mapped anew all the time")

    def _look(self, low: int, high: int) -> None:
        try:
            refused = why_not_private(low, high)
        except NotMapped as error:
            raise about(low, CaptureError(GONE.format(reason=error))) from None
        if refused:
            raise CannotWatch(refused)
        _refuse_pinned()

    def _drain(self) -> None:
        if not self._leaving or self._changing:
            return
        self._changing = True  # a finalizer may come in between, and must leave this alone
        try:
            while self._leaving:
                self._remove(self._leaving.popleft())
        finally:
            self._changing = False

    def _remove(self, interest: Interest) -> None:
        self._interests.remove(interest.low, interest.high, interest)
        alone = Spans([(interest.low, interest.high)])
        for other in interest.near:
            alone.remove(other.low, other.high)
            other.near = tuple(one for one in other.near if one is not interest)
        for low, high in alone.ranges():
            self._writes.unregister(low, high)

    def refuse(self, start: int, stop: int, why: str) -> None:
        """Have the watches that meet some memory do without pages from their next poll on."""
        with self.lock:
            for interest in self._interests.overlapping(start, stop):
                interest.refused = why
                interest.doubt()

    def abandon(self) -> None:
        """Let go of the parent's descriptors, in a forked child."""
        self._writes.abandon()


def _refuse_pinned() -> None:
    kilobytes = pinned_kilobytes()
    if kilobytes:
        raise CannotWatch(f"{kilobytes:,} kB of this process are pinned (VmPin): a device may write them unseen")


# The one book of this process, or why there is none.  Changed under _making, and in a forked child.
_book: PageBook | CannotWatch | None = None
_making = threading.Lock()
_forbidden: list[tuple[int, int, str]] = []


def page_book() -> PageBook:
    """The book of this process.

    Raises
    ------
    CannotWatch
        If pages cannot be watched in this process; found out once.
    """
    global _book
    with _making:
        if _book is None or (isinstance(_book, PageBook) and _book.pid != os.getpid()):
            try:
                _book = PageBook()
            except CannotWatch as reason:
                _book = reason
        if isinstance(_book, CannotWatch):
            raise CannotWatch(str(_book))
        return _book


def forbid_pages(start: int, stop: int, why: str) -> None:
    """Say that some memory may be written past the page tables, by a device that it is page-locked for.

    Parameters
    ----------
    start, stop
        Addresses of the first byte and of the one after the last.
    why
        A clause for the report.

    Notes
    -----
    Holds until :func:`allow_pages`.  Watches that are there already take another way at their next poll.
    """
    _forbidden.append((start, stop, why))
    if isinstance(_book, PageBook):
        _book.refuse(start, stop, why)


def allow_pages(start: int, stop: int) -> None:
    """Take back what :func:`forbid_pages` said of memory between two addresses."""
    _forbidden[:] = [entry for entry in _forbidden if not (start <= entry[0] and entry[1] <= stop)]


def _why_forbidden(start: int, stop: int) -> str:
    return next((why for low, high, why in _forbidden if low < stop and start < high), "")


def _in_child() -> None:
    """Forget the parent's watches: its descriptors would scan and protect the parent's pages."""
    global _book, _making
    if isinstance(_book, PageBook):
        _book.abandon()
        _book = None
    _making = threading.Lock()  # another thread may have held it at the fork


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
