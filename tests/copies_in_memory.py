"""Launches on a driver that lives in memory: each kernel compares what it sees with what the array was."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np

from cuda_captures import arena, device, driver, mirrors, staging
from cuda_captures.extents import extent
from cuda_captures.instances import IN_GRAPHS
from cuda_captures.mirrors import LAUNCH_LOCK, acquire
from memory_driver import MemoryDriver


def in_memory(**options: Any) -> Iterator[MemoryDriver]:
    fake = MemoryDriver(**options)
    before = install(fake)
    try:
        yield fake
    finally:
        fake.streams.clear()  # the kernels that were launched hold what they use
        IN_GRAPHS.clear()
        gc.collect()
        install(before)


def install(table: Any) -> Any:
    before = driver.calls
    mirrors._shelves.clear()
    device._contexts.clear()
    staging._stagings.clear()
    arena._arenas.clear()
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


def kernels(fake: MemoryDriver) -> Iterator[Kernel]:
    """For a fixture: something to launch, and every kernel is executed and right at the end."""
    kernel = Kernel(fake)
    yield kernel
    fake.finish()
    assert not kernel.wrong
