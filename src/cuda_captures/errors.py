"""What goes wrong with a capture, said so that the reader can mend it.

Every error and warning of the package is one of the classes below.  Message texts live beside the code that
raises them; :func:`pointer` puts the line of source that is at fault under a caret.
"""

from __future__ import annotations

import dis
import linecache
from types import CodeType, FunctionType


class CaptureError(Exception):
    """A captured name cannot keep the rule: at launch, it means what it means in Python.

    When this is raised nothing was launched and nothing was left half-bound; the same launch works once the cause
    is gone.
    """


class CaptureTypingError(CaptureError, TypeError):
    """A kernel does with a captured array what the array, or its policy, does not allow."""


class CaptureVersionError(CaptureError, ImportError):
    """A compiler is missing, or is of a version that this package was not made for."""


class CaptureWarning(UserWarning):
    """Something about a capture that the reader should know."""


class CapturePerformanceWarning(CaptureWarning):
    """A capture works, but costs more than it need; the text names it and the cures."""


def pointer(code: CodeType | FunctionType, name: str, line: int | None = None) -> str:
    """The place in the source where a function names something, with a caret under the name.

    Parameters
    ----------
    code
        The function, or its code object.
    name
        The variable, attribute or call to point at.
    line
        The line to show, from 1.  By default the first line of ``code`` whose bytecode names ``name``.

    Returns
    -------
    str
        ``'file.py:12, in f\\n    out[i] = table[i]\\n             ^^^^^'``; without the source only the first line.
    """
    if isinstance(code, FunctionType):
        code = code.__code__
    line = line or line_naming(code, name)
    head = f"{code.co_filename}:{line}, in {code.co_name}"
    text = linecache.getline(code.co_filename, line).rstrip()
    if not text.strip():
        return head
    stripped = text.lstrip()
    column = _column(stripped, name)
    if column is None:
        return f"{head}\n    {stripped}"
    return f"{head}\n    {stripped}\n    {' ' * column}{'^' * len(name)}"


def line_naming(code: CodeType, name: str) -> int:
    """The first line of a function that names something; the line of its ``def`` if none does."""
    line = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        if instruction.starts_line:
            line = code.co_firstlineno if instruction.starts_line is True else int(instruction.starts_line)
        if instruction.positions is not None and instruction.positions.lineno is not None:
            line = instruction.positions.lineno
        if instruction.argval == name:
            return line
    return code.co_firstlineno


def _column(text: str, name: str) -> int | None:
    """Where a line holds the name as a whole word."""
    start = 0
    while (found := text.find(name, start)) >= 0:
        before = text[found - 1 : found]
        after = text[found + len(name) : found + len(name) + 1]
        if not (before.isidentifier() or before.isdigit() or after.isidentifier() or after.isdigit()):
            return found
        start = found + 1
    return None
