"""Kernels that name arrays in every way that can be edited and bound anew between launches."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from stress.machine import THREADS, Array

GENERATION = itertools.count()  # told apart by a literal in their code, so that nothing shares it


class Wrong(Exception):
    """A launch did not see what the captured names meant."""


class Subject:
    """A kernel that puts out ``T[i % T.size] + T[T.size - 1]`` of a captured array, and that array.

    Parameters
    ----------
    machine
        Where it runs.
    name
        Says how the array is named.
    size
        Elements at first.

    Attributes
    ----------
    table
        The array that is captured now.
    launch
        Launches the kernel.
    """

    def __init__(self, machine: Any, name: str, size: int) -> None:
        self.name = name
        self.launch, self._bind = WAYS[name](machine)
        self._machine = machine
        self._count = 0
        self.size = size
        self.seen = [self.made(size), self.made(size)]
        self.bind(self.seen[0])

    def made(self, size: int) -> Array:
        """An array that was never captured."""
        self._count += 1
        return np.arange(size, dtype=np.float64) + 1000.0 * self._count

    def bind(self, table: Array) -> None:
        """Have the captured name mean an array."""
        self.table = table
        self._bind(table)

    def alternate(self) -> None:
        """Bind the name to the other one of two arrays that come back again and again."""
        self.bind(self.seen[1] if self.table is self.seen[0] else self.seen[0])

    def renew(self, larger: int = 0) -> None:
        """Bind the name to an array that was never captured; of some more elements."""
        self.bind(self.made(self.size + larger))

    def edit(self) -> None:
        """Change one element in place."""
        self._count += 1
        self.table[self._count * 4099 % self.table.size] = -self._count

    def check(self, output: Any) -> None:
        """Launch, and compare what the kernel saw with what the name means.

        Raises
        ------
        Wrong
        """
        wanted = self.expected()
        self.launch(output)
        found = self._machine.read(output)
        if not np.array_equal(found, wanted):
            raise Wrong(f"{self.name} of {self.table.size} elements: {found} instead of {wanted}")

    def expected(self) -> Array:
        """What a launch has to put out now."""
        index = np.arange(THREADS)
        found: Array = self.table[index % self.table.size] + self.table[-1]
        return found


class Writer(Subject):
    """A kernel that adds 1 to the first elements of a captured array, and puts them out."""

    def expected(self) -> Array:
        found: Array = self.table[np.arange(THREADS) % self.table.size] + 1
        return found

    def check(self, output: Any) -> None:
        super().check(output)
        if not np.array_equal(self.table[:THREADS], self._machine.read(output)):
            raise Wrong(f"{self.name}: what the kernel wrote is not in the array")


def subjects(machine: Any, size: int, large: int) -> list[Subject]:
    """One of each kind with arrays of some elements, and one with a large array."""
    made = [Writer(machine, name, size) if name == "written" else Subject(machine, name, size) for name in WAYS]
    return [*made, Subject(machine, "global", large)]


Made = tuple[Callable[[Any], object], Callable[[Array], object]]
"""What launches a kernel, and what binds its array."""

INDEXED = "{table}[i % {table}.size] + {table}[{table}.size - 1]"


def executed(source: str, **names: Any) -> dict[str, Any]:
    """The namespace of some source, which has never been compiled before."""
    exec(compile(source.replace("GENERATION", str(next(GENERATION))), "<stress>", "exec"), names)
    return names


def kernel_source(expression: str, statement: str = "pass") -> str:
    """Source of a kernel that puts out an expression in ``i``."""
    return f"""
def kernel(out):
    i = cuda.grid(1)
    if i < out.size and i != GENERATION + 1_000_000:
        {statement}
        out[i] = {expression}
"""


def by_global(machine: Any) -> Made:
    """A global of the kernel."""
    names = executed(kernel_source(INDEXED.format(table="table")), cuda=machine.cuda)
    return machine.kernel(names["kernel"]), lambda table: names.update(table=table)


def by_written_global(machine: Any) -> Made:
    """A global that the kernel writes."""
    names = executed(kernel_source("state[i]", "state[i] += 1"), cuda=machine.cuda)
    return machine.kernel(names["kernel"]), lambda table: names.update(state=table)


def by_tuple(machine: Any) -> Made:
    """An item of a tuple."""
    names = executed(kernel_source(INDEXED.format(table="pair[1]")), cuda=machine.cuda)
    return machine.kernel(names["kernel"]), lambda table: names.update(pair=(3.0, table))


CLOSURE = """
def making():
    table = None
{kernel}
    def bind(value):
        nonlocal table
        table = value

    return kernel, bind
"""


def by_closure(machine: Any) -> Made:
    """A closure cell."""
    kernel = "    ".join(kernel_source(INDEXED.format(table="table")).splitlines(True))
    kernel, bind = executed(CLOSURE.format(kernel=kernel), cuda=machine.cuda)["making"]()
    return machine.kernel(kernel), bind


def by_device_function(machine: Any) -> Made:
    """A global of a function that the kernel calls."""
    source = f"def look(i):\n    return {INDEXED.format(table='table')}\n"
    inner = executed(source)
    names = executed(kernel_source("look(i)"), cuda=machine.cuda, look=machine.device_function(inner["look"]))
    return machine.kernel(names["kernel"]), lambda table: inner.update(table=table)


WAYS: dict[str, Callable[[Any], Made]] = {
    "global": by_global,
    "closure": by_closure,
    "tuple": by_tuple,
    "device function": by_device_function,
    "written": by_written_global,
}
