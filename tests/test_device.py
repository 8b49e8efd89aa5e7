"""Memory, events and contexts, on a driver that lives in memory."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading

import pytest

from cuda_captures import device, driver
from cuda_captures.driver import DriverError, OutOfDeviceMemory
from cuda_captures.errors import CaptureError
from cuda_captures.symbols import write_symbols
from memory_driver import CALLS, MemoryDriver


def test_importing_opens_no_driver_and_no_compiler() -> None:
    program = (
        "import sys\n"
        "from cuda_captures import driver, device, mirrors\n"
        "assert not driver.calls.in_use\n"
        "assert 'cuda.bindings.driver' not in sys.modules or 'numba' in str(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_the_memory_driver_has_the_calls_of_the_real_one() -> None:
    assert {name for name in CALLS if name != "in_use"} <= set(dir(MemoryDriver))


def test_errors_name_the_call_the_error_and_its_text() -> None:
    error = OutOfDeviceMemory("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY", "out of memory", "advice")
    assert str(error) == "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (out of memory)\nadvice"
    assert isinstance(error, DriverError)
    assert isinstance(error, CaptureError)


def test_no_driver_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    class Absent:
        def __getattr__(self, name: str) -> None:
            raise CaptureError("there is no CUDA driver on this machine")

    monkeypatch.setattr(driver, "calls", Absent())
    assert not device.available()


def test_a_buffer_is_freed_once(fake: MemoryDriver) -> None:
    buffer = device.DeviceBuffer(1000)
    assert buffer.address % 256 == 0
    assert (buffer.device, fake.held()) == (0, 1000)
    buffer.close()
    buffer.close()
    assert buffer.closed
    del buffer
    gc.collect()
    assert fake.calls["mem_free"] == 1


def test_a_buffer_goes_in_whatever_thread_collects_it(fake: MemoryDriver) -> None:
    buffers = [device.DeviceBuffer(1000)]
    thread = threading.Thread(target=lambda: (fake.use(1), buffers.clear()))
    thread.start()
    thread.join()
    assert fake.held(0) == 0


def test_the_context_is_the_same_after_a_buffer_of_another_device_has_gone(fake: MemoryDriver) -> None:
    buffer = device.DeviceBuffer(1000)
    fake.use(1)
    assert device.current_device() == 1
    del buffer
    gc.collect()
    assert fake.held(0) == 0
    assert device.current_device() == 1


def test_memory_of_a_closed_context_is_left_alone(fake: MemoryDriver) -> None:
    buffer = device.DeviceBuffer(1000)
    fake.reset(0)
    again = device.DeviceBuffer(1000)
    assert again.context is not buffer.context
    buffer.close()
    assert fake.calls["mem_free"] == 0
    again.close()
    assert fake.calls["mem_free"] == 1


def test_a_finalizer_never_raises(fake: MemoryDriver) -> None:
    buffer = device.DeviceBuffer(1000)
    fake.fail("mem_free", 1)
    del buffer
    gc.collect()


def test_a_failed_allocation_holds_nothing(fake: MemoryDriver) -> None:
    fake.fail("mem_alloc", 1)
    with pytest.raises(OutOfDeviceMemory):
        device.DeviceBuffer(1000)
    assert fake.capture_mode_now == 0
    assert fake.held() == 0


def test_events_are_used_again(fake: MemoryDriver) -> None:
    for _ in range(100):
        event = device.current().record(8)
        assert event.done()
    assert fake.calls["event_create"] <= 2


def test_a_symbol_is_filled_without_waiting_for_kernels(fake: MemoryDriver) -> None:
    buffer = device.DeviceBuffer(16)
    fake.launch(0, lambda: pytest.fail("waited for a kernel"))
    write_symbols([(buffer.address, b"abcdefgh")])
    assert fake.read(buffer.address, 8) == b"abcdefgh"
    fake.streams.clear()


def test_streams_are_ordered_on_the_device(fake: MemoryDriver) -> None:
    done: list[int] = []
    fake.launch(8, lambda: done.append(8))
    device.order(8, 16)
    fake.launch(16, lambda: done.append(16))
    fake.stream_synchronize(16)
    assert done == [8, 16]


def test_memory_is_known_by_its_address(fake: MemoryDriver) -> None:
    buffer = device.DeviceBuffer(16)
    host = ctypes.create_string_buffer(16)
    assert device.pointer_device(buffer.address + 15) == 0
    assert device.pointer_device(ctypes.addressof(host)) is None
    assert not device.page_locked(ctypes.addressof(host))
    fake.foreign_registered[ctypes.addressof(host)] = 16
    assert device.page_locked(ctypes.addressof(host))
    assert device.pointer_device(ctypes.addressof(host)) is None


def test_another_device_for_a_while(fake: MemoryDriver) -> None:
    with device.on_device(1) as context:
        assert context.device == device.current_device() == 1
        with device.on_device(1) as same:
            assert same is context
    assert device.current_device() == 0
    assert device.enable_peer_access(0, 1)
    assert device.current_device() == 0


def test_a_context_is_one_object(fake: MemoryDriver) -> None:
    assert device.current() is device.current()
    before = device.current()
    fake.reset(0)
    assert device.current() is not before
