"""Very many launches, with edits and rebinding in between: memory does not grow."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, TextIO

from stress.counting import Log
from stress.subjects import subjects

BOUNDS = {
    "host": 16 << 20,
    "blocks": 5_000,
    "device": 16 << 20,
    "modules": 12,
    "instances": 12,
    "mirrors": 12,
    "rows": 12,
    "copied": 4 << 20,
    "watches": 12,
    "pages": 12,
}
"""At most so much more in the last third of all launches than in the first.

Of host memory that is 24 bytes for each of 700,000 launches; a leak of one object in a hundred launches shows in the
blocks.  The driver takes device memory in pieces of 2 MiB, and what is in use goes up and down by ten of them with the
lengths that were bound last.  A kernel keeps up to 16 instances and may have fewer at a point: two for each of six
kernels.
"""


@dataclass(frozen=True)
class Shares:
    """What comes before a launch, as a share of all launches.

    Parameters
    ----------
    edit
        An element of the captured array is changed in place.
    seen
        The name is bound to the other of two arrays.
    new
        The name is bound to an array that was never captured.
    length
        That array has another length.
    check
        The result is compared.
    """

    edit: float = 0.25
    seen: float = 0.15
    new: float = 0.04
    length: float = 0.01
    check: float = 0.001


def launches(
    machine: Any, count: int, shares: Shares, size: int = 512, large: int = 1 << 17, file: TextIO | None = None
) -> Log:
    """Launch several kernels in turn.

    Parameters
    ----------
    size, large
        Elements of most arrays, and of one.

    Raises
    ------
    Wrong
        If a launch saw something else than its names meant.
    """
    generator = random.Random(0)
    dice = generator.random
    kernels = subjects(machine, size, large)
    output = machine.output()
    for subject in kernels:
        subject.check(output)
    edit = shares.edit
    seen = edit + shares.seen
    new = seen + shares.new
    length = new + shares.length
    log = Log(machine, count, "launches", file)
    for number in range(1, count + 1):
        subject = kernels[number % len(kernels)]
        drawn = dice()
        if drawn < edit:
            subject.edit()
        elif drawn < seen:
            subject.alternate()
        elif drawn < new:
            subject.renew()
        elif drawn < length:
            subject.renew(generator.randrange(1, 100))
        if dice() < shares.check:
            subject.check(output)
        else:
            subject.launch(output)
        if log.step(number):
            for each in kernels:
                each.check(output)
    return log
