"""What the compilers and this package ask of the driver for a launch, with a driver that agrees to everything.

The launch is whole: compiled by the real compiler, launched by it and cuda.core, through the real bindings.  Only the
driver is another one, of C (``agreeing_driver.c``), in a process of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import COMPILERS, needs_a_compiler

pytestmark = [
    needs_a_compiler,
    pytest.mark.skipif(sys.platform != "linux", reason="libcuda.so is Linux's"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]

HEAD = """
import gc, sys, warnings
from functools import partial
from importlib import import_module
import numpy as np
import cuda_captures
from reading_kernels import reading
warnings.simplefilter("ignore")
cuda = import_module(sys.argv[1])
cuda_captures.enable()

def say(*words):
    print("SAID", *words, file=sys.stderr, flush=True)

make = partial(reading, cuda)
out = cuda.to_device(np.zeros(4))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the driver."""
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).with_name("agreeing_driver.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", folder / "libcuda.so.1", source], check=True)
    (folder / "libcuda.so").symlink_to("libcuda.so.1")
    return folder


def calls(library: Path, compiler: str, body: str) -> list[list[str]]:
    """The calls that a program makes, word by word, between what it says."""
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library), "PYTHONPATH": paths, "CUDA_CAPTURES": "0"}
    command = [sys.executable, "-c", HEAD + body, COMPILERS[compiler]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [line.split() for line in done.stderr.splitlines() if line.startswith(("CALL ", "SAID "))]
    return [[line[1] if line[0] == "CALL" else "said", *line[2 if line[0] == "CALL" else 1 :]] for line in lines]


def parts(found: list[list[str]]) -> dict[str, list[list[str]]]:
    """Calls by what was said before them."""
    out: dict[str, list[list[str]]] = {"": []}
    now = ""
    for line in found:
        if line[0] == "said":
            now = " ".join(line[1:])
            out[now] = []
        else:
            out[now].append(line)
    return out


def test_what_is_loaded_is_launched_and_unloaded(library: Path, compiler: str) -> None:
    body = """
say("first")
kernel = make(np.arange(100.0))
kernel[1, 32](out)
say("again")
kernel[1, 32](out)
say("device array")
other = make(cuda.to_device(np.zeros(7)))
other[1, 32](out)
say("gone")
del kernel, other
gc.collect()
say("end")
"""
    found = parts(calls(library, compiler, body))
    first = found["first"]
    loaded = [line[1] for line in first if line[0] == "load"]
    assert len(loaded) == 1
    assert [line[0] for line in first if line[0] != "set"] == ["load", "kernel", "symbol", "launch"]
    kernel = next(line[1] for line in first if line[0] == "kernel")
    assert first[-1] == ["launch", kernel]
    assert [line for line in found["again"] if line[0] != "set"] == [["launch", kernel]]
    assert [line[0] for line in found["device array"] if line[0] != "set"] == ["load", "kernel", "symbol", "launch"]
    if compiler == "numba-cuda":  # numba-cuda-mlir never lets go of a kernel
        unloaded = {line[1] for line in found["gone"] if line[0] == "unload"}
        assert unloaded == {*loaded, *(line[1] for line in found["device array"] if line[0] == "load")}


def test_kernels_of_a_factory_borrow_one_module(library: Path) -> None:
    body = """
tables = [np.arange(100.0) + number for number in range(6)]
kernels = [make(table) for table in tables]
kernels[0][1, 32](out)
kernels[1][1, 32](out)
say("once")
for kernel in kernels[2:]:
    kernel[1, 32](out)
say("twice")
for kernel in kernels[2:]:
    kernel[1, 32](out)
say("gone")
del kernels, kernel
gc.collect()
say("end")
"""
    found = parts(calls(library, "numba-cuda", body))
    once = found["once"]
    assert [line[0] for line in once] == ["set", "set", "launch"] * 4  # two words of a slot, before each launch
    assert len({line[1] for line in once if line[0] == "launch"}) == 1
    assert len({line[1] for line in once if line[0] == "set"}) == 2
    twice = [line[1] for line in found["twice"] if line[0] == "launch"]
    assert len(set(twice)) == 4
    assert sum(line[0] == "load" for line in found["twice"]) == 3
    every = {line[1] for part in found.values() for line in part if line[0] == "load"}
    assert {line[1] for line in found["gone"] if line[0] == "unload"} == every


def test_options_and_attributes_of_upstream(library: Path) -> None:
    body = """
table = np.arange(100.0)
def body(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = table[i]
for options in ({"debug": True, "opt": False}, {"shared_memory_carveout": 50}, {"lineinfo": True}, {"fastmath": True}):
    cuda.jit(**options)(body)[1, 32](out)
kernel = cuda.jit("void(float64[::1])")(body)
say("bind")
cuda_captures.bind(kernel[1, 32], out)
say("attributes", kernel.get_regs_per_thread(), kernel.get_shared_mem_per_block())
"""
    found = calls(library, "numba-cuda", body)
    assert sum(line[0] == "launch" for line in found) == 4
    assert ["said", "attributes", "1", "1"] in found  # what the driver says of every attribute
