"""Device copies of NumPy arrays, on a driver that lives in memory and executes as late as it may."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from copies_in_memory import Kernel, in_memory, kernels, seen
from cuda_captures.driver import DriverError, OutOfDeviceMemory
from cuda_captures.errors import CaptureError, CaptureTypingError
from cuda_captures.extents import extent, is_dense
from cuda_captures.mirrors import LAUNCH_LOCK, acquire, memory, refresh_snapshot
from cuda_captures.staging import merged
from layouts_of_memory import LAYOUTS, RECORD
from memory_driver import MemoryDriver


@pytest.fixture
def kernel(fake: MemoryDriver) -> Iterator[Kernel]:
    yield from kernels(fake)


@pytest.mark.parametrize("array", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_kernel_sees_the_array_in_any_layout(kernel: Kernel, array: np.ndarray[Any, Any]) -> None:
    mirror = kernel.launch(array)
    assert mirror.address_of(array)
    if array.size:
        assert (mirror.address_of(array) - int(array.__array_interface__["data"][0])) % 256 == 0
    if array.size and array.flags.writeable and array.dtype.names is None:
        array[...] = 7
        kernel.launch(array, stream=8)


@pytest.mark.parametrize(
    "name",
    [name for name, array in LAYOUTS.items() if array.flags.writeable and array.size and not array.dtype.names],
)
def test_a_written_array_comes_home_and_nothing_else_is_touched(kernel: Kernel, name: str) -> None:
    array = LAYOUTS[name]
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


@pytest.mark.parametrize("size", [1000, 100_000])
def test_what_came_home_is_not_sent_again(fake: MemoryDriver, kernel: Kernel, size: int) -> None:
    whole = np.zeros(3 * size, np.uint8)
    mirror = kernel.launch(whole)
    fake.finish()
    before = fake.calls["copy_to_device"]
    for part in (whole[:1000], whole[:3000:3]):
        kernel.launch(part, write=5)
        kernel.launch(whole)  # what lies on the same pages as the part may be sent
        sent = fake.calls["copy_to_device"]
        assert kernel.launch(whole) is mirror
        assert fake.calls["copy_to_device"] == sent
    if mirror.way == "bytes":
        assert sent == before
    whole[1] = 9
    kernel.launch(whole)


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


def test_a_launch_is_asked_about_once_for_all_its_copies(fake: MemoryDriver) -> None:
    arrays = [np.zeros(1000) for _ in range(8)]
    held = [acquire(array, 0) for array in arrays]
    for _ in range(3):
        for mirror in held:
            mirror.refresh(8)
        fake.calls.clear()
        fake.launch(8, lambda: None)
        for mirror in held:
            mirror.used(8, None)
        assert fake.calls.total() - fake.calls["event_create"] == 3


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


def test_device_memory_stays_from_refresh_to_launch(fake: MemoryDriver) -> None:
    array = np.zeros(1000)
    mirror = acquire(array, 0)
    mirror.refresh(0)
    del array  # by another thread, say
    assert mirror.superseded
    assert fake.held() > 0
    mirror.used(0, None)
    assert fake.held() == 0


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


@pytest.mark.parametrize("size", [5, 1000])
def test_an_array_whose_memory_has_moved_is_bound_again(kernel: Kernel, size: int) -> None:
    array = np.zeros(1000)
    mirror = kernel.launch(array)
    kernel.fake.finish()
    kernel.fake.streams.clear()
    with pytest.raises(ValueError, match="cannot resize"):  # NumPy itself refuses while anybody refers to it
        array.resize(3_000_000, refcheck=False)
    array.__setstate__(np.arange(float(size)).__reduce__()[2])
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
        mirror.users.note(fake, "gather")
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
    array = np.zeros(3000)
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
    mirror.refresh(8)
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
