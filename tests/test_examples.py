"""The examples, and the example of the README, run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import has_gpu
from cuda_captures import backends

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
    assert "captured table: 2,408,448 bytes\n" in done.stdout
    assert "Monte Carlo and the Beer-Lambert law agree." in done.stdout


@pytest.mark.skipif("numba-cuda" not in backends.present(), reason="the simulator is a part of numba-cuda")
def test_xray_attenuation_notices_another_law(tmp_path: Path) -> None:
    pytest.importorskip("xraydb", reason="needs the extra `examples`")
    text = (ROOT / "examples/xray_attenuation.py").read_text()
    wrong = text.replace("total += density *", "total += 1.5 * density *")
    assert wrong != text
    program = tmp_path / "wrong.py"
    program.write_text(wrong)
    done = subprocess.run(
        [sys.executable, str(program), "--energies", "2"],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "They disagree." in done.stdout


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
