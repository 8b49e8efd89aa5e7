"""Pieces of work on the device: what they compute on, in what sizes, and the forms that one source is made into."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import linecache
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import cuda_captures
from benchmarks import kernels

Array = np.ndarray[Any, Any]

CPP = Path(__file__).parent / "cpp"
BLOCK = 256
_numbers = itertools.count()


@dataclass(frozen=True)
class Piece:
    """One piece of work on the device.

    Parameters
    ----------
    name
        With the size, where there are several.
    function
        Of :mod:`benchmarks.kernels`.
    arguments
        What every form is passed, by name; without ``result`` where that is captured.
    tables
        What is captured, or passed in the argument form and in CUDA C++.
    constants
        Integers that are captured, and ``constexpr`` in CUDA C++.
    count
        Threads that have work, the last argument in CUDA C++.
    grid, block
        Of every launch.
    result
        Name of the array that is compared; of zeros before.
    on_device
        Whether the tables are device arrays before they are captured; else they are NumPy arrays.
    compiled_in
        Whether there is a form in CUDA C++ that has the tables as ``constexpr`` arrays, and one that captures them
        with ``constant(...)``.
    no_jit
        Why CuPy's ``jit.rawkernel`` cannot, if it cannot.
    """

    name: str
    function: Callable[..., None]
    arguments: Mapping[str, Array]
    tables: Mapping[str, Array]
    count: int
    grid: Any
    block: Any
    constants: Mapping[str, int] = field(default_factory=dict)
    result: str = "out"
    on_device: bool = False
    compiled_in: bool = False
    no_jit: str | None = None

    @property
    def slug(self) -> str:
        """The name as a file's."""
        return "_".join("".join(one if one.isalnum() else " " for one in self.name).split())

    def form(self, cuda: Any, passed: Sequence[str] = (), **captured: Any) -> Any:
        """The Python function of a form; what is not passed is captured."""
        tree = ast.parse(textwrap.dedent(inspect.getsource(self.function)))
        definition = tree.body[0]
        assert isinstance(definition, ast.FunctionDef)
        definition.args.kwonlyargs, definition.args.kw_defaults = [], []
        definition.args.args += [ast.arg(name) for name in passed]
        source, file = ast.unparse(tree), f"<{definition.name} {next(_numbers)}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        names: dict[str, Any] = {"__name__": __name__, "np": np, "cuda": cuda, **self.constants, **captured}
        exec(compile(source, file, "exec"), names)
        return names[definition.name]

    def captured_form(self, cuda: Any, tables: Mapping[str, Any]) -> Any:
        """The kernel that captures its tables."""
        return cuda.jit(self.form(cuda, **tables))

    def argument_form(self, cuda: Any) -> Any:
        """The kernel that is passed its tables."""
        return cuda.jit(self.form(cuda, passed=list(self.tables)))

    def constants_form(self, cuda: Any) -> Any:
        """The kernel that captures its tables with ``constant(...)``."""
        return self.captured_form(cuda, {name: cuda_captures.constant(table) for name, table in self.tables.items()})

    def cpp(self, compiled_in: bool = False) -> tuple[str, str]:
        """CUDA C++, and the name of its kernel."""
        name = self.function.__name__ + ("_compiled_in" if compiled_in else "")
        lines = [f"constexpr int {constant} = {value};" for constant, value in self.constants.items()]
        if compiled_in:
            lines += [constexpr(table_name, table) for table_name, table in self.tables.items()]
        return "\n".join([*lines, (CPP / f"{name}.cu").read_text()]), name


def constexpr(name: str, table: Array) -> str:
    """The definition of a table of one dimension in CUDA C++, to the last bit."""
    assert table.ndim == 1
    kind, suffix = {"float32": ("float", "f"), "float64": ("double", "")}[table.dtype.name]
    values = ", ".join(float(value).hex() + suffix for value in table)
    return f"__device__ constexpr {kind} {name}[{table.size}] = {{{values}}};"


@functools.cache
def random_integers(count: int) -> Array:
    """Integers of 32 bits, none negative."""
    return np.random.default_rng(1).integers(0, 1 << 30, count, np.int32)


def random(*shape: int) -> Array:
    return np.random.default_rng(2).random(shape)


def blocks(count: int) -> int:
    return (count + BLOCK - 1) // BLOCK


def threads(quick: bool) -> int:
    return 1 << (24 if quick else 26)


def gather(quick: bool) -> Iterator[Piece]:
    """A random gather through a table."""
    count = threads(quick)
    for nbytes in (8_000, 800_000, 80_000_000):
        yield Piece(
            f"gather {nbytes:,} B",
            kernels.gather,
            {"where": random_integers(count), "out": np.zeros(count)},
            {"table": random(nbytes // 8)},
            count,
            blocks(count),
            BLOCK,
            {"size": nbytes // 8},
        )


def stencil(quick: bool) -> Iterator[Piece]:
    """A five-point stencil over a field."""
    side = 4096 if quick else 8192
    grid = (side + 31) // 32, (side + 7) // 8
    arguments, tables = {"out": np.zeros((side, side))}, {"field": random(side, side)}
    yield Piece("stencil", kernels.stencil, arguments, tables, side * side, grid, (32, 8), {"side": side})


def walk(quick: bool) -> Iterator[Piece]:
    """Monte Carlo: each thread walks at random over a field."""
    count, steps, side = 1 << 20, 64 if quick else 256, 512
    seeds = np.random.default_rng(3).integers(1, 1 << 32, count, np.uint32)
    arguments, tables = {"seeds": seeds, "out": np.zeros(count)}, {"field": random(side, side)}
    constants = {"side": side, "steps": steps}
    yield Piece("Monte Carlo", kernels.walk, arguments, tables, count, blocks(count), BLOCK, constants)


def fir(quick: bool) -> Iterator[Piece]:
    """A filter of sixteen coefficients, whose loop is unrolled."""
    count = threads(quick)
    signal = np.random.default_rng(4).random(count + 16, np.float32)
    taps = np.random.default_rng(5).random(16, np.float32)
    arguments, tables = {"signal": signal, "out": np.zeros(count, np.float32)}, {"taps": taps}
    yield Piece("coefficients", kernels.fir, arguments, tables, count, blocks(count), BLOCK, compiled_in=True)


def eight(quick: bool) -> Iterator[Piece]:
    """A gather from eight tables at once."""
    count, size = threads(quick) // 4, 1000  # 64 kB, which still fits into constant memory
    arguments = {"where": random_integers(count), "out": np.zeros(count)}
    tables = {name: random(8, size)[number] for number, name in enumerate("abcdefgh")}
    yield Piece("eight captures", kernels.eight, arguments, tables, count, blocks(count), BLOCK, {"size": size})


CELL = np.dtype([("density", "f8"), ("length", "f4"), ("kind", "i4")], align=True)


def records(quick: bool) -> Iterator[Piece]:
    """A gather of records."""
    count, size = threads(quick) // 4, 4000  # 64 kB
    cells = np.zeros(size, CELL)
    for name in ("density", "length"):
        cells[name] = random(size)
    cells["kind"] = np.arange(size) % 100
    yield Piece(
        "records",
        kernels.records,
        {"where": random_integers(count), "out": np.zeros(count)},
        {"cells": cells},
        count,
        blocks(count),
        BLOCK,
        {"size": size},
        no_jit="it has no records",
    )


def histogram(quick: bool) -> Iterator[Piece]:
    """A histogram by atomic additions to a captured device array."""
    count, size = threads(quick), 4096
    yield Piece(
        "histogram",
        kernels.histogram,
        {"values": random_integers(count)},
        {"bins": np.zeros(size, np.int32)},
        count,
        blocks(count),
        BLOCK,
        {"size": size},
        result="bins",
        on_device=True,
    )


PIECES: dict[str, Callable[[bool], Iterator[Piece]]] = {
    "gather": gather,
    "stencil": stencil,
    "montecarlo": walk,
    "coefficients": fir,
    "eight": eight,
    "records": records,
    "histogram": histogram,
}
