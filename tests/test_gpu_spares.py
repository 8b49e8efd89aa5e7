"""On the GPU: modules that go round never show a launch the arrays of another one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuda_captures
from cuda_captures.binding import INSTANCES

pytestmark = pytest.mark.gpu


def kernel_of(cuda: Any, table: Any) -> tuple[Any, dict[str, Any]]:
    """A kernel that adds a captured array to its argument, after some time if told so, and its globals."""
    namespace: dict[str, Any] = {"cuda": cuda, "T": table}
    source = """
def kernel(out, turns):
    x = 1.0
    for _ in range(turns):
        x = x * 0.5 + 0.5
    i = cuda.grid(1)
    if i < out.size:
        out[i] += T[i] * x
"""
    exec(compile(source, "<test>", "exec"), namespace)
    return cuda.jit(namespace["kernel"]), namespace


def loads(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What is loaded for a kernel from now on."""
    (compiled,) = (getattr(one, "cres", one) for one in kernel.overloads.values())
    toolchain = compiled.toolchain
    load, loaded = toolchain.load, []

    def counting(code: Any, context: Any) -> Any:
        loaded.append(code)
        return load(code, context)

    monkeypatch.setattr(toolchain, "load", counting, raising=False)
    return loaded


@pytest.mark.parametrize("memory", ["device", "host"])
def test_rebinding_goes_round_with_few_modules(cuda: Any, memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make = cuda.to_device if memory == "device" else np.array
    kernel, names = kernel_of(cuda, make(np.zeros(32)))
    out = cuda.to_device(np.zeros(32))
    kernel[1, 32](out, 0)
    loaded = loads(kernel, monkeypatch)
    for number in range(1, 101):
        names["T"] = make(np.full(32, float(number)))
        kernel[1, 32](out, 20_000)
    assert np.array_equal(out.copy_to_host(), np.full(32, 5050.0))
    assert len(loaded) <= INSTANCES + 2


def test_launches_in_flight_keep_what_they_were_launched_with(cuda: Any) -> None:
    tables = [cuda.to_device(np.full(32, float(number))) for number in range(60)]
    kernel, names = kernel_of(cuda, tables[0])
    out = [cuda.to_device(np.zeros(32)) for _ in tables]
    kernel[1, 32](out[0], 0)
    cuda.synchronize()
    for target, table in zip(out, tables, strict=True):
        names["T"] = table
        kernel[1, 32](target, 200_000)  # queued up behind each other
    for number, target in enumerate(out):
        assert np.array_equal(target.copy_to_host(), np.full(32, float(number))), number


def test_another_stream_waits_until_the_slots_are_filled(cuda: Any) -> None:
    from cuda.bindings import driver

    cuda.current_context()
    code, handle = driver.cuStreamCreate(1)  # non-blocking: nothing but an event orders it after the default stream
    assert code == 0
    stream = cuda.external_stream(int(handle))
    tables = [cuda.to_device(np.full(32, float(number))) for number in range(60)]
    kernel, names = kernel_of(cuda, tables[0])
    out = [cuda.to_device(np.zeros(32)) for _ in tables]
    slow = cuda.to_device(np.zeros(32))
    for table in tables[: INSTANCES + 4]:  # spare modules are there from now on
        names["T"] = table
        kernel[1, 32](slow, 0)
    cuda.synchronize()
    for number in range(INSTANCES + 4, len(tables)):
        names["T"] = tables[number]
        kernel[1, 32](slow, 1_000_000)
        kernel[1, 32, stream](out[number], 0)
    cuda.synchronize()
    for number in range(INSTANCES + 4, len(tables)):
        assert np.array_equal(out[number].copy_to_host(), np.full(32, float(number))), number


def test_what_a_graph_launches_is_not_filled_anew(cuda: Any) -> None:
    torch = pytest.importorskip("torch")
    first = cuda.to_device(np.full(32, 7.0))
    kernel, names = kernel_of(cuda, first)
    result = torch.zeros(32, dtype=torch.float64, device="cuda")
    out = cuda.as_cuda_array(result)
    stream = torch.cuda.Stream()
    outside = cuda.external_stream(stream.cuda_stream)
    cuda_captures.bind(kernel[1, 32, outside], out, 0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        kernel[1, 32, outside](out, 0)
    assert result.sum().item() == 0
    for number in range(3 * INSTANCES):
        names["T"] = cuda.to_device(np.full(32, float(number)))
        kernel[1, 32](cuda.to_device(np.zeros(32)), 0)
    result.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert result.cpu().numpy().tolist() == [7.0] * 32
