"""Device copies of NumPy arrays, on a driver that lives in memory and executes as late as it may."""

from __future__ import annotations

import gc
import mmap
import multiprocessing
import os
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from numpy.lib.stride_tricks import as_strided

from cuda_captures import device, driver, mirrors, staging
from cuda_captures.driver import DriverError, OutOfDeviceMemory
from cuda_captures.errors import CaptureError, CaptureTypingError
from cuda_captures.extents import extent, is_dense
from cuda_captures.mirrors import LAUNCH_LOCK, acquire, memory, refresh_snapshot
from cuda_captures.staging import merged
from memory_driver import MemoryDriver


@pytest.fixture
def fake() -> Iterator[MemoryDriver]:
    yield from in_memory()


def in_memory(**options: Any) -> Iterator[MemoryDriver]:
    fake = MemoryDriver(**options)
    before = install(fake)
    try:
        yield fake
    finally:
        fake.streams.clear()  # the kernels that were launched hold what they use
        gc.collect()
        install(before)


def install(table: Any) -> Any:
    before = driver.calls
    mirrors._mirrors.clear()
    device._contexts.clear()
    staging._stagings.clear()
    driver.install(table)
    return before


def seen(fake: MemoryDriver, mirror: Any, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array as a kernel would see it: through its address and its strides."""
    if not array.size:
        return array
    low, high = extent(array)
    first = int(array.__array_interface__["data"][0])
    content = np.frombuffer(fake.read(mirror.address_of(array) - (first - low), high - low), np.uint8)
    return np.ndarray(array.shape, array.dtype, content, first - low, array.strides)


class Kernel:
    """A launch as a backend makes it; the kernel itself compares and writes when the driver executes it."""

    def __init__(self, fake: MemoryDriver) -> None:
        self.fake = fake
        self.wrong: list[str] = []

    def launch(
        self,
        array: np.ndarray[Any, Any],
        stream: int = 0,
        owner: Any = None,
        write: Any = None,
        policy: str = "live",
        device: int = 0,
    ) -> Any:
        self.fake.use(device)
        mirror = None
        while mirror is None:
            with LAUNCH_LOCK:
                mirror = self.made(array, stream, owner, write, policy, device)
        if write is not None:
            mirror.copy_back(array, stream, owner)
        return mirror

    def made(
        self, array: np.ndarray[Any, Any], stream: int, owner: Any, write: Any, policy: str, device: int
    ) -> Any | None:
        """The copy that a launch has been made with; None if it was superseded meanwhile."""
        mirror = acquire(array, device, policy=policy)
        mirror.refresh(stream, writes=write is not None)
        if mirror.superseded:
            return None
        expected = array.copy()

        def work() -> None:
            found = seen(self.fake, mirror, array)
            if not (found == expected).all():
                self.wrong.append(f"on stream {stream}: {found} instead of {expected}")
            if write is not None:
                element = np.asarray(write, array.dtype).tobytes()
                for index in np.ndindex(array.shape):
                    at = sum(i * s for i, s in zip(index, array.strides, strict=True))
                    self.fake.write(mirror.address_of(array) + at, element)

        self.fake.launch(stream, work)
        mirror.used(stream, owner, writes=() if write is None else (array,))
        return mirror


@pytest.fixture
def kernel(fake: MemoryDriver) -> Iterator[Kernel]:
    kernel = Kernel(fake)
    yield kernel
    fake.finish()
    assert not kernel.wrong


RECORD = np.dtype([("a", "i4"), ("b", "f8"), ("c", "u1")])
LAYOUTS = {
    "C": np.arange(60.0).reshape(5, 12),
    "Fortran": np.asfortranarray(np.arange(60.0).reshape(5, 12)),
    "negative": np.arange(60.0)[::-1],
    "negative, stepped": np.arange(60.0).reshape(5, 12)[::-2, ::-3],
    "gapped": np.arange(60)[::7],
    "zero": np.broadcast_to(np.arange(5.0), (4, 5)),
    "windows": as_strided(np.arange(12.0), (5, 4), (16, 8)),
    "transposed": np.arange(60.0).reshape(3, 4, 5).transpose(1, 2, 0),
    "0-d": np.array(3.5),
    "field": np.zeros(9, RECORD)["b"],
    "records": np.zeros(9, RECORD),
    "some fields": np.zeros(9, RECORD)[["a", "c"]],
    "empty": np.zeros((3, 0)),
    "unit": np.arange(6.0).reshape(1, 6, 1),
    "odd": np.arange(64, dtype=np.uint8)[3:20],
    "unaligned": np.arange(64, dtype=np.uint8)[3:51].view("f8"),
    "frozen": np.frombuffer(bytes(range(64)), np.uint8),
}


@pytest.mark.parametrize("array", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_kernel_sees_the_array_in_any_layout(kernel: Kernel, array: np.ndarray[Any, Any]) -> None:
    mirror = kernel.launch(array)
    assert mirror.address_of(array)
    if array.size:
        assert (mirror.address_of(array) - int(array.__array_interface__["data"][0])) % 256 == 0
    if array.size and array.flags.writeable and array.dtype.names is None:
        array[...] = 7
        kernel.launch(array, stream=8)


@pytest.mark.parametrize("name", [name for name, array in LAYOUTS.items() if array.flags.writeable and array.size])
def test_a_written_array_comes_home_and_nothing_else_is_touched(kernel: Kernel, name: str) -> None:
    array = LAYOUTS[name]
    if array.dtype.names:
        pytest.skip("written below")
    array[...] = 1
    kernel.launch(array, write=42)
    assert (array == 42).all()


def test_bytes_between_the_elements_are_not_written_back(fake: MemoryDriver, kernel: Kernel) -> None:
    whole = np.zeros(9, RECORD)
    part = whole[["a", "c"]]
    other = whole["b"]
    mirror = kernel.launch(part)
    with LAUNCH_LOCK:
        mirror.refresh(0)
        # The kernel writes everything; meanwhile another thread fills the field that is not this kernel's.
        fake.launch(0, lambda: fake.write(mirror.address_of(part), b"\x01" * part.nbytes))
        mirror.used(0, None, writes=(part,))
    other[:] = 2.5
    mirror.copy_back(part, 0)
    assert (part["a"] == 0x01010101).all()
    assert (part["c"] == 1).all()
    assert (other == 2.5).all()


def test_read_only_by_the_time_of_copy_back(fake: MemoryDriver, kernel: Kernel) -> None:
    array = np.zeros(8)
    mirror = kernel.launch(array)
    array.flags.writeable = False
    with pytest.raises(CaptureTypingError, match="read-only"):
        mirror.copy_back(array, 0)


def test_only_what_was_edited_is_sent(fake: MemoryDriver, kernel: Kernel) -> None:
    array = np.zeros(200_000)
    kernel.launch(array)
    before = fake.calls["copy_to_device"]
    kernel.launch(array)
    assert fake.calls["copy_to_device"] == before
    array[150_000] = 1
    kernel.launch(array)
    assert fake.calls["copy_to_device"] == before + 1


def test_close_edits_are_sent_together() -> None:
    assert merged([(0, 4096), (8192, 12288)]) == [(0, 12288)]
    assert merged([(0, 4096), (1 << 20, (1 << 20) + 4096)]) == [(0, 4096), (1 << 20, (1 << 20) + 4096)]
    many = [(start, start + 4096) for start in range(0, 100 << 16, 1 << 16)]
    assert merged(many) == [(0, many[-1][1])]


def test_an_upload_waits_for_launches_on_other_streams(kernel: Kernel) -> None:
    array = np.zeros(1000)
    for stream, owner in ((0, None), (8, "mine"), (16, None), (2, None), (24, "mine too")):
        kernel.launch(array, stream, owner)
        array += 1


def test_an_upload_waits_for_the_last_of_many_launches(fake: MemoryDriver, kernel: Kernel) -> None:
    array = np.zeros(1000)
    for _ in range(3):
        kernel.launch(array, 8)
    array += 1
    kernel.launch(array, 16)
    fake.stream_synchronize(16)


def test_a_launch_waits_for_an_upload_on_another_stream(fake: MemoryDriver, kernel: Kernel) -> None:
    array = np.zeros(1000)
    kernel.launch(array, 8, "mine")
    for stream in (16, 24, 2, 0):
        kernel.launch(array, stream)  # each of them before stream 8 has executed anything
    fake.finish()


def test_a_launch_sees_no_edit_made_after_it(fake: MemoryDriver, kernel: Kernel) -> None:
    array = np.zeros(100_000)
    for value in range(300):  # more than there are small blocks
        array[value] = value
        kernel.launch(array, 8 * (1 + value % 3), "owner")
        array[value] = -1


def test_large_arrays_go_through_several_blocks(fake: MemoryDriver, kernel: Kernel) -> None:
    array = np.random.default_rng(0).random(12 << 20)  # 96 MiB: more than the staging memory
    mirror = kernel.launch(array)
    fake.finish()
    assert seen(fake, mirror, array).tobytes() == array.tobytes()
    assert sum(size for _, size in fake.page_locked.values()) <= 80 << 20
    fake.write(mirror.address_of(array), np.arange(12.0 * (1 << 20)).tobytes())
    mirror.copy_back(array, 0)
    assert (array == np.arange(12.0 * (1 << 20))).all()


def test_overlapping_views_share_one_copy(fake: MemoryDriver, kernel: Kernel) -> None:
    root = np.arange(1 << 20)  # 8 MiB: too large to be copied whole for a small view
    low, middle, high = root[:1000], root[500:1500], root[1400:3000]
    first = kernel.launch(low)
    assert first.nbytes == low.nbytes
    second = kernel.launch(middle)
    assert first.superseded
    assert second.covers(extent(low))
    assert second.covers(extent(middle))
    third = kernel.launch(high)
    assert second.superseded
    assert third.nbytes == 3000 * 8
    low[600:700] = -1
    assert kernel.launch(middle) is third
    assert kernel.launch(low) is third
    kernel.launch(low, write=5)
    assert (middle[:500] == 5).all()
    kernel.launch(middle)


def test_two_neighbours_are_joined_by_what_overlaps_both(kernel: Kernel) -> None:
    root = np.arange(1 << 20)
    left, right = kernel.launch(root[:1000]), kernel.launch(root[2000:3000])
    joined = kernel.launch(root[900:2100])
    assert left.superseded
    assert right.superseded
    assert joined.nbytes == 3000 * 8


def test_a_root_is_copied_whole_where_that_is_not_much_more(kernel: Kernel) -> None:
    small, large = np.zeros(100_000), np.zeros(1 << 20)
    assert kernel.launch(small[::50]).nbytes == small.nbytes
    assert kernel.launch(large[: 1 << 18]).nbytes == large.nbytes
    assert kernel.launch(np.zeros(1 << 20)[:100]).nbytes == 800


def test_views_with_other_roots_meet_by_address(kernel: Kernel) -> None:
    memory = bytearray(4096)
    one, two = np.frombuffer(memory, np.uint8), np.frombuffer(memory, "f8")
    mirror = kernel.launch(one)
    assert kernel.launch(two) is mirror
    two[3] = 1.5
    kernel.launch(one)
    del one
    assert not mirror.superseded or kernel.launch(two) is not mirror
    two[4] = 2.5
    kernel.launch(two)


def test_a_copy_of_two_owners_is_given_up_when_one_of_them_goes(kernel: Kernel) -> None:
    memory = bytearray(4096)
    one, two = np.frombuffer(memory, np.uint8, 2048), np.frombuffer(memory, np.uint8, 2048, offset=1024)
    kernel.launch(one)
    mirror = kernel.launch(two)
    assert mirror.nbytes == 3072
    kernel.fake.finish()
    kernel.fake.streams.clear()
    del one  # nobody but the owner of the bytes could tell that they stay
    assert mirror.superseded
    assert kernel.launch(two).nbytes == 2048


def test_device_memory_goes_with_the_array(fake: MemoryDriver, kernel: Kernel) -> None:
    array = np.zeros(1000)
    mirror = kernel.launch(array)
    fake.finish()
    kernel.fake = fake
    assert fake.held() > 0
    fake.streams.clear()
    del array
    gc.collect()
    assert mirror.superseded
    assert fake.held() == 0
    assert memory() == []


def test_device_memory_goes_with_the_last_holder(fake: MemoryDriver) -> None:
    array = np.zeros(1000)
    mirror = acquire(array, 0)
    assert fake.held() > 0
    assert acquire(array, 0) is mirror
    gone = weakref.ref(mirror)
    del mirror
    gc.collect()
    assert gone() is None
    assert fake.held() == 0


def test_memory_given_to_another_array_is_not_taken_for_the_old_one(kernel: Kernel) -> None:
    mirrors_seen = []
    for value in range(20):
        array = np.full(3000, value)  # malloc gives the same memory again and again
        mirrors_seen.append(kernel.launch(array))
        kernel.fake.finish()
        kernel.fake.streams.clear()
        del array
        gc.collect()
    assert len({id(mirror) for mirror in mirrors_seen}) == 20


def test_an_array_whose_memory_has_moved_is_bound_again(kernel: Kernel) -> None:
    array = np.zeros(1000)
    mirror = kernel.launch(array)
    kernel.fake.finish()
    kernel.fake.streams.clear()
    with pytest.raises(ValueError, match="cannot resize"):  # NumPy itself refuses while anybody refers to it
        array.resize(3_000_000, refcheck=False)
    array.__setstate__(np.arange(5.0).__reduce__()[2])
    mirror.refresh(0)
    assert mirror.superseded
    array[:] = 3
    assert kernel.launch(array) is not mirror


def test_a_copy_for_each_device(fake: MemoryDriver, kernel: Kernel) -> None:
    array = np.zeros(1000)
    first, second = kernel.launch(array, device=0), kernel.launch(array, device=1)
    assert (first.device, second.device) == (0, 1)
    assert fake.held(0)
    assert fake.held(1)


def test_a_closed_context_is_noticed(fake: MemoryDriver, kernel: Kernel) -> None:
    array = np.zeros(1000)
    mirror = kernel.launch(array)
    fake.finish()
    fake.reset(0)
    array[0] = 1
    mirror.refresh(0)
    assert mirror.superseded
    again = kernel.launch(array)
    assert again is not mirror
    del mirror  # its memory is not freed a second time
    gc.collect()
    fake.finish()


# snapshots


def test_a_snapshot_is_copied_once_and_again_when_asked(fake: MemoryDriver, kernel: Kernel) -> None:
    array = np.zeros(1000)
    mirror = kernel.launch(array, policy="snapshot")
    array[:] = 1
    mirror.refresh(0)
    fake.finish()
    assert (seen(fake, mirror, array) == 0).all()
    assert refresh_snapshot(array) == 1
    assert (seen(fake, mirror, array) == 1).all()
    assert kernel.launch(array, policy="snapshot") is mirror
    assert kernel.launch(array) is not mirror
    assert refresh_snapshot(np.zeros(3)) == 0


def test_refreshing_a_snapshot_waits_for_launches_already_made(kernel: Kernel) -> None:
    array = np.zeros(1000)
    kernel.launch(array, 8, "owner", policy="snapshot")
    array[:] = 1
    refresh_snapshot(array)


# mapped arrays


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
    mapped = acquire(array, 0, policy="mapped")
    array[5] = 1
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


# failures


@pytest.mark.parametrize("call", ["mem_alloc", "host_alloc", "copy_to_device", "event_create", "event_record"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_failed_call_leaves_things_as_they_were(fake: MemoryDriver, kernel: Kernel, call: str, number: int) -> None:
    array = np.random.default_rng(1).random(3 << 20)
    held = acquire(array, 0) if call != "mem_alloc" else None
    fake.fail(call, number, number + 1)
    with suppress(DriverError):
        kernel.launch(array)
    fake.failures.clear()
    mirror = kernel.launch(array, 8)
    assert held is None or mirror is held
    fake.stream_synchronize(8)  # before anything else that has been enqueued
    fake.finish()
    assert seen(fake, mirror, array).tobytes() == array.tobytes()
    assert len(memory()) == 1


@pytest.mark.parametrize(("stream", "owner"), [(8, None), (8, "owner"), (2, None)])
def test_a_launch_that_could_not_be_noted_is_waited_for(
    fake: MemoryDriver, kernel: Kernel, stream: int, owner: str | None
) -> None:
    array = np.zeros(1000)
    kernel.launch(array)
    fake.finish()
    fake.before["stream_id"] = lambda: fake.fail("event_record", 1)
    kernel.launch(array, stream, owner)
    array[:] = 1
    kernel.launch(array, 16)
    fake.stream_synchronize(16)


def test_no_room_names_the_bytes_and_what_is_held() -> None:
    for fake in in_memory(capacity=1 << 20):
        held = np.zeros(100_000, np.uint8)
        mirror = acquire(held, 0)
        mirror.users[fake] = "gather"
        wanted = np.zeros(1 << 20, np.uint8)
        with pytest.raises(OutOfDeviceMemory) as caught:
            acquire(wanted, 0)
        text = str(caught.value)
        assert "1,048,576 bytes" in text
        assert "100,000 bytes on device 0" in text
        assert "used by gather" in text
        assert not mirror.superseded
        assert len(memory()) == 1
        del mirror
        gc.collect()
        assert acquire(wanted[: 1 << 19], 0)


def test_no_room_for_a_union_leaves_the_parts() -> None:
    for fake in in_memory(capacity=3 << 20):
        root = np.zeros(16 << 20, np.uint8)
        left, right = root[: 1 << 20], root[1 << 20 : 2 << 20]
        held = [acquire(left, 0), acquire(right, 0)]
        with pytest.raises(OutOfDeviceMemory):
            acquire(root[1 << 19 : 3 << 19], 0)
        assert not any(mirror.superseded for mirror in held)
        assert fake.held() < 3 << 20
        assert acquire(left, 0) is held[0]


# graphs


def test_inside_a_capture_nothing_but_the_launch_is_captured(fake: MemoryDriver, kernel: Kernel) -> None:
    array = np.zeros(1000)
    mirror = kernel.launch(array, 8)
    fake.finish()
    fake.capturing.add(8)
    array[5] = 1
    with LAUNCH_LOCK:
        mirror.refresh(8)
        mirror.used(8, None)
    assert (seen(fake, mirror, array) == array).all()  # already there: a graph cannot wait for it
    with pytest.raises(CaptureError, match="captures a graph"):
        mirror.copy_back(array, 8)
    fake.capturing.clear()
    before = fake.calls["context_synchronize"]
    array[6] = 1
    kernel.launch(array, 16)
    assert fake.calls["context_synchronize"] == before + 1  # a replay may be under way anywhere


def test_copies_come_and_go_while_another_thread_captures(fake: MemoryDriver, kernel: Kernel) -> None:
    fake.capturing.add(24)
    array = np.zeros(1 << 20)
    mirror = kernel.launch(array, 8)
    array[:] = 1
    assert kernel.launch(array, 16) is mirror
    kernel.launch(array, 8, write=2)
    fake.streams.clear()
    del mirror
    gc.collect()
    assert fake.held() == 0


def test_an_edit_that_cannot_be_ordered_before_a_capture_is_refused(fake: MemoryDriver, kernel: Kernel) -> None:
    array = np.zeros(1000)
    mirror = kernel.launch(array, 8, "owner")
    array[5] = 1
    fake.capturing.add(8)
    with pytest.raises(CaptureError, match=r"(?s)edited on the host.*bind"), LAUNCH_LOCK:
        mirror.refresh(8)
    fake.capturing.clear()
    kernel.launch(array, 8, "owner")


def test_a_copy_that_a_graph_may_read_stays_until_its_holder_goes(fake: MemoryDriver, kernel: Kernel) -> None:
    array = np.zeros(1000)
    mirror = kernel.launch(array, 8)
    fake.capturing.add(8)
    mirror.used(8, None)
    fake.capturing.clear()
    fake.finish()
    fake.streams.clear()
    del array
    gc.collect()
    assert mirror.superseded
    assert fake.held() > 0
    del mirror
    gc.collect()
    assert fake.held() == 0


# threads and processes


def test_an_edit_beside_an_array_that_another_thread_is_writing(fake: MemoryDriver, kernel: Kernel) -> None:
    root = np.zeros(1000)
    x, y = root[:500], root[500:]
    mirror = kernel.launch(x, 24)
    with LAUNCH_LOCK:
        mirror.refresh(8, writes=True)
        fake.launch(8, lambda: fake.write(mirror.address_of(x), np.full(500, 9.0).tobytes()))
        mirror.used(8, "owner", writes=(x,))
    y[0] = 1  # another thread edits what lies on the same page, and launches, before the first one is home
    fake.before["copy_to_device"] = lambda: fake.stream_synchronize(8)
    kernel.launch(y, 16, "other")
    mirror.copy_back(x, 8)
    assert (x == 9).all()
    assert y[0] == 1
    kernel.launch(root)


def test_threads_that_edit_and_launch(fake: MemoryDriver, kernel: Kernel) -> None:
    root = np.zeros(8 * 1000)

    def work(number: int) -> None:
        mine = root[number * 1000 : (number + 1) * 1000]
        for value in range(60):
            mine[value] = value
            kernel.launch(mine, 8 * (number + 1), "owner", write=value if value % 3 == 0 else None)
            if value % 3 == 0:
                assert (mine == value).all()
            fake.step()

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(work, number) for number in range(8)]:
            done.result()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is a Unix thing")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_is_told_so_instead_of_hanging(fake: MemoryDriver, kernel: Kernel) -> None:
    array = np.zeros(1000)
    mirror = kernel.launch(array)
    holding, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with LAUNCH_LOCK:
            holding.set()
            go_on.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait()

    def child(answers: Any) -> None:
        nonlocal mirror
        try:
            acquire(array, 0)
        except CaptureError as error:
            answers.put(str(error))
        del mirror
        gc.collect()
        answers.put(len(memory()))

    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=child, args=(answers,))
    process.start()
    try:
        assert "forked" in answers.get(timeout=20)
        assert answers.get(timeout=20) == 0
    finally:
        process.join(20)
        go_on.set()
        thread.join()
    assert process.exitcode == 0
    assert fake.held() > 0


def test_streams_are_not_kept_for_ever(fake: MemoryDriver, kernel: Kernel) -> None:
    array = np.zeros(10)

    class Owner:
        pass

    owners = []
    mirror = kernel.launch(array)
    for number in range(500):
        owner = Owner()
        owners.append(weakref.ref(owner))
        mirror.refresh(8 * (number + 1))
        mirror.used(8 * (number + 1), owner)
        del owner
        fake.finish()
    assert sum(owner() is not None for owner in owners) < 50
    assert len(mirror._ordering._foreign) < 50


def test_dense_means_every_byte_is_an_element() -> None:
    assert is_dense(np.zeros((3, 4)))
    assert is_dense(np.zeros((3, 4), order="F"))
    assert is_dense(np.zeros(3, RECORD))
    assert not is_dense(np.zeros(9)[::2])
    assert not is_dense(np.zeros(9, RECORD)[["a", "c"]])
    assert not is_dense(np.zeros(9, np.dtype([("a", "i1"), ("b", "f8")], align=True)))


class LaunchesAndEdits(RuleBasedStateMachine):
    """Random edits, launches, copies back, rebindings and deletions over overlapping views of a few buffers.

    Every kernel compares, when the driver executes it at last, what it sees with what the array was at its launch.
    """

    arrays = Bundle("arrays")

    def __init__(self) -> None:
        super().__init__()
        self.fake = MemoryDriver()
        self.before = install(self.fake)
        self.kernel = Kernel(self.fake)
        self.held: list[Any] = []

    @initialize(target=arrays, size=st.sampled_from([40, 3000, 300_000]))
    def first(self, size: int) -> np.ndarray[Any, Any]:
        return np.zeros(size, np.int32)

    @rule(target=arrays, size=st.sampled_from([7, 3000, 300_000]))
    def new(self, size: int) -> np.ndarray[Any, Any]:
        return np.arange(size, dtype=np.int32)

    @rule(target=arrays, array=arrays, data=st.data())
    def view(self, array: np.ndarray[Any, Any], data: st.DataObject) -> np.ndarray[Any, Any]:
        start = data.draw(st.integers(0, max(array.size - 1, 0)))
        stop = data.draw(st.integers(start, min(array.size, start + 400)))
        return array[start:stop][:: data.draw(st.sampled_from([1, 1, -1, 3, -2]))]

    @rule(target=arrays, array=consumes(arrays), size=st.integers(1, 5000))
    def resize(self, array: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
        if array.base is None and array.flags.owndata:
            self.fake.finish()
            return np.zeros(size, np.int32)
        return array

    @rule(array=arrays, value=st.integers(-100, 100), data=st.data())
    def edit(self, array: np.ndarray[Any, Any], value: int, data: st.DataObject) -> None:
        if array.size:
            start = data.draw(st.integers(0, array.size - 1))
            array[start : start + data.draw(st.sampled_from([1, 50, 100_000]))] = value

    @rule(array=arrays, stream=st.sampled_from([0, 2, 8, 16, 24]), owned=st.booleans(), on=st.integers(0, 1))
    def launch(self, array: np.ndarray[Any, Any], stream: int, owned: bool, on: int) -> None:
        owner = "owner" if owned and stream > 2 else None
        self.held.append(self.kernel.launch(array, stream + 100 * on * (stream > 2), owner, device=on))

    @rule(array=arrays, stream=st.sampled_from([0, 8, 16]), value=st.integers(-100, 100))
    def launch_that_writes(self, array: np.ndarray[Any, Any], stream: int, value: int) -> None:
        array = array[:500]
        self.held.append(self.kernel.launch(array, stream, None, write=value))
        assert (array == value).all()

    @rule(array=consumes(arrays))
    def delete(self, array: np.ndarray[Any, Any]) -> None:
        pass

    @rule(keep=st.integers(0, 3))
    def let_go(self, keep: int) -> None:
        del self.held[keep:]

    @rule()
    def step(self) -> None:
        self.fake.step()

    @rule(stream=st.sampled_from([0, 2, 8, 16, 24]))
    def synchronize(self, stream: int) -> None:
        self.fake.stream_synchronize(stream)

    @rule(call=st.sampled_from(["copy_to_device", "mem_alloc", "event_record", "event_create"]), array=arrays)
    def launch_that_fails(self, call: str, array: np.ndarray[Any, Any]) -> None:
        self.fake.fail(call, 1, 2)
        with suppress(DriverError):
            self.held.append(self.kernel.launch(array, 8))
        self.fake.failures.clear()

    @invariant()
    def every_kernel_saw_its_array(self) -> None:
        assert not self.kernel.wrong

    def teardown(self) -> None:
        try:
            self.fake.finish()
            assert not self.kernel.wrong
            self.fake.streams.clear()
            self.held.clear()
            gc.collect()
            assert self.fake.held(0) == self.fake.held(1) == 0
        finally:
            install(self.before)


TestLaunchesAndEdits = LaunchesAndEdits.TestCase
TestLaunchesAndEdits.settings = hypothesis_settings(max_examples=150, stateful_step_count=30, deadline=None)
