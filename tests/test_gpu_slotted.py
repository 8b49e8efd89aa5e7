"""On the GPU: code with slots that cuda.core loads, links and launches."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import cuda_captures
from generated import namespace

pytestmark = pytest.mark.gpu

N = 1 << 20


def pointer_types(compiler: str) -> Any:
    """A signature of three pointers-and-numbers, whose ABI everybody knows."""
    if compiler == "numba-cuda":
        from numba.cuda import types
    else:
        from numba_cuda_mlir import types
    return types.void(types.CPointer(types.int64), types.CPointer(types.float64), types.int64)


class Runner:
    """Loads code and launches it on pinned memory, by cuda.core."""

    def __init__(self, code: cuda_captures.SlottedCode) -> None:
        from cuda.core import Device, LegacyPinnedMemoryResource, Linker, LinkerOptions, ObjectCode

        self.device = Device()
        self.device.set_current()
        self.stream = self.device.create_stream()
        self.code = code
        if code.output == "cubin":
            self.module = ObjectCode.from_cubin(code.code)
        elif code.output == "ptx":
            self.module = ObjectCode.from_ptx(code.code.encode())
        else:
            parts = [ObjectCode.from_ltoir(code.code), ObjectCode.from_ptx(code.definitions.encode())]
            options = LinkerOptions(arch=f"sm_{self.device.arch}", link_time_optimization=True)
            self.module = Linker(*parts, options=options).link("cubin")
        pinned = LegacyPinnedMemoryResource()
        self.buffers = [pinned.allocate(8 * 1000, stream=self.stream) for _ in range(2)]
        self.where = np.from_dlpack(self.buffers[0]).view(np.int64)
        self.out = np.from_dlpack(self.buffers[1]).view(np.float64)
        self.where[:] = np.random.default_rng(1).integers(0, N, 1000)

    def run(self, binding: Any) -> np.ndarray:
        from cuda.core import LaunchConfig, launch

        self.out[:] = -1
        kernel = self.module.get_kernel(self.code.entry)
        with binding.launching(self.stream):
            config = LaunchConfig(grid=8, block=128)
            launch(self.stream, config, kernel, int(self.buffers[0].handle), int(self.buffers[1].handle), 1000)
        self.stream.sync()
        return self.out.copy()


SOURCE = """
@cuda.jit(device=True)
def get(i):
    return table[i]

@cuda.jit
def kernel(where, out, n):
    i = cuda.grid(1)
    if i < n:
        out[i] = get(where[i]) + offset[0]

@cuda.jit
def counting(where, out, n):
    i = cuda.grid(1)
    if i < n:
        cuda.atomic.add(counts, where[i], 1)
"""


def compiled(cuda: Any, compiler: str, which: str, output: str, **options: Any) -> tuple[Any, dict[str, Any]]:
    names = namespace(
        SOURCE,
        cuda=cuda,
        table=np.random.default_rng(2).random(N),
        offset=np.array([0.5]),
        counts=np.zeros(N, np.int64),
    )
    return cuda_captures.compile_with_slots(names[which], pointer_types(compiler), output=output, **options), names


@pytest.mark.parametrize("shapes", ["exact", "general"])
@pytest.mark.parametrize("output", ["ptx", "ltoir", "cubin"])
def test_load_fill_and_launch(cuda: Any, compiler: str, output: str, shapes: str) -> None:
    code, names = compiled(cuda, compiler, "kernel", output, shapes=shapes)
    runner = Runner(code)
    binding = code.fill(runner.module, runner.device)
    assert np.array_equal(runner.run(binding), names["table"][runner.where] + 0.5)
    names["table"] *= 2
    names["offset"][0] = 1.5
    assert np.array_equal(runner.run(binding), names["table"][runner.where] + 1.5)
    if shapes == "general":
        names["table"] = np.arange(2.0 * N)
        again = code.fill(runner.module, runner.device)
        assert np.array_equal(runner.run(again), names["table"][runner.where] + 1.5)


def test_device_arrays(cuda: Any, compiler: str) -> None:
    code, names = compiled(cuda, compiler, "kernel", "cubin")
    names["table"] = cuda.to_device(np.arange(float(N)))
    code = cuda_captures.compile_with_slots(names["kernel"], pointer_types(compiler), output="cubin")
    runner = Runner(code)
    binding = code.fill(runner.module)
    assert {slot.name: slot.policy for slot in code.slots} == {"table": "device", "offset": "live"}
    assert np.array_equal(runner.run(binding), runner.where + 0.5)


def test_writes_come_back(cuda: Any, compiler: str) -> None:
    code, names = compiled(cuda, compiler, "counting", "cubin")
    runner = Runner(code)
    binding = code.fill(runner.module, runner.device)
    runner.run(binding)
    runner.run(binding)
    assert np.array_equal(names["counts"], 2 * np.bincount(runner.where, minlength=N))


def test_copies_are_shared_and_go_with_the_binding(cuda: Any, compiler: str) -> None:
    code, names = compiled(cuda, compiler, "kernel", "cubin")
    runner = Runner(code)
    gc.collect()
    before = len([row for row in cuda_captures.memory() if row.nbytes == 8 * N])  # of other tests
    binding = code.fill(runner.module, runner.device)
    runner.run(binding)
    assert len([row for row in cuda_captures.memory() if row.nbytes == 8 * N]) == before + 1
    table = names["table"]
    del names["table"]
    gc.collect()
    assert np.array_equal(runner.run(binding), table[runner.where] + 0.5)
