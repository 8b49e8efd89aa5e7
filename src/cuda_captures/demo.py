"""``cuda-captures demo``: the program of numba/numba#9084, on a GPU or without one."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
import textwrap
import warnings
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax

import cuda_captures
from cuda_captures import backends, device

SIGNATURE = "void(float64[::1])"
ELEMENTS = 100_000
SIMULATED = 64  # the simulator starts a thread of the host for each thread of a block

TABLE = np.ones(ELEMENTS)  # 800 kB: far more than the 64 KiB of constant memory

cuda: Any = None  # the compiler's, set by `main`: kernels name it as a global, which the simulator relies on


def copy_table(out):
    """Copy a global array."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = TABLE[i]


def main() -> int:
    """Run the demonstration; returns the exit status.

    Raises
    ------
    CaptureVersionError
        Without a compiler, or with one of another version.
    """
    global cuda
    console = Console(highlight=False, soft_wrap=True)
    cuda_captures.enable()
    cuda = importlib.import_module(module_name())
    if backends.simulating(compiler()):
        return in_the_simulator(console)
    console.print(f"[bold]numba/numba#9084[/]: a kernel reads a global NumPy array of {TABLE.nbytes:,} bytes.\n")
    source = textwrap.indent(inspect.getsource(copy_table).rstrip(), "    ")
    console.print(Syntax(f"    TABLE = np.ones({ELEMENTS:_})\n\n    @cuda.jit\n{source}\n", "python"))
    console.print(f"Compiler: {cuda.__name__} of {compiler()}, with captures.")
    return on_the_gpu(console) if device.available() else without_a_gpu(console)


def compiler() -> str:
    """Distribution of the compiler that the demonstration uses."""
    return backends.present()[0]


def module_name() -> str:
    """Its module ``cuda``."""
    return {"numba-cuda": "numba.cuda", "numba-cuda-mlir": "numba_cuda_mlir.cuda"}[compiler()]


def launched_twice(kernel: Any, elements: int) -> tuple[float, float, bool]:
    """Launch the kernel, edit the array on the host, launch it again.

    Returns
    -------
    tuple
        What the kernel read first, what it read then, and whether every element was right both times.
    """
    out = np.zeros(elements)
    threads = min(elements, 256)
    blocks = (elements + threads - 1) // threads
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the compiler thinks of small grids and host arguments
        kernel[blocks, threads](out)
        first = out.copy()
        TABLE[:] = 2.0
        kernel[blocks, threads](out)
    return first[0], out[0], bool((first == 1.0).all() and (out == 2.0).all())


def on_the_gpu(console: Console) -> int:
    """Run it, print what came out and where the captured array lives."""
    kernel = cuda.jit(copy_table)
    first, second, right = launched_twice(kernel, ELEMENTS)
    console.print(f"Ran on the GPU. The kernel read {first}, and {second} after `TABLE[:] = 2.0` on the host.\n")
    console.print(escape(str(cuda_captures.report(kernel))))
    console.print("Device copies:")
    for copy in cuda_captures.memory():
        console.print(f"  {escape(str(copy))}")
    return 0 if right else 1


def without_a_gpu(console: Console) -> int:
    """Compile and link it with the real toolchain, then run it in the simulator."""
    console.print("There is no GPU here. Compiled and linked for compute capability 9.0 by the real toolchain:\n")
    explanation = cuda_captures.explain(cuda.jit(copy_table), SIGNATURE, cc=(9, 0))
    console.print(escape(str(explanation)))
    for symbol in explanation.slots:
        console.print(f"slot {symbol}: holds the address of the array once the code is loaded")
    console.print(f"machine code: {len(explanation.cubin):,} bytes, for an array of {TABLE.nbytes:,} bytes\n")
    status = 0 if explanation.constant_bytes == 0 and explanation.slots else 1
    if compiler() != "numba-cuda":
        console.print(f"[bold]Not run[/]: compiled for a GPU; {compiler()} has no simulator.")
        return status
    done = subprocess.run(
        [sys.executable, "-m", "cuda_captures.cli", "demo"],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    console.print(escape(done.stdout.strip() or done.stderr.strip()))
    console.print("[bold]Not run on a GPU[/]: compiled for one, and run in the simulator.")
    return done.returncode or status


def in_the_simulator(console: Console) -> int:
    """Run a few elements of it in numba's simulator."""
    first, second, right = launched_twice(cuda.jit(copy_table), SIMULATED)
    console.print(f"In the simulator the kernel read {first}, and {second} after `TABLE[:] = 2.0` on the host.")
    return 0 if right else 1
