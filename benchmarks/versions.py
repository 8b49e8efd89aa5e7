"""The versions of a piece of work, made ready side by side, checked against each other, and timed in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

import cuda_captures
from benchmarks.pieces import Piece
from benchmarks.timing import Figure, compared, device_time, interleaved
from cuda_captures import backends, mirrors

CAPTURED, CONSTANTS, ARGUMENT, UPSTREAM = "captured", "captured, constant()", "argument", "upstream capture"
CPP, CPP_COMPILED_IN, JIT = "CUDA C++", "CUDA C++, compiled in", "CuPy jit.rawkernel"
CONSTANT_MEMORY = 65_536  # bytes

Launch = Callable[[], object]


class Different(AssertionError):
    """Two versions of a piece of work do not give the same."""


@contextmanager
def captures_off() -> Iterator[None]:
    """The compiler as it is without this package; kernels that were compiled before keep their captures."""
    were = backends.enabled()
    cuda_captures.disable()
    try:
        yield
    finally:
        if were:
            cuda_captures.enable()


def cupy() -> Any:
    """CuPy.

    Raises
    ------
    ImportError
        If it is not installed.
    """
    import cupy

    return cupy


def measured(cuda: Any, piece: Piece, rounds: int) -> list[Figure]:
    """Figures of all versions of a piece of work; those that cannot be made say why.

    Raises
    ------
    Different
        If two versions give different results.
    """
    ready = Ready(cuda, piece)
    ready.make(CAPTURED, ready.captured)
    ready.share_copies()
    if piece.compiled_in:
        ready.make(CONSTANTS, ready.constants)
    with captures_off():
        ready.make(ARGUMENT, ready.argument)
        ready.make(UPSTREAM, ready.upstream)
        ready.make(CPP, ready.cpp)
        if piece.compiled_in:
            ready.make(CPP_COMPILED_IN, lambda: ready.cpp(compiled_in=True))
        ready.make(JIT, ready.jit)
        times = interleaved({name: device_time(cuda, launch) for name, launch in ready.launches.items()}, rounds)
    missing = [Figure(piece.name, name, None, note=why) for name, why in ready.missing.items()]
    if not times:
        return missing
    reference = next((name for name in (CPP_COMPILED_IN, CPP, ARGUMENT) if name in times), next(iter(times)))
    return [*compared(piece.name, times, reference), *missing]


class Ready:
    """One piece of work with its arrays on the device, and the versions that have been made of it.

    Parameters
    ----------
    cuda
        Of the compiler.
    piece
        What is measured.
    """

    def __init__(self, cuda: Any, piece: Piece) -> None:
        self.cuda, self.piece = cuda, piece
        self.launches: dict[str, Launch] = {}
        self.missing: dict[str, str] = {}
        self._arguments = {name: cuda.to_device(array) for name, array in piece.arguments.items()}
        self._tables = {name: cuda.to_device(array) for name, array in piece.tables.items()}
        self._expected: Any = None

    def make(self, version: str, how: Callable[[], Launch]) -> None:
        """Make a version, launch it once and compare what it gives; or say why there is none."""
        try:
            launch = how()
            given = self._result(launch)
        except Different:
            raise
        except Exception as error:
            self.missing[version] = brief(error)
            return
        if self._expected is None:
            self._expected = given
        elif not same(given, self._expected):
            worst = np.nanmax(np.abs(given - self._expected))
            raise Different(f"{self.piece.name}: `{version}` gives something else than the others, by up to {worst}")
        self.launches[version] = launch

    def _result(self, launch: Launch) -> Any:
        name = self.piece.result
        array = {**self._arguments, **self._tables}[name]
        array.copy_to_device(np.zeros_like({**self.piece.arguments, **self.piece.tables}[name]))
        launch()
        self.cuda.synchronize()
        return array.copy_to_host()

    def share_copies(self) -> None:
        """Have the other versions read the device copies that the captured form reads.

        Where a table lies matters more than how it is read: the same kernel took 479 us to 499 us for one table of
        800 kB at twelve addresses (H200).
        """
        for name, array in self.piece.tables.items():
            for copy in mirrors.copies_of(array, "live"):
                self._tables[name] = self.cuda.as_cuda_array(InMemory(array, copy.address_of(array)))

    def captured(self) -> Launch:
        tables = self._tables if self.piece.on_device else self.piece.tables
        return self._launched(self.piece.captured_form(self.cuda, tables), *self._arguments.values())

    def constants(self) -> Launch:
        return self._launched(self.piece.constants_form(self.cuda), *self._arguments.values())

    def argument(self) -> Launch:
        return self._launched(self.piece.argument_form(self.cuda), *self._arguments.values(), *self._tables.values())

    def upstream(self) -> Launch:
        nbytes = sum(table.nbytes for table in self.piece.tables.values())
        if not self.piece.on_device and nbytes > CONSTANT_MEMORY:
            raise ValueError(f"{nbytes:,} B do not fit into constant memory")  # compiling them in takes minutes
        return self.captured()

    def _launched(self, kernel: Any, *args: Any) -> Launch:
        configured = kernel[self.piece.grid, self.piece.block]
        return lambda: configured(*args)

    def cpp(self, compiled_in: bool = False) -> Launch:
        source, name = self.piece.cpp(compiled_in)
        kernel = cupy().RawModule(code=source, options=("--std=c++17",)).get_function(name)
        arrays = [*self._arguments.values(), *(() if compiled_in else self._tables.values())]
        args = (*(address(array) for array in arrays), np.int32(self.piece.count))
        grid, block = dimensions(self.piece.grid), dimensions(self.piece.block)
        return lambda: kernel(grid, block, args)

    def jit(self) -> Launch:
        if self.piece.no_jit is not None:
            raise NotImplementedError(self.piece.no_jit)
        arrays = [cupy().asarray(array) for array in (*self._arguments.values(), *self._tables.values())]
        from cupyx import jit

        spelt = SimpleNamespace(grid=jit.grid, atomic=SimpleNamespace(add=jit.atomic_add))
        kernel = jit.rawkernel()(self.piece.form(spelt, passed=list(self.piece.tables)))
        grid, block = dimensions(self.piece.grid), dimensions(self.piece.block)
        return lambda: kernel(grid, block, arrays)


class InMemory:
    """The device's memory at an address, laid out as a NumPy array."""

    def __init__(self, like: Any, address: int) -> None:
        self.__cuda_array_interface__ = {**like.__array_interface__, "data": (address, False), "version": 3}


def same(given: Any, expected: Any) -> bool:
    """Whether results are equal, but for the order of roundings."""
    tolerance = 1e-5 if given.dtype == np.float32 else 1e-12
    return np.array_equal(given, expected) or np.allclose(given, expected, rtol=tolerance, atol=0)


def address(array: Any) -> Any:
    """The device address of an array, as an argument of a kernel."""
    return np.uint64(array.__cuda_array_interface__["data"][0])


def dimensions(extent: Any) -> tuple[int, ...]:
    """A grid or a block as CuPy takes it."""
    return extent if isinstance(extent, tuple) else (extent,)


def brief(error: BaseException) -> str:
    """The first line of an error that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:160]
