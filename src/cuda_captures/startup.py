"""What CUDA_CAPTURES=1 asks for, done when the package is imported.

The program need not import it: ``cuda_captures.pth`` and ``_cuda_captures_startup.py``, installed beside the package,
do so when the program looks for a compiler.
"""

from __future__ import annotations

import os

from cuda_captures import backends

VARIABLE = "CUDA_CAPTURES"


def enable_if_asked() -> None:
    """Enable captures if the environment says so; no compiler is imported, and without one there is nothing to do.

    Raises
    ------
    CaptureVersionError
        If a compiler is of another version than the package was made for.
    """
    if os.environ.get(VARIABLE) == "1" and backends.present():
        backends.enable()
