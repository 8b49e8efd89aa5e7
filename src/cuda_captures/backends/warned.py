"""Warnings of a compiler: said, and counted, so that code whose compilation warns is not shared silently."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def warnings_kept() -> Iterator[list[warnings.WarningMessage]]:
    """The warnings that are given meanwhile; they are given again afterwards, as they would have been.

    Python's filters belong to the process, so this is for use under a compiler's lock.
    """
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield warned
    for warning in warned:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
