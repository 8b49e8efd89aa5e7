"""Warnings of kernels with ``cache=True`` that are not cached: which name is in the way, and where."""

from __future__ import annotations

from typing import Any

from cuda_captures.code import Code
from cuda_captures.discovery import discover
from cuda_captures.errors import CaptureWarning, pointer, warn_at


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
    text = UNCACHEABLE.format(kernel=kernel, reasons="\n".join(lines))
    warn_at(function, function.__code__.co_firstlineno, text, CaptureWarning)


def warn_unwritable(kernel: str, function: Any, path: str, error: OSError) -> None:
    """Warn that the directory of the cache cannot be written."""
    text = UNWRITABLE.format(kernel=kernel, path=path, error=error)
    warn_at(function, function.__code__.co_firstlineno, text, CaptureWarning)


UNCACHEABLE = """\
kernel `{kernel}` has cache=True and is compiled in each process, because not all that it sees can be identified:
{reasons}
Make it an array, a number or a string, or pass it as an argument; or leave out cache=True."""

UNWRITABLE = """\
kernel `{kernel}` has cache=True and is compiled in each process, because {path} cannot be written: {error}.
Set NUMBA_CACHE_DIR to a directory that can."""
