"""The notebook of examples runs in numba's simulator, and its outputs are those that it has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cuda_captures import backends

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "examples/tour.ipynb"
RENEW = "the notebook's outputs are of another version: python tests/run_notebook.py examples/tour.ipynb"

pytestmark = pytest.mark.skipif("numba-cuda" not in backends.present(), reason="the simulator is a part of numba-cuda")


def executed(notebook: Path, directory: Path) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Run a notebook in an interpreter of its own; outcome, and where it was written."""
    target = directory / "executed.ipynb"
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("CUDA_CAPTURES", "NUMBA_"))
    }
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/run_notebook.py"), str(notebook), str(target)],
        env={**environment, "IPYTHONDIR": str(directory)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done, target


def code_cells(path: Path) -> list[Any]:
    nbformat = pytest.importorskip("nbformat", reason="needs the extra `test`")
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def printed(cell: Any) -> list[str]:
    """What a cell printed, without the names of temporary folders."""
    texts = ["".join(output.get("text", "")) for output in cell.outputs if output.output_type == "stream"]
    return [re.sub(r"\S+/program\.py", "program.py", text) for text in texts]


def test_the_tour(tmp_path: Path) -> None:
    pytest.importorskip("nbclient", reason="needs nbclient, of the extra `test`")
    done, target = executed(NOTEBOOK, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    pairs = list(zip(code_cells(NOTEBOOK), code_cells(target), strict=True))
    assert len(pairs) >= 8
    for shown, run in pairs:
        kinds = [output.output_type for output in run.outputs]
        assert [output.output_type for output in shown.outputs] == kinds, RENEW
        assert "stderr" not in [output.get("name") for output in run.outputs], run.source
        assert printed(shown) == printed(run), RENEW
        if "report(" in run.source:  # shown once, as HTML; what it says of a version is not compared
            assert kinds == ["execute_result"]
            assert {"text/html", "text/plain"} <= set(run.outputs[0].data)
            assert "weights" in run.outputs[0].data["text/html"]


def test_a_cell_that_fails_is_found(tmp_path: Path) -> None:
    pytest.importorskip("nbclient", reason="needs nbclient, of the extra `test`")
    wrong = tmp_path / "wrong.ipynb"
    text = NOTEBOOK.read_text()
    assert text.count("(out == 240.5).all()") == 1
    wrong.write_text(text.replace("(out == 240.5).all()", "(out == 241.5).all()"))
    done, _ = executed(wrong, tmp_path)
    assert done.returncode == 1
    assert "AssertionError" in done.stderr
