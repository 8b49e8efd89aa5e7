"""What a process holds, at some points of a program; and what has grown by more than is stated."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TextIO

import cuda_captures
from cuda_captures.copies import Mirror
from cuda_captures.instances import Instance
from cuda_captures.interest import Interest
from cuda_captures.watch import Watch

POINTS = 30
PRINTED = 10


class Grown(Exception):
    """Something stays that should have gone."""


@dataclass(frozen=True)
class Held:
    """What a process holds.

    Parameters
    ----------
    host
        Resident bytes of the process, its page-locked memory among them.
    blocks
        Blocks of memory that Python has given out: a handful for each object.
    device
        Bytes of the device's memory that are in use.
    modules
        Loaded modules, bound to arrays or spare.
    instances
        Modules that are bound to arrays.
    mirrors
        Device copies of NumPy arrays that exist.
    rows, copied
        Rows of :func:`cuda_captures.memory`, and their bytes.
    watches, pages
        Watches of arrays for edits, and intervals of pages watched in the system.
    """

    host: int
    blocks: int
    device: int
    modules: int
    instances: int
    mirrors: int
    rows: int
    copied: int
    watches: int
    pages: int


def held(machine: Any) -> Held:
    """What this process holds now, once garbage is collected."""
    gc.collect()
    gc.collect()  # what the first one's finalizers have let go of
    classes = Counter(map(type, gc.get_objects()))
    rows = cuda_captures.memory()
    return Held(
        host=resident(),
        blocks=sys.getallocatedblocks(),
        device=machine.device_bytes(),
        modules=classes[machine.module],
        instances=classes[Instance],
        mirrors=classes[Mirror],
        rows=len(rows),
        copied=sum(row.nbytes for row in rows),
        watches=classes[Watch],
        pages=classes[Interest],
    )


def resident() -> int:
    """Resident bytes of this process."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGESIZE")


class Log:
    """Takes down what is held at :data:`POINTS` points of a program, and prints it at :data:`PRINTED` of them.

    Parameters
    ----------
    machine
        Where the program runs.
    total
        How many steps the program has.
    what
        What its steps are, in the plural.
    """

    def __init__(self, machine: Any, total: int, what: str, file: TextIO | None = None) -> None:
        self.points: list[Held] = []
        self._machine = machine
        self._file = file
        self._began = time.perf_counter()
        self._at = {total * point // POINTS for point in range(1, POINTS + 1)}
        self._printed = {total * point // PRINTED for point in range(1, PRINTED + 1)}
        self._names = [one.name for one in fields(Held)]
        self._print(what, "seconds", *self._names)

    def step(self, number: int) -> bool:
        """Note that so many steps are done; whether this was one of the points."""
        if number not in self._at:
            return False
        now = held(self._machine)
        self.points.append(now)
        if number not in self._printed:
            return True
        values = [getattr(now, name) for name in self._names]
        self._print(f"{number:,}", f"{time.perf_counter() - self._began:.1f}", *(f"{value:,}" for value in values))
        return True

    def _print(self, *cells: str) -> None:
        widths = [10, 8, 13, 10, 15] + [9] * 4 + [12] + [8] * 2
        print(
            " ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)), file=self._file, flush=True
        )

    def check(self, bounds: Mapping[str, int]) -> None:
        """Compare the last third of the points with the third that follows the first tenth, by the least held at any.

        What is held goes up and down with what was rebound last; what leaks stays, and lifts the least.

        Parameters
        ----------
        bounds
            By how much each thing that is held may have grown at most.

        Raises
        ------
        Grown
            With everything that has grown by more.
        """
        begun, third = len(self.points) // 10, max(len(self.points) // 3, 1)
        first, last = (
            {name: min(getattr(one, name) for one in points) for name in bounds}
            for points in (self.points[begun : begun + third], self.points[-third:])
        )
        grown = {name: last[name] - first[name] for name in bounds}
        text = [
            f"{name} grew by {grown[name]:,}, from {first[name]:,} to {last[name]:,}; "
            f"at most {bound:,} were to be expected"
            for name, bound in bounds.items()
            if grown[name] > bound
        ]
        if text:
            raise Grown("\n".join(text))
        print(
            "flat: " + ", ".join(f"{name} {grown[name]:+,} (at most {bound:,})" for name, bound in bounds.items()),
            file=self._file,
        )
