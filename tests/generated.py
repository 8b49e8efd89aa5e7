"""Functions made from source text, as if they stood in a file: tracebacks, carets and ``inspect`` show their lines."""

from __future__ import annotations

import itertools
import linecache
import textwrap
from typing import Any

import numpy as np

import backends_under_test

_numbers = itertools.count()


def function(source: str, name: str = "kernel", **names: Any) -> Any:
    """A function from source text.

    Parameters
    ----------
    source
        Python that defines it, indented at will.
    name
        Its name in the source.
    names
        Its globals, beside ``np`` and ``cuda``.
    """
    return namespace(source, **names)[name]


def namespace(source: str, **names: Any) -> dict[str, Any]:
    """The globals that source text leaves; those of its functions."""
    source = textwrap.dedent(source)
    file = f"<generated {next(_numbers)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    found: dict[str, Any] = {"__name__": f"generated_{file.strip('<>').split()[1]}", "np": np, **names}
    found.setdefault("cuda", backends_under_test.cuda())
    exec(compile(source, file, "exec"), found)
    return found
