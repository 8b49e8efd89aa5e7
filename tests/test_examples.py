"""The examples run, find out when they are wrong, and draw what they say they draw."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import has_gpu
from cuda_captures import backends

ROOT = Path(__file__).parent.parent
SIMULATED = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}

pytestmark = pytest.mark.skipif("numba-cuda" not in backends.present(), reason="the examples are for numba-cuda")


def run(program: Path, *arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program: on the GPU, in the simulator where there is none."""
    environment = environment or ({**os.environ} if has_gpu() else SIMULATED)
    return subprocess.run(
        [sys.executable, str(program), *arguments], env=environment, capture_output=True, text=True, check=False
    )


def edited(name: str, directory: Path, right: str, wrong: str) -> Path:
    """An example with an error put into it."""
    text = (ROOT / "examples" / name).read_text()
    assert text.count(right) == 1
    program = directory / name
    program.write_text(text.replace(right, wrong))
    return program


def size_of_picture(path: Path) -> tuple[int, int]:
    """Width and height of a PNG, from its header."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert data[12:16] == b"IHDR"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_xray_attenuation() -> None:
    pytest.importorskip("xraydb", reason="needs the extra `examples`")
    done = run(ROOT / "examples/xray_attenuation.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "captured table: 2,408,448 bytes\n" in done.stdout
    assert "Monte Carlo and the Beer-Lambert law agree." in done.stdout


def test_xray_attenuation_notices_another_law(tmp_path: Path) -> None:
    pytest.importorskip("xraydb", reason="needs the extra `examples`")
    program = edited("xray_attenuation.py", tmp_path, "total += density *", "total += 1.5 * density *")
    done = run(program, "--energies", "2", environment=SIMULATED)
    assert done.returncode == 1, done.stderr
    assert "They disagree." in done.stdout


def test_parameter_study() -> None:
    done = run(ROOT / "examples/parameter_study.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The kernels and NumPy agree." in done.stdout
    if has_gpu():
        assert "kernels that were compiled: 1; that shared its code: 999\n" in done.stdout


def test_parameter_study_notices_another_integral(tmp_path: Path) -> None:
    program = edited("parameter_study.py", tmp_path, "2.0 + 2.0 * (k % 2)", "2.0")
    done = run(program, "--tables", "2", environment=SIMULATED)
    assert done.returncode == 1, done.stderr
    assert "They disagree" in done.stdout


def test_live_histogram() -> None:
    done = run(ROOT / "examples/live_histogram.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every round agrees with NumPy, and the bins are even." in done.stdout


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("if EDGES[middle] <= samples[i]:", "if EDGES[middle] <= samples[i] + 0.1:", "A round disagrees with NumPy."),
        ("        move_edges()\n", "", "The bins are uneven."),
    ],
)
def test_live_histogram_notices(right: str, wrong: str, said: str, tmp_path: Path) -> None:
    done = run(edited("live_histogram.py", tmp_path, right, wrong), environment=SIMULATED)
    assert done.returncode == 1, done.stderr
    assert said in done.stdout


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("xray_attenuation.py", ["--energies", "2", "--photons", "200"]),
        ("parameter_study.py", ["--tables", "3"]),
        ("live_histogram.py", []),
    ],
)
def test_examples_draw(name: str, arguments: list[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `examples`")
    if name.startswith("xray"):
        pytest.importorskip("xraydb", reason="needs the extra `examples`")
    picture = tmp_path / "picture.png"
    done = run(ROOT / "examples" / name, *arguments, "--plot", str(picture), environment=SIMULATED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"drawn: {picture}\n" in done.stdout
    shown = ROOT / "docs/pictures" / f"{Path(name).stem}.png"
    assert size_of_picture(picture) == size_of_picture(shown), "the gallery's picture is of another version"
    assert shown.stat().st_size < 60_000
