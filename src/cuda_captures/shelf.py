"""The device copies of one context, found by the host memory that they are of."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

from cuda_captures.copies import Mirror
from cuda_captures.extents import Extent
from cuda_captures.intervals import Intervals
from cuda_captures.mapping import MappedMirror

AnyMirror = Mirror | MappedMirror


class Shelf:
    """Knows the copies that somebody holds; holds none itself.

    Touched under ``mirrors.LAUNCH_LOCK``.  Kept for the life of the process: what goes is taken out when it is met,
    and all that has gone whenever as many have been put in as were left the last time.
    """

    def __init__(self) -> None:
        self._known: Intervals[weakref.ref[AnyMirror]] = Intervals()
        self._bounds: dict[weakref.ref[AnyMirror], Extent] = {}
        self._limit = 16

    def __iter__(self) -> Iterator[AnyMirror]:
        return iter([mirror for reference in self._bounds if (mirror := reference()) is not None])

    def put(self, mirror: AnyMirror) -> None:
        """Note a copy."""
        if len(self._bounds) >= self._limit:
            for reference in [one for one in self._bounds if one() is None]:
                self._take_out(reference)
            self._limit = 2 * len(self._bounds) + 16
        reference = weakref.ref(mirror)
        self._bounds[reference] = mirror.start, mirror.stop
        self._known.add(mirror.start, mirror.stop, reference)

    def meeting(self, bounds: Extent) -> list[AnyMirror]:
        """The copies that have host bytes in common with some memory and can be shared, by ascending address."""
        found = []
        for reference in self._known.overlapping(*bounds):
            mirror = reference()
            if mirror is not None and not mirror.superseded:
                if mirror.roots:
                    found.append(mirror)
                    continue
                mirror.superseded = True
            self._take_out(reference)
        return found

    def _take_out(self, reference: weakref.ref[AnyMirror]) -> None:
        self._known.remove(*self._bounds.pop(reference), reference)
