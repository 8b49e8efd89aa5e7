"""Machine code that goes with who holds it, on a driver in memory."""

from __future__ import annotations

import threading

import pytest

from cuda_captures import driver
from cuda_captures.driver import DriverError
from cuda_captures.machine_code import MachineCode
from memory_driver import MemoryDriver


def test_it_is_unloaded_when_it_is_let_go_of(fake: MemoryDriver) -> None:
    held = [MachineCode(b"image") for _ in range(3)]
    assert set(fake.libraries) == {one.handle for one in held}
    assert held[0].kernel("kernel") == held[0].handle + 1
    del held[0]
    assert set(fake.libraries) == {one.handle for one in held}
    held.clear()
    assert not fake.libraries


def test_in_its_own_context_whatever_thread_lets_go(fake: MemoryDriver) -> None:
    held = [MachineCode(b"image")]
    fake.use(1)
    held.clear()
    assert not fake.libraries
    fake.use(0)
    held.append(MachineCode(b"image"))
    thread = threading.Thread(target=held.clear)  # a thread without a context
    thread.start()
    thread.join()
    assert not fake.libraries


def test_it_is_left_alone_when_its_context_is_gone(fake: MemoryDriver) -> None:
    held = [MachineCode(b"image")]
    fake.reset(0)
    fake.use(0)
    held.clear()
    assert fake.calls["library_unload"] == 0


def test_nothing_stays_loaded_after_a_failure(fake: MemoryDriver) -> None:
    for call in ("library_load", "library_kernel"):
        fake.fail(call, 1)
        with pytest.raises(DriverError, match=call):
            MachineCode(b"image").kernel("kernel")
        fake.failures.clear()
        assert not fake.libraries


def test_a_driver_that_refuses_to_unload_is_no_error(fake: MemoryDriver) -> None:
    held = [MachineCode(b"image")]
    fake.fail("library_unload", 1)
    held.clear()
    assert driver.calls is fake
