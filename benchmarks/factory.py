"""Kernel factories, in a process where nothing else happens: ``python -m benchmarks.factory MODULE COUNT``.

Each kernel has a table of 1 MB of its own; the upload is taken out of the times.  First kernels are made and launched,
and all kept; then fewer are taken through the steps of a launch one by one.
"""

from __future__ import annotations

import functools
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.timing import Figure, compared

WHOLE, STEPS = "in all", ("decorator", "configure", "bind", "launch")
WARM = 20  # kernels before the first that counts: page-locked memory is made, and what Python does once


class Uploading:
    """Time that uploads take, while it is watched."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def watch(self) -> None:
        from cuda_captures import copies

        send = copies.Mirror._send

        def timed(mirror: Any, *arguments: Any) -> None:
            begin = time.perf_counter()
            send(mirror, *arguments)
            self.seconds += time.perf_counter() - begin

        copies.Mirror._send = timed  # type: ignore[method-assign]

    def without(self, call: Callable[[], Any]) -> tuple[Any, float]:
        """What a call gives, and the microseconds that it took without uploads."""
        before, begin = self.seconds, time.perf_counter()
        result = call()
        taken = time.perf_counter() - begin
        return result, (taken - (self.seconds - before)) * 1e6


def reading(cuda: Any, table: Any) -> Any:
    """``kernel(out)``, which copies a captured array."""

    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = table[i]

    return kernel


def main() -> None:
    """Print the times of a run, as JSON."""
    import cuda_captures

    cuda: Any = importlib.import_module(sys.argv[1])
    cuda_captures.enable()

    make = functools.partial(reading, cuda)
    out = cuda.to_device(np.zeros(4))
    uploading, times, kept = Uploading(), {name: [] for name in (WHOLE, *STEPS)}, []
    uploading.watch()
    first = np.zeros(131_072)
    kept.append((make(first), first))
    _, compiled = uploading.without(lambda: kept[0][0][1, 32](out))
    for number in range(WARM + int(sys.argv[2])):
        table = np.full(131_072, float(number))

        def launched(table: Any = table) -> Any:
            kernel = make(table)
            kernel[1, 32](out)
            return kernel

        kernel, taken = uploading.without(launched)
        if number >= WARM:
            times[WHOLE].append(taken)
        kept.append((kernel, table))
    for number in range(int(sys.argv[2]) // 5):
        table = np.full(131_072, float(number))
        kernel, decorated = uploading.without(lambda table=table: make(table))
        configured, configuring = uploading.without(lambda kernel=kernel: kernel[1, 32])
        _, binding = uploading.without(lambda configured=configured: cuda_captures.bind(configured, out))
        _, launching = uploading.without(lambda configured=configured: configured(out))
        for step, taken in zip(STEPS, (decorated, configuring, binding, launching), strict=True):
            times[step].append(taken)
        kept.append((kernel, table))
    cuda.synchronize()
    keys = {cuda_captures.report(kernel).specialisations[0].key for kernel, _ in kept[::20]}
    print(json.dumps({"first": compiled, "compilations": len(keys), "times": times}))


def factory(cuda: Any, quick: bool) -> list[Figure]:
    """Time from a factory's call to a launched kernel, each with a table of its own, and of its steps."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.factory", module_of(cuda), str(200 if quick else 1000)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found = json.loads(done.stdout.splitlines()[-1])
    times: dict[str, list[float]] = found["times"]
    notes = {name: f"mean {np.mean(values):.1f} us" for name, values in times.items()}
    notes[WHOLE] += f", {found['compilations']} compilation(s)"
    first = Figure(
        "factory", "the first, which compiles", found["first"], ratio=found["first"] / np.median(times[WHOLE])
    )
    return [*compared("factory", times, WHOLE, notes=notes), first]


def module_of(cuda: Any) -> str:
    """The name that imports the compiler's module ``cuda``."""
    return "numba.cuda" if cuda.__name__.startswith("numba.") else "numba_cuda_mlir.cuda"


if __name__ == "__main__":
    main()
