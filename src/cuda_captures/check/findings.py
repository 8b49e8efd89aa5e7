"""What is found, and how that is said: the wrong code, the reason, what to write instead."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cuda_captures.check.sources import Source

Certainty = Literal["certain", "likely", "possible"]
LIMIT = 65_536  # bytes of constant memory that a module has


@dataclass(frozen=True)
class Place:
    """A place in a file, from 1; columns are characters.

    Parameters
    ----------
    what
        What is there, for people: ``"made here"``.
    """

    path: str
    line: int
    column: int
    end_column: int
    text: str
    what: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "text"}

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"

    def shown(self) -> str:
        """The line of source with carets under the place."""
        if not self.text.strip():
            return ""
        before = self.text[: self.column - 1]
        blank = "".join(one if one == "\t" else " " for one in before)
        carets = "^" * max(1, self.end_column - self.column)
        return f"{self.line:>6} | {self.text}\n       | {blank}{carets}"


def place(source: Source, node: ast.AST, what: str = "") -> Place:
    """Where a node is; of a definition its first line, of a long expression its first line."""
    line = getattr(node, "lineno", 1)
    lines = source.lines
    text = lines[line - 1] if line <= len(lines) else ""
    start = _characters(text, getattr(node, "col_offset", 0))
    end = len(text.rstrip())
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        found = text.find(node.name, start)
        start, end = (found, found + len(node.name)) if found >= 0 else (start, end)
    elif getattr(node, "end_lineno", None) == line:
        end = _characters(text, getattr(node, "end_col_offset", 0))
    return Place(source.path, line, start + 1, end + 1, text, what)


def _characters(text: str, offset: int) -> int:
    """Characters before an offset in bytes, which is what the parser counts."""
    return len(text.encode("utf-8", "surrogatepass")[:offset].decode("utf-8", "ignore"))


@dataclass(frozen=True)
class Finding:
    """One capture that breaks or goes stale without ``cuda_captures``.

    Parameters
    ----------
    kind
        Which kind: a key of :data:`KINDS`.
    certainty
        ``"certain"``; ``"likely"``: by a rule of thumb, or from the calls in the checked files; ``"possible"``: the
        origin cannot be told.
    place
        Where the name is used.
    name, function
        The captured name, and the function that captures it.
    message, reasons, fix
        What it is, why that is wrong, and what to write instead.
    doubt
        Why it is not certain; empty if it is.
    related
        Where the value is made, changed and so on.
    cured
        Whether ``cuda_captures.enable()`` is enough to mend it.
    """

    kind: str
    certainty: Certainty
    place: Place
    name: str
    function: str
    message: str
    reasons: tuple[str, ...]
    fix: str
    doubt: str = ""
    related: tuple[Place, ...] = ()
    cured: bool = True

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "certainty": self.certainty,
            "path": self.place.path,
            "line": self.place.line,
            "column": self.place.column,
            "end_column": self.place.end_column,
            "name": self.name,
            "function": self.function,
            "message": self.message,
            "reasons": list(self.reasons),
            "fix": self.fix,
            "doubt": self.doubt,
            "related": [one.to_dict() for one in self.related],
            "cured_by_captures": self.cured,
        }

    def __str__(self) -> str:
        parts = [f"{self.place}: {self.kind} [{self.certainty}]: {self.message}", self.place.shown()]
        parts += [f"  {one.what}: {one}: {one.text.strip()}" for one in self.related]
        parts += [f"  why: {reason}" for reason in self.reasons]
        if self.doubt:
            parts.append(f"  how sure: {self.doubt}")
        parts.append(f"  instead: {self.fix}")
        return "\n".join(part for part in parts if part)


@dataclass(frozen=True)
class Result:
    """What a check has found.

    Parameters
    ----------
    findings
        By file and line.
    unread
        Files that could not be checked, each with the reason, line and column (0: not known).
    files
        How many files were checked.
    functions
        How many functions for a GPU there are, by kind.
    enabled_at
        Where the checked files enable captures themselves, ``file.py:3``.
    """

    findings: tuple[Finding, ...]
    unread: tuple[tuple[str, str, int, int], ...]
    files: int
    functions: dict[str, int] = field(default_factory=dict)
    enabled_at: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "findings": [one.to_dict() for one in self.findings],
            "unread": [
                {"path": path, "reason": reason, "line": line, "column": column}
                for path, reason, line, column in self.unread
            ],
            "files": self.files,
            "functions": self.functions,
        }

    @property
    def summary(self) -> str:
        """One line that sums up."""
        kinds = ", ".join(_count(count, kind) for kind, count in sorted(self.functions.items()))
        seen = f"{_count(self.files, 'file')}, {kinds or 'no kernel or device function'}"
        found = {one.kind: 0 for one in self.findings}
        for one in self.findings:
            found[one.kind] += 1
        each = f" ({', '.join(f'{count} {kind}' for kind, count in sorted(found.items()))})" if found else ""
        text = f"{_count(len(self.findings), 'finding')}{each} in {seen}"
        return f"{text}; {_count(len(self.unread), 'file')} not checked" if self.unread else text

    @property
    def mended(self) -> str:
        """What is said of findings that the program has mended by enabling captures; empty if there are none."""
        cured = sum(one.cured for one in self.findings)
        if not cured or not self.enabled_at:
            return ""
        return MENDED.format(where=joined(self.enabled_at), of=f"{cured} of these" if cured > 1 else "one of these")


MENDED = """\
captures are enabled at {where}, which mends {of} if it comes before the first launch.
`--with-captures` leaves out what it mends."""


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def joined(names: Sequence[str]) -> str:
    """Names as a list in a sentence."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


KINDS = {
    "host-array": "a NumPy array, which is copied into constant memory",
    "device-array": "a device array, whose address is compiled in",
    "array-in-tuple": "a tuple that holds arrays",
    "constant-memory": "arrays that together are more than constant memory",
    "container": "a list, dictionary or set, which is refused",
    "object": "an object that the compiler cannot type",
    "rebound": "a name that is bound anew after the kernel may have been compiled",
    "cached": "a value that code in the disk cache keeps",
    "unknown": "a name that is indexed and whose origin cannot be told",
}
