"""On the GPU: every driver call of a launch fails once, and from then on; and the device has no room."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import cuda_captures
from conftest import COMPILERS
from cuda_captures import arena, device, staging
from cuda_captures.driver import OutOfDeviceMemory
from cuda_captures.errors import CaptureError
from faults import Faults, fail_each, faulty, rows
from reading_kernels import reading
from stress.machine import Gpu
from test_faults import CALLS, WAITING

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::cuda_captures.CapturePerformanceWarning"),
]

# Calls that are made whatever came before; of others there may be none where events, streams and contexts are known.
MUST = {"mem_alloc", "copy_to_device", "host_alloc", "host_register", "host_device_pointer", "event_record", "symbol"}
MUST |= {"load", "capture_mode"}
LOADING = {"first": ("load", "symbol"), "rebound": ("load", "symbol"), "mapped": ("load", "symbol")}
NO_CODE = b"this is no machine code".ljust(4096, b"\0")


@pytest.fixture
def machine(compiler: str, gpu: None) -> Iterator[Gpu]:
    with cuda_captures.enabled():
        yield Gpu(COMPILERS[compiler])


@pytest.fixture
def faults(machine: Gpu, compiler: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    """In front of the driver, and of what the compiler loads code and looks symbols up with."""
    machine.read(machine.output())  # the context is there
    with faulty(Faults()) as made:
        (numba_cuda if compiler == "numba-cuda" else numba_cuda_mlir)(made, monkeypatch)
        yield made


def numba_cuda(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda_captures.backends.numba_cuda import library, target

    real, look_up, binding = library.ModuleCode, target.driver.driver.cuLibraryGetGlobal, target.driver

    def loaded(image: bytes) -> Any:
        return real(NO_CODE if faults.fails("load") else image)

    def failing(*arguments: Any) -> Any:
        if faults.fails("symbol"):
            faults.raised.append(binding.CudaAPIError(999, "injected"))
            raise faults.raised[-1]
        return look_up(*arguments)

    monkeypatch.setattr(library, "ModuleCode", loaded)
    monkeypatch.setattr(binding.driver, "cuLibraryGetGlobal", failing)


def numba_cuda_mlir(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda_captures.backends.numba_cuda_mlir import loading, target

    real, hand_over = target.cuda_driver, loading.Loader.__call__

    class Binding:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def cuLibraryGetGlobal(self, *arguments: Any) -> Any:
            if faults.fails("symbol"):
                return real.CUresult.CUDA_ERROR_UNKNOWN, 0, 0
            return real.cuLibraryGetGlobal(*arguments)

    def handed_over(self: Any, args: Any) -> Any:
        image, *rest = hand_over(self, args)
        return (NO_CODE if faults.fails("load") else image, *rest)

    monkeypatch.setattr(target, "cuda_driver", Binding())
    monkeypatch.setattr(loading.Loader, "__call__", handed_over)


EACH = [(one, call) for one in CALLS for call in (*CALLS[one], *LOADING.get(one, ()), *WAITING)]


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize(("situation", "call"), dict.fromkeys(EACH))
def test_a_launch_works_once_the_failure_is_over(
    machine: Gpu, faults: Faults, monkeypatch: pytest.MonkeyPatch, situation: str, call: str, lasting: bool
) -> None:
    if call == "host_alloc":
        monkeypatch.setattr(staging, "_stagings", {})  # what there is of it would do
    if call == "mem_alloc":
        monkeypatch.setattr(arena, "LARGEST", 0)  # each copy has an allocation to itself
    if not fail_each(machine, faults, situation, call, lasting):
        assert call not in MUST
        pytest.skip(f"this launch makes no call `{call}` here")


@pytest.mark.parametrize("call", ["pointer_attribute", "context_id"])
def test_asking_where_a_device_array_is_fails(cuda: Any, faults: Faults, call: str) -> None:
    output = cuda.to_device(np.zeros(8))
    number = 0
    while True:
        number += 1
        kernel = reading(cuda, cuda.to_device(np.arange(8.0) + number))
        failed = False
        faults.arm(call, number, False)
        try:
            kernel[1, 32](output)
        except CaptureError as error:
            assert error in faults.raised  # noqa: PT017 - the last of them does not fail
            failed = True
        finally:
            reached = faults.met[call] >= number
            faults.disarm()
        kernel[1, 32](output)
        assert np.array_equal(output.copy_to_host(), np.arange(8.0) + number)
        if not reached:
            assert not failed
            break
    assert number > 1


# a device that is full


@pytest.fixture
def full(machine: Gpu) -> Iterator[list[device.DeviceBuffer]]:
    """What :func:`fill` takes of the device's memory, until the test is over."""
    held: list[device.DeviceBuffer] = []
    yield held
    held.clear()


def fill(held: list[device.DeviceBuffer]) -> None:
    """Fill the device but for some 64 MiB to 100 MiB."""
    room = device.DeviceBuffer(64 << 20)
    size = 64 << 30
    while size >= 32 << 20:
        try:
            held.append(device.DeviceBuffer(size))
        except OutOfDeviceMemory:
            size //= 2
    room.close()


@pytest.mark.parametrize("way", ["first launch", "rebinding"])
def test_a_table_that_is_too_large(machine: Gpu, full: list[device.DeviceBuffer], way: str) -> None:
    cuda, output = machine.cuda, machine.output(8)
    kept = np.arange(1000.0)
    keeping = reading(cuda, kept)
    keeping[1, 32](output)
    names: dict[str, Any] = {"cuda": cuda, "table": np.arange(8.0)}
    exec("def kernel(out):\n    i = cuda.grid(1)\n    if i < out.size:\n        out[i] = table[i]\n", names)
    kernel = cuda.jit(names["kernel"])
    if way == "rebinding":
        for size in (8, 9):  # both specialisations are there
            names["table"] = np.arange(float(size))
            kernel[1, 32](output)
    machine.read(output)
    before = rows()
    fill(full)
    small, large = names["table"], np.zeros(32 << 20)
    large[:8] = 7
    names["table"] = large
    with pytest.raises(OutOfDeviceMemory) as caught:
        kernel[1, 32](output)
    text = str(caught.value)
    del caught
    assert "`table`, captured by kernel `kernel`" in text
    assert f"{large.nbytes:,} bytes" in text
    assert "Copies of captured arrays hold" in text
    assert "float64 (1000,): 8,000 bytes" in text
    assert rows() == before
    kept += 1
    keeping[1, 32](output)
    assert np.array_equal(machine.read(output), kept[:8])
    if way == "rebinding":
        names["table"] = small
        kernel[1, 32](output)
        assert np.array_equal(machine.read(output), small[:8])
        names["table"] = large
    full.clear()
    kernel[1, 32](output)
    assert np.array_equal(machine.read(output), np.full(8, 7.0))
