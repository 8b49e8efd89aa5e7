"""What the words of a program mean: arrays of every layout, and the plain world, in which kernels are Python."""

from __future__ import annotations

import itertools
import linecache
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from fuzz.program import Form, Program

Array = np.ndarray[Any, Any]
Trace = list[tuple[str, bytes]]

RECORD = np.dtype([("x", "f4"), ("n", "i8")], align=True)
Pair = namedtuple("Pair", "first second")
_numbers = itertools.count()


@dataclass(frozen=True)
class Frozen:
    """A frozen dataclass."""

    table: Any
    scale: Any = 3


@dataclass
class Open:
    """A dataclass whose fields can be bound anew."""

    table: Any
    scale: Any = 3


def elements(kind: np.dtype[Any], count: int, seed: int) -> Array:
    """Small numbers, with which arithmetic is exact in every type."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 10, count)
    if kind.names:
        made = np.zeros(count, kind)
        for name in kind.names:
            made[name] = elements(kind[name], count, seed + 1)
        return made
    if kind.kind == "b":
        return np.asarray(small % 2, kind)
    if kind.kind == "f":
        return (small / 2).astype(kind)
    if kind.kind == "c":
        return (small + 1j * rng.integers(0, 10, count)).astype(kind)
    return small.astype(kind)


LAYOUTS = ("C", "F", "gapped", "negative", "repeated", "permuted", "offset", "field", "unaligned")


def laid(dtype: Any, shape: tuple[int, ...], layout: str, seed: int) -> Array:
    """An array of a layout."""
    kind = RECORD if dtype == "record" else np.dtype(dtype)
    count = int(np.prod(shape, dtype=int))
    if layout == "repeated" and shape:
        row = int(np.prod(shape[1:], dtype=int))
        return np.broadcast_to(elements(kind, row, seed).reshape(shape[1:]), shape)
    if layout in ("field", "unaligned"):
        records = np.zeros(count, np.dtype([("a", "i1"), ("here", kind), ("b", "i4")], align=layout == "field"))
        records["here"] = elements(kind, count, seed)
        return records["here"].reshape(shape)
    if layout == "gapped":
        sides = tuple(2 * side + 1 for side in shape)
        big = elements(kind, int(np.prod(sides, dtype=int)), seed).reshape(sides)
        gapped: Array = big[every(shape, slice(1, None, 2))]
        return gapped
    if layout == "offset":
        return elements(kind, count + 3, seed)[3:].reshape(shape)
    made = elements(kind, count, seed)
    if layout == "F":
        return made.reshape(shape, order="F")
    if layout == "permuted" and len(shape) == 3:
        return made.reshape(shape[1], shape[2], shape[0]).transpose(2, 0, 1)
    if layout == "negative":
        made = made.reshape(shape)[every(shape, slice(None, None, -1))]
    return made.reshape(shape)


def every(shape: tuple[int, ...], part: slice) -> Any:
    """An index that takes a part of every axis, and of an array without axes an array."""
    return (*(part for _ in shape), ...)


def root(array: Array) -> Array:
    """The array that an array is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


class World:
    """One way to run programs.  This one: plain Python, one thread after the other.

    Attributes
    ----------
    arrays
        Everything that a program made, in order, each with a function that gives its bytes.
    """

    def __init__(self) -> None:
        self.arrays: list[Callable[[], bytes]] = []
        self.copies: dict[int, tuple[Array, Array]] = {}
        self.thread = 0
        self.threads = 1

    # words of programs

    def lay(self, dtype: Any, shape: tuple[int, ...], layout: str, seed: int) -> Array:
        """A new array."""
        made = laid(dtype, shape, layout, seed)
        self.arrays.append(root(made).tobytes)
        return made

    def alter(self, array: Array, seed: int) -> None:
        """Edit every element."""
        array[...] = elements(array.dtype, array.size, seed).reshape(array.shape)

    def on_device(self, array: Array) -> Any:
        """A device array."""
        made = laid_like(array)
        made.flags.writeable = True
        self.arrays.append(made.tobytes)
        return made

    def snapshot(self, array: Array) -> Any:
        """Mark an array: edits are not seen."""
        made = laid_like(array)
        self.copies[id(made)] = made, array
        return made

    def refresh(self, array: Any) -> None:
        """Let a snapshot see edits."""
        made, source = self.copies[id(array)]
        made.flags.writeable = True
        made[...] = source

    def same(self, array: Array) -> Any:
        """Mark an array where a marker changes nothing that Python can see."""
        return array

    live = mapped = constant = same

    @property
    def cuda(self) -> Any:
        """What programs know as ``cuda``."""
        return SimpleNamespace(
            grid=lambda ndim: self.thread,
            gridsize=lambda ndim: self.threads,
            jit=lambda **options: lambda function: function,
            atomic=SimpleNamespace(add=_atomic(lambda old, new: old + new), max=_atomic(max), min=_atomic(min)),
        )

    def words(self) -> dict[str, Any]:
        """The globals of a program, to begin with."""
        marks = {name: getattr(self, name) for name in ("live", "snapshot", "mapped", "constant", "refresh")}
        return {
            "np": np,
            "cuda": self.cuda,
            "cap": SimpleNamespace(**marks),
            "lay": self.lay,
            "alter": self.alter,
            "on_device": self.on_device,
            "Pair": Pair,
            "Frozen": Frozen,
            "Open": Open,
            "SimpleNamespace": SimpleNamespace,
            "ModuleType": ModuleType,
        }

    # running

    def launch(self, kernel: Any, threads: int, out: Array, values: Sequence[Any], program: Program) -> None:
        """Launch one kernel."""
        self.threads = threads
        for self.thread in range(threads):
            kernel(*values, out)

    def run(self, program: Program, form: Form = "captured", threads: int | None = None) -> Trace:
        """What every launch left in every array: of each kernel at first, and of each after each step."""
        names = executed(program.source(form), self.words())
        made, trace = names["made"], []
        for step in (None, *program.steps):
            if step is not None:
                made[step]()
            for name in program.kernels:
                out = np.zeros(program.size)
                values = tuple(map(as_argument, made["arguments"]())) if form == "argument" else ()
                self.launch(made[name], threads or program.threads, out, values, program)
                label = f"{name} after {step or 'the start'}"
                trace.append((f"out of {label}", out.tobytes()))
                trace += [(f"array {number} after {label}", read()) for number, read in enumerate(self.arrays)]
        return trace


def laid_like(array: Array) -> Array:
    """A copy with memory of its own, laid out and aligned alike; read-only."""
    base = root(array)
    if not array.size:
        return np.zeros(array.shape, array.dtype)
    memory = np.frombuffer(bytearray(base.tobytes("A")), np.uint8)
    made: Array = np.ndarray(array.shape, array.dtype, memory, first(array) - first(base), array.strides)
    made.flags.writeable = False
    return made


def first(array: Array) -> int:
    """Address of the first element."""
    return int(array.__array_interface__["data"][0])


def as_argument(value: Any) -> Any:
    """A value as a kernel can be given it: objects as named tuples, which is what they are passed on as."""
    if isinstance(value, (Frozen, Open, SimpleNamespace)):
        fields = vars(value)
        return namedtuple("Fields", sorted(fields))(**{name: as_argument(one) for name, one in fields.items()})
    return value


def executed(source: str, names: dict[str, Any]) -> dict[str, Any]:
    """The globals that source text leaves; tracebacks and messages show its lines."""
    number = next(_numbers)
    file = f"<program {number}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names["__name__"] = f"program_{number}"
    exec(compile(source, file, "exec"), names)
    return names


def _atomic(operation: Callable[[Any, Any], Any]) -> Callable[[Array, Any, Any], Any]:
    def apply(array: Array, index: Any, value: Any) -> Any:
        old = array[index]
        array[index] = operation(old, value)
        return old

    return apply
