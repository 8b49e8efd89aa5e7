"""Which modules go round, and what a launch on another stream waits for; on a driver in memory."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

from cuda_captures import device, driver
from cuda_captures.device import DeviceBuffer
from cuda_captures.instances import IN_GRAPHS, Instance
from cuda_captures.spares import KEPT, Spares, spares_of
from cuda_captures.symbols import enqueue_symbols
from memory_driver import MemoryDriver

STREAM = 5


class Module:
    """A loaded module, which knows its code."""

    apart = None

    def __init__(self, code: Any) -> None:
        self.code = code


def instance(spares: Spares, context: Any, filled: Any = None, apart: Any = None) -> Instance:
    variant: Any = SimpleNamespace()
    loaded = SimpleNamespace(apart=apart)
    return Instance(context, variant, loaded, (), (), (), (), (), lambda: True, spares=spares, filled=filled)


def test_a_module_is_kept_once_nobody_holds_its_instance() -> None:
    spares, context = Spares(), object()
    one = instance(spares, context, apart="a")
    launchable, in_a_launch = one.launchable, one
    del one
    assert spares.take(context, "a") is None
    del in_a_launch
    assert spares.take(object(), "a") is None
    assert spares.take(context, "b") is None
    assert spares.take(context, "a") is launchable
    assert spares.take(context, "a") is None


def test_code_has_spares_as_long_as_somebody_uses_it() -> None:
    code, other, context = SimpleNamespace(), SimpleNamespace(), object()
    spares = spares_of(code)
    assert spares_of(code) is spares
    assert spares_of(other) is not spares
    loaded = Module(code)
    gone = weakref.ref(loaded)
    spares.give(context, loaded)
    del loaded, spares
    assert gone() is None  # at once, not when the garbage collector comes by


def test_no_more_are_kept_than_can_be_needed() -> None:
    spares, context = Spares(), object()
    many = [instance(spares, context) for _ in range(KEPT + 3)]
    many.clear()
    taken = [spares.take(context, None) for _ in range(KEPT + 1)]
    assert None not in taken[:KEPT]
    assert taken[KEPT] is None


def test_what_was_launched_on_another_stream_is_not_kept(fake: MemoryDriver) -> None:
    spares, context = Spares(), object()
    one = instance(spares, context)
    one.launched_elsewhere(STREAM)
    del one
    gc.collect()
    assert spares.take(context, None) is None


def test_another_stream_comes_after_the_slots_were_filled(fake: MemoryDriver) -> None:
    slot = DeviceBuffer(8)
    fake.write(slot.address, b"old slot")
    enqueue_symbols([(slot.address, b"new slot")], 0)
    one = instance(Spares(), object(), device.current().record(0))
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
    one = instance(Spares(), object(), device.current().record(0))
    fake.capturing.add(STREAM)
    one.launched_elsewhere(STREAM)
    one.launched_elsewhere(STREAM)
    assert fake.read(slot.address, 8) == b"new slot"
    assert [kept for kept in IN_GRAPHS if kept is one] == [one]  # a replay may come when the kernel is gone
    IN_GRAPHS.remove(one)
    assert STREAM in fake.capturing
    assert fake.calls["stream_wait"] == 0
