"""What is measured: work on the device, and costs on the host.

Each function takes the module ``cuda`` of a compiler and gives figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.timing import Figure, compared, device_time, host_time, interleaved


def gather(cuda: Any, quick: bool) -> list[Figure]:
    """A random gather through a table: captured, and as an argument."""
    count = 1 << (22 if quick else 26)
    where = cuda.to_device(np.random.default_rng(1).integers(0, 1 << 30, count).astype(np.int32))
    out = cuda.to_device(np.zeros(count))
    figures = []
    for nbytes in (8_000, 800_000, 80_000_000):
        table = np.random.default_rng(2).random(nbytes // 8)
        on_device = cuda.to_device(table)
        size = table.size

        def capturing(table: np.ndarray) -> Any:
            @cuda.jit
            def kernel(where, out):
                i = cuda.grid(1)
                if i < out.size:
                    out[i] = table[where[i] % size]

            return kernel

        @cuda.jit
        def argument(where, out, table):
            i = cuda.grid(1)
            if i < out.size:
                out[i] = table[where[i] % size]

        kernel = capturing(table)
        grid, block = (count + 255) // 256, 256
        versions = {
            "argument": device_time(lambda kernel=argument, table=on_device: kernel[grid, block](where, out, table)),
            "captured": device_time(lambda kernel=kernel: kernel[grid, block](where, out)),
        }
        figures += compared(f"gather {nbytes:,} B", interleaved(versions, 5 if quick else 30), "argument")
    return figures


def stencil(cuda: Any, quick: bool) -> list[Figure]:
    """A five-point stencil over a captured field."""
    n = 1024 if quick else 8192
    field = np.random.default_rng(1).random((n, n))
    on_device = cuda.to_device(field)
    out = cuda.to_device(np.zeros_like(field))

    @cuda.jit
    def captured(out):
        j, i = cuda.grid(2)
        if 0 < i < field.shape[0] - 1 and 0 < j < field.shape[1] - 1:
            out[i, j] = field[i - 1, j] + field[i + 1, j] + field[i, j - 1] + field[i, j + 1] - 4 * field[i, j]

    @cuda.jit
    def argument(out, field):
        j, i = cuda.grid(2)
        if 0 < i < field.shape[0] - 1 and 0 < j < field.shape[1] - 1:
            out[i, j] = field[i - 1, j] + field[i + 1, j] + field[i, j - 1] + field[i, j + 1] - 4 * field[i, j]

    grid, block = ((n + 31) // 32, (n + 7) // 8), (32, 8)
    versions = {
        "argument": device_time(lambda: argument[grid, block](out, on_device)),
        "captured": device_time(lambda: captured[grid, block](out)),
    }
    return compared("stencil", interleaved(versions, 5 if quick else 30), "argument")


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
    repeats, rounds = (200, 5) if quick else (2000, 21)
    megabyte = 131_072
    kernels = {
        "none": capturing(cuda, []),
        "1 device array": capturing(cuda, [cuda.to_device(np.zeros(4))]),
        "8 device arrays": capturing(cuda, [cuda.to_device(np.zeros(4)) for _ in range(8)]),
        "64 device arrays": capturing(cuda, [cuda.to_device(np.zeros(4)) for _ in range(64)]),
        "live 1 kB": capturing(cuda, [np.zeros(128)]),
        "live 1 MB": capturing(cuda, [np.zeros(megabyte)]),
        "8 live 1 MB": capturing(cuda, [np.zeros(megabyte) for _ in range(8)]),
        "live 1 GB": capturing(cuda, [np.ones(megabyte * (16 if quick else 1024))]),
    }
    versions = {
        name: host_time(lambda configured=kernel[1, 32]: configured(), repeats, cuda.synchronize)
        for name, kernel in kernels.items()
    }
    eight = [cuda.to_device(np.zeros(4)) for _ in range(8)]

    @cuda.jit
    def with_arguments(a, b, c, d, e, f, g, h):
        cuda.grid(1)

    versions["8 arguments"] = host_time(lambda: with_arguments[1, 32](*eight), repeats, cuda.synchronize)
    return compared("launch", interleaved(versions, rounds), "none")


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
    many = iter([cuda.to_device(np.zeros(4)) for _ in range(4000)])
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

    rounds = 5 if quick else 11
    versions = {
        "none": host_time(kernel, 50, cuda.synchronize),
        "between two seen": host_time(seen, 50, cuda.synchronize),
        "to a new one": host_time(new, 50, cuda.synchronize),
    }
    return compared("rebinding", interleaved(versions, rounds), "none")


def compiling(cuda: Any, quick: bool) -> list[Figure]:
    """Time to compile, by bytes captured, without the upload."""
    import cuda_captures

    rounds = 3 if quick else 7
    times: dict[str, list[float]] = {}
    for round_ in range(rounds + 1):
        for nbytes in (128, 65_536, 8 << 20, (16 if quick else 128) << 20):
            table = np.ones(nbytes // 8)
            table[0] = round_

            def make(table: np.ndarray = table, round_: int = round_) -> Any:
                def kernel(out):
                    i = cuda.grid(1)
                    if i < out.size:
                        out[i] = table[i] + round_

                return kernel

            begin = time.perf_counter()
            cuda_captures.explain(cuda.jit(make()), "void(float64[::1])")
            if round_:  # the first round warms the compiler up
                times.setdefault(f"{nbytes:,} B", []).append((time.perf_counter() - begin) * 1e6)
    return compared("compile", times, "128 B")


def factory(cuda: Any, quick: bool) -> list[Figure]:
    """Time from a factory's call to a launched kernel, each with a table of its own; the upload is taken out."""
    import gc

    import cuda_captures
    from cuda_captures import copies

    count = 100 if quick else 1000
    uploading = [0.0]
    send = copies.Mirror._send

    def timed(self: Any, *arguments: Any) -> None:
        begin = time.perf_counter()
        send(self, *arguments)
        uploading[0] += time.perf_counter() - begin

    def make(table: Any) -> Any:
        @cuda.jit
        def kernel(out):
            i = cuda.grid(1)
            if i < out.size:
                out[i] = table[i]

        return kernel

    out = cuda.to_device(np.zeros(4))
    make(np.zeros(131_072))[1, 32](out)
    gc.collect()
    times: list[float] = []
    kernels = []
    copies.Mirror._send = timed  # type: ignore[method-assign]
    try:
        for number in range(count):
            table = np.full(131_072, float(number))
            uploading[0] = 0.0
            begin = time.perf_counter()
            kernel = make(table)
            kernel[1, 32](out)
            times.append((time.perf_counter() - begin - uploading[0]) * 1e6)
            kernels.append((kernel, table))
    finally:
        copies.Mirror._send = send  # type: ignore[method-assign]
    keys = {cuda_captures.report(kernel).specialisations[0].key for kernel, _ in kernels}
    held = sum(copy.nbytes for copy in cuda_captures.memory())
    del kernels, kernel, table
    gc.collect()
    left = sum(copy.nbytes for copy in cuda_captures.memory())
    print(f"factory: {count} kernels, {len(keys)} compilation(s), mean {np.mean(times):.0f} us without the upload;")
    print(f"  bytes of copies held {held:,}, left {left:,}")
    return compared("factory", {"kernel with a table": times}, "kernel with a table")


WARM = """
import sys, time
import numpy as np
captured = sys.argv[1] == "captured"
if captured:
    import cuda_captures
    cuda_captures.enable()
from importlib import import_module
cuda = import_module(sys.argv[2])
table = np.arange(1000.0)
if captured:
    @cuda.jit(cache=True)
    def kernel(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = table[i]
    arguments = ()
else:
    @cuda.jit(cache=True)
    def kernel(out, table):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = table[i]
    arguments = (cuda.to_device(table),)
out = cuda.to_device(np.zeros(1000))
cuda.synchronize()
begin = time.perf_counter()
kernel[8, 128](out, *arguments)
cuda.synchronize()
print((time.perf_counter() - begin) * 1e6)
assert np.array_equal(out.copy_to_host(), table)
"""


def warm(cuda: Any, quick: bool) -> list[Figure]:
    """First launch in a process with a warm disk cache: captured, and upstream with the table as an argument."""
    import os
    import subprocess
    import sys
    import tempfile

    module = "numba.cuda" if cuda.__name__.startswith("numba.") else "numba_cuda_mlir.cuda"
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "warm.py")
        with open(program, "w") as file:
            file.write(WARM)
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder, "CUDA_CAPTURES": "0"}

        def first(version: str) -> float:
            command = [sys.executable, "-W", "ignore", program, version, module]
            return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)

        first("captured"), first("argument")  # fills the cache
        versions = {version: (lambda version=version: first(version)) for version in ("argument", "captured")}
        return compared("warm start", interleaved(versions, 3 if quick else 9), "argument")


WORK: dict[str, Callable[[Any, bool], list[Figure]]] = {
    "gather": gather,
    "stencil": stencil,
    "launch": launch,
    "edits": edits,
    "rebinding": rebinding,
    "compile": compiling,
    "factory": factory,
    "warm": warm,
}
