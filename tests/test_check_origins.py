"""What `check` knows of values without running anything, against what they are when the program is run."""

from __future__ import annotations

import importlib.util
import textwrap
from pathlib import Path
from typing import Any

import pytest

from conftest import COMPILERS
from cuda_captures.check import check
from cuda_captures.discovery import discover
from cuda_captures.inspecting.targets import kernels_in
from test_check import READ, findings

BYTES = {
    "np.zeros((1000, 1000))": 8_000_000,
    "np.zeros((10, 10), np.float32)": 400,
    "np.zeros(10, dtype='i2')": 20,
    "np.empty(shape=(2, 3), dtype=complex)": 96,
    "np.full((4, 4), 1)": 128,
    "np.ones(3).astype(np.float32)": 12,
    "np.ones_like(np.zeros(7, np.int8))": 7,
    "np.arange(10)": 80,
    "np.arange(0.0, 1.0, 0.25)": 32,
    "np.arange(3, dtype=np.uint8)": 3,
    "np.linspace(0, 1)": 400,
    "np.linspace(0, 1, 11, dtype=np.float32)": 44,
    "np.array([1, 2, 3])": 24,
    "np.array([[1.0, 2], [3, 4]], dtype=np.float32)": 16,
    "np.array([[1.5, -2], [3, 4]])": 32,
    "np.eye(4)": 128,
    "np.identity(4, np.float32)": 64,
    "np.zeros(N * 2)": 1600,
    "np.zeros((N, 1 << 4))": 12_800,
    "np.zeros(int(1e3))": 8000,
    "np.zeros(10) + 1": 80,
    "np.sqrt(np.zeros(10))": 80,
    "np.zeros(10).reshape(2, 5).copy()": 80,
    "np.zeros((2, 5)).ravel()": 80,
    "np.random.rand(3, 4)": 96,
    "np.random.default_rng(1).random((2, 2))": 32,
    "cuda.pinned_array(10)": 80,
    "made()": 32,
    "np.zeros(unknown)": None,
    "np.concatenate([np.zeros(2), np.zeros(3)])": None,
}


@pytest.mark.parametrize("expression", BYTES)
def test_bytes_of_arrays(tmp_path: Path, expression: str) -> None:
    program = f"N = 100\ndef made():\n    return np.zeros(4)\ntable = {expression}{READ}"
    (found,) = findings(tmp_path, program)
    assert found.kind == "host-array"
    size = BYTES[expression]
    assert ("bytes\n" in str(found)) == (size is not None)
    assert size is None or f"a NumPy array of {size:,} bytes\n" in str(found)


PARAMETERS = {
    "table: np.ndarray": ("host-array", "likely"),
    "table: 'list'": ("unknown", "possible"),
    "table: list[int]": ("container", "likely"),
    "table: tuple[int, int]": None,
    "table: int": None,
    "table=(1, 2)": None,
    "table=None": ("unknown", "possible"),
    "*, table=np.zeros(3)": ("host-array", "likely"),
    "*table": None,
    "**table": ("container", "certain"),
}


@pytest.mark.parametrize("parameter", PARAMETERS)
def test_parameters_of_factories(tmp_path: Path, parameter: str) -> None:
    program = (
        f"def make({parameter}):\n    @cuda.jit\n    def k(i, out): out[i] = table[i]\n    return k\nmake(unknown)"
    )
    found = [(one.kind, one.certainty) for one in findings(tmp_path, program.replace("make(unknown)", ""))]
    assert found == ([PARAMETERS[parameter]] if PARAMETERS[parameter] else [])


BODIES = {
    "out[0] = table[0]": ["table"],
    "table = out; out[0] = table[0]": [],
    "for table in range(3): out[0] = table": [],
    "x = [table[i] for i in range(2)]": ["table"],
    "x = [table for table in range(2)]": [],
    "x = [i for i in range(2) if table[i]]": ["table"],
    "x = (table := out)": [],
    "x = lambda i: table[i]": ["table"],
    "x = lambda table: table[0]": [],
    "x = lambda i, table=other: table[i]": ["other"],
    "def g(i):\n    return table[i]": ["table"],
    "def g(table):\n    return table[0]": [],
    "def g(i):\n    nonlocal_ = table[i]\n    return other[i]": ["table", "other"],
    "class A:\n    x = table[0]": ["table"],
    "import math as table": [],
    "try:\n    pass\nexcept Exception as table:\n    pass\nout[0] = 1": [],
    "out[0] = other[0] + table[1]": ["other", "table"],
    "out[0] = pair[0][1]": ["pair"],
    "out[0] = module.inner[0]": ["module.inner"],
    "del table": [],
}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("around", ["module", "function", "class"])
def test_captures_are_those_that_the_walk_finds_at_run_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda: Any, compiler: str, body: str, around: str
) -> None:
    (tmp_path / "module_of_check.py").write_text("import numpy as np\ninner = np.zeros(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    kernel = f"@cuda.jit\ndef k(out):\n{textwrap.indent(body, '    ')}\n"
    head = "import numpy as np\nimport module_of_check as module\n"
    head += f"from {COMPILERS[compiler].rpartition('.')[0]} import cuda\n"
    names = "table, other = np.zeros(3), np.ones(3)\npair = (table, 1)\n"
    if around == "function":
        kernel = f"def make():\n{textwrap.indent(names + kernel, '    ')}\n    return k\nk = make()\n"
    else:
        kernel = names + (
            f"class A:\n    table = 1\n{textwrap.indent(kernel, '    ')}" if around == "class" else kernel
        )
    path = tmp_path / f"program_{around}.py"
    path.write_text(head + kernel)
    kinds = ("host-array", "array-in-tuple")
    found = {one.name for one in check([str(tmp_path)]).findings if one.kind in kinds}
    assert found == set(BODIES[body])

    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (made,) = kernels_in(module, (COMPILERS[compiler].partition(".")[0],)).values()
    walked = discover(made)
    arrays = {label.partition(" ")[2] for label, one in walked.names[0].items() if one.kind in ("array", "tuple")}
    assert {name for name in arrays if "[" not in name} == found
