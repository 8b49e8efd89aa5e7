"""Where a kernel can name an array: Hypothesis strategies for programs that read it from there."""

from __future__ import annotations

import collections
import itertools
import sys
import textwrap
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
from hypothesis import strategies as st

from generated import namespace

Array = np.ndarray[Any, Any]

Pair = collections.namedtuple("Pair", "first second")
OTHER = np.arange(7, dtype=np.int16)

_modules = itertools.count()


def module(**attributes: Any) -> ModuleType:
    """A module that can be imported by its name for as long as the interpreter runs."""
    made = ModuleType(f"module_of_tables_{next(_modules)}")
    vars(made).update(attributes)
    sys.modules[made.__name__] = made
    return made


@dataclass(frozen=True)
class Container:
    """A way to name an array.

    Parameters
    ----------
    label
        For messages.
    expression
        Source text of the array in a function.
    name
        The name at the start of the expression.
    """

    label: str
    expression: str
    name: str

    def value(self, array: Array) -> Any:
        """What the name must mean."""
        return VALUES[self.label](array)


VALUES: dict[str, Any] = {
    "bare": lambda array: array,
    "tuple": lambda array: (5, array),
    "named tuple": lambda array: Pair(array, 2.5),
    "nest": lambda array: (1, (Pair(OTHER, array), OTHER)),
    "tuple of arrays": lambda array: (array, array, array),
    "attribute of a module": lambda array: module(table=array),
    "tuple in a module": lambda array: module(tables=(OTHER, array)),
    "attribute of a module's module": lambda array: module(inner=module(table=array)),
}
CONTAINERS = (
    Container("bare", "table", "table"),
    Container("tuple", "table[1]", "table"),
    Container("tuple", "table[-1]", "table"),
    Container("named tuple", "table.first", "table"),
    Container("named tuple", "table[0]", "table"),
    Container("nest", "table[1][0].second", "table"),
    Container("tuple of arrays", "table[i % 3]", "table"),
    Container("attribute of a module", "table.table", "table"),
    Container("tuple in a module", "table.tables[1]", "table"),
    Container("attribute of a module's module", "table.inner.table", "table"),
)


@dataclass
class Program:
    """Functions that lead to an array.

    Parameters
    ----------
    container
        How the innermost function names it.
    closure
        Whether the name is a free variable instead of a global.
    inlines
        One for each device function between the kernel and the access, outermost last: whether it is inlined.
    """

    container: Container
    closure: bool = False
    inlines: tuple[bool, ...] = ()
    names: dict[str, Any] = field(default_factory=dict)

    def kernel(self, array: Array, access: str, count: str = "out.size") -> Any:
        """The kernel ``out[i] = access``, in which ``ARRAY`` stands for the array, for every ``i`` below a count."""
        access = access.replace("ARRAY", self.container.expression)
        lines = []
        for level, inline in enumerate(self.inlines):
            option = ', inline="always"' if inline else ""
            lines += [f"@cuda.jit(device=True{option})", f"def level{level}(i):", f"    return {access}"]
            access = f"level{level}(i)"
        lines += ["def kernel(out):", "    i = cuda.grid(1)", f"    if i < {count}:", f"        out[i] = {access}"]
        return self.function(array, lines)

    def function(self, array: Array, lines: list[str]) -> Any:
        """The function ``kernel`` of some lines, with the name bound to the array's container."""
        name, value = self.container.name, self.container.value(array)
        if not self.closure:
            self.names = namespace("\n".join(lines), **{name: value})
            return self.names["kernel"]
        body = textwrap.indent("\n".join(lines), "    ")
        made = namespace(f"def make({name}):\n{body}\n    return kernel")
        return made["make"](value)


containers = st.sampled_from(CONTAINERS)


@st.composite
def programs(draw: st.DrawFn, max_depth: int = 3) -> Program:
    """Any way to name an array, at any depth of calls."""
    inlines = tuple(draw(st.lists(st.booleans(), max_size=max_depth)))
    return Program(draw(containers), draw(st.booleans()), inlines)
