"""What is captured, where it lives, why it was compiled: for people and for programs."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Row:
    """One captured array.

    Parameters
    ----------
    name, path
        The name, and how the kernel reaches it: ``("device function `scatter`", "closure `sigma`")``.
    where
        File and line of the first use.
    dtype, shape, nbytes
        Of the array now.
    policy
        ``live``, ``snapshot``, ``mapped``, ``constant``, or ``device`` for a device array.
    written
        Whether the kernel writes it.
    general
        Whether one compilation serves every shape.
    """

    name: str
    path: tuple[str, ...]
    where: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    policy: str
    written: bool
    general: bool

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "path": list(self.path), "shape": list(self.shape)}


def table_of(rows: tuple[Row, ...], title: str) -> Table:
    """Rows as a table for a terminal."""
    table = Table(title=title, title_justify="left")
    for column in ("name", "path", "dtype", "shape", "bytes", "policy", "kernel"):
        table.add_column(column, justify="right" if column == "bytes" else "left")
    for row in rows:
        access = "writes" if row.written else "reads"
        shape = "any" if row.general else "x".join(map(str, row.shape)) or "0-d"
        table.add_row(row.name, " → ".join(row.path), row.dtype, shape, f"{row.nbytes:,}", row.policy, access)
    return table


def rendered(*parts: Any) -> str:
    """Tables and lines as plain text."""
    console = Console(width=120, record=False, force_terminal=False, color_system=None)
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return capture.get()


@dataclass(frozen=True)
class Explanation:
    """What :func:`cuda_captures.explain` found by compiling.

    Parameters
    ----------
    kernel
        Its name.
    rows
        The captured arrays.
    slots
        Symbols of the slots in the machine code.
    constant_bytes
        Constant memory that holds data of captured arrays: only what was asked for.
    key
        The key as text; None if some name cannot be identified.
    why_private
        Then the reasons.
    ptx
        The PTX before the link.
    cubin
        The linked machine code.
    """

    kernel: str
    rows: tuple[Row, ...]
    slots: tuple[str, ...]
    constant_bytes: int
    key: str | None
    why_private: tuple[str, ...]
    ptx: str
    cubin: bytes

    def to_dict(self) -> dict[str, Any]:
        return {
            "kernel": self.kernel,
            "captures": [row.to_dict() for row in self.rows],
            "slots": list(self.slots),
            "constant_bytes": self.constant_bytes,
            "key": self.key,
            "why_private": list(self.why_private),
        }

    def __str__(self) -> str:
        lines = [
            table_of(self.rows, f"captures of kernel {self.kernel}"),
            f"slots: {len(self.slots)}, constant data of captures: {self.constant_bytes:,} of 65,536 bytes",
        ]
        lines += [f"not shared or cached: {reason}" for reason in self.why_private]
        return rendered(*lines)


@dataclass(frozen=True)
class Specialisation:
    """One compilation of a kernel, and how it was come by: compiled, from another kernel, or from disk."""

    signature: str
    source: str
    key: str | None
    why_private: tuple[str, ...]
    constant_bytes: int


@dataclass(frozen=True)
class CaptureReport:
    """What :func:`cuda_captures.report` found."""

    kernel: str
    rows: tuple[Row, ...]
    specialisations: tuple[Specialisation, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "kernel": self.kernel,
            "captures": [row.to_dict() for row in self.rows],
            "specialisations": [{**vars(one), "why_private": list(one.why_private)} for one in self.specialisations],
        }

    def __str__(self) -> str:
        table = Table(title="specialisations", title_justify="left")
        for column in ("signature", "came from", "key", "constant bytes"):
            table.add_column(column)
        for one in self.specialisations:
            key = (one.key or "none: " + "; ".join(one.why_private))[:60]
            table.add_row(one.signature, one.source, key, f"{one.constant_bytes:,}")
        return rendered(table_of(self.rows, f"captures of kernel {self.kernel}"), table)

    def _repr_html_(self) -> str:
        console = Console(width=140, record=True, file=io.StringIO())
        console.print(str(self))
        return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
