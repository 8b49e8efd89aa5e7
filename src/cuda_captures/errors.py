"""What goes wrong with a capture, said so that the reader can mend it.

Every error and warning of the package is one of the classes below.  Message texts live beside the code that
raises them; :func:`pointer` shows the line of source that is at fault, with a caret under the name.
"""

from __future__ import annotations

import os
import warnings
from types import FunctionType
from typing import TypeVar

from cuda_captures.excerpts import line_naming as line_naming
from cuda_captures.excerpts import pointer as pointer


class CaptureError(Exception):
    """A captured name cannot keep the rule: at launch, it means what it means in Python.

    When this is raised nothing was launched and nothing was left half-bound; the same launch works once the cause
    is gone.

    Attributes
    ----------
    address
        In the host's memory, of what it is about, where that is all that is known; None otherwise.
    located
        Whether the message says which captured name that is.
    """

    address: int | None = None
    located: bool = False


_Error = TypeVar("_Error", bound=CaptureError)
_Exception = TypeVar("_Exception", bound=BaseException)


def about(address: int, error: _Error) -> _Error:
    """An error about some of the host's memory; who knows the captured name puts it into the message."""
    error.address = address
    return error


class CaptureTypingError(CaptureError, TypeError):
    """A kernel does with a captured array what the array, or its policy, does not allow."""


class CaptureVersionError(CaptureError, ImportError):
    """A compiler is missing, or is of a version that this package was not made for."""


class CaptureWarning(UserWarning):
    """Something about a capture that the reader should know."""


class CapturePerformanceWarning(CaptureWarning):
    """A capture works, but costs more than it need; the text names it and the cures."""


def brief(error: _Exception) -> _Exception:
    """An error, and those that caused it, without the compiler's frames: the message names the line to be mended.

    To be raised where a program has called the package.  As with the compilers, ``NUMBA_FULL_TRACEBACKS=1`` keeps them.
    """
    if hasattr(error, "plain"):
        error.args = (error.plain,)  # without the passes that it came through
    if os.environ.get("NUMBA_FULL_TRACEBACKS", "0") in ("", "0"):
        one: BaseException | None = error
        while one is not None:
            one.__traceback__ = None
            one.__suppress_context__ = True
            one = one.__cause__
    return error


def warn_at(function: FunctionType, line: int, text: str, category: type[CaptureWarning]) -> None:
    """Warn for a line of a function, whoever calls; Python's filters see that file, line and module."""
    filename = function.__code__.co_filename
    # Of a function without a module Python would say nothing at all.
    warnings.warn_explicit(text, category, filename, line, function.__module__ or filename)
