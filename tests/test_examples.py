"""The examples, and the example of the README, run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import has_gpu

ROOT = Path(__file__).parent.parent


def environment() -> dict[str, str]:
    """The environment for an example: the simulator where there is no GPU."""
    return {**os.environ} if has_gpu() else {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}


def test_xray_attenuation() -> None:
    pytest.importorskip("xraydb", reason="needs the extra `examples`")
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/xray_attenuation.py")],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "captured table: 2,408,448 bytes" in done.stdout


def test_readme(tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert examples
    for number, text in enumerate(examples):
        program = tmp_path / f"example_{number}.py"
        program.write_text(text)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(program)],
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
