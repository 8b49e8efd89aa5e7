"""Sets of bytes, kept as the spans that they are made of."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

Range = tuple[int, int]


class Spans:
    """A set of whole numbers, as few half-open spans ``[start, stop)`` as hold it.

    Notes
    -----
    Not locked: whoever owns it sees to that.
    """

    __slots__ = ("_starts", "_stops")

    def __init__(self, spans: Iterable[Range] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        for start, stop in spans:
            self.add(start, stop)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __len__(self) -> int:
        return len(self._starts)

    def ranges(self) -> list[Range]:
        """The spans in ascending order; between two of them there is a gap."""
        return list(zip(self._starts, self._stops, strict=True))

    def clear(self) -> None:
        self._starts.clear()
        self._stops.clear()

    def add(self, start: int, stop: int) -> None:
        """Put the numbers from ``start`` to before ``stop`` in."""
        if start >= stop:
            return
        starts, stops = self._starts, self._stops
        if not starts or start > stops[-1]:
            starts.append(start)
            stops.append(stop)
            return
        first = bisect_left(stops, start)  # the first span that ends at or after the start: they join
        last = bisect_right(starts, stop)  # one past the last span that begins at or before the stop
        if first < last:
            start = min(start, starts[first])
            stop = max(stop, stops[last - 1])
        starts[first:last] = [start]
        stops[first:last] = [stop]

    def update(self, spans: Iterable[Range]) -> None:
        """Put several spans in."""
        for start, stop in spans:
            self.add(start, stop)

    def remove(self, start: int, stop: int) -> None:
        """Take the numbers from ``start`` to before ``stop`` out."""
        starts, stops = self._starts, self._stops
        if not starts or start >= stop:
            return
        first = bisect_right(stops, start)  # the first span that ends after the start
        last = bisect_left(starts, stop)  # one past the last span that begins before the stop
        if first >= last:
            return
        left, right = starts[first], stops[last - 1]
        new_starts, new_stops = [], []
        if left < start:
            new_starts.append(left)
            new_stops.append(start)
        if stop < right:
            new_starts.append(stop)
            new_stops.append(right)
        starts[first:last] = new_starts
        stops[first:last] = new_stops
