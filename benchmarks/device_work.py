"""Times on the device, of each piece of work in all its versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.pieces import PIECES
from benchmarks.timing import Figure
from benchmarks.versions import measured


def measuring(name: str) -> Callable[[Any, bool], list[Figure]]:
    """What measures the pieces of a name."""

    def measure(cuda: Any, quick: bool) -> list[Figure]:
        return [figure for piece in PIECES[name](quick) for figure in measured(cuda, piece, 5 if quick else 21)]

    measure.__doc__ = PIECES[name].__doc__
    return measure


DEVICE_WORK = {name: measuring(name) for name in PIECES}
