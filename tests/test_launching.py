"""Launches that fail at any point, and those that find their copies replaced; on a driver in memory."""

from __future__ import annotations

import contextlib
import gc
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest

import cuda_captures
from cuda_captures.binding import INSTANCES
from cuda_captures.driver import DriverError
from cuda_captures.errors import CaptureError, CaptureTypingError
from cuda_captures.extents import extent
from cuda_captures.staging import LARGE_LIMIT
from kernels_in_memory import Kernel, Loaded, written
from memory_driver import MemoryDriver

TABLE = "def kernel():\n    table[0] = 1\n"
TWO = "def kernel():\n    table[0] = other[0] = 1\n"
STREAM = 5


def on_device(fake: MemoryDriver, kernel: Kernel, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What a launch would read now."""
    (copy,) = (one for one in kernel.copies if one.covers(extent(array)))
    fake.finish()
    return np.frombuffer(fake.read(copy.address_of(array), array.nbytes), array.dtype)


def writing(fake: MemoryDriver, kernel: Kernel, value: float, *arrays: np.ndarray[Any, Any], stream: int = 0) -> Any:
    """What a kernel does that writes all elements of some arrays."""

    def run() -> None:
        for array in arrays:
            (copy,) = (one for one in kernel.copies if one.covers(extent(array)))
            data = np.full(array.shape, value).tobytes()
            fake.launch(stream, partial(fake.write, copy.address_of(array), data))

    return run


def broken() -> None:
    raise ValueError("too many threads in a block")


def test_an_edit_after_a_launch_that_was_refused_stays(fake: MemoryDriver) -> None:
    table = np.zeros(4)
    kernel = Kernel(written(TABLE, table=table), ["table"])
    kernel.launch()
    with pytest.raises(ValueError, match="too many"):
        kernel.launch(run=broken)
    table[:] = 7
    kernel.launch()
    assert (table == 7).all()
    assert (on_device(fake, kernel, table) == 7).all()


def test_what_a_launch_wrote_in_spite_of_an_exception_is_given_up(fake: MemoryDriver) -> None:
    table = np.zeros(4)
    kernel = Kernel(written(TABLE, table=table), ["table"])
    kernel.launch()
    write = writing(fake, kernel, 3.0, table)

    def interrupted() -> None:
        write()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kernel.launch(run=interrupted)
    kernel.launch()
    assert (table == 0).all()
    assert (on_device(fake, kernel, table) == 0).all()


def test_what_was_written_to_a_read_only_array_is_lost_on_the_device_too(fake: MemoryDriver) -> None:
    table, other = np.zeros(4), np.zeros(4)
    kernel = Kernel(written(TWO, table=table, other=other), ["table", "other"])
    kernel.launch()
    write = writing(fake, kernel, 3.0, table, other)

    def freeze() -> None:
        write()
        table.flags.writeable = False

    with pytest.raises(CaptureTypingError, match="made read-only"):
        kernel.launch(run=freeze)
    assert (other == 3).all()  # one array does not keep another from coming home
    table.flags.writeable = True
    kernel.launch()
    assert (table == 0).all()
    assert (on_device(fake, kernel, table) == 0).all()
    table[:] = 7
    kernel.launch()
    assert (table == 7).all()
    assert (on_device(fake, kernel, table) == 7).all()


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("call", ["copy_to_host", "event_record", "event_synchronize", "stream_synchronize"])
def test_host_and_device_agree_after_a_failure_on_the_way_home(fake: MemoryDriver, call: str, number: int) -> None:
    table = np.zeros(4)
    kernel = Kernel(written(TABLE, table=table), ["table"])
    kernel.launch()
    write = writing(fake, kernel, 3.0, table)

    def run() -> None:
        write()
        fake.fail(call, number)

    failed = []
    try:
        kernel.launch(run=run)
    except CaptureError as error:
        failed.append(error)
    assert failed or (table == 3).all()
    fake.failures.clear()
    kernel.launch()
    assert (on_device(fake, kernel, table) == table).all()
    table[:] = 7
    kernel.launch()
    assert (table == 7).all()
    assert (on_device(fake, kernel, table) == 7).all()


def test_a_launch_on_another_stream_that_finds_its_copy_replaced_leaves_no_spare_module(fake: MemoryDriver) -> None:
    root = np.zeros(1 << 20)
    function = written(TABLE, table=root[:100])
    kernel = Kernel(function)
    kernel.launch(STREAM)
    Kernel(written(TABLE, table=root)).launch()  # one copy for both from now on
    kernel.launch(STREAM)
    assert kernel.instance.elsewhere
    assert not kernel.instance.copies[0].superseded


def test_binding_finds_its_copy_replaced(fake: MemoryDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    root = np.zeros(1 << 20)
    kernel, whole = Kernel(written(TABLE, table=root[:100])), Kernel(written(TABLE, table=root))
    kernel.launch()
    rebind = kernel.follower.rebind

    def while_another_thread_launches(*arguments: Any) -> Any:
        instance = rebind(*arguments)
        if instance.copies[0].nbytes < root.nbytes:
            whole.launch()
        return instance

    monkeypatch.setattr(kernel.follower, "rebind", while_another_thread_launches)
    kernel.bind()
    assert kernel.instance.copies == whole.instance.copies


def test_memory_of_what_was_bound_and_never_launched_goes_with_the_array(fake: MemoryDriver) -> None:
    function = written(TABLE, table=np.zeros(100_000))
    kernel = Kernel(function)
    kernel.bind()
    held = fake.held()
    del function.__globals__["table"]
    assert held - fake.held() >= 800_000
    assert kernel.instance


def test_memory_of_a_launch_that_was_not_made_goes_with_the_array(fake: MemoryDriver) -> None:
    function = written(TWO, table=np.zeros(100_000), other=np.zeros(100_000))
    kernel = Kernel(function)
    kernel.launch()
    function.__globals__["table"][0] = function.__globals__["other"][0] = 1
    fake.fail("copy_to_device", 2)
    with pytest.raises(CaptureError, match="copy_to_device"):
        kernel.launch()
    held = fake.held()
    del function.__globals__["table"], function.__globals__["other"]
    assert held - fake.held() >= 1_600_000


class Produced:
    """A device array whose library works on a stream of its own."""

    def __init__(self, address: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (4,),
            "typestr": "<f8",
            "data": (address, False),
            "version": 3,
            "stream": 24,
        }


CALLS = (
    *("mem_alloc", "host_alloc", "host_register", "host_device_pointer", "copy_to_device", "copy_to_host"),
    *("event_create", "event_record", "event_done", "event_synchronize"),
    *("stream_create", "stream_wait", "stream_capturing", "stream_id", "stream_synchronize"),
    *("context_id", "context_device", "context_handle", "pointer_attribute"),
)


@pytest.mark.parametrize("stream", [0, STREAM])
@pytest.mark.parametrize("call", CALLS)
def test_after_a_failure_of_any_call_the_same_launch_works(fake: MemoryDriver, call: str, stream: int) -> None:
    """The n-th call of a kind fails, at the first launch, after edits, after rebinding, with everything there is."""
    for number in (1, 2, 4):
        big, small = np.arange(30_000.0), np.arange(8.0)
        names: dict[str, Any] = {
            "big": big,
            "small": small,
            "still": cuda_captures.snapshot(np.arange(5000.0)),
            "there": cuda_captures.mapped(np.arange(5000.0)),
            "made": Produced(fake.mem_alloc(32)),
        }
        function = written("def kernel():\n    big[0] = small[0] + still[0] + there[0] + made[0]\n", **names)
        kernel, held = Kernel(function, ["big"]), fake.held()
        for step in range(4):
            if step == 1:
                big[5:9000], small[1] = 7, 9
            if step == 2:
                function.__globals__["small"] = small = np.arange(8.0) * 2
                big[7] = 1
            if step == 3:
                function.__globals__["big"] = big = np.ones(30_000)
            before = big.copy()
            fake.fail(call, number)
            with contextlib.suppress(CaptureError):
                kernel.launch(stream)
            fake.failures.clear()
            kernel.launch(stream)
            assert (big == before).all()
            for array in (big, small, names["still"]):
                assert (on_device(fake, kernel, array) == array).all()
        del kernel, function, names, big, small, array
        gc.collect()
        assert fake.held() == held
        assert not fake.registered


@pytest.mark.parametrize("call", ["load", "fill", "refill"])
def test_after_a_failure_to_load_or_fill_the_same_launch_works(
    fake: MemoryDriver, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = written(TABLE, table=np.zeros(4))
    kernel = Kernel(function)
    for _ in range(INSTANCES + 2 if call == "refill" else 0):  # until there is a spare module
        function.__globals__["table"] = np.zeros(4)
        kernel.launch()
    function.__globals__["table"] = table = np.full(4, 2.0)
    owner: Any = kernel.toolchain if call == "load" else Loaded
    failed: list[object] = []

    def failing(*arguments: Any) -> Any:
        failed.append(arguments)
        raise DriverError(call, "CUDA_ERROR_INJECTED")

    with monkeypatch.context() as patch:
        patch.setattr(owner, call, failing)
        with pytest.raises(DriverError):
            kernel.launch()
    assert len(failed) == 1
    kernel.launch()
    (array,) = (reference() for reference in kernel.instance.arrays if reference)
    assert array is table
    assert (on_device(fake, kernel, table) == 2).all()


@pytest.mark.parametrize("numbers", [(1,), (1, 2)])
def test_staging_memory_is_not_used_up_by_failures(fake: MemoryDriver, numbers: tuple[int, ...]) -> None:
    table = np.zeros(1 << 17)
    kernel = Kernel(written(TABLE, table=table))
    kernel.launch()
    for value in range(2 * LARGE_LIMIT):
        table[:] = value
        fake.fail("event_record", *numbers)
        with contextlib.suppress(CaptureError):
            kernel.launch()
    fake.failures.clear()
    table[:] = 5
    launching = threading.Thread(target=kernel.launch, daemon=True)
    launching.start()
    launching.join(20)
    assert not launching.is_alive()
    assert (on_device(fake, kernel, table) == 5).all()


@pytest.mark.parametrize("call", ["host_alloc", "event_record", "mem_alloc"])
def test_a_finalizer_may_launch_a_kernel_in_the_middle_of_another_launch(fake: MemoryDriver, call: str) -> None:
    table, other = np.zeros(4), np.zeros(4)
    kernel, finalizing = (Kernel(written(TABLE, table=one)) for one in (table, other))
    other[:] = 8
    fake.before[call] = finalizing.launch
    launching = threading.Thread(target=kernel.launch, daemon=True)
    launching.start()
    launching.join(20)
    assert not launching.is_alive()
    assert call not in fake.before
    assert (on_device(fake, kernel, table) == table).all()
    assert (on_device(fake, finalizing, other) == 8).all()
