"""Programs in pieces: what is generated, shrunk, and kept.

A piece is some lines of one section.  In them ``$p0`` stands for whatever the path ``p0`` names, and ``$*`` for
arguments that lead the others, so that one program can be written out in two forms: *captured*, where paths are what a
kernel names, and *argument*, where every path is a parameter of the kernel and of each device function.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

Form = Literal["captured", "argument"]

KERNELS = ("kernel", "second")
STEPS = ("step1", "step2")
ASSIGNED = re.compile(r"^(\w+) = ", re.MULTILINE)
NAMED = re.compile(r"\$(\w+)")


@dataclass(frozen=True)
class Piece:
    """Some lines of a program.

    Parameters
    ----------
    section
        ``module``, ``closure``, ``device``, ``kernel``, ``second``, ``step1``, ``step2``; the name of a device
        function, for what it does; ``forbidden``, at the end of the first kernel; ``path``; or ``probe``, which reads
        elements of a path and is no part of the program.
    text
        The lines; of a path, the expression that names it; of a device function, its head.
    name
        Of a path or a device function.
    """

    section: str
    text: str
    name: str = ""


@dataclass(frozen=True)
class Program:
    """Pieces, and how the kernels are launched: before the first step and after each.

    Parameters
    ----------
    pieces
        In the order of their sections' lines.
    threads
        In a launch; each takes its share of ``size`` elements.
    size
        Of the array that every kernel adds to.
    policies
        As ``cuda.jit(captures=…)`` takes them.
    refused
        A path that the program must be refused for, because its last piece writes what may not be written.
    racy
        Whether threads see what others write, so that only one may run where threads are not ordered.
    """

    pieces: tuple[Piece, ...]
    threads: int = 8
    size: int = 8
    policies: tuple[tuple[str, str], ...] = ()
    refused: str = ""
    racy: bool = False

    def section(self, name: str) -> list[str]:
        """The texts of a section."""
        return [piece.text for piece in self.pieces if piece.section == name]

    @property
    def kernels(self) -> list[str]:
        """Those that have a body."""
        return [name for name in KERNELS if self.section(name)]

    @property
    def steps(self) -> list[str]:
        """What happens between launches."""
        return [name for name in STEPS if self.section(name)]

    def body(self) -> list[Piece]:
        """The statements of kernels and device functions."""
        functions = {piece.name for piece in self.pieces if piece.section == "device"}
        return [piece for piece in self.pieces if piece.section in KERNELS or piece.section in functions]

    def without(self, gone: Iterable[Piece]) -> Program:
        """The program with fewer pieces."""
        dropped = set(map(id, gone))
        return replace(self, pieces=tuple(piece for piece in self.pieces if id(piece) not in dropped))

    def paths(self) -> dict[str, str]:
        """The paths that functions use, by name."""
        code = [piece for piece in self.pieces if piece.section in ("device", "forbidden")]
        used = {name for piece in (*code, *self.body()) for name in NAMED.findall(piece.text)}
        return {piece.name: piece.text for piece in self.pieces if piece.section == "path" and piece.name in used}

    def source(self, form: Form = "captured") -> str:
        """The program as Python, which leaves a dictionary ``made`` of its functions."""
        paths = self.paths()
        if form == "captured":
            words, leading = paths, ""
        else:
            words = {name: f"a_{name}" for name in paths}
            leading = "".join(f"{word}, " for word in words.values())

        def written(text: str) -> str:
            return NAMED.sub(lambda found: words[found[1]], text.replace("$*", leading))

        names = [*self.kernels, *self.steps, "arguments"]
        return "\n".join(
            [
                *self.section("module"),
                "def make():",
                *_indented(self.section("closure")),
                *_indented(written(self._device(piece)) for piece in self.pieces if piece.section == "device"),
                *_indented(_kernel(name, leading, map(written, self._body(name))) for name in self.kernels),
                *_indented(self._step(name) for name in self.steps),
                *_indented([f"def arguments():\n    return ({''.join(f'{path}, ' for path in paths.values())})"]),
                f"    return {{{', '.join(f'{name!r}: {name}' for name in names)}}}",
                "made = make()",
                "",
            ]
        )

    def _device(self, head: Piece) -> str:
        tail = [] if "return" in head.text else ["    return acc"]
        return "\n".join([head.text, *_indented(self.section(head.name)), *tail])

    def _body(self, kernel: str) -> list[str]:
        return self.section(kernel) + (self.section("forbidden") if kernel == KERNELS[0] else [])

    def _step(self, name: str) -> str:
        text = "\n".join(self.section(name))
        bound = set(ASSIGNED.findall(text))
        cells = bound & set(ASSIGNED.findall("\n".join(self.section("closure"))))
        lines = [f"def {name}():"]
        for word, names in (("nonlocal", cells), ("global", bound - cells)):
            if names:
                lines.append(f"    {word} {', '.join(sorted(names))}")
        return "\n".join([*lines, textwrap.indent(text, "    ")])

    def probed(self) -> Program:
        """The program with a first kernel that reads elements of every path as well."""
        used = self.paths()
        probes = [
            replace(one, section=KERNELS[0], name="")
            for one in self.pieces
            if one.section == "probe" and one.name in used
        ]
        return replace(self, pieces=(*self.pieces, *probes))

    def case(self, why: str) -> str:
        """The text of a file that keeps the program."""
        fields = [f"    {name}={getattr(self, name)!r}," for name in ("threads", "size", "policies", "refused", "racy")]
        pieces = [
            f"        Piece({piece.section!r}, {_quoted(piece.text)}{f', {piece.name!r}' if piece.name else ''}),"
            for piece in self.pieces
        ]
        head = f'"""{why}"""\n\nfrom fuzz.program import Piece, Program\n\n# fmt: off\nPROGRAM = Program('
        return "\n".join([head, "    (", *pieces, "    ),", *fields, ")", ""])


def _quoted(text: str) -> str:
    if "\n" not in text:
        return repr(text)
    return '"""\\\n' + text.replace("\\", "\\\\") + '"""'


def _indented(texts: Iterable[str]) -> list[str]:
    return [textwrap.indent(text, "    ") for text in texts]


def _kernel(name: str, leading: str, body: Iterable[str]) -> str:
    return "\n".join(
        [
            f"def {name}({leading}out):",
            "    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):",
            *(textwrap.indent(text, "        ") for text in body),
        ]
    )
