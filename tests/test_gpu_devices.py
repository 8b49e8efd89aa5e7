"""On two GPUs: every kind of capture from both, in turn and at once, with edits and rebinding in between."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cuda_captures
from conftest import COMPILERS
from cuda_captures import driver
from cuda_captures.errors import CaptureError
from edits import on_own_pages
from reading_kernels import reading

pytestmark = pytest.mark.gpu

Pair = namedtuple("Pair", "first second")


@pytest.fixture(autouse=True)
def two(gpu: None) -> None:
    if driver.calls.device_count() < 2:
        pytest.skip("needs two GPUs")


def everything(cuda: Any) -> tuple[Any, dict[str, Any]]:
    """A kernel that captures arrays under each policy, a tuple and a number; and its globals."""
    names: dict[str, Any] = {
        "cuda": cuda,
        "live": np.arange(50_000.0),
        "fixed": cuda_captures.snapshot(np.arange(8.0) * 10),
        "mapped": cuda_captures.mapped(on_own_pages(np.arange(8.0) * 100)),
        "tiny": cuda_captures.constant(np.arange(4.0)),
        "pair": Pair(np.arange(8.0) * 1000, np.arange(5000.0)),
        "scale": 2.0,
    }
    source = """
def kernel(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = scale * (live[i] + fixed[i] + mapped[i] + tiny[i % 4] + pair.first[i] + pair.second[i])
"""
    exec(compile(source, "<test>", "exec"), names)
    return cuda.jit(names["kernel"]), names


def expected(names: dict[str, Any]) -> np.ndarray[Any, Any]:
    i = np.arange(8)
    pair = names["pair"]
    parts = (names["live"][i], names["fixed"][i], names["mapped"][i], names["tiny"][i % 4], pair.first[i])
    return names["scale"] * (sum(map(np.asarray, parts)) + pair.second[i])


def test_in_turn_with_edits_and_rebinding_between(cuda: Any) -> None:
    kernel, names = everything(cuda)
    for step in range(12):
        for device in (0, 1):
            with cuda.gpus[device]:
                out = np.zeros(8)
                kernel[1, 32](out)
                assert np.array_equal(out, expected(names)), (step, device)
            names["live"][step % 8] += 1
        names["pair"].first[3] -= 1
        if step == 4:
            names["live"] = np.arange(50_000.0) * 3
        if step == 6:
            names["live"] = np.arange(70_000.0)
        if step == 8:
            names["pair"] = Pair(names["pair"].second[:8].copy(), names["pair"].second)
        if step == 10:
            names["scale"] = 3.0


def test_writes_on_one_device_are_seen_on_the_other(cuda: Any) -> None:
    state = np.zeros(5000)

    @cuda.jit
    def kernel(amount):
        i = cuda.grid(1)
        if i < state.size:
            state[i] += amount

    total = 0.0
    for step in range(10):
        for device in (0, 1):
            with cuda.gpus[device]:
                kernel[20, 256](step + device + 1.0)
            total += step + device + 1.0
            assert np.array_equal(state, np.full(5000, total))
        state += 5
        total += 5


def test_at_once_from_two_threads(cuda: Any) -> None:
    kernel, names = everything(cuda)
    want, wrong = expected(names), []
    for device in (0, 1):  # the compilers' own contexts cannot be made in two threads at once
        with cuda.gpus[device]:
            cuda.current_context()
    barrier = threading.Barrier(2)

    def work(device: int) -> None:
        try:
            with cuda.gpus[device]:
                barrier.wait(30)
                for _ in range(100):
                    out = np.zeros(8)
                    kernel[1, 32](out)
                    if not np.array_equal(out, want):
                        wrong.append((device, out))
        except BaseException as error:
            wrong.append((device, error))

    threads = [threading.Thread(target=work, args=(device,)) for device in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_array_of_another_gpu_is_refused(cuda: Any) -> None:
    with cuda.gpus[1]:
        kernel = reading(cuda, cuda.to_device(np.arange(8.0)))
        out = np.zeros(8)
        kernel[1, 32](out)
        assert np.array_equal(out, np.arange(8.0))
    with (
        cuda.gpus[0],
        pytest.raises(CaptureError, match=r"`table`, which kernel `kernel` captures, is on device 1.*on device 0"),
    ):
        kernel[1, 32](np.zeros(8))
    with cuda.gpus[1]:
        out = np.zeros(8)
        kernel[1, 32](out)
        assert np.array_equal(out, np.arange(8.0))


PEERS = """
import sys
from importlib import import_module

import numpy as np

import cuda_captures

cuda = import_module(sys.argv[1])
cuda_captures.enable(peer=True)


def making(table):
    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = table[i]

    return kernel


with cuda.gpus[1]:
    kernel = making(cuda.to_device(np.arange(8.0)))
with cuda.gpus[0]:
    out = np.zeros(8)
    kernel[1, 32](out)
    assert np.array_equal(out, np.arange(8.0)), out
"""


def test_peers(compiler: str, tmp_path: Path) -> None:
    """In a process of its own: a fault would end every test after it."""
    program = tmp_path / "peers.py"
    program.write_text(PEERS)
    command = [sys.executable, "-W", "ignore", str(program), COMPILERS[compiler]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if driver.calls.can_access_peer(0, 1):
        assert done.returncode == 0, done.stderr
    else:
        assert "Device 0 cannot use memory of device 1" in done.stderr


def test_arrays_per_device_by_rebinding(cuda: Any) -> None:
    names: dict[str, Any] = {"cuda": cuda, "table": None}
    exec("def kernel(out):\n    i = cuda.grid(1)\n    if i < out.size:\n        out[i] = table[i]\n", names)
    tables = []
    for device in (0, 1):
        with cuda.gpus[device]:
            tables.append(cuda.to_device(np.arange(8.0) + device))
    names["table"] = tables[0]
    kernel = cuda.jit(names["kernel"])
    for device in (0, 1, 1, 0, 1, 0):
        names["table"] = tables[device]
        with cuda.gpus[device]:
            out = np.zeros(8)
            kernel[1, 32](out)
            assert np.array_equal(out, np.arange(8.0) + device)
