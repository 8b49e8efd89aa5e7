"""A GPU without a compiler: streams that can be held up, and a look at what the device holds.

Instead of a kernel, a copy from device memory to device memory reads what a kernel would read, in stream order; and
instead of a kernel that runs long, the stream waits for a word of host memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np

from cuda_captures import device, driver
from cuda_captures.extents import extent
from cuda_captures.mirrors import LAUNCH_LOCK, acquire

Array = np.ndarray[Any, Any]


class Gate:
    """A word of page-locked memory that streams wait for."""

    def __init__(self, binding: Any) -> None:
        self._binding = binding
        self._address = driver.calls.host_alloc(8)
        self._word = ctypes.c_uint32.from_address(self._address)
        self._word.value = 0

    def hold(self, stream: int) -> None:
        """What is enqueued on a stream from now on waits until the gate is opened."""
        (code,) = self._binding.cuStreamWaitValue32(stream, self._address, 1, 1)  # CU_STREAM_WAIT_VALUE_EQ
        assert code == 0, code

    def open(self) -> None:
        self._word.value = 1


class Probe:
    """What a launch saw of an array."""

    def __init__(self, gpu: Gpu, array: Array, mirror: Any, stream: int) -> None:
        self._array, self._stream = array, stream
        self.mirror = mirror
        low, high = extent(array)
        self._first = int(array.__array_interface__["data"][0]) - low
        self._buffer = device.DeviceBuffer(max(high - low, 1))
        self._expected = array.copy()
        self._gpu = gpu
        gpu.copy(self._buffer.address, mirror.address_of(array) - self._first, high - low, stream)

    def seen(self) -> Array:
        driver.calls.stream_synchronize(self._stream)
        content = np.frombuffer(self._gpu.read(self._buffer.address, self._buffer.nbytes), np.uint8)
        return np.ndarray(self._array.shape, self._array.dtype, content, self._first, self._array.strides)

    def check(self) -> None:
        """The launch saw what the array was when it was made."""
        np.testing.assert_array_equal(self.seen(), self._expected)


class Gpu:
    """One device with its primary context current.

    Attributes
    ----------
    kept
        The copies that launches used, as a kernel would keep them.
    """

    def __init__(self, ordinal: int = 0) -> None:
        from cuda.bindings import driver as binding

        self.binding = binding
        self.ordinal = ordinal
        self.kept: set[Any] = set()

    def stream(self) -> int:
        return int(driver.calls.stream_create())

    def gate(self) -> Gate:
        return Gate(self.binding)

    def call(self, name: str, *arguments: Any) -> Any:
        """Any other call of the driver."""
        code, *values = getattr(self.binding, name)(*arguments)
        assert code == 0, (name, code)
        return values[0] if len(values) == 1 else values

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        if nbytes:
            self.call("cuMemcpyDtoDAsync", target, source, nbytes, stream)

    def read(self, address: int, nbytes: int) -> bytes:
        content = np.empty(nbytes, np.uint8)
        self.call("cuMemcpyDtoH", content.ctypes.data, address, nbytes)
        return content.tobytes()

    def fill(self, address: int, byte: int, nbytes: int, stream: int) -> None:
        """A kernel that writes."""
        self.call("cuMemsetD8Async", address, byte, nbytes, stream)

    def free_bytes(self) -> int:
        return int(self.call("cuMemGetInfo")[0])

    def launch(self, array: Array, stream: int = 0, owner: Any = None, policy: str = "live") -> Probe:
        """As a backend launches a kernel that reads an array."""
        while True:
            with LAUNCH_LOCK:
                mirror = acquire(array, self.ordinal, policy=policy)
                mirror.refresh(stream)
                if not mirror.superseded:
                    probe = Probe(self, array, mirror, stream)
                    mirror.used(stream, owner)
                    self.kept.add(mirror)
                    return probe


def gpus(ordinal: int = 0) -> Iterator[Gpu]:
    """For a fixture: a device whose primary context is current."""
    handle = driver.calls.primary_retain(ordinal)
    driver.calls.context_push(handle)
    gpu = Gpu(ordinal)
    try:
        yield gpu
    finally:
        gpu.kept.clear()
        driver.calls.context_synchronize()
        driver.calls.context_pop()
        driver.calls.primary_release(ordinal)
