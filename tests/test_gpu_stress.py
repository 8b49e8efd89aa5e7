"""The stress programs on a GPU, small; in full they are run by hand: ``python -m stress --help``.

In a process of its own each: what is counted is a whole process's.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from conftest import COMPILERS
from stress.sanitizing import ROOT

pytestmark = pytest.mark.gpu


def stress(compiler: str, *words: str) -> str:
    """What a program prints, which must exit with 0."""
    command = [sys.executable, "-m", "stress", *words, "--compiler", COMPILERS[compiler]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_memory_is_flat_over_launches(compiler: str) -> None:
    # So few that names are bound anew more often: in a tenth of them every kernel must reach its 16 instances.
    said = stress(compiler, "launches", "--launches", "20000", "--new", "0.1", "--length", "0.05")
    assert said.splitlines()[-1].startswith("flat: ")


def test_nothing_stays_of_kernels(compiler: str) -> None:
    said = stress(compiler, "kernels", "--kernels", "1000")
    assert "Nothing was run" in said if compiler == "numba-cuda-mlir" else said.splitlines()[-1].startswith("flat: ")


def test_threads(compiler: str) -> None:
    said = stress(compiler, "threads", "--threads", "32", "--repeat", "3")
    assert [line.split(": right ")[1].split()[0] for line in said.splitlines()] == ["3", "3", "1", "3"]
