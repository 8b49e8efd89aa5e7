"""Every driver call of a launch fails once, and from then on, on the driver in memory."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import needs_a_compiler
from cuda_captures import arena, mirrors
from cuda_captures.staging import Staging
from faults import SITUATIONS, Faults, fail_each, faulty
from memory_driver import MemoryDriver
from stress_in_memory import Memory

pytestmark = [
    pytest.mark.filterwarnings("ignore::cuda_captures.CapturePerformanceWarning"),
    needs_a_compiler,  # whose module kernels name
]


@pytest.fixture
def faults(fake: MemoryDriver) -> Iterator[Faults]:
    with faulty(Faults()) as made:
        yield made


# What a launch in each situation calls; and what it calls where earlier copies are still on their way.
ALWAYS = ("context_id", "capture_mode", "pointer_attribute", "copy_to_device", "event_create", "event_record")
NEW = ("mem_alloc", "stream_capturing", "host_alloc", "context_device", "context_handle")
CALLS: dict[str, tuple[str, ...]] = {
    "first": (*ALWAYS, *NEW),
    "sibling": (*ALWAYS, *NEW),
    "rebound": (*ALWAYS, *NEW[:2]),
    "rebound_often": (*ALWAYS, *NEW[:2]),
    "edited": (*ALWAYS, "stream_wait"),
    "mapped": (*ALWAYS, *NEW, "host_register", "host_device_pointer"),
}
WAITING = ("event_done", "event_synchronize", "stream_wait")


@pytest.mark.parametrize("situation", SITUATIONS)
def test_these_are_all_calls(fake: MemoryDriver, faults: Faults, situation: str) -> None:
    case = SITUATIONS[situation](Memory(fake))
    faults.met.clear()
    case._launch(case._output)
    maybe = {*WAITING, "host_alloc", "event_create"}  # if there are page-locked memory and events of earlier launches
    assert set(faults.met) - maybe == set(CALLS[situation]) - maybe
    case.check(case.launch())


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize(("situation", "call"), [(one, call) for one in CALLS for call in CALLS[one]])
def test_a_launch_works_once_the_failure_is_over(
    fake: MemoryDriver, faults: Faults, monkeypatch: pytest.MonkeyPatch, situation: str, call: str, lasting: bool
) -> None:
    if call == "mem_alloc":
        monkeypatch.setattr(arena, "LARGEST", 0)  # each copy has an allocation to itself
    if not fail_each(Memory(fake), faults, situation, call, lasting):
        # An event of an earlier launch is used again if it is back by then, which is up to the collector.
        assert call == "event_create"
        assert situation != "first"


@pytest.mark.parametrize("call", WAITING)
def test_waiting_fails(fake: MemoryDriver, faults: Faults, call: str) -> None:
    assert sum(fail_each(Memory(fake), faults, situation, call, False) for situation in SITUATIONS)


def test_a_copy_that_is_taken_for_sent_is_found(
    fake: MemoryDriver, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Staging.upload

    def hasty(self: Any, target: int, source: int, segments: Any, stream: int, sent: Any) -> Any:
        segments = list(segments)
        for offset, size in segments:
            sent(offset, memoryview(ctypes.string_at(source + offset, size)))
        return real(self, target, source, segments, stream, lambda offset, data: None)

    monkeypatch.setattr(Staging, "upload", hasty)
    with pytest.raises(AssertionError, match="not equal"):
        fail_each(Memory(fake), faults, "edited", "copy_to_device", False)


def test_what_stays_of_a_launch_that_failed_is_found(
    fake: MemoryDriver, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena, "LARGEST", 0)
    real, kept = mirrors.acquire, []

    def keeping(*args: Any, **kwargs: Any) -> Any:
        kept.append(real(*args, **kwargs))
        return kept[-1]

    monkeypatch.setattr(mirrors, "acquire", keeping)
    with pytest.raises(AssertionError):
        fail_each(Memory(fake), faults, "first", "mem_alloc", True)
