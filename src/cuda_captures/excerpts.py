"""The line of source that a message is about, with a caret under the name, as compilers show it."""

from __future__ import annotations

import dis
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType

from rich.cells import cell_len

INDENT = "    "


@dataclass(frozen=True)
class Spot:
    """Where a code object names something.

    Parameters
    ----------
    line
        Number, from 1.
    stop
        Column after the name, in bytes of UTF-8; None where Python was told to forget columns.
    function
        Name of the code object, which may be nested in the one that was asked about.
    """

    line: int
    stop: int | None
    function: str


def pointer(code: CodeType | FunctionType, name: str, line: int | None = None) -> str:
    """The place in the source where a function names something, with a caret under the name.

    Parameters
    ----------
    code
        The function, or its code object.
    name
        The variable or attribute to point at; of an item of a tuple, ``"tables[0].sin"``, the tuple is shown.
    line
        The line to show, from 1.  By default the first one whose bytecode names ``name``.

    Returns
    -------
    str
        ``'file.py:12, in f\\n    out[i] = table[i]\\n             ^^^^^'``; without the source only the first line.
    """
    if isinstance(code, FunctionType):
        code = code.__code__
    name = first_name(name)
    spot = next((spot for spot in spots(code, name) if line in (None, spot.line)), None)
    if line is None:
        line = spot.line if spot is not None else code.co_firstlineno
    head = f"{code.co_filename}:{line}, in {spot.function if spot is not None else code.co_name}"
    return excerpt(head, linecache.getline(code.co_filename, line), name, spot.stop if spot is not None else None)


def excerpt(head: str, source: str, name: str, stop: int | None = None) -> str:
    """A line of source under its head, with carets under a name; under all of the line, if the name is not in it.

    Parameters
    ----------
    head
        Says where the line is.
    source
        The line; empty if it cannot be had, and then there is nothing but the head.
    name
        The name.
    stop
        Column after the name, in bytes of UTF-8, if that is known.
    """
    code = source.strip()
    if not code:
        return head
    found = _ending_at(source, name, stop)
    if found is None:
        found = _whole_word(source, name)
    if found is None:
        return f"{head}\n{INDENT}{code}\n{INDENT}{'^' * cell_len(code)}"
    before = source[:found].lstrip()
    padding = "".join("\t" if one == "\t" else " " * cell_len(one) for one in before)
    return f"{head}\n{INDENT}{code}\n{INDENT}{padding}{'^' * cell_len(name)}"


def line_naming(code: CodeType, name: str) -> int:
    """The first line of a function that names something; the line of its ``def`` if none does."""
    spot = next(spots(code, first_name(name)), None)
    return spot.line if spot is not None else code.co_firstlineno


def first_name(name: str) -> str:
    """The variable in the name of an item: ``tables`` of ``tables[0].sin``."""
    return name.partition("[")[0].partition(".")[0]


def spots(code: CodeType, name: str) -> Iterator[Spot]:
    """Where a function, and those inside of it, name something: reads of the name first, then attributes."""
    for attributes in (False, True):
        yield from _spots(code, name, attributes)


def _spots(code: CodeType, name: str, attributes: bool) -> Iterator[Spot]:
    for instruction in dis.get_instructions(code):
        operation, positions = instruction.opname, instruction.positions
        if instruction.opcode in dis.hasconst or operation == "LOAD_CLOSURE" or not operation.startswith("LOAD_"):
            continue
        named = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
        if name not in named or (operation in ("LOAD_ATTR", "LOAD_METHOD")) is not attributes:
            continue
        if positions is not None and positions.end_lineno is not None:
            yield Spot(positions.end_lineno, positions.end_col_offset, code.co_name)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _spots(constant, name, attributes)


def _ending_at(source: str, name: str, stop: int | None) -> int | None:
    """Where a name begins that ends at a column; None if something else is there: the file may have changed."""
    if stop is None:
        return None
    before = source.encode()[:stop].decode(errors="replace")
    return len(before) - len(name) if before.endswith(name) else None


def _whole_word(source: str, name: str) -> int | None:
    """Where a line holds the name as a whole word."""
    start = 0
    while (found := source.find(name, start)) >= 0:
        around = source[max(found - 1, 0) : found] + source[found + len(name) : found + len(name) + 1]
        if not any(one.isidentifier() or one.isdigit() for one in around):
            return found
        start = found + 1
    return None
