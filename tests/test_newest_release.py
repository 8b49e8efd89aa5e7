"""The newest release of each compiler works, or is refused by its version; nothing else may happen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import COMPILERS, SIMULATOR

PROGRAM = """
import sys
from importlib import import_module
from importlib.metadata import version

import numpy as np

import cuda_captures

print(version(sys.argv[1]))
try:
    cuda_captures.enable()
except cuda_captures.CaptureVersionError as error:
    assert sys.argv[1] in str(error), error
    print("refused:", error)
    sys.exit()
cuda = import_module(sys.argv[2])
table = np.arange(100_000.0)


@cuda.jit
def kernel(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = table[i]


found = cuda_captures.explain(kernel, "void(float64[::1])")
assert [row.name for row in found.rows] == ["table"]
assert found.constant_bytes == 0
print("works")
"""


@pytest.mark.skipif(SIMULATOR, reason="needs a compiler, not its simulator")
@pytest.mark.parametrize("distribution", COMPILERS)
def test_newest_release(distribution: str, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    place = tmp_path / "newest"
    got = subprocess.run(
        [*pip, "--target", str(place), "--only-binary=:all:", "--upgrade", distribution],
        capture_output=True,
        text=True,
        check=False,
    )
    if got.returncode:
        pytest.skip(f"pip finds no release here: {got.stderr.strip().splitlines()[-1]}")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), distribution, COMPILERS[distribution]],
        env={**os.environ, "PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "works" or "refused:" in done.stdout
