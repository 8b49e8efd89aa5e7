"""What generated functions do with what they capture."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field

from fuzz.lacking import NOTHING, Lacking

Put = Callable[..., None]  # a section, a text, and perhaps a name

ATOMIC = ("i4", "i8", "u4", "u8", "f4", "f8")
SLICES = ("1:", "::-1", "::2", ":-1", "-2:", "1:3", "::-2", ":")


@dataclass(frozen=True)
class Subject:
    """A captured array as statements see it.

    Parameters
    ----------
    path
        Name of the path to it.
    dtype, ndim, layout
        Of the array.
    writable
        Whether kernels may write it.
    memory
        What stands for its memory: subjects of the same memory overlap.
    choice
        An index to be put behind the path, for a tuple of arrays.
    """

    path: str
    dtype: str
    ndim: int
    writable: bool
    memory: str
    layout: str = ""
    choice: str = ""

    @property
    def text(self) -> str:
        """Source text of the array."""
        return f"${self.path}{self.choice}"


@dataclass
class Writer:
    """Writes the device functions and the kernels of one program.

    Parameters
    ----------
    random
        Where choices come from.
    subjects, scalars
        What is captured: arrays, and the paths of numbers.
    defaults
        Arrays that can be default values of parameters.
    lacking
        What is not to be written.

    Attributes
    ----------
    writes
        Whether any of it writes what it captures.
    """

    random: random.Random
    subjects: list[Subject]
    scalars: list[str]
    defaults: list[Subject] = field(default_factory=list)
    lacking: Lacking = NOTHING
    functions: list[str] = field(default_factory=list)
    writes: bool = False
    counter: int = 0
    picks: dict[str, str] = field(default_factory=dict)

    def new(self, prefix: str) -> str:
        """A name for a variable or a function."""
        self.counter += 1
        return f"{prefix}_{self.counter}"

    def write(self, put: Put) -> None:
        """All of it."""
        rng = self.random
        for subject in self.subjects:
            put("probe", self.guarded(subject.text, self.element(subject, "out[i]")), subject.path)
        for _ in range(rng.choice((0, 0, 1, 1, 2))):
            name, option = self.new("f"), rng.choice(("", "", ', inline="always"'))
            body = [self.statement(put, "acc") for _ in range(rng.choice((1, 1, 1, 2)))]
            default = rng.choice(("", "", ", extra=1.5"))
            tables = rng.choice(self.defaults) if self.defaults and rng.random() < 0.1 else None
            array = f", table={tables.memory}" if tables else ""
            first = f"    acc = {'extra' if default else '0.0'}"
            put("device", f"@cuda.jit(device=True{option})\ndef {name}($*i{default}{array}):\n{first}", name)
            if tables:
                put(name, self.guarded("table", f"acc += {self.at('table', tables.dtype, tables.ndim)}"))
            for text in body:
                put(name, text)
            if self.functions and rng.random() < 0.6:
                put(name, f"acc += {rng.choice(self.functions)}($*i + 1)")
            self.functions.append(name)
        for kernel in ("kernel", "second")[: rng.choice((1, 1, 1, 2))]:
            for function in self.functions[-2:]:
                put(kernel, f"out[i] += {function}($*i)")
            for _ in range(rng.choice((1, 1, 2, 3))):
                put(kernel, self.statement(put, "out[i]"))

    def statement(self, put: Put, target: str) -> str:
        """One statement that adds to a target, or writes."""
        rng = self.random
        if self.scalars and rng.random() < 0.2:
            return f"{target} += {rng.choice(('1.5 * ', '0.5 * '))}${rng.choice(self.scalars)}"
        subject = rng.choice(self.subjects)
        if subject.writable and rng.random() < 0.35:
            self.writes = True
            return self.guarded(subject.text, self.taken(subject.ndim, lambda: self.writing(subject)))
        if rng.random() < 0.15:
            return self.guarded(subject.text, self.passed(put, subject, target))
        return self.guarded(subject.text, self.taken(subject.ndim, lambda: self.reading(subject, target)))

    def taken(self, ndim: int, make: Callable[[], str]) -> str:
        """A statement that the compiler does not lack."""
        while True:
            text = make()
            if not self.lacking.has(text, ndim):
                return text

    def reading(self, subject: Subject, target: str) -> str:
        """A statement that reads."""
        kinds = [self.element, self.element, self.sizes, self.branch]
        if subject.ndim:
            kinds += [self.loop, self.slice, self.slice, self.row]
        if subject.ndim == 1:
            kinds += [self.iterate, self.either]
        return self.random.choice(kinds)(subject, target)

    def guarded(self, array: str, text: str) -> str:
        """A statement that is for arrays that have elements."""
        return f"if {array}.size > 0:\n{textwrap.indent(text, '    ')}"

    def index(self, array: str, ndim: int, by: str = "i") -> str:
        """An index that is inside of any array that is not empty."""
        if ndim == 0:
            return "()"
        parts = []
        for axis in range(ndim):
            extent = f"{array}.shape[{axis}]"
            step = self.random.randrange(1, 4)
            parts.append(self.random.choice((
                f"({by} * {step} + {self.random.randrange(3)}) % {extent}",
                f"({by} * {step} + {self.random.randrange(3)}) % {extent}",
                f"-1 - {by} % {extent}",
                "-1",
                "0",
            )))  # fmt: skip
        return ", ".join(parts)

    def value(self, dtype: str, element: str, other: str = "") -> str:
        """A number made of an element."""
        if dtype == "bool":
            return f"(1.0 if {element} else 0.25)"
        if dtype.startswith("c"):
            return f"float({element}.real + 2 * {element}.imag)"
        if dtype[0] in "Mm":
            return f"(1.0 if {element} {self.random.choice(('>', '=='))} {other or element} else 0.5)"
        if dtype == "record":
            return f"(float({element}['x']) + float({element}['n']))"
        return f"float({element})"

    def at(self, array: str, dtype: str, ndim: int, by: str = "i") -> str:
        """A number made of an element that an index picks."""
        other = f"{array}[{self.index(array, ndim, by)}]"
        return self.value(dtype, f"{array}[{self.index(array, ndim, by)}]", other)

    # reading

    def element(self, subject: Subject, target: str) -> str:
        """One element."""
        return f"{target} += {self.at(subject.text, subject.dtype, subject.ndim)}"

    def sizes(self, subject: Subject, target: str) -> str:
        """What is known of an array."""
        items = [f"{subject.text}.size", f"{subject.text}.ndim"]
        if subject.ndim:
            axis = self.random.randrange(subject.ndim)
            items += [f"len({subject.text})", f"10 * {subject.text}.shape[{axis}]", f"{subject.text}.shape[-1]"]
        return f"{target} += {' + '.join(self.random.sample(items, 2))}"

    def branch(self, subject: Subject, target: str) -> str:
        """A reading on one side of a condition."""
        condition = self.random.choice(("i % 2 == 0", "i > 3", f"{subject.text}.size > 4", "i == 1 or i == 6"))
        return f"if {condition}:\n    {self.element(subject, target)}\nelse:\n    {target} += 1.0"

    def loop(self, subject: Subject, target: str) -> str:
        """A sum over an axis."""
        k = self.new("k")
        axis = self.random.randrange(subject.ndim)
        parts = self.index(subject.text, subject.ndim).split(", ")
        parts[axis] = k
        element = f"{subject.text}[{', '.join(parts)}]"
        text = self.value(subject.dtype, element, f"{subject.text}[{self.index(subject.text, subject.ndim)}]")
        return f"for {k} in range({subject.text}.shape[{axis}]):\n    {target} += {text}"

    def iterate(self, subject: Subject, target: str) -> str:
        """A sum over the elements themselves."""
        x = self.new("x")
        first = f"{subject.text}[0]"
        return f"for {x} in {subject.text}:\n    {target} += {self.value(subject.dtype, x, first)}"

    def either(self, subject: Subject, target: str) -> str:
        """One of two arrays of one kind."""
        alike = [
            one
            for one in self.subjects
            if (one.dtype, one.ndim, one.layout) == (subject.dtype, 1, subject.layout) and not one.choice
        ]
        if not alike or subject.choice:
            return self.element(subject, target)
        v, other = self.new("v"), self.random.choice(alike)
        text = f"{target} += {self.at(v, subject.dtype, 1)}"
        condition = self.random.choice(("i % 2 == 0", f"{other.text}.size > 3"))
        return f"{v} = {subject.text} if {condition} else {other.text}\n{self.guarded(v, text)}"

    def slice(self, subject: Subject, target: str) -> str:
        """An element of a part."""
        v = self.new("v")
        parts = [self.random.choice(SLICES) for _ in range(self.random.randrange(1, subject.ndim + 1))]
        text = f"{target} += {self.at(v, subject.dtype, subject.ndim)}"
        return f"{v} = {subject.text}[{', '.join(parts)}]\n{self.guarded(v, text)}"

    def row(self, subject: Subject, target: str) -> str:
        """An element of a row, a transposed or a flat array."""
        v = self.new("v")
        if subject.ndim == 1 or self.random.random() < 0.4:
            text = f"{target} += {self.at(v, subject.dtype, subject.ndim)}"
            return f"{v} = {subject.text}.T\n{text}"
        text = f"{target} += {self.at(v, subject.dtype, subject.ndim - 1)}"
        return f"{v} = {subject.text}[i % {subject.text}.shape[0]]\n{text}"

    def passed(self, put: Put, subject: Subject, target: str) -> str:
        """An element that a device function picks, of an array that it is given."""
        key = f"{subject.dtype} {subject.ndim}"
        if key not in self.picks:
            self.picks[key] = self.new("pick")
            text = self.at("v", subject.dtype, subject.ndim)
            put("device", f"@cuda.jit(device=True)\ndef {self.picks[key]}(v, i):\n    return {text}", self.picks[key])
        return f"{target} += {self.picks[key]}({subject.text}, i)"

    # writing

    def writing(self, subject: Subject) -> str:
        """Something that writes."""
        rng, text, number = self.random, subject.text, self.random.randrange(1, 5)
        at = f"{text}[{self.index(text, subject.ndim)}]"
        if subject.dtype == "record":
            return f"{at}['{rng.choice('xn')}'] = {number}"
        if subject.dtype[0] in "Mm":
            return f"{at} = {text}[{self.index(text, subject.ndim)}]"
        if subject.dtype == "bool":
            return f"{at} = i % {number + 1} == 0"
        choices = [f"{at} = {number}", f"{at} += {number}", f"{at} = {at} + {number}"]
        if subject.dtype in ATOMIC:
            index = self.index(text, subject.ndim)
            index = f"({index})" if subject.ndim > 1 else index
            choices += [f"cuda.atomic.{name}({text}, {index}, {number + 3})" for name in ("add", "max", "min")]
        if subject.ndim:
            v, part = self.new("v"), rng.choice(SLICES)
            stored = f"{v}[{self.index(v, subject.ndim)}] = {number}"
            choices += [f"{v} = {text}[{part}]\n{self.guarded(v, stored)}", f"{text}[{part}] = {number}"]
        return rng.choice(choices)

    def forbidden(self, put: Put) -> str:
        """A write that captures must refuse: the path that it must be refused for, or nothing."""
        found = [one for one in self.subjects if not one.writable and one.dtype not in ("record", "M8[D]", "m8[s]")]
        if not found:
            return ""
        subject = self.random.choice(found)
        put("forbidden", f"{subject.text}[{self.index(subject.text, subject.ndim)}] = 1")
        return subject.path
