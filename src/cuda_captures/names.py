"""Which names from outside a code object uses, read off its bytecode.

Static, so computed once per code object: kernels of one factory share theirs.  Nested code (lambdas,
comprehensions, inner functions) belongs to the function around it.
"""

from __future__ import annotations

import dis
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType

Chain = tuple[str, ...]

# Loads of names from the global namespace, and of closure cells, in CPython 3.11 to 3.14.  Cells of a function around
# are also loaded by LOAD_FAST (3.13) to be handed to an inner function; names tell them from locals.
_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_CELL = frozenset(
    {"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF", "LOAD_CLOSURE", "LOAD_FAST", "LOAD_FAST_BORROW"}
)
_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_NOTHING = frozenset({"EXTENDED_ARG", "CACHE", "NOP", "NOT_TAKEN"})


@dataclass(eq=False)
class Use:
    """One name and the attributes that are taken of it at once.

    Parameters
    ----------
    name
        The name; for an import, the absolute or relative module's.
    chains
        ``(("sub", "array"),)`` for ``name.sub.array``; an empty chain is a use of the bare name.
    """

    name: str
    chains: dict[Chain, None] = field(default_factory=dict)


@dataclass(eq=False)
class Names:
    """What a code object names from outside.

    Parameters
    ----------
    globals, cells, imports
        In the order of first use.  Imports are named ``(level, module)`` in ``levels``.
    attributes
        Every attribute name in the code, and every string in it that could be one, for modules that are not used by
        a chain at once but stored or passed on.
    """

    globals: dict[str, Use] = field(default_factory=dict)
    cells: dict[str, Use] = field(default_factory=dict)
    imports: dict[tuple[int, str], Use] = field(default_factory=dict)
    attributes: set[str] = field(default_factory=set)


def names_of(code: CodeType) -> Names:
    """The names of a code object, computed once."""
    known = _known.get(id(code))
    if known is not None and known[0]() is code:
        return known[1]
    names = Names()
    _collect(code, frozenset(code.co_freevars), names)
    key = id(code)
    _known[key] = (weakref.ref(code, lambda _: _known.pop(key, None)), names)
    return names


# By identity: comparing and hashing code objects costs more than this whole look-up.  Entries go with their code.
_known: dict[int, tuple[weakref.ref[CodeType], Names]] = {}


def _collect(code: CodeType, outer: frozenset[str], names: Names) -> None:
    """Add what a code object names; ``outer`` are those of its free variables that are the outermost function's."""
    instructions = [one for one in dis.get_instructions(code) if one.opname not in _NOTHING]
    for position, instruction in enumerate(instructions):
        operation, name = instruction.opname, instruction.argval
        if operation in _ATTRIBUTE or operation in ("LOAD_SUPER_ATTR", "IMPORT_FROM"):
            names.attributes.add(name)
        elif operation == "IMPORT_NAME":
            level = instructions[position - 2].argval if position >= 2 else 0
            use = names.imports.setdefault((level if isinstance(level, int) else 0, name), Use(name))
            use.chains[()] = None
        if operation in _GLOBAL:
            use = names.globals.setdefault(name, Use(name))
        elif operation in _CELL and name in outer and name in code.co_freevars:
            use = names.cells.setdefault(name, Use(name))
        else:
            continue
        use.chains[_chain(instructions, position)] = None
        if operation == "LOAD_FROM_DICT_OR_DEREF":
            names.globals.setdefault(name, Use(name)).chains[()] = None
    for constant in _strings(code.co_consts):
        if constant.isidentifier():
            names.attributes.add(constant)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _collect(constant, outer & frozenset(code.co_freevars) & frozenset(constant.co_freevars), names)


def _chain(instructions: list[dis.Instruction], position: int) -> Chain:
    """The attributes taken directly of what an instruction loads."""
    chain = []
    for instruction in instructions[position + 1 :]:
        if instruction.opname not in _ATTRIBUTE:
            break
        chain.append(instruction.argval)
    return tuple(chain)


def _strings(constants: object) -> Iterator[str]:
    if isinstance(constants, str):
        yield constants
    elif isinstance(constants, (tuple, frozenset)):
        for constant in constants:
            yield from _strings(constant)
