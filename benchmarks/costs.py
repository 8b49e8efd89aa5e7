"""Costs on the host: launching, following, compiling, and what kernels hold.

Each function takes the module ``cuda`` of a compiler and gives figures.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.timing import Figure, compared, host_time, interleaved
from benchmarks.versions import CPP, brief, captures_off, cupy

MEGABYTE = 131_072  # elements of 8 bytes
_numbers = itertools.count(time.time_ns() % 1_000_000_000 * 10_000)  # makes code that nobody compiled before


def capturing(cuda: Any, arrays: list[Any]) -> Any:
    """A kernel that captures some arrays by name and does nothing much."""
    names = [f"a{number}" for number in range(len(arrays))]
    total = " + ".join(f"{name}[0]" for name in names) or "0.0"
    source = f"def kernel():\n    if cuda.grid(1) < 0:\n        OUT[0] = {total}\n"
    namespace: dict[str, Any] = {
        "cuda": cuda,
        "OUT": cuda.to_device(np.zeros(1)),
        **dict(zip(names, arrays, strict=True)),
    }
    if not arrays:
        source = "def kernel():\n    cuda.grid(1)\n"
    exec(source, namespace)
    return cuda.jit(namespace["kernel"])


def launch(cuda: Any, quick: bool) -> list[Figure]:
    """Host time of a launch, by number and kind of captured arrays."""
    repeats, rounds = (200, 5) if quick else (1000, 21)

    def device_arrays(count: int) -> list[Any]:
        return [cuda.to_device(np.zeros(4)) for _ in range(count)]

    kernels = {
        "none": capturing(cuda, []),
        "1 device array": capturing(cuda, device_arrays(1)),
        "8 device arrays": capturing(cuda, device_arrays(8)),
        "64 device arrays": capturing(cuda, device_arrays(64)),
        "live 1 kB": capturing(cuda, [np.zeros(128)]),
        "live 1 MB": capturing(cuda, [np.zeros(MEGABYTE)]),
        "8 live 1 MB": capturing(cuda, [np.zeros(MEGABYTE) for _ in range(8)]),
        "live 1 GB": capturing(cuda, [np.ones(MEGABYTE * (16 if quick else 1024))]),
    }
    calls: dict[str, Callable[[], object]] = {name: kernel[1, 32] for name, kernel in kernels.items()}

    def with_arguments(a, b, c, d, e, f, g, h):
        cuda.grid(1)

    def without():
        cuda.grid(1)

    for call in calls.values():
        call()  # compiled while captures are on, whatever comes then
    eight = device_arrays(8)
    with captures_off():
        upstream, upstream_none = cuda.jit(with_arguments)[1, 32], cuda.jit(without)[1, 32]
        calls["8 arguments, upstream"] = lambda: upstream(*eight)
        calls["none, upstream"] = upstream_none
        times = interleaved({name: host_time(call, repeats, cuda.synchronize) for name, call in calls.items()}, rounds)
    return compared("launch", times, "none")


def edits(cuda: Any, quick: bool) -> list[Figure]:
    """Host time of a launch after one element of a captured array was edited."""
    figures = []
    for nbytes in (1 << 10, 1 << 20, (1 << 24) if quick else (1 << 30)):
        table = np.ones(nbytes // 8)
        kernel = capturing(cuda, [table])[1, 32]
        none = capturing(cuda, [])[1, 32]

        def edited(kernel: Callable[[], None] = kernel, table: np.ndarray = table) -> None:
            table[table.size // 2] += 1
            kernel()

        versions = {
            "no captures": host_time(none, 50, cuda.synchronize),
            "one element edited": host_time(edited, 50, cuda.synchronize),
        }
        figures += compared(f"edit of {nbytes:,} B", interleaved(versions, 5 if quick else 11), "no captures")
    return figures


def rebinding(cuda: Any, quick: bool) -> list[Figure]:
    """Host time of a launch after a name was bound to another array."""
    two = [cuda.to_device(np.zeros(4)) for _ in range(2)]
    many = iter([cuda.to_device(np.zeros(4)) for _ in range(1000)])
    turn = 0

    def following() -> tuple[Any, dict[str, Any]]:
        namespace: dict[str, Any] = {"cuda": cuda, "T": two[0]}
        exec("def kernel():\n    if cuda.grid(1) < 0:\n        T[0] = T[1]\n", namespace)
        return cuda.jit(namespace["kernel"])[1, 32], namespace

    # A kernel each: they would push each other's module instances out.
    kernel, _ = following()
    kernel_seen, names_seen = following()
    kernel_new, names_new = following()

    def seen() -> None:
        nonlocal turn
        turn ^= 1
        names_seen["T"] = two[turn]
        kernel_seen()

    def new() -> None:
        names_new["T"] = next(many)
        kernel_new()

    versions = {
        "none": host_time(kernel, 50, cuda.synchronize),
        "between two seen": host_time(seen, 50, cuda.synchronize),
        "to a new one": host_time(new, 50, cuda.synchronize),
    }
    return compared("rebinding", interleaved(versions, 5 if quick else 11), "none")


def compiling(cuda: Any, quick: bool) -> list[Figure]:
    """Time to compile, by bytes captured, without the upload; and upstream's."""
    rounds = 2 if quick else 5
    times: dict[str, list[float]] = {}

    def compiled(nbytes: int) -> float:
        table, number = np.ones(nbytes // 8), next(_numbers)

        def kernel(out):
            i = cuda.grid(1)
            if i < out.size:
                out[i] = table[i] + number

        begin = time.perf_counter()
        cuda.jit("void(float64[::1])")(kernel)
        return (time.perf_counter() - begin) * 1e6

    for round_ in range(rounds + 1):
        taken = {f"{nbytes:,} B": compiled(nbytes) for nbytes in (128, 65_000, 8 << 20, 128 << 20)}
        with captures_off():
            taken |= {f"{nbytes:,} B, upstream": compiled(nbytes) for nbytes in (128, 65_000)}
        if round_:  # the first round warms the compilers up
            for name, time_taken in taken.items():
                times.setdefault(name, []).append(time_taken)
    return compared("compile", times, "128 B")


def first_launch(cuda: Any, quick: bool) -> list[Figure]:
    """Time from the decorator to the end of a first launch, compilation and upload of 8 kB included."""
    table = np.arange(1000.0)
    passed, out = cuda.to_device(table), cuda.to_device(np.zeros(1000))
    times: dict[str, list[float]] = {}

    def taking(version: str, call: Callable[[], object]) -> None:
        begin = time.perf_counter()
        call()
        cuda.synchronize()
        times.setdefault(version, []).append((time.perf_counter() - begin) * 1e6)

    def captured() -> None:
        number = next(_numbers)

        @cuda.jit
        def kernel(out):
            i = cuda.grid(1)
            if i < out.size:
                out[i] = table[i] + number

        kernel[8, 128](out)

    def argument() -> None:
        number = next(_numbers)

        @cuda.jit
        def kernel(out, table):
            i = cuda.grid(1)
            if i < out.size:
                out[i] = table[i] + number

        kernel[8, 128](out, passed)

    source = """
extern "C" __global__ void kernel(double* __restrict__ out, const double* __restrict__ table, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = table[i] + %d;
}"""

    def cpp() -> None:
        kernel = cupy().RawModule(code=source % next(_numbers), options=("--std=c++17",)).get_function("kernel")
        addresses = [np.uint64(one.__cuda_array_interface__["data"][0]) for one in (out, passed)]
        kernel((8,), (128,), (*addresses, np.int32(1000)))

    missing = []
    for round_ in range(1 + (2 if quick else 7)):
        taking("captured", captured)
        with captures_off():
            taking("argument", argument)
            taking("upstream capture", captured)
        try:
            taking(CPP, cpp)
        except ImportError as error:
            missing = [Figure("first launch", CPP, None, note=brief(error))]
        if not round_:  # which warms the compilers up
            times.clear()
    return [*compared("first launch", times, "argument"), *missing]


COSTS: dict[str, Callable[[Any, bool], list[Figure]]] = {
    "launch": launch,
    "edits": edits,
    "rebinding": rebinding,
    "compile": compiling,
    "first": first_launch,
}
