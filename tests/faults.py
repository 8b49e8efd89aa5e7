"""Driver calls that fail: the n-th of a kind, in the course of one launch, for each n that there is.

The same for the driver in memory and for a real one: a *machine* is :class:`stress.machine.Gpu`, or
:class:`stress_in_memory.Memory`.
"""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import cuda_captures
from cuda_captures import driver
from cuda_captures.driver import DriverError, OutOfDeviceMemory
from stress.machine import THREADS, Array
from stress.subjects import executed

LARGE = 3 << 16  # elements: 1.5 MiB, which are staged in several blocks

SOURCE = """
def making():
    table = large = fixed = None

    def kernel(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = table[i] + large[large.size - 1 - i * 4099] + fixed[i]

    def bind(*arrays):
        nonlocal table, large, fixed
        table, large, fixed = arrays

    return kernel, bind
"""
NAMES = ("table", "large", "fixed")
# What a failure of these leaves is exactly what was there before.  After others the copies may be there, bound and
# complete but for what is still to be sent.
BINDING = frozenset({"mem_alloc", "host_register", "host_device_pointer", "load", "symbol"})


class Faults:
    """Counts calls by their names, and has one of them fail.

    Attributes
    ----------
    met
        How often each call was made since :meth:`arm`.
    raised
        The errors that were raised.
    """

    def __init__(self) -> None:
        self.met: Counter[str] = Counter()
        self.raised: list[BaseException] = []
        self._failing: Callable[[str], bool] = lambda name: False

    def arm(self, name: str, number: int, lasting: bool) -> None:
        """Have a call fail when it is made for the n-th time; or from then on."""
        self.met.clear()
        self.raised.clear()
        self._failing = lambda one: one == name and (self.met[one] >= number if lasting else self.met[one] == number)

    def disarm(self) -> None:
        """No call fails any more."""
        self._failing = lambda name: False

    def fails(self, name: str) -> bool:
        """Note a call; says whether it has to fail."""
        self.met[name] += 1
        return self._failing(name)

    def refuse(self, name: str) -> None:
        """Note a call of the driver; raises if it has to fail."""
        if self.fails(name):
            alloc = "alloc" in name
            code = "CUDA_ERROR_OUT_OF_MEMORY" if alloc else "CUDA_ERROR_INJECTED"
            self.raised.append((OutOfDeviceMemory if alloc else DriverError)(name, code))
            raise self.raised[-1]


class Table:
    """The calls of a driver, any of which may fail."""

    in_use = True

    def __init__(self, inner: Any, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._inner, name)

        def call(*arguments: Any) -> Any:
            self._faults.refuse(name)
            return real(*arguments)

        return call


@contextmanager
def faulty(faults: Faults) -> Iterator[Faults]:
    """Put faults in front of the driver that is there."""
    inner = driver.calls
    driver.install(Table(inner, faults))
    gc.collect()
    gc.freeze()  # garbage is collected, and counted, very often: what the compilers hold is left out of that
    try:
        yield faults
    finally:
        gc.unfreeze()
        faults.disarm()
        driver.install(inner)


class Case:
    """A kernel that captures three arrays, bound to what it has never seen.

    Attributes
    ----------
    arrays
        The arrays that it captures now: a small one, a large one and a snapshot.
    """

    def __init__(self, machine: Any, mark: Callable[[Array], Array] = cuda_captures.snapshot) -> None:
        self.machine = machine
        self._mark = mark
        function, self._bind = made_on(machine)
        self._launch = machine.kernel(function)
        self._output = machine.output()
        self._count = 0
        self.rebind()

    def rebind(self) -> None:
        """Bind the names to new arrays."""
        self._count += 1
        sizes = (THREADS * 4, LARGE, THREADS * 4)
        first, second, third = (np.arange(size, dtype=np.float64) * self._count for size in sizes)
        self.arrays = first, second, self._mark(third)
        self._bind(*self.arrays)

    def edit(self) -> None:
        """Change elements of both arrays whose edits are seen."""
        table, large, _ = self.arrays
        table[3] += 0.5
        large[[-1, -4100, 5]] -= 0.25
        large[LARGE // 2 :: 1 << 16] -= 2

    def launch(self) -> Array:
        """What a launch puts out."""
        self._launch(self._output)
        found: Array = self.machine.read(self._output)
        return found

    def check(self, found: Array) -> None:
        """Compare what a launch has put out with what the names mean."""
        table, large, fixed = map(np.asarray, self.arrays)
        index = np.arange(THREADS)
        np.testing.assert_array_equal(found, table[index] + large[LARGE - 1 - index * 4099] + fixed[index])


_made: dict[int, Any] = {}


def made_on(machine: Any) -> Any:
    """A new kernel's function and what binds its names; all of one code, so that it is compiled once."""
    made = _made.get(id(machine.cuda))
    if made is None:
        made = _made[id(machine.cuda)] = executed(SOURCE, cuda=machine.cuda)["making"]
    return made()


def first(machine: Any) -> Case:
    """The first launch of a kernel."""
    _made.clear()
    return Case(machine)


def sibling(machine: Any) -> Case:
    """The first launch of a kernel whose code another one has already."""
    return Case(machine)


def rebound(machine: Any) -> Case:
    """A launch after all names were bound to other arrays."""
    case = Case(machine)
    case.launch()
    case.launch()  # a sibling's first one is on trial
    case.rebind()
    return case


def rebound_often(machine: Any) -> Case:
    """The same when there are modules that no launch uses any more."""
    case = Case(machine)
    for _ in range(20):
        case.launch()
        case.rebind()
    return case


def edited(machine: Any) -> Case:
    """A launch after edits."""
    case = Case(machine)
    case.launch()
    case.launch()
    case.edit()
    return case


def mapped(machine: Any) -> Case:
    """A first launch with an array that is used in place."""
    return Case(machine, cuda_captures.mapped)


SITUATIONS: dict[str, Callable[[Any], Case]] = {
    one.__name__: one for one in (first, sibling, rebound, rebound_often, edited, mapped)
}


def rows() -> Counter[Any]:
    """What ``memory()`` says, but for how edits are noticed."""
    gc.collect()
    return Counter((row.array, row.nbytes, row.device, row.policy, row.users) for row in cuda_captures.memory())


def modules(machine: Any) -> int:
    """How many loaded modules there are."""
    gc.collect()
    return sum(type(one) is machine.module for one in gc.get_objects())


def fail_each(machine: Any, faults: Faults, situation: str, name: str, lasting: bool) -> int:
    """Have the n-th call of a kind fail in a launch, for each n; check what is left, and that the launch works then.

    Parameters
    ----------
    faults
        In front of the driver.
    lasting
        Whether all such calls from the n-th on fail.

    Returns
    -------
    int
        How many calls there were.
    """
    number = 0
    while True:
        number += 1
        if name in ("load", "symbol"):
            _made.clear()  # else there may be a spare module of the code
        case = SITUATIONS[situation](machine)
        faults.raised.clear()  # of a failure that was lived with: its frames hold the case before
        held, loaded = rows(), modules(machine)
        faults.arm(name, number, lasting)
        failure: Exception | None = None
        try:
            case.check(case.launch())
        except AssertionError:
            raise
        except Exception as error:
            failure = error
        reached = faults.met[name] >= number
        faults.disarm()
        if failure is not None:
            assert reached, failure
            told(name, failure, faults)
            failure = None  # its frames hold what the launch held
            faults.raised.clear()
            left = rows()
            if name in BINDING:
                assert left == held
                assert modules(machine) <= loaded
            else:
                assert not held - left, held - left
                assert sum(left.values()) <= sum(held.values()) + len(NAMES)
        elif not reached:
            return number - 1
        case.check(case.launch())
        case.edit()
        case.check(case.launch())
        case.rebind()
        case.check(case.launch())


def told(name: str, failure: BaseException, faults: Faults) -> None:
    """The error is the one that was raised, and names the array where it is memory."""
    chain: list[BaseException] = []
    one: BaseException | None = failure
    while one is not None and one not in chain:
        chain.append(one)
        one = one.__cause__ or one.__context__
    assert not faults.raised or any(error in chain for error in faults.raised), chain
    if name == "mem_alloc":
        assert isinstance(failure, OutOfDeviceMemory)
        text = str(failure)
        assert re.search(r"`(table|large|fixed)`, captured by kernel `kernel`", text), text
        assert re.search(r"of a captured NumPy array: [\d,]+ bytes", text), text
        assert re.search(r"Copies of captured arrays hold [\d,]+ bytes there now", text), text
    if name == "host_register":
        assert "`fixed`, captured by kernel `kernel`" in str(failure)
