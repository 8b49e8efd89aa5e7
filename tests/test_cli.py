"""The command line, as its users run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import SIMULATOR, has_gpu


def command(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``cuda-captures``."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "cuda_captures.cli", *arguments],
        env={**os.environ, **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(SIMULATOR, reason="the simulator's demonstration is part of this one")
def test_demo() -> None:
    done = command("demo")
    assert done.returncode == 0, done.stderr
    if has_gpu():
        assert "Ran on the GPU. The kernel read 1.0, and 2.0 after" in done.stdout
    else:
        assert "There is no GPU here" in done.stdout
        assert "constant data of captures: 0 of 65,536 bytes" in done.stdout
        assert "In the simulator the kernel read 1.0, and 2.0 after" in done.stdout
        assert "Not run on a GPU" in done.stdout


def test_demo_in_the_simulator() -> None:
    done = command("demo", NUMBA_ENABLE_CUDASIM="1")
    assert done.returncode == 0, done.stderr
    assert "In the simulator the kernel read 1.0, and 2.0 after" in done.stdout


PROGRAM = """\
import os, sys
from numba import cuda
from cuda_captures import backends
import beside
print(sys.argv[1:], os.environ["CUDA_CAPTURES"], backends.enabled()[0], __name__, beside.HERE)
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("module", [False, True])
def test_run(tmp_path: Path, module: bool) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "beside.py").write_text("HERE = 'found'\n")
    if module:
        done = command("run", "-m", "program", "3", "--flag", cwd=tmp_path)
    else:
        done = command("run", str(tmp_path / "program.py"), "3", "--flag")
    assert done.stdout.strip() == "['3', '--flag'] 1 numba-cuda __main__ found", done.stderr
    assert done.returncode == 3


def test_run_keeps_exceptions(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("raise KeyError('mine')\n")
    done = command("run", str(tmp_path / "program.py"))
    assert done.returncode == 1
    assert "KeyError: 'mine'" in done.stderr


def test_run_of_no_file(tmp_path: Path) -> None:
    done = command("run", str(tmp_path / "absent.py"))
    assert done.returncode == 2
    assert "there is no file" in done.stderr


def test_no_command() -> None:
    done = command()
    assert done.returncode == 2
    assert "COMMAND" in done.stderr
