"""Launches that fail at any point, and those that find their copies replaced; on a driver in memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from copies_in_memory import in_memory
from cuda_captures.errors import CaptureError, CaptureTypingError
from cuda_captures.extents import extent
from kernels_in_memory import Kernel, written
from memory_driver import MemoryDriver

TABLE = "def kernel():\n    table[0] = 1\n"
TWO = "def kernel():\n    table[0] = other[0] = 1\n"
STREAM = 5


@pytest.fixture
def fake() -> Iterator[MemoryDriver]:
    for made in in_memory():
        made.use(0)
        yield made


def on_device(fake: MemoryDriver, kernel: Kernel, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What a launch would read now."""
    (copy,) = (one for one in kernel.instance.copies if one.covers(extent(array)))
    fake.finish()
    return np.frombuffer(fake.read(copy.address_of(array), array.nbytes), array.dtype)


def writing(fake: MemoryDriver, kernel: Kernel, value: float, *arrays: np.ndarray[Any, Any], stream: int = 0) -> Any:
    """What a kernel does that writes all elements of some arrays."""

    def run() -> None:
        for array in arrays:
            (copy,) = (one for one in kernel.instance.copies if one.covers(extent(array)))
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
