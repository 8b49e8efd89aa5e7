"""How fast NumPy arrays get to the device and back, and what a launch pays when little or nothing was edited.

    python -m benchmarks.upload [--megabytes 1 16 256 1024] [--repeat 7] [--block 4] [--threads 8]

Every rate there is the best of some repetitions, in GB/s; figures of :func:`upload` are medians.  ``page-locked`` is a
plain copy of memory that is page-locked already: what the bus can do.  ``staged`` is what this package does.
``registered`` page-locks the array itself for the time of the copy, ``pageable`` leaves it to the driver.  A launch
may return only when the array may be edited again, so all but ``page-locked`` end there; the bytes are on the device
in all four.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.timing import Figure, compared
from cuda_captures import driver, mirrors, staging
from cuda_captures.device import DeviceBuffer, current
from cuda_captures.mirrors import LAUNCH_LOCK

PAGE_LOCKED, TO_HOST = "page-locked", ", to the host"


def seconds(work: Callable[[], object], repeat: int) -> list[float]:
    """What each of some runs takes."""
    taken = []
    for _ in range(repeat):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return taken


def transfers(nbytes: int, repeat: int) -> dict[str, list[float]]:
    """Seconds of each run of each way to copy an array of ones."""
    from cuda.bindings import driver as binding

    array = np.ones(nbytes, np.uint8)
    source = int(array.ctypes.data)
    target = DeviceBuffer(nbytes)
    calls, context = driver.calls, current()
    stage = staging.staging(context)
    stream = context.stream

    def page_locked(direction: str) -> list[float]:
        calls.host_register(source, nbytes)
        try:
            return seconds(lambda: (copy(direction), calls.stream_synchronize(stream)), repeat)
        finally:
            calls.host_unregister(source)

    def copy(direction: str) -> None:
        if direction == "up":
            calls.copy_to_device(target.address, source, nbytes, stream)
        else:
            calls.copy_to_host(source, target.address, nbytes, stream)

    def registered() -> None:
        calls.host_register(source, nbytes)
        copy("up")
        calls.stream_synchronize(stream)
        calls.host_unregister(source)

    def staged() -> None:
        stage.upload(target.address, source, [(0, nbytes)], stream, lambda offset, data: None)
        calls.stream_synchronize(stream)

    taken = seconds(staged, repeat)
    returned = []
    for _ in range(repeat):
        begin = time.perf_counter()
        stage.upload(target.address, source, [(0, nbytes)], stream, lambda offset, data: None)
        returned.append(time.perf_counter() - begin)
        calls.stream_synchronize(stream)
    pageable = seconds(lambda: binding.cuMemcpyHtoD(target.address, source, nbytes), repeat)
    return {
        "staged": taken,
        "staged, till the call returns": returned,
        "registered": seconds(registered, repeat),
        "pageable": pageable,
        f"staged{TO_HOST}": seconds(lambda: stage.download(target.address, source, nbytes, stream), repeat),
        PAGE_LOCKED: page_locked("up"),
        f"{PAGE_LOCKED}{TO_HOST}": page_locked("down"),
    }


def upload(cuda: Any, quick: bool) -> list[Figure]:
    """Copies of NumPy arrays to the device and back, against what the bus can do."""
    cuda.to_device(np.zeros(1))  # makes a context current
    figures = []
    for megabytes in (1, 16) if quick else (1, 16, 256, 1024):
        nbytes = megabytes << 20
        found = transfers(nbytes, 5 if quick else 9)
        notes = {way: f"{nbytes / statistics.median(taken) / 1e9:.1f} GB/s" for way, taken in found.items()}
        times = {way: [one * 1e6 for one in taken] for way, taken in found.items()}
        up = {way: taken for way, taken in times.items() if not way.endswith(TO_HOST)}
        down = {way: taken for way, taken in times.items() if way.endswith(TO_HOST)}
        figures += compared(f"upload of {megabytes:,} MiB", up, PAGE_LOCKED, notes=notes)
        figures += compared(f"copy back of {megabytes:,} MiB", down, f"{PAGE_LOCKED}{TO_HOST}", notes=notes)
    return figures


def launches(nbytes: int) -> dict[str, float]:
    """Microseconds that a launch pays for one captured array, without the launch itself."""
    array = np.ones(nbytes // 8)
    mirror = mirrors.acquire(array, current().device)
    stream = driver.calls.stream_create()
    owner = object()
    count = 300

    def launch() -> None:
        with LAUNCH_LOCK:
            mirror.refresh(stream)
            mirror.used(stream, owner)

    begin = time.perf_counter()
    launch()
    first = time.perf_counter() - begin
    driver.calls.stream_synchronize(stream)
    launch()
    clean, edited = [], []
    for number in range(count):
        begin = time.perf_counter()
        launch()
        clean.append(time.perf_counter() - begin)
        array[number * 7919 % array.size] += 1
        begin = time.perf_counter()
        launch()
        edited.append(time.perf_counter() - begin)
        driver.calls.stream_synchronize(stream)
    return {
        "first": first * 1e6,
        "nothing edited": float(np.median(clean)) * 1e6,
        "one element edited": float(np.median(edited)) * 1e6,
        "way": mirror.way,  # type: ignore[dict-item]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, nargs="+", default=[1, 16, 256, 1024])
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--block", type=int, default=staging.LARGE >> 20, help="MiB of a block")
    parser.add_argument("--threads", type=int, default=staging.FILLERS, help="that fill blocks")
    options = parser.parse_args()
    staging.LARGE, staging.FILLERS = options.block << 20, options.threads
    context = driver.calls.primary_retain(0)
    driver.calls.context_push(context)
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"{cpus} CPUs, {staging.FILLERS} filling threads at most, blocks of {staging.LARGE >> 20} MiB")
    for megabytes in options.megabytes:
        print(f"\n{megabytes:,} MiB")
        found = transfers(megabytes << 20, options.repeat)
        rates = {name: (megabytes << 20) / min(taken) / 1e9 for name, taken in found.items()}
        for name, rate in rates.items():
            best = rates[f"{PAGE_LOCKED}{TO_HOST}" if name.endswith(TO_HOST) else PAGE_LOCKED]
            print(f"  {name:32} {rate:7.1f} GB/s {rate / best:7.0%} of page-locked")
        for name, value in launches(megabytes << 20).items():
            print(f"  launch, {name:24} {value if isinstance(value, str) else f'{value:10.1f} us'}")


if __name__ == "__main__":
    main()
