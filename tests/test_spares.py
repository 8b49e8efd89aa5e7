"""Which modules go round, and what a launch on another stream waits for; on a driver in memory."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

from cuda_captures import device, driver
from cuda_captures.device import DeviceBuffer, enqueue_symbols
from cuda_captures.instances import IN_GRAPHS, Instance
from cuda_captures.spares import KEPT, Spares
from memory_driver import MemoryDriver

STREAM = 5


def instance(spares: Spares, code: Any, context: Any, filled: Any = None) -> Instance:
    variant: Any = SimpleNamespace(code=code)
    return Instance(context, variant, object(), (), (), (), (), (), lambda: True, spares=spares, filled=filled)


def test_a_module_is_kept_once_nobody_holds_its_instance() -> None:
    spares, code, context = Spares(), object(), object()
    one = instance(spares, code, context)
    launchable, in_a_launch = one.launchable, one
    del one
    assert spares.take(context, code) is None
    del in_a_launch
    assert spares.take(object(), code) is None
    assert spares.take(context, object()) is None
    assert spares.take(context, code) is launchable
    assert spares.take(context, code) is None


def test_no_more_are_kept_than_can_be_needed() -> None:
    spares, code, context = Spares(), object(), object()
    many = [instance(spares, code, context) for _ in range(KEPT + 3)]
    many.clear()
    taken = [spares.take(context, code) for _ in range(KEPT + 1)]
    assert None not in taken[:KEPT]
    assert taken[KEPT] is None


def test_what_was_launched_on_another_stream_is_not_kept(fake: MemoryDriver) -> None:
    spares, code, context = Spares(), object(), object()
    one = instance(spares, code, context)
    one.launched_elsewhere(STREAM)
    del one
    gc.collect()
    assert spares.take(context, code) is None


def test_another_stream_comes_after_the_slots_were_filled(fake: MemoryDriver) -> None:
    slot = DeviceBuffer(8)
    fake.write(slot.address, b"old slot")
    enqueue_symbols([(slot.address, b"new slot")], 0)
    one = instance(Spares(), object(), object(), device.current().record(0))
    seen: list[bytes] = []
    one.launched_elsewhere(STREAM)
    fake.launch(STREAM, lambda: seen.append(fake.read(slot.address, 8)))
    driver.calls.stream_synchronize(STREAM)
    assert seen == [b"new slot"]
    one.launched_elsewhere(STREAM)
    assert one.filled is None  # nothing to wait for any more


def test_a_graph_is_not_made_to_wait(fake: MemoryDriver) -> None:
    slot = DeviceBuffer(8)
    enqueue_symbols([(slot.address, b"new slot")], 0)
    one = instance(Spares(), object(), object(), device.current().record(0))
    fake.capturing.add(STREAM)
    one.launched_elsewhere(STREAM)
    one.launched_elsewhere(STREAM)
    assert fake.read(slot.address, 8) == b"new slot"
    assert [kept for kept in IN_GRAPHS if kept is one] == [one]  # a replay may come when the kernel is gone
    IN_GRAPHS.remove(one)
    assert STREAM in fake.capturing
    assert fake.calls["stream_wait"] == 0
