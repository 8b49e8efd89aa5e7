"""Looking through a program, without running it, for captures that break or go stale with the compilers alone.

The files are parsed, never imported; no compiler is imported either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from cuda_captures.check import kernels
from cuda_captures.check.findings import Finding as Finding
from cuda_captures.check.findings import Result as Result
from cuda_captures.check.program import Program
from cuda_captures.check.rules import findings_of
from cuda_captures.check.sources import find, load

__all__ = ["Finding", "Result", "check"]

ENABLING = {"cuda_captures.enable", "cuda_captures.enabled"}
SILENCED = "captures: ignore"  # in a comment on the line


def check(paths: Iterable[str]) -> Result:
    """Find the captures of kernels and device functions that break or go stale without this package.

    Parameters
    ----------
    paths
        Files, and directories, which are looked through.

    Returns
    -------
    Result
        The findings by file and line, and the files that could not be checked.

    Raises
    ------
    FileNotFoundError
        For a path that is not there.
    """
    sources = [load(path) for path in find(paths)]
    program = Program(sources)
    functions = kernels.find(program)
    order = {source.path: number for number, source in enumerate(sources)}
    found = [one for one in findings_of(program, functions) if SILENCED not in one.place.text.partition("#")[2]]
    found.sort(key=lambda one: (order[one.place.path], one.place.line, one.place.column))
    return Result(
        findings=tuple(found),
        unread=tuple((source.path, *source.problem) for source in sources if source.problem is not None),
        files=sum(source.problem is None for source in sources),
        functions=dict(Counter(one.kind for one in functions)),
        enabled_at=tuple(
            f"{scope.source.path}:{call.lineno}"
            for call, scope in program.calls
            if program.dotted(call.func, scope) & ENABLING
        ),
    )
