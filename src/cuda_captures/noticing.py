"""What notices the edits of the memory that a device copy is of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from cuda_captures.device import page_locked
from cuda_captures.extents import Array, Extent
from cuda_captures.pages import PAGE
from cuda_captures.spans import Range
from cuda_captures.watch import watch

PROBES = 4  # edited ranges that are tested for having been page-locked
PAGE_LOCKED = "page-locked memory, which a device may write unseen by the page tables"


class Noticing(Protocol):
    """As :class:`cuda_captures.watch.Watch`; one caller at a time."""

    why: str

    @property
    def way(self) -> str: ...
    @property
    def cost(self) -> float: ...
    def poll(self) -> list[Range]: ...
    def sent(self, offset: int, data: memoryview) -> object: ...
    def received(self, offset: int, data: memoryview) -> object: ...
    def close(self) -> object: ...


class Once:
    """Notices nothing: the bytes are sent once, and once more when asked.  For snapshots."""

    way = "snapshot"
    cost = 0.1e-6

    def __init__(self, nbytes: int) -> None:
        self.why = "copied once, and again by refresh()"
        self._nbytes = nbytes
        self._sent = 0

    def poll(self) -> list[Range]:
        return [(self._sent, self._nbytes)] if self._sent < self._nbytes else []

    def sent(self, offset: int, data: memoryview) -> None:
        self._sent = max(self._sent, offset + len(data))  # they come in ascending order

    def received(self, offset: int, data: memoryview) -> None:
        """Nothing to note: a snapshot is not written by kernels."""

    def again(self) -> None:
        """Have everything sent once more."""
        self._sent = 0

    def close(self) -> None:
        """Nothing is held."""


class Unwatched:
    """Takes everything for edited: for memory that may well be sent only once, where a watch would cost as much."""

    way = "unwatched"
    why = "sent for one launch so far, and watched from the next on"

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self.cost = nbytes / 10e9  # of sending it
        self.was_sent = False

    def poll(self) -> list[Range]:
        return [(0, self._nbytes)]

    def sent(self, offset: int, data: memoryview) -> None:
        self.was_sent = True

    def received(self, offset: int, data: memoryview) -> None:
        """Nothing to note: all is sent again anyway."""

    def close(self) -> None:
        """Nothing is held."""


def noticing(bounds: Extent, owner: Array, *, verify: bool) -> Noticing:
    """Watch the bytes between two addresses, as a device may write them too.

    Parameters
    ----------
    bounds
        Addresses of the first byte and of the one after the last.
    owner
        An array over this memory.
    verify
        Whether every "unchanged" is checked.
    """
    start, stop = bounds
    found: Noticing = watch(start, stop, owner, verify=verify)
    if found.way == "pages" and (page_locked(start) or page_locked(stop - 1)):
        # What a device can write, it writes past the page tables: only the bytes themselves tell.
        found.close()
        found = watch(start, stop, owner, way="digest", verify=verify)
        found.why = PAGE_LOCKED
    return found


def locked_since(found: Noticing, start: int, ranges: Iterable[Range]) -> bool:
    """Whether memory that is watched by pages has been page-locked by somebody: the system counts that as an edit.

    Parameters
    ----------
    found
        The watch.
    start
        Address that the ranges count from.
    ranges
        What it has just reported.
    """
    if found.way != "pages":
        return False
    return any(_locked(start + low, start + high - 1) for low, high in list(ranges)[:PROBES])


def _locked(first: int, last: int) -> bool:
    # Memory is page-locked by pages, and asking costs as much as sending one.
    return page_locked(first) or (first // PAGE != last // PAGE and page_locked(last))
