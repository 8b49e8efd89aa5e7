"""Random edits, launches and rebindings: every kernel sees the array as it was at its launch."""

from __future__ import annotations

import gc
from contextlib import suppress
from typing import Any

import numpy as np
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from copies_in_memory import Kernel, install
from cuda_captures.driver import DriverError
from memory_driver import MemoryDriver


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
TestLaunchesAndEdits.settings = hypothesis_settings(max_examples=100, stateful_step_count=30, deadline=None)
