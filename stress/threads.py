"""Many threads at once: first launches, and launches while others edit, rebind and switch captures on and off."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TextIO

import numpy as np

import cuda_captures
from cuda_captures import backends
from stress.kernels import factory
from stress.machine import THREADS, Array, at_once
from stress.subjects import Wrong, by_global

STRIDE = 64  # element i of every table is i modulo this, whatever the table: what no launch may see otherwise


class CompiledOften(Exception):
    """More than one compilation for one key, or fewer than there are keys."""


def table_of(number: int) -> Array:
    """A table that no other number has."""
    return np.arange(THREADS, dtype=np.float64) + STRIDE * number


def expected(table: Array) -> Array:
    """What a kernel of :func:`~stress.kernels.factory` puts out, or one of :func:`~stress.subjects.by_global`."""
    found: Array = table[:THREADS] + table[-1]
    return found


def one_kernel(machine: Any, count: int) -> None:
    """The first launch of one kernel, from all threads."""
    table = table_of(1)
    launch = factory(machine)(table)
    outputs = [machine.output() for _ in range(count)]
    first_launches(machine, [launch] * count, outputs, [table] * count, 1)


def of_one_code(machine: Any, count: int) -> None:
    """The first launches of as many kernels as threads, made by one factory: one key."""
    make, tables = factory(machine), [table_of(number) for number in range(count)]
    outputs = [machine.output() for _ in range(count)]
    first_launches(machine, [make(table) for table in tables], outputs, tables, 1)


def of_different_code(machine: Any, count: int) -> None:
    """The first launches of as many kernels as threads, each with code of its own."""
    tables = [table_of(number) for number in range(count)]
    outputs = [machine.output() for _ in range(count)]
    first_launches(machine, [factory(machine)(table) for table in tables], outputs, tables, count)


def first_launches(
    machine: Any, kernels: Sequence[Any], outputs: Sequence[Any], tables: Sequence[Array], keys: int
) -> None:
    """Launch each kernel for the first time from a thread of its own, all at once.

    Raises
    ------
    Wrong, CompiledOften
    """
    with machine.compilations() as compiled:
        at_once([partial(kernel, output) for kernel, output in zip(kernels, outputs, strict=True)])
    for output, table in zip(outputs, tables, strict=True):
        if not np.array_equal(machine.read(output), expected(table)):
            raise Wrong(f"{machine.read(output)} instead of {expected(table)}")
    if len(compiled) != keys or len(set(compiled)) != keys:
        often = sorted(Counter(compiled).values(), reverse=True)
        raise CompiledOften(f"{len(compiled)} compilations for {keys} keys; of one code object each: {often}")


class Turmoil:
    """Kernels that most threads launch while some edit their arrays, some rebind their names, and one keeps calling
    ``enable()`` and ``disable()``.

    The kernels are compiled before: what is compiled while captures are disabled has no captures.

    Parameters
    ----------
    machine
        Where it runs.
    count
        Threads.
    launches
        Of each thread that launches.
    """

    def __init__(self, machine: Any, count: int, launches: int) -> None:
        self._machine = machine
        self._count = count
        self._launches = launches
        self._over = False
        output = machine.output()
        self._kernels = [by_global(machine) for _ in range(2)]
        self._tables = [table_of(0), table_of(1)]
        for (launch, bind), table in zip(self._kernels, self._tables, strict=True):
            bind(table)
            launch(output)

    def run(self) -> None:
        """Raises :class:`~stress.subjects.Wrong` for an element that no table ever had in its place."""
        disturbing = [*[self._edit] * 2, *[self._rebind] * 2, self._toggle]
        launching = max(self._count - len(disturbing), 2)
        outputs = [self._machine.output() for _ in range(launching)]
        left = iter(range(launching - 1, -1, -1))
        lock = threading.Lock()
        self._over = False
        were = backends.enabled()

        def launch_all(index: int) -> None:
            try:
                self._launch(self._kernels[index % 2][0], outputs[index])
            finally:
                with lock:
                    self._over = next(left) == 0 or self._over

        try:
            works: list[Callable[[], object]] = [partial(launch_all, index) for index in range(launching)]
            at_once([*works, *[partial(self._until_over, work) for work in disturbing]])
        finally:
            (cuda_captures.enable if were else cuda_captures.disable)()
        for number, (launch, bind) in enumerate(self._kernels):
            table = table_of(100 + number)
            bind(table)
            launch(outputs[0])
            if not np.array_equal(self._machine.read(outputs[0]), expected(table)):
                raise Wrong(f"after all: {self._machine.read(outputs[0])} instead of {expected(table)}")

    def _launch(self, launch: Any, output: Any) -> None:
        index = np.arange(THREADS)
        for _ in range(self._launches):
            launch(output)
            found = self._machine.read(output)
            if not np.array_equal(found % STRIDE, (index + THREADS - 1) % STRIDE):
                raise Wrong(f"{found}: elements of no table in their place")

    def _until_over(self, work: Callable[[int], object]) -> None:
        number = 0
        while not self._over:
            number += 1
            work(number)
            time.sleep(0.0002)  # others come to launch

    def _edit(self, number: int) -> None:
        for table in self._tables:
            table += STRIDE
            if number % 100 == 0:
                table %= STRIDE

    def _rebind(self, number: int) -> None:
        for (_, bind), table in zip(self._kernels, self._tables, strict=True):
            bind(table if number % 2 else table_of(number % 1000))

    @staticmethod
    def _toggle(number: int) -> None:
        cuda_captures.disable()
        cuda_captures.enable()


def threads(
    machine: Any,
    count: int,
    repeat: int,
    different_every: int = 20,
    launches: int = 20,
    file: TextIO | None = None,
) -> None:
    """Every part again and again.

    Parameters
    ----------
    count
        Threads.
    repeat
        How often.
    different_every
        The part that compiles a kernel for each thread is done once in so many times.
    launches
        Of each thread while others edit.

    Raises
    ------
    Wrong, CompiledOften
    """
    parts: list[tuple[str, Callable[[], object], int]] = [
        ("one kernel", lambda: one_kernel(machine, count), 1),
        (f"{count} kernels of one code", lambda: of_one_code(machine, count), 1),
        (f"{count} kernels of different code", lambda: of_different_code(machine, count), different_every),
        ("launches among edits, rebinding and switching", lambda: Turmoil(machine, count, launches).run(), 1),
    ]
    seconds = dict.fromkeys((name for name, _, _ in parts), 0.0)
    times = dict.fromkeys(seconds, 0)
    for number in range(repeat):
        for name, part, every in parts:
            if number % every:
                continue
            began = time.perf_counter()
            part()
            seconds[name] += time.perf_counter() - began
            times[name] += 1
    for name in seconds:
        print(f"{name}: right {times[name]} times, from {count} threads, {seconds[name]:.1f} s", file=file)
