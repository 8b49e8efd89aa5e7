"""On the GPU: the disk cache between processes.  Right always; a hit wherever that is right, and only there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import COMPILERS

pytestmark = pytest.mark.gpu

PROGRAM = """\
import json, sys, types, warnings
import numpy as np
import cuda_captures
cuda_captures.enable()
cuda = __import__("importlib").import_module(sys.argv[1])
wanted = json.loads(sys.argv[2])
import beside

padding = cuda.to_device(np.zeros(wanted.get("padding", 1)))  # moves what comes after it
dtype = wanted.get("dtype", "f8")
contents = np.arange(8, dtype=dtype) * wanted.get("scale", 1)
SCALE = wanted.get("scalar", 2)
TABLE = contents.copy()
DEVICE = cuda.to_device(contents)
TUPLE = (contents.copy(), 3)
settings = types.ModuleType("settings_of_the_program")
settings.table = contents.copy()
sys.modules["settings_of_the_program"] = settings


def make(table):
    @cuda.jit(cache=True)
    def closure(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = table[i] * SCALE

    return closure


@cuda.jit(cache=True)
def global_(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = TABLE[i] * SCALE


@cuda.jit(cache=True)
def device(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = DEVICE[i] * SCALE


@cuda.jit(cache=True)
def tuple_(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = TUPLE[0][i] * SCALE


@cuda.jit(cache=True)
def module(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = settings.table[i] * SCALE


@cuda.jit(cache=True)
def function(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = beside.outer(TABLE[i]) * SCALE


kernels = dict(closure=make(contents.copy()), global_=global_, device=device, tuple=tuple_, module=module,
               function=function)
kernel = kernels[wanted["kind"]]
out = np.zeros(8)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    kernel[1, 32](out)
stats = kernel.stats
print(json.dumps({"out": out.tolist(), "hits": sum(stats.cache_hits.values()),
                  "misses": sum(stats.cache_misses.values())}))
"""

BESIDE = """\
import importlib, sys
cuda = importlib.import_module(sys.argv[1])

@cuda.jit(device=True)
def inner(x):
    return x {change}

@cuda.jit(device=True)
def outer(x):
    return inner(x) + 1
"""


class Processes:
    """Runs the program in one process after another, with one cache."""

    def __init__(self, folder: Path, compiler: str) -> None:
        self.folder = folder
        self.compiler = compiler
        (folder / "program.py").write_text(PROGRAM)

    def run(self, kind: str, change: str = "+ 0", **wanted: Any) -> dict[str, Any]:
        """What a process says of its launch; its result is compared with NumPy's."""
        (self.folder / "beside.py").write_text(BESIDE.format(change=change))
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(self.folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [
                sys.executable,
                str(self.folder / "program.py"),
                COMPILERS[self.compiler],
                json.dumps({"kind": kind, **wanted}),
            ],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        table = np.arange(8.0) * wanted.get("scale", 1)
        if kind == "function":
            table = eval(f"table {change}") + 1
        assert said["out"] == (table * wanted.get("scalar", 2)).tolist()
        return said


@pytest.fixture
def processes(tmp_path: Path, compiler: str) -> Processes:
    return Processes(tmp_path, compiler)


@pytest.mark.parametrize("kind", ["closure", "global_", "device", "tuple", "module", "function"])
def test_contents_and_addresses_are_hits(processes: Processes, kind: str) -> None:
    first = processes.run(kind)
    assert (first["hits"], first["misses"]) == (0, 1)
    for wanted in ({}, {"scale": 3}, {"padding": 100_000}, {"scale": 5, "padding": 7}):
        later = processes.run(kind, **wanted)
        assert (later["hits"], later["misses"]) == (1, 0), wanted


@pytest.mark.parametrize("kind", ["closure", "global_", "device", "tuple", "module", "function"])
def test_scalars_and_dtypes_are_misses(processes: Processes, kind: str) -> None:
    processes.run(kind)
    for wanted in ({"scalar": 7}, {"scalar": 2.5}, {"dtype": "f4"}):
        assert processes.run(kind, **wanted)["misses"] == 1, wanted
        assert processes.run(kind, **wanted)["hits"] == 1, wanted
    assert processes.run(kind)["hits"] == 1


def test_an_edited_device_function_in_another_file_is_a_miss(processes: Processes) -> None:
    processes.run("function")
    assert processes.run("function", change="* 10")["misses"] == 1
    assert processes.run("function", change="* 10")["hits"] == 1
    assert processes.run("function")["hits"] == 1


@pytest.mark.parametrize("damage", ["truncate", "foreign", "empty", "index"])
def test_damaged_files_are_misses(processes: Processes, damage: str) -> None:
    processes.run("global_")
    cache = processes.folder / "cache"
    for file in cache.rglob("*.nbi" if damage == "index" else "*.nbc"):
        data = file.read_bytes()
        file.write_bytes(
            {"truncate": data[: len(data) // 2], "foreign": b"not a pickle", "empty": b""}.get(damage, data[:20])
        )
    assert processes.run("global_")["misses"] == 1
    assert processes.run("global_")["hits"] == 1


def test_processes_at_once(processes: Processes) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: processes.run("closure", scale=number), range(8)))
    assert processes.run("closure")["hits"] == 1
