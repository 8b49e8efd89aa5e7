"""Pieces of memory, found by the addresses that they meet."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Intervals(Generic[T]):
    """Things that each have an interval; intervals may overlap.

    Finding those that meet an interval takes time that grows with how many these are, and with the logarithm of how
    many there are: intervals of about the same length are kept together in the order of their starts, so that the
    way back to the first that can reach far enough is short.

    Not locked: whoever owns it sees to that.
    """

    def __init__(self) -> None:
        self._classes: dict[int, tuple[list[int], list[tuple[int, T]]]] = {}  # by bit length: starts; stops and things
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        return iter([item for _, entries in self._classes.values() for _, item in entries])

    def add(self, start: int, stop: int, item: T) -> None:
        """Note a thing with the interval from ``start`` to before ``stop``."""
        starts, entries = self._classes.setdefault((stop - start).bit_length(), ([], []))
        at = bisect_right(starts, start)
        starts.insert(at, start)
        entries.insert(at, (stop, item))
        self._count += 1

    def remove(self, start: int, stop: int, item: T) -> None:
        """Take out what was added; nothing happens if it is not there."""
        starts, entries = self._classes.get((stop - start).bit_length(), ([], []))
        at = bisect_left(starts, start)
        while at < len(starts) and starts[at] == start:
            if entries[at][1] is item:
                del starts[at], entries[at]
                self._count -= 1
                return
            at += 1

    def overlapping(self, start: int, stop: int) -> list[T]:
        """Those that have a place between ``start`` and ``stop`` in common, by ascending start."""
        found: list[tuple[int, T]] = []
        for bits, (starts, entries) in self._classes.items():
            at = bisect_left(starts, stop)
            farthest = start - (1 << bits)
            while at and starts[at - 1] > farthest:
                at -= 1
                if entries[at][0] > start:
                    found.append((starts[at], entries[at][1]))
        return [item for _, item in sorted(found, key=lambda pair: pair[0])]
