"""The four ways to notice which bytes of host memory were edited since they were last sent to a device.

Each remembers what was sent and is polled.  One caller at a time; :class:`cuda_captures.watch.Watch` chooses one.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from bisect import bisect_left, bisect_right
from typing import Protocol

import numpy as np

from cuda_captures.digests import digest_rate, digests
from cuda_captures.page_book import PageBook, page_book
from cuda_captures.pages import PAGE, CannotWatch, Scan
from cuda_captures.spans import Range, Spans

_memcmp = ctypes.CDLL(None if os.name == "posix" else "msvcrt").memcmp
_memcmp.restype = ctypes.c_int

BLOCK = 1 << 20  # bytes under one digest: of the sizes that hash at full speed, about the cheapest to send


class Way(Protocol):
    """One way to notice edits."""

    way: str

    @property
    def cost(self) -> float:
        """About how long a poll takes that finds nothing, in seconds."""

    def poll(self) -> list[Range]:
        """What may differ from what was last sent."""

    def sent(self, offset: int, data: memoryview) -> None:
        """Note that these bytes are on the device now, which were read from the host after the last poll."""

    def receiving(self, offset: int, nbytes: int) -> None:
        """Make ready for the device's bytes, which will be written into the host's memory."""

    def received(self, offset: int, data: memoryview) -> None:
        """Note that the device's bytes were written into the host's memory."""

    def close(self) -> None:
        """Let go of what is held."""


def host_bytes(start: int, stop: int) -> memoryview:
    """Memory as a buffer.  Does not keep it alive: touch it only while its owner lives."""
    return memoryview((ctypes.c_ubyte * (stop - start)).from_address(start)).cast("B")


class Unwritable:
    """Memory that nobody can write: sent once."""

    way = "unwritable"
    cost = 0.2e-6

    def __init__(self, start: int, stop: int) -> None:
        self._pending = Spans([(0, stop - start)])

    def poll(self) -> list[Range]:
        return self._pending.ranges() if self._pending else []

    def sent(self, offset: int, data: memoryview) -> None:
        self._pending.remove(offset, offset + len(data))

    def receiving(self, offset: int, nbytes: int) -> None:
        """Nothing to make ready."""

    received = sent

    def close(self) -> None:
        """Nothing is held."""


class ComparedBytes:
    """Compares with the very bytes that were sent, which costs their size in memory."""

    way = "bytes"

    def __init__(self, start: int, stop: int) -> None:
        self._whole = [(0, stop - start)]
        self._unknown = Spans(self._whole)
        self._host = host_bytes(start, stop)
        self._sent = bytearray(stop - start)
        self.cost = 0.4e-6 + (stop - start) / 30e9

    def poll(self) -> list[Range]:
        # This comparison is one memcmp; those of memoryview and NumPy cost from 10 to 100 times as much.
        if self._unknown or self._sent != self._host:
            return self._whole.copy()
        return []

    def differing(self) -> list[Range]:
        """Exactly those bytes that were sent and are others now."""
        found: list[Range] = []
        if self._sent == self._host:
            return found
        for start in range(0, len(self._sent), BLOCK):
            stop = min(start + BLOCK, len(self._sent))
            differs = np.zeros(stop - start + 2, np.bool_)
            np.not_equal(
                np.frombuffer(self._sent, np.uint8)[start:stop],
                np.frombuffer(self._host, np.uint8)[start:stop],
                differs[1:-1],
            )
            edges = np.flatnonzero(differs[1:] != differs[:-1]) + start
            found += zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
        known = Spans(found)
        for start, stop in self._unknown.ranges():
            known.remove(start, stop)
        return known.ranges()

    def sent(self, offset: int, data: memoryview) -> None:
        self._sent[offset : offset + len(data)] = data
        self._unknown.remove(offset, offset + len(data))

    def receiving(self, offset: int, nbytes: int) -> None:
        """Nothing to make ready."""

    received = sent

    def close(self) -> None:
        """Nothing is held but memory."""


class ComparedDigests:
    """Compares digests of what was sent with digests of what is there, piece by piece.

    A piece is what was sent at once, or a block of it, so that it does not matter how the sender cuts a range.
    """

    way = "digest"

    def __init__(self, start: int, stop: int) -> None:
        self._host = host_bytes(start, stop)
        self._unknown = Spans([(0, stop - start)])
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._digests: list[bytes] = []

    @property
    def cost(self) -> float:
        return 1e-6 + len(self._host) / digest_rate()

    def poll(self) -> list[Range]:
        host = self._host
        differing = Spans(self._unknown.ranges())
        present = digests([host[start:stop] for start, stop in zip(self._starts, self._stops, strict=True)])
        if present != self._digests:
            for start, stop, one, other in zip(self._starts, self._stops, present, self._digests, strict=True):
                if one != other:
                    differing.add(start, stop)
        return differing.ranges()

    def sent(self, offset: int, data: memoryview) -> None:
        stop = offset + len(data)
        if offset == stop:
            return
        starts = list(range(offset, stop, BLOCK))
        stops = [*starts[1:], stop]
        pieces = [data[one - offset : other - offset] for one, other in zip(starts, stops, strict=True)]
        first = bisect_right(self._stops, offset)
        last = bisect_left(self._starts, stop)
        if first < last:
            # Of a piece that is only partly sent anew the rest has no digest any more.
            self._unknown.add(self._starts[first], offset)
            self._unknown.add(stop, self._stops[last - 1])
        self._unknown.remove(offset, stop)
        self._starts[first:last] = starts
        self._stops[first:last] = stops
        self._digests[first:last] = digests(pieces)

    def receiving(self, offset: int, nbytes: int) -> None:
        """Nothing to make ready."""

    received = sent

    def close(self) -> None:
        """Nothing is held but digests."""


class WatchedPages:
    """Asks the kernel which pages were written.

    Only pages that are whole in the memory are watched.  What is left at both ends is compared: others live on those
    pages, and would pay for being watched and have the ends sent again and again.

    Raises
    ------
    CannotWatch
        By the constructor and by :meth:`poll` and :meth:`received`: another way must be taken, and everything sent.
    """

    way = "pages"

    def __init__(self, start: int, stop: int) -> None:
        low, high = -(-start // PAGE) * PAGE, stop // PAGE * PAGE
        if low >= high:
            raise CannotWatch("there is no whole page in it")
        self._start, self._low, self._high = start, low, high
        self._pending = Spans([(0, stop - start)])
        self._ends = [_End(one, other, one - start) for one, other in ((start, low), (high, stop)) if one < other]
        self._book: PageBook = page_book()
        self._interest = self._book.add(low, high)
        self._forget = weakref.finalize(self, self._book.forget, self._interest)
        self._forget.atexit = False
        self.cost = 2e-6 + (stop - start) / 5e12  # where pages are small; a tenth of it where they are huge

    def poll(self) -> list[Range]:
        book, interest = self._book, self._interest
        with book.lock:
            if book.scanning is not None:
                book.make_sure()
            book.scanning = interest
            count = interest.scan.run()
            if count or interest.told:
                self._note(interest.scan, count)
            book.scanning = None
        for end in self._ends:
            if end.sent != end.host:
                self._pending.add(end.offset, end.offset + len(end.sent))
        return self._pending.ranges() if self._pending else []

    def _note(self, scan: Scan, count: int) -> None:
        book, start = self._book, self._start
        try:
            found = book.collect(self._interest, scan, count)
        except CannotWatch:
            book.make_sure()
            raise
        self._pending.update((low - start, high - start) for low, high in found)

    def sent(self, offset: int, data: memoryview) -> None:
        self._pending.remove(offset, offset + len(data))
        for end in self._ends:
            end.note(offset, data)

    def receiving(self, offset: int, nbytes: int) -> None:
        low, high = self._whole(offset, nbytes)
        if low < high:
            self._book.unprotect(low, high)

    def _whole(self, offset: int, nbytes: int) -> Range:
        """Addresses of the pages that are watched and have any of some bytes on them."""
        low, high = self._start + offset, self._start + offset + nbytes
        return max(low // PAGE * PAGE, self._low), min(-(-high // PAGE) * PAGE, self._high)

    def received(self, offset: int, data: memoryview) -> None:
        book, interest = self._book, self._interest
        low, high = self._whole(offset, len(data))
        if low < high:
            with book.lock:
                if book.scanning is not None:
                    book.make_sure()
                book.scanning = interest
                scan = book.part(low, high)
                self._note(scan, scan.run())
                book.scanning = None
        for end in self._ends:
            end.note(offset, data)
        # Written by us, by the copy that is being told of; and if somebody else wrote as well, the bytes differ.
        # An edit after the scan is found by the next one.
        for at in range(0, len(data), BLOCK):
            piece = data[at : at + BLOCK]
            if _equal(self._start + offset + at, piece):
                self._pending.remove(offset + at, offset + at + len(piece))
            else:
                self._pending.add(offset + at, offset + at + len(piece))

    def close(self) -> None:
        self._forget()


class _End:
    """What lies on a page that is not watched, and what of it was sent.

    Before anything was, it is pending, whatever is remembered.
    """

    __slots__ = ("host", "offset", "sent")

    def __init__(self, start: int, stop: int, offset: int) -> None:
        self.host, self.offset, self.sent = host_bytes(start, stop), offset, bytearray(stop - start)

    def note(self, offset: int, data: memoryview) -> None:
        """Remember what of some data lies in here."""
        low, high = max(offset, self.offset), min(offset + len(data), self.offset + len(self.sent))
        if low < high:
            self.sent[low - self.offset : high - self.offset] = data[low - offset : high - offset]


def _equal(address: int, data: memoryview) -> bool:
    other = np.frombuffer(data, np.uint8)
    return not _memcmp(ctypes.c_void_p(address), ctypes.c_void_p(other.ctypes.data), ctypes.c_size_t(len(other)))
