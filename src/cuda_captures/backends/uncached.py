"""Warnings of kernels with ``cache=True`` that are not cached: which name is in the way, and where."""

from __future__ import annotations

import warnings
from typing import Any

from cuda_captures.code import Code
from cuda_captures.discovery import discover
from cuda_captures.errors import CaptureWarning, pointer


def warn_uncacheable(kernel: str, function: Any, code: Code) -> None:
    """Warn that code has no key, and so is compiled in each process.

    Parameters
    ----------
    kernel
        The kernel's name.
    function
        Its Python function.
    code
        The code, which knows the reasons.
    """
    unknown = discover(function).unknown
    lines = []
    for reason in code.why_private:
        lines.append(f"  {reason}")
        named = next((one for one in unknown if reason.startswith(f"`{one.place.name}` ")), None)
        if named is not None:
            lines.append(f"  {pointer(named.function, named.place.name)}")
    _warn(function, UNCACHEABLE.format(kernel=kernel, reasons="\n".join(lines)))


def warn_unwritable(kernel: str, function: Any, path: str, error: OSError) -> None:
    """Warn that the directory of the cache cannot be written."""
    _warn(function, UNWRITABLE.format(kernel=kernel, path=path, error=error))


def _warn(function: Any, text: str) -> None:
    """For the line of the kernel, whoever launches it."""
    code = function.__code__
    warnings.warn_explicit(text, CaptureWarning, code.co_filename, code.co_firstlineno, function.__module__)


UNCACHEABLE = """\
kernel `{kernel}` has cache=True and is compiled in each process, because not all that it sees can be identified:
{reasons}
Make it an array, a number or a string, or pass it as an argument; or leave out cache=True."""

UNWRITABLE = """\
kernel `{kernel}` has cache=True and is compiled in each process, because {path} cannot be written: {error}.
Set NUMBA_CACHE_DIR to a directory that can."""
