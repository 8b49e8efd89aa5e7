"""Differential fuzzing of captures: generated kernels against plain Python.

A program is a function of its number.  It is run four ways: as plain Python on NumPy arrays, which says what is right;
with captures, through the real compiler and the real device copies, on the CPU; the same on a GPU where there is one;
and, only if that differs, with everything that it captures passed as an argument, which tells what the compiler lacks
from what captures got wrong.

``python -m fuzz --help`` says how to run it.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

if str(ROOT / "tests") not in sys.path:
    sys.path.append(str(ROOT / "tests"))  # where code that was lowered for a GPU is executed on the CPU
