"""Device copies on a GPU: contents, order, lifetimes."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from cuda_captures import device, driver
from cuda_captures.address_space import pinned_kilobytes
from cuda_captures.driver import DriverError, OutOfDeviceMemory
from cuda_captures.mirrors import LAUNCH_LOCK, acquire, memory, refresh_snapshot
from layouts_of_memory import LAYOUTS
from on_gpu import Gpu, gpus

pytestmark = pytest.mark.gpu

Array = np.ndarray[Any, Any]


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    yield from gpus()
    gc.collect()


def watched_by_pages(gpu: Gpu) -> bool:
    return gpu.launch(np.zeros(1 << 20, np.uint8)).mirror.way == "pages"


# contents


@pytest.mark.parametrize("policy", ["live", "snapshot", "mapped"])
@pytest.mark.parametrize("array", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_the_device_holds_the_array(gpu: Gpu, array: Array, policy: str) -> None:
    if policy == "mapped" and not array.flags.writeable:
        pytest.skip("memory that is read-only cannot be mapped everywhere")
    gpu.launch(array, policy=policy).check()


@pytest.mark.parametrize("nbytes", [1, 100, 4096, 65536, 65537, 1 << 20, (1 << 20) + 3, 5 << 20, 96 << 20])
def test_edits_of_any_size_of_array_arrive(gpu: Gpu, nbytes: int) -> None:
    array = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    gpu.launch(array).check()
    for where in (slice(0, 1), slice(-1, None), slice(nbytes // 3, nbytes // 2), slice(None)):
        array[where] ^= 0x55
        gpu.launch(array).check()


def test_scattered_edits_arrive(gpu: Gpu) -> None:
    array = np.zeros(64 << 20, np.uint8)
    gpu.launch(array).check()
    generator = np.random.default_rng(0)
    for count in (1, 10, 100, 1000, 10_000):
        array[generator.integers(0, array.size, count)] += 1
        gpu.launch(array).check()


@pytest.mark.parametrize("nbytes", [100, 65536, 3 << 20, 96 << 20])
def test_what_a_kernel_wrote_comes_home(gpu: Gpu, nbytes: int) -> None:
    array = np.zeros(nbytes, np.uint8)
    stream = gpu.stream()
    for value in (1, 2, 3):
        with LAUNCH_LOCK:
            mirror = acquire(array, 0)
            mirror.refresh(stream, writes=True)
            gpu.fill(mirror.address_of(array), value, nbytes, stream)
            mirror.used(stream, None, writes=(array,))
        mirror.copy_back(array, stream)
        assert (array == value).all()
        gpu.launch(array).check()
        array[nbytes // 2] = 77
        gpu.launch(array).check()


def test_a_strided_array_comes_home_alone(gpu: Gpu) -> None:
    whole = np.zeros(100_000, np.int32)
    array = whole[::-3]
    with LAUNCH_LOCK:
        mirror = acquire(array, 0)
        mirror.refresh(0, writes=True)
        gpu.fill(mirror.address_of(array[-1:]), 1, 4 * (3 * array.size - 2), 0)
        mirror.used(0, None, writes=(array,))
    whole[whole.size - 2] = 9  # between two elements
    mirror.copy_back(array, 0)
    assert (array == 0x01010101).all()
    assert set(np.unique(whole)) == {0, 9, 0x01010101}
    gpu.launch(whole).check()


def test_a_snapshot_is_renewed_in_place(gpu: Gpu) -> None:
    array = np.zeros(1 << 20)
    first = gpu.launch(array, policy="snapshot")
    array[:] = 1
    second = gpu.launch(array, policy="snapshot")
    assert (second.seen() == 0).all()
    assert refresh_snapshot(array) == 1
    third = gpu.launch(array, policy="snapshot")
    assert third.mirror is first.mirror
    third.check()


# order


def test_an_upload_waits_for_launches_on_every_stream(gpu: Gpu) -> None:
    array = np.zeros(1 << 20)
    gpu.launch(array).check()
    gate = gpu.gate()
    probes = []
    owner = object()
    for stream, keeper in ((gpu.stream(), owner), (gpu.stream(), None), (gpu.stream(), owner)):
        gate.hold(stream)
        probes.append(gpu.launch(array, stream, keeper))
    array[:] = 1
    last = gpu.launch(array, gpu.stream())  # returns while none of the others can have run
    gate.open()
    for probe in [*probes, last]:
        probe.check()


def test_a_launch_waits_for_an_upload_on_another_stream(gpu: Gpu) -> None:
    array = np.zeros(8 << 20)
    held, gate = gpu.stream(), gpu.gate()
    gpu.launch(array).check()
    gate.hold(held)
    array[:1000] = 1
    probes = [gpu.launch(array, held)]  # the upload is behind the gate
    probes += [gpu.launch(array, stream) for stream in (gpu.stream(), gpu.stream(), 2)]
    gate.open()
    for probe in probes:
        probe.check()


def test_no_launch_sees_a_later_edit(gpu: Gpu) -> None:
    array = np.zeros(1 << 18)
    stream, gate = gpu.stream(), gpu.gate()
    gpu.launch(array, stream).check()
    gate.hold(stream)
    probes = []
    for value in range(100):
        array[value * 2000] = value
        probes.append(gpu.launch(array, stream, "owner"))
        array[value * 2000] = -1
    gate.open()
    for probe in probes:
        probe.check()


def test_each_thread_has_a_default_stream_of_its_own(gpu: Gpu) -> None:
    array = np.zeros(1 << 20)
    handle = driver.calls.primary_retain(0)
    failed = []

    def work() -> None:
        driver.calls.context_push(handle)
        for _ in range(50):
            with LAUNCH_LOCK:
                array[:100] += 1
                probe = gpu.launch(array, 2)
            try:
                probe.check()
            except AssertionError as error:
                failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    driver.calls.primary_release(0)
    assert not failed


# page-locked memory


def test_staging_does_not_count_as_pinned_by_the_system(gpu: Gpu) -> None:
    gpu.launch(np.zeros(64 << 20, np.uint8)).check()
    array = np.zeros(1 << 20)
    driver.calls.host_register(array.ctypes.data, array.nbytes)
    try:
        assert pinned_kilobytes() == 0  # else nothing could be watched by pages once CUDA is in use
    finally:
        driver.calls.host_unregister(array.ctypes.data)


@pytest.mark.parametrize("nbytes", [4096, 1 << 16, 1 << 20, 64 << 20])
@pytest.mark.parametrize("call", ["cuMemcpyDtoH", "cuMemcpyDtoHAsync"])
def test_copies_of_the_driver_into_ordinary_memory_are_noticed(gpu: Gpu, nbytes: int, call: str) -> None:
    array = np.zeros(nbytes, np.uint8)
    source = device.DeviceBuffer(nbytes)
    for value in range(1, 4):
        gpu.fill(source.address, value, nbytes, 0)
        gpu.call(call, array.ctypes.data, source.address, nbytes, *([0] if call.endswith("Async") else []))
        driver.calls.context_synchronize()
        assert (array == value).all()
        gpu.launch(array).check()


@pytest.mark.parametrize("first", [True, False])
def test_what_a_device_writes_into_page_locked_memory_is_noticed(gpu: Gpu, first: bool) -> None:
    array = np.zeros(8 << 20, np.uint8)
    if not first:
        gpu.launch(array).check()
    driver.calls.host_register(array.ctypes.data, array.nbytes)
    try:
        source = device.DeviceBuffer(array.nbytes)
        for value in range(1, 6):
            gpu.fill(source.address, value, array.nbytes, 0)
            gpu.call("cuMemcpyDtoHAsync", array.ctypes.data + 5000, source.address, 100_000, 0)
            driver.calls.context_synchronize()
            probe = gpu.launch(array)
            probe.check()
            assert probe.mirror.way == "digest"
    finally:
        driver.calls.context_synchronize()
        driver.calls.host_unregister(array.ctypes.data)


def test_a_mapped_array_is_written_in_place(gpu: Gpu) -> None:
    array = np.zeros(3 << 20, np.uint8)
    neighbour = array[100:200]
    mirror, other = acquire(array[1000:], 0, policy="mapped"), acquire(neighbour, 0, policy="mapped")
    gpu.fill(mirror.address_of(array[5000:6000]), 7, 1000, 0)
    gpu.fill(other.address_of(neighbour), 8, 100, 0)
    driver.calls.context_synchronize()
    assert (array[5000:6000] == 7).all()
    assert (neighbour == 8).all()
    assert np.count_nonzero(array) == 1100
    array[2000] = 1
    gpu.launch(array[1000:], policy="mapped").check()
    live = gpu.launch(array)
    live.check()
    assert live.mirror.way == "digest"
    address = array.ctypes.data
    gpu.kept.clear()
    del mirror, other
    gc.collect()
    assert not device.page_locked(address + 5000)


# lifetimes


def test_device_memory_waits_for_the_launch_that_reads_it(gpu: Gpu) -> None:
    array = np.full(4 << 20, 3, np.uint8)
    stream, gate = gpu.stream(), gpu.gate()
    gate.hold(stream)
    probe = gpu.launch(array.view(), stream)
    mirror = probe.mirror
    expected = array.copy()
    probe._array = expected
    opened = threading.Timer(0.3, gate.open)
    opened.start()
    del array
    gc.collect()  # frees the copy, which waits for the gate
    filler = [device.DeviceBuffer(1 << 20) for _ in range(8)]
    for buffer in filler:
        gpu.fill(buffer.address, 9, buffer.nbytes, 0)
    assert mirror.superseded
    assert (probe.seen() == 3).all()
    opened.join()


def test_memory_stays_flat(gpu: Gpu) -> None:
    def once() -> None:
        array = np.zeros(300_000)
        gpu.launch(array)
        array[5] = 1
        gpu.launch(array)
        gpu.kept.clear()

    for _ in range(20):
        once()
    gc.collect()
    before = gpu.free_bytes()
    for _ in range(2000):
        once()
    gc.collect()
    assert gpu.free_bytes() >= before - (4 << 20)
    assert memory() == []


def test_no_room_is_said_and_passes(gpu: Gpu) -> None:
    array = np.zeros(64 << 20, np.uint8)
    held = gpu.launch(np.zeros(1 << 20, np.uint8))
    fillers = []
    size = gpu.free_bytes()
    while size > 1 << 20:
        try:
            fillers.append(device.DeviceBuffer(size))
        except OutOfDeviceMemory:
            size //= 2
    with pytest.raises(OutOfDeviceMemory, match=f"{array.nbytes:,} bytes"):
        acquire(array, 0)
    assert len(memory()) == 1
    held.check()
    fillers.clear()
    gpu.launch(array).check()


@pytest.mark.parametrize("call", ["mem_alloc", "host_alloc", "copy_to_device", "event_create", "event_record"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_failed_call_leaves_things_as_they_were(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    """As on the driver in memory, with the real one around the call that fails."""

    class Failing:
        in_use = True
        count = 0

        def __getattr__(self, name: str) -> Any:
            real = getattr(inner, name)
            if name != call:
                return real

            def fails(*arguments: Any) -> Any:
                self.count += 1
                if self.count in (number, number + 1):
                    raise (OutOfDeviceMemory if "alloc" in name else DriverError)(name, "CUDA_ERROR_INJECTED")
                return real(*arguments)

            return fails

    gc.collect()  # what other tests have left
    array = np.random.default_rng(1).random(3 << 20)
    inner = driver.calls
    before, free = memory(), gpu.free_bytes()
    gpu.launch(np.zeros(10)).check()
    with monkeypatch.context() as patched:
        patched.setattr(driver, "calls", Failing())
        try:
            with LAUNCH_LOCK:
                mirror = acquire(array, 0)
                mirror.refresh(0)
                mirror.used(0, None)
        except DriverError as error:
            assert error.call == call  # noqa: PT017 - some calls are made less often than that
        mirror = None
    gpu.kept.clear()
    gc.collect()
    assert memory() == before
    assert gpu.free_bytes() >= free - (8 << 20)  # staging memory stays
    gpu.launch(array, gpu.stream()).check()


def test_holders_and_arrays_may_go_in_any_order(gpu: Gpu) -> None:
    for arrays_first in (True, False):
        arrays = [np.zeros(1 << 16) for _ in range(20)]
        probes = [gpu.launch(array) for array in arrays]
        mirrors = [probe.mirror for probe in probes]
        gone = [weakref.ref(mirror) for mirror in mirrors]
        gpu.kept.clear()
        del probes
        if arrays_first:
            del arrays
            gc.collect()
            assert all(mirror.superseded for mirror in mirrors)
        del mirrors
        gc.collect()
        assert not any(reference() for reference in gone)


# graphs


def test_a_capture_takes_the_launch_and_nothing_else(gpu: Gpu) -> None:
    array, other = np.zeros(1 << 20), np.zeros(1 << 20)
    stream, elsewhere = gpu.stream(), gpu.stream()
    mirror = gpu.launch(array, stream).mirror
    driver.calls.context_synchronize()
    seen = device.DeviceBuffer(array.nbytes)
    array[5] = 1
    gpu.call("cuStreamBeginCapture", stream, gpu.binding.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
    with LAUNCH_LOCK:
        mirror.refresh(stream)
        gpu.copy(seen.address, mirror.address_of(array), array.nbytes, stream)
        mirror.used(stream, None)
    gpu.launch(other, elsewhere)  # allocates, uploads
    gpu.kept.clear()
    gc.collect()  # frees
    graph = gpu.call("cuStreamEndCapture", stream)
    running = gpu.call("cuGraphInstantiate", graph, 0)
    for value in (1, 2, 3):
        array[5] = value
        with LAUNCH_LOCK:
            mirror.refresh(elsewhere)  # waits for replays, which leave no trace
            mirror.used(elsewhere, None)
        driver.calls.stream_synchronize(elsewhere)
        gpu.call("cuGraphLaunch", running, stream)
        driver.calls.stream_synchronize(stream)
        assert gpu.read(seen.address, array.nbytes) == array.tobytes()


# several devices


def test_a_copy_for_each_device(gpu: Gpu) -> None:
    if driver.calls.device_count() < 2:
        pytest.skip("needs two GPUs")
    array = np.zeros(1 << 20)
    for second in gpus(1):
        for value in range(5):
            array[:] = value
            probes = [second.launch(array, second.stream())]
            with device.on_device(0):
                probes.append(gpu.launch(array, gpu.stream()))
                probes[1].check()
            probes[0].check()
            assert [probe.mirror.device for probe in probes] == [1, 0]
        assert device.pointer_device(probes[1].mirror.address_of(array)) == 0
        if driver.calls.can_access_peer(1, 0):
            assert device.enable_peer_access(1, 0)
            assert device.enable_peer_access(1, 0)


# processes


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", PRELUDE + program], capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    assert not done.stderr, done.stderr.decode()


PRELUDE = """
import gc, os, sys
import numpy as np
from cuda_captures import device, driver, mirrors
from cuda_captures.errors import CaptureError

def use():
    driver.calls.context_push(driver.calls.primary_retain(0))

def send(array, policy="live"):
    mirror = mirrors.acquire(array, 0, policy=policy)
    mirror.refresh(0)
    mirror.used(0, None)
    return mirror
"""


def test_a_process_may_end_at_any_moment() -> None:
    run("use(); array = np.zeros(1 << 20); mirror = send(array); mapped = send(array, 'mapped')")
    run("use(); cycle = [np.zeros(1 << 20)]; cycle += [send(cycle[0]), cycle]")
    run("use(); array = np.zeros(1 << 25); send(array); array[:] = 1; mirror = send(array); sys.exit()")


def test_after_the_context_is_closed_everything_is_made_anew() -> None:
    run(
        """
from cuda.bindings import driver as binding
use()
array = np.zeros(1 << 20)
mirror, mapped = send(array), send(np.zeros(1 << 20), "mapped")
first = device.current().id
assert binding.cuDevicePrimaryCtxReset(0)[0] == 0
driver.calls.context_pop()
use()
assert device.current().id != first, "the driver gives a new context the identifier of an old one"
array[0] = 1
mirror.refresh(0)
assert mirror.superseded
keep = device.DeviceBuffer(array.nbytes)
again = send(array)
del mirror, mapped
gc.collect()
out = np.zeros_like(array)
assert binding.cuMemcpyDtoH(out.ctypes.data, again.address_of(array), array.nbytes)[0] == 0
assert out[0] == 1
"""
    )


def test_a_child_forked_after_cuda_was_used_is_told() -> None:
    run(
        """
use()
array = np.zeros(1 << 20)
mirror = send(array)
if os.fork() == 0:
    try:
        mirrors.acquire(array, 0)
    except CaptureError as error:
        code = 0 if "forked" in str(error) else 3
    else:
        code = 4
    del mirror
    gc.collect()
    os._exit(code)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
array[0] = 1
send(array)
"""
    )


def test_a_child_forked_before_cuda_is_used_works() -> None:
    run(
        """
if os.fork() == 0:
    use()
    mirror = send(np.zeros(1 << 20))
    os._exit(0 if mirror.nbytes else 1)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
use()
send(np.zeros(1 << 20))
"""
    )
