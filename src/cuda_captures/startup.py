"""Captures in programs that are not edited: run at the start of an interpreter that has CUDA_CAPTURES=1.

A line in ``cuda_captures.pth``, installed beside the package, leads here.  No compiler is imported: captures join one
when the program imports it, and what goes wrong then is raised there, where the program can see it.
"""

from __future__ import annotations

from cuda_captures import backends


def install() -> None:
    """Join captures to every compiler that the program imports; without a compiler there is nothing to do."""
    if backends.present():
        backends.enable()
