"""Smaller programs that still do what a program did."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from fuzz.program import KERNELS, Piece, Program

SIMPLE_LAY = re.compile(r"lay\(('\w+(?:\[\w+\])?'), (\([^)]*\)), '(?!C')\w+'")


def shrink(program: Program, still: Callable[[Program], bool], seconds: float = 60.0) -> Program:
    """The smallest program that was found in some time.

    Parameters
    ----------
    program
        One that does it.
    still
        Whether another one does it too.
    seconds
        To take.
    """
    until = time.monotonic() + seconds
    shrunk = True
    while shrunk:
        shrunk = False
        for smaller in _smaller(program):
            if time.monotonic() > until:
                return _tidy(program, still)
            if still(smaller):
                program, shrunk = smaller, True
                break
    return _tidy(program, still)


def _smaller(program: Program) -> Iterator[Program]:
    pieces = program.pieces
    for section in (KERNELS[1], "step2", "step1", "device"):  # whole sections first
        found = [piece for piece in pieces if piece.section == section]
        if len(found) > 1 or (found and section != "device"):
            yield program.without(found)
    for piece in reversed(pieces):
        if piece.section not in ("forbidden", "probe"):
            yield program.without([piece])
    for index, piece in enumerate(pieces):
        for text in _simpler(piece):
            yield replace(program, pieces=(*pieces[:index], replace(piece, text=text), *pieces[index + 1 :]))
    if program.threads > 1:
        yield replace(program, threads=1)
    if program.size > 2:
        yield replace(program, size=2)


def _simpler(piece: Piece) -> Iterator[str]:
    """Shorter texts of a piece: a line less, a block without its head, a simpler array."""
    lines = piece.text.split("\n")
    if piece.section in ("path", "probe"):
        return
    for index in range(len(lines)):
        if len(lines) > 1:
            yield "\n".join(lines[:index] + lines[index + 1 :])
        body = lines[index + 1 :]
        if lines[index].endswith(":") and body and all(line.startswith("    ") for line in body):
            yield "\n".join([*lines[:index], *(line[4:] for line in body)])
    simple = SIMPLE_LAY.sub(r"lay(\1, \2, 'C'", piece.text)
    if simple != piece.text:
        yield simple


def _tidy(program: Program, still: Callable[[Program], bool]) -> Program:
    """Without paths that nothing uses, and policies of what is not there."""
    used = program.paths()
    named = ("path", "probe")
    tidy = program.without([piece for piece in program.pieces if piece.section in named and piece.name not in used])
    return tidy if still(tidy) else program
