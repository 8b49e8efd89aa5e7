"""Reports in a terminal: tables of rich."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from cuda_captures import report_words as words
from cuda_captures.report import Advice, CaptureReport, Row, Specialisation

WIDTH = 120  # columns, where there is no terminal that says
STYLES = {"live": "green", "snapshot": "cyan", "mapped": "magenta", "constant": "yellow", "device": "blue"}


def plain(report: CaptureReport) -> str:
    """A report as text without colours, as wide as the terminal."""
    width = None if sys.stdout.isatty() else WIDTH
    console = Console(width=width, force_terminal=False, force_jupyter=False, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(renderable(report))
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def renderable(report: CaptureReport) -> Group:
    """A report as rich prints it."""
    head = Text.assemble(("captures of kernel ", ""), (report.kernel, "bold"), ("  " + words.headline(report), "dim"))
    parts: list[Any] = [head, "", captures(report.rows) if report.rows else Text(words.NO_CAPTURES)]
    if report.specialisations:
        parts += ["", specialisations(report.specialisations), ""]
        if report.levels:
            parts.append(line("code looked for", " · ".join(map(words.level_line, report.levels))))
        parts.append(line("constant memory", words.constant_memory(report)))
    for advice in report.advice:
        parts += ["", advised(advice)]
    return Group(*parts)


def captures(rows: Iterable[Row]) -> Table:
    """The captured arrays."""
    table = empty("name", "array", "policy", "host edits", "device copies", leading=1)
    for row in rows:
        name = stacked([Text(row.name, "bold")], [" → ".join(row.path), words.short_place(row.where)])
        first, *rest = words.array_lines(row)
        copies = [stacked([Text(lines[0])], lines[1:]) for lines in map(words.copy_lines, row.copies)]
        table.add_row(
            name,
            stacked([Text(first)], rest),
            Text.assemble(
                (row.policy, STYLES.get(row.policy, "")), "\n", (words.access(row), "bold red" if row.written else "")
            ),
            stacked([Text(words.edits(row))], [row.why]),
            Text("\n").join(copies) if copies else Text("none", "dim"),
        )
    return table


def specialisations(found: Iterable[Specialisation]) -> Table:
    """What a kernel was compiled to."""
    table = empty("arguments", "code", "key", "why")
    for one in found:
        table.add_row(
            Text(one.signature or "none"),
            Text(words.SOURCES[one.source]),
            Text((one.key or "none")[:10], "dim"),
            Text("\n").join(Text(reason) for reason in words.reasons(one)),
        )
    return table


def empty(*columns: str, leading: int = 0) -> Table:
    """A table without rows."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False, padding=(0, 1, 0, 0))
    table.leading = leading
    for column in columns:
        table.add_column(column, overflow="fold", vertical="top")
    return table


def stacked(first: list[Text], rest: Iterable[str]) -> Text:
    """Lines of a cell, the first ones as they are and the others in the background."""
    return Text("\n").join([*first, *(Text(text, "dim") for text in rest if text)])


def line(label: str, text: str) -> Text:
    """One fact."""
    return Text.assemble((f"{label}: ", "bold"), text)


def advised(advice: Advice) -> Text:
    """One piece of advice."""
    return Text.assemble(("advice: ", "bold yellow"), (f"`{advice.name}` ", "bold"), advice.text)
