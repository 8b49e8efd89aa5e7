"""Very many kernels that are made, launched and dropped: everything goes with them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import numpy as np

from stress.counting import Log
from stress.machine import THREADS, Array
from stress.subjects import Wrong, executed, kernel_source

BOUNDS = {
    "host": 16 << 20,
    "blocks": 10_000,
    "device": 4 << 20,
    "modules": 0,
    "instances": 0,
    "mirrors": 0,
    "rows": 0,
    "copied": 0,
    "watches": 0,
    "pages": 0,
}
"""At most so much more in the last third of the kernels than in the first: one block a kernel of host memory, 4 MiB of
the device's (whose driver takes it in pages of 2 MiB), and of all else nothing."""

KEPT_BY_UPSTREAM = (
    "numba-cuda-mlir never lets go of a kernel, captures or not: its native launcher and its dispatcher hold each "
    "other and take no part in garbage collection (0.6.0). Nothing was run."
)

TOGETHER = 50  # kernels that exist at a time
SMALL, LARGE = 512, 1 << 17  # elements: 4 kB and 1 MiB
EVERY = 50  # one in so many has a large table


def factory(machine: Any) -> Callable[[Any], Any]:
    """Makes kernels of one code object, each with a table of its own in its closure."""
    kernel = "    ".join(kernel_source("table[i] + table[table.size - 1]").splitlines(True))
    made = executed(f"def making(table):\n{kernel}\n    return kernel\n", cuda=machine.cuda)["making"]
    return lambda table: machine.kernel(made(table))


def kernels(machine: Any, count: int, file: TextIO | None = None, large: int = LARGE) -> Log:
    """Make, launch and drop kernels, :data:`TOGETHER` at a time; every other one is launched again after an edit.

    Raises
    ------
    Wrong
        If one of them saw another one's table.
    """
    make = factory(machine)
    outputs = [machine.output() for _ in range(TOGETHER)]
    log = Log(machine, count, "kernels", file)
    done = 0
    while done < count:
        some = [done + one for one in range(min(TOGETHER, count - done))]
        tables = [np.arange(large if number % EVERY == 0 else SMALL, dtype=np.float64) + number for number in some]
        made = [make(table) for table in tables]
        for launch, output in zip(made, outputs, strict=False):
            launch(output)
        check(machine, tables, outputs)
        for launch, table, output in zip(made[::2], tables[::2], outputs[::2], strict=False):
            table[[3, -1]] -= 1
            launch(output)
        check(machine, tables, outputs)
        del made, tables, launch, table
        gc.collect()
        for number in some:
            log.step(number + 1)
        done += len(some)
    return log


def check(machine: Any, tables: Sequence[Array], outputs: Sequence[Any]) -> None:
    """Compare what kernels have put out with their tables."""
    for table, output in zip(tables, outputs, strict=False):
        found, wanted = machine.read(output), table[:THREADS] + table[-1]
        if not np.array_equal(found, wanted):
            raise Wrong(f"a kernel with a table of {table.size} elements: {found} instead of {wanted}")
