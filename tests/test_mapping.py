"""NumPy arrays that the device uses in place, on a driver that lives in memory."""

from __future__ import annotations

import gc
import mmap
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from copies_in_memory import Kernel, kernels
from cuda_captures.errors import CaptureError
from cuda_captures.mirrors import acquire
from memory_driver import MemoryDriver


@pytest.fixture
def kernel(fake: MemoryDriver) -> Iterator[Kernel]:
    yield from kernels(fake)


def test_a_mapped_array_is_used_in_place(fake: MemoryDriver) -> None:
    array = np.zeros(100_000)
    mirror = acquire(array[10:], 0, policy="mapped")
    assert mirror.address_of(array[10:]) == array[10:].ctypes.data
    assert sum(fake.registered.values()) >= array[10:].nbytes
    mirror.refresh(0)
    mirror.used(0, None)
    mirror.copy_back(array, 0)
    del mirror
    gc.collect()
    assert not fake.registered


def test_mapped_arrays_on_one_page_share_its_registration(fake: MemoryDriver) -> None:
    root = np.zeros(100_000, np.uint8)
    parts = [root[100:200], root[300:400], root[5000:90_000], root[200:20_000]]
    held = [acquire(part, 0, policy="mapped") for part in parts]
    spans = sorted((start, start + size) for start, size in fake.registered.items())
    assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))
    while held:
        for part in parts:
            assert any(start <= part.ctypes.data < stop for start, stop in spans)
        held.pop(0)
        parts.pop(0)
        gc.collect()
        spans = sorted((start, start + size) for start, size in fake.registered.items())
    assert not fake.registered


def test_pages_that_another_library_registered_stay_registered(fake: MemoryDriver) -> None:
    array = np.zeros(100_000)
    start = array.ctypes.data // 4096 * 4096
    fake.foreign_registered[start] = array.nbytes + 8192
    mirror = acquire(array, 0, policy="mapped")
    assert mirror.address_of(array) == array.ctypes.data
    del mirror
    gc.collect()
    assert fake.foreign_registered
    assert not fake.registered


def test_memory_that_cannot_be_mapped_is_refused(fake: MemoryDriver) -> None:
    array = np.zeros(1000)
    fake.fail("host_register", 1)
    with pytest.raises(CaptureError, match=r"8,000 bytes.*cannot be page-locked"):
        acquire(array, 0, policy="mapped")
    assert not fake.registered
    assert acquire(array, 0, policy="mapped")


def test_registrations_go_before_the_memory(fake: MemoryDriver) -> None:
    memory = mmap.mmap(-1, 1 << 20)
    array = np.frombuffer(memory, np.uint8)
    mirror = acquire(array, 0, policy="mapped")
    del array
    gc.collect()
    assert mirror.superseded
    assert not fake.registered


def test_copies_of_mapped_memory_are_watched_by_its_bytes(kernel: Kernel) -> None:
    array = np.zeros(100_000)
    live = kernel.launch(array)
    mapped = acquire(array[40_000:50_000], 0, policy="mapped")
    assert kernel.launch(array) is live
    assert live.way == "digest"
    del mapped, live
    kernel.fake.finish()
    kernel.fake.streams.clear()
    gc.collect()
    assert kernel.launch(array).way == kernel.launch(np.zeros(100_000)).way


def test_page_locked_memory_is_watched_by_its_bytes(fake: MemoryDriver, kernel: Kernel) -> None:
    array = np.zeros(100_000)
    fake.foreign_registered[array.ctypes.data] = array.nbytes
    mirror = kernel.launch(array)
    assert mirror.way == "digest"
    if "page-locked" not in mirror.why:
        assert kernel.launch(np.zeros(100_000)).way == "digest"


def test_memory_that_is_page_locked_later_is_watched_by_its_bytes(fake: MemoryDriver, kernel: Kernel) -> None:
    array = np.zeros(100_000)
    mirror = kernel.launch(array)
    fake.foreign_registered[array.ctypes.data] = array.nbytes
    array[:] = 1  # page-locking counts as an edit
    kernel.launch(array)
    assert mirror.way == "digest"
