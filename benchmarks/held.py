"""What kernels hold: memory of the device and of the host, for each kernel and each module instance."""

from __future__ import annotations

import gc
import itertools
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import cuda_captures
from benchmarks.factory import reading
from benchmarks.timing import Figure
from benchmarks.versions import captures_off

_numbers = itertools.count(time.time_ns() % 1_000_000_000 * 10_000)


def device_bytes() -> int:
    """Memory of the device that is in use."""
    from cuda.bindings import driver

    _, free, total = driver.cuMemGetInfo()
    return int(total) - int(free)


def host_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def copies() -> int:
    """Bytes of the device copies of captured arrays."""
    return sum(copy.nbytes for copy in cuda_captures.memory())


MEASURES: dict[str, Callable[[], int]] = {"device": device_bytes, "copies": copies, "host": host_bytes}


def held(cuda: Any, quick: bool) -> list[Figure]:
    """Bytes held for each of many kernels, and left when they are gone."""
    count = 100 if quick else 500
    out, one = cuda.to_device(np.zeros(4)), np.ones(4)
    megabyte = np.ones(131_072)

    def upstream() -> Any:
        number = next(_numbers)

        @cuda.jit
        def kernel(out):
            i = cuda.grid(1)
            if i < out.size:
                out[i] = number

        return kernel

    def growth(version: str, count: int, make: Callable[[], Any]) -> list[Figure]:
        for _ in range(2):
            make()[1, 32](out)  # what is needed once, whatever the number
        cuda.synchronize()
        gc.collect()
        before = {name: measure() for name, measure in MEASURES.items()}
        kernels = []
        for _ in range(count):
            kernel = make()
            kernel[1, 32](out)
            kernels.append(kernel)
        cuda.synchronize()
        during = {name: measure() for name, measure in MEASURES.items()}
        del kernels, kernel
        gc.collect()
        after = {name: measure() for name, measure in MEASURES.items()}
        note = f"of {count} kernels"
        return [
            figure
            for name in MEASURES
            for figure in (
                Figure(f"held per kernel, {name}", version, (during[name] - before[name]) / count, unit="B", note=note),
                Figure(f"left per kernel, {name}", version, (after[name] - before[name]) / count, unit="B", note=note),
            )
        ]

    figures = growth("one table", count, lambda: reading(cuda, one))
    figures += growth("a table of 1 MB each", count, lambda: reading(cuda, megabyte.copy()))
    with captures_off():
        figures += growth("upstream, compiled each", 10 if quick else 50, upstream)
    return [*figures, *instances(cuda, quick)]


def instances(cuda: Any, quick: bool) -> list[Figure]:
    """Device memory of a module instance: kernels that have the same code, each bound to an array of its own."""
    count = 200 if quick else 2000
    tables = [cuda.to_device(np.zeros(4)) for _ in range(count)]

    def bound(table: Any) -> Any:
        @cuda.jit
        def kernel():
            if cuda.grid(1) < 0:
                table[0] = table[1]

        kernel[1, 32]()
        return kernel

    first = bound(tables[0])
    cuda.synchronize()
    before = device_bytes()
    kernels = [bound(table) for table in tables[1:]]
    cuda.synchronize()
    per_instance = (device_bytes() - before) / len(kernels)
    del first, kernels
    return [Figure("module instance", "device", per_instance, unit="B", note=f"of {count - 1} instances")]
