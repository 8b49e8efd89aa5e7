"""``cuda-captures check``: what it prints, and its exit status."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace

from cuda_captures.check import Result, check


def main(paths: Sequence[str], as_json: bool = False, certain: bool = False, with_captures: bool = False) -> int:
    """Check files and directories and print what is found.

    Parameters
    ----------
    paths
        Files and directories.
    as_json
        Whether to print one JSON object instead of text.
    certain
        Whether to leave out what is not certain.
    with_captures
        Whether to leave out what ``cuda_captures.enable()`` mends.

    Returns
    -------
    int
        Exit status: 0 if nothing was found, 1 if something was, 2 for a path that is not there.
    """
    try:
        result = check(paths)
    except FileNotFoundError as error:
        print(f"cuda-captures check: {error}", file=sys.stderr)
        return 2
    kept = [one for one in result.findings if one.certainty == "certain" or not certain]
    kept = [one for one in kept if not (one.cured and with_captures)]
    result = replace(result, findings=tuple(kept))
    if as_json:
        print(json.dumps(result.to_dict(), indent=2))
    else:
        show(result)
    return 1 if result.findings else 0


def show(result: Result) -> None:
    """Print findings for people; files that could not be checked go to the standard error stream."""
    for finding in result.findings:
        print(f"{finding}\n")
    for path, reason, line, column in result.unread:
        where = f"{path}:{line}:{column}" if line else path
        print(f"{where}: not checked: {reason}", file=sys.stderr)
    print(result.summary)
    if result.mended:
        print(result.mended)
