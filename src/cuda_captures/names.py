"""Which names from outside a code object uses, read off its bytecode.

Static, so computed once per code object: kernels of one factory share theirs.  Nested code (lambdas,
comprehensions, inner functions) belongs to the function around it.
"""

from __future__ import annotations

import dis
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType

Chain = tuple[str, ...]

# Loads of names from the global namespace, and of closure cells, in CPython 3.11 to 3.14.  Cells of a function around
# are also loaded by LOAD_FAST (from 3.13 on) to be handed to an inner function; names tell them from locals.
_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_CELL = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF", "LOAD_CLOSURE"})
_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_NOTHING = frozenset({"EXTENDED_ARG", "CACHE", "NOP", "NOT_TAKEN"})


@dataclass(eq=False, slots=True)
class Use:
    """One name and the attributes that are taken of it at once.

    Parameters
    ----------
    name
        The name, or the absolute or relative name of an imported module.
    step
        How a path calls it: ``"closure `sigma`"``.
    label
        How the key calls it: ``"closure sigma"``.
    index
        For a free variable, its position among the function's; for an import, its level.
    chains
        ``(("sub", "array"),)`` for ``name.sub.array``; an empty chain is a use of the bare name.
    """

    name: str
    step: str
    label: str
    index: int
    chains: dict[Chain, None] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Names:
    """What a code object names from outside.

    Parameters
    ----------
    globals, cells, imports
        In the order of first use.
    attributes
        Every attribute name in the code, and every string in it that could be one: what may be taken of a module
        that is not used by a chain at once but stored or passed on.
    """

    globals: list[Use]
    cells: list[Use]
    imports: list[Use]
    attributes: frozenset[str]


def names_of(code: CodeType) -> Names:
    """The names of a code object, computed once."""
    known = _known.get(id(code))
    if known is not None and known[0]() is code:
        return known[1]
    reading = _Reading(code)
    names = Names(
        list(reading.globals.values()),
        list(reading.cells.values()),
        list(reading.imports.values()),
        frozenset(reading.attributes),
    )
    key = id(code)
    _known[key] = (weakref.ref(code, lambda _: _known.pop(key, None)), names)
    return names


# By identity: comparing and hashing code objects costs more than this whole look-up.  Entries go with their code; any
# thread may add one, since all find the same.
_known: dict[int, tuple[weakref.ref[CodeType], Names]] = {}


class _Reading:
    """The reading of one function's code and of the code nested in it."""

    def __init__(self, code: CodeType) -> None:
        self.outermost = code
        self.globals: dict[str, Use] = {}
        self.cells: dict[str, Use] = {}
        self.imports: dict[tuple[int, str], Use] = {}
        self.attributes: set[str] = set()
        self.read(code, frozenset(code.co_freevars))

    def read(self, code: CodeType, outer: frozenset[str]) -> None:
        """Add what a code object names; ``outer`` are its free variables that are the outermost function's too."""
        instructions = [one for one in dis.get_instructions(code) if one.opname not in _NOTHING]
        for position, instruction in enumerate(instructions):
            operation, name = instruction.opname, instruction.argval
            if operation in _ATTRIBUTE or operation in ("LOAD_SUPER_ATTR", "IMPORT_FROM"):
                self.attributes.add(name)
            elif operation in _GLOBAL:
                self.use_global(name, _chain(instructions, position))
            elif operation in _CELL:
                if name in outer:
                    self.use_cell(name, _chain(instructions, position))
                if operation == "LOAD_FROM_DICT_OR_DEREF":
                    self.use_global(name, ())
            elif operation.startswith("LOAD_FAST"):  # one name, or the two of a pair of loads
                for one in name if isinstance(name, tuple) else (name,):
                    if one in outer:
                        self.use_cell(one, ())
            elif operation == "IMPORT_NAME":
                level = instructions[position - 2].argval
                self.use_import(name, level if isinstance(level, int) else 0)
        self.attributes.update(text for text in strings_in(code.co_consts) if text.isidentifier())
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self.read(constant, outer & frozenset(constant.co_freevars))

    def use_global(self, name: str, chain: Chain) -> None:
        use = self.globals.setdefault(name, Use(name, f"global `{name}`", f"global {name}", 0))
        use.chains[chain] = None

    def use_cell(self, name: str, chain: Chain) -> None:
        index = self.outermost.co_freevars.index(name)
        use = self.cells.setdefault(name, Use(name, f"closure `{name}`", f"closure {name}", index))
        use.chains[chain] = None

    def use_import(self, name: str, level: int) -> None:
        """An imported module and those above it: ``import a.b`` binds ``a``."""
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            part = ".".join(parts[:count])
            dotted = "." * level + part
            use = self.imports.setdefault((level, part), Use(part, f"import `{dotted}`", f"import {dotted}", level))
            use.chains[()] = None


def _chain(instructions: list[dis.Instruction], position: int) -> Chain:
    """The attributes taken directly of what an instruction loads."""
    chain = []
    for instruction in instructions[position + 1 :]:
        if instruction.opname not in _ATTRIBUTE:
            break
        chain.append(instruction.argval)
    return tuple(chain)


def strings_in(value: object) -> Iterator[str]:
    """The strings in nested tuples and sets."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (tuple, frozenset)):
        items: Iterable[object] = value
        for item in items:
            yield from strings_in(item)
