"""What reports say, in words: the same in a terminal and in a notebook."""

from __future__ import annotations

import os

from rich.filesize import decimal

from cuda_captures.contents import CONSTANT_LIMIT
from cuda_captures.costs import duration
from cuda_captures.report import CaptureReport, Copy, Level, Row, Specialisation

NO_CAPTURES = "It captures no arrays."

SOURCES = {"compiled": "compiled", "process": "shared: another kernel had it", "disk": "from the disk cache"}
LEVELS = {"kernel": "this kernel", "process": "other kernels of the process", "disk": "disk cache"}


def times(count: int, what: str) -> str:
    """A count with its noun: ``"1 launch"``, ``"2 launches"``."""
    return f"{count:,} {what}" + ("" if count == 1 else "es" if what.endswith("ch") else "s")


def short_place(where: str) -> str:
    """File and line without the directories."""
    return os.path.basename(where)


def headline(report: CaptureReport) -> str:
    """What a report is of, after the kernel's name."""
    parts = [short_place(report.where)]
    if report.launches is not None and report.specialisations:
        parts.append(times(report.launches, "launch"))
    if report.note:
        parts.append(report.note)
    return " · ".join(filter(None, parts))


def shape(row: Row) -> str:
    """Dimensions."""
    return " × ".join(f"{length:,}" for length in row.shape) or "0-d"


def packed(row: Row) -> bool:
    """Whether the elements of an array lie one after the other in C order."""
    step = row.nbytes
    for length, stride in zip(row.shape, row.strides, strict=True):
        step //= max(length, 1)
        if length > 1 and stride != step:
            return False
    return True


def array_lines(row: Row) -> list[str]:
    """Type, shape and size of an array; strides where they say something."""
    lines = [f"{row.dtype}, {shape(row)}", times(row.nbytes, "byte")]
    if not packed(row):
        lines.append(f"strides {', '.join(map(str, row.strides))}")
    if row.general:
        lines.append("compiled for any shape")
    return lines


def access(row: Row) -> str:
    """Whether the kernel reads or writes an array."""
    return {None: "", True: "writes", False: "reads"}[row.written]


def edits(row: Row) -> str:
    """How edits of the host are noticed, and what that takes."""
    if row.copies and row.policy == "live":
        return f"{row.noticed}, {duration(row.copies[0].cost)} a launch"
    return row.noticed


def copy_lines(copy: Copy) -> list[str]:
    """What there is to say of a device copy."""
    lines = [f"device {copy.device}: {decimal(copy.nbytes)}"]
    if copy.uploads:
        lines.append(f"sent {times(copy.uploads, 'time')}, {decimal(copy.uploaded)} in all")
    if copy.downloads:
        lines.append(f"came back {times(copy.downloads, 'time')}, {decimal(copy.downloaded)} in all")
    if len(copy.kernels) > 1 or copy.instances > 1:
        lines.append(f"shared by {', '.join(copy.kernels[:4])}{' …' if len(copy.kernels) > 4 else ''}")
        lines[-1] += f" ({times(copy.instances, 'module instance')})"
    return lines


def reasons(one: Specialisation) -> list[str]:
    """Why a specialisation was compiled, or is nobody else's."""
    if one.why_private:
        return [f"never shared or cached: {reason}" for reason in one.why_private]
    if one.source != "compiled":
        return []
    return [f"new: {line}" for line in one.differs] or ["new: no kernel of this name was there before"]


def level_line(level: Level) -> str:
    """What was found at a level."""
    if level.note and not level.hits and not level.misses:
        return f"{LEVELS[level.name]}: {level.note}"
    text = f"{LEVELS[level.name]}: {times(level.hits, 'hit')}, {level.misses:,} miss{'' if level.misses == 1 else 'es'}"
    return f"{text} ({level.note})" if level.note else text


def constant_memory(report: CaptureReport) -> str:
    """How much of constant memory captures take."""
    used = report.constant_memory
    contents = max((one.constant_bytes for one in report.specialisations), default=0)
    share = used / CONSTANT_LIMIT
    text = f"{used:,} of {CONSTANT_LIMIT:,} bytes"
    if not used:
        return text
    text += f" ({share:.1%})" if share >= 0.001 else " (less than 0.1%)"
    return f"{text}, {contents:,} of them contents of arrays" if contents else f"{text}, no contents of arrays"
