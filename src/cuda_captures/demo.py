"""``cuda-captures demo``: the program of numba/numba#9084, on a GPU or without one."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import warnings
from types import ModuleType
from typing import Any

import numpy as np
from rich.console import Console

import cuda_captures
from cuda_captures import backends

SIGNATURE = "void(float64[::1])"
ELEMENTS = 100_000

TABLE = np.ones(ELEMENTS)  # 800 kB: far more than the 64 KiB of constant memory


def first_element(cuda: ModuleType) -> Any:
    """The kernel: it reads an element of a large global array."""

    @cuda.jit
    def kernel(out):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < out.size:
            out[i] = TABLE[i]

    return kernel


def main() -> int:
    """Run the demonstration; returns the exit status."""
    console = Console(highlight=False)
    console.print(
        f"[bold]numba/numba#9084[/]: a kernel reads a global NumPy array of {ELEMENTS:,} float64, {TABLE.nbytes:,} bytes."
    )
    if backends.simulating():
        return simulated(console)
    cuda_captures.enable()
    cuda = compiler_module()
    console.print(f"compiler: {cuda.__name__}, {', '.join(backends.enabled())} with captures\n")
    if has_gpu():
        return on_gpu(console, cuda)
    return without_gpu(console, cuda)


def compiler_module() -> ModuleType:
    """The module ``cuda`` of the first compiler that is installed."""
    name = {"numba-cuda": "numba.cuda", "numba-cuda-mlir": "numba_cuda_mlir.cuda"}[backends.present()[0]]
    return importlib.import_module(name)


def has_gpu() -> bool:
    """Whether there is a driver with a device."""
    from cuda_captures import device

    return device.available()


def on_gpu(console: Console, cuda: ModuleType) -> int:
    """Run it, print what came out and where the captured array lives."""
    kernel = first_element(cuda)
    out = np.zeros(ELEMENTS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the compiler thinks of small grids and host arguments
        kernel[(ELEMENTS + 255) // 256, 256](out)
        first = out[0]
        TABLE[:] = 2.0
        kernel[(ELEMENTS + 255) // 256, 256](out)
    console.print(f"Ran on the GPU. The kernel read {first}, and {out[0]} after `TABLE[:] = 2.0` on the host.\n")
    console.print(str(cuda_captures.report(kernel)), markup=False)
    console.print("device copies:")
    for copy in cuda_captures.memory():
        console.print(f"  {copy}", markup=False)
    return 0 if first == 1.0 and (out == 2.0).all() else 1


def without_gpu(console: Console, cuda: ModuleType) -> int:
    """Compile and link it with the real toolchain, then run it in the simulator."""
    console.print("There is no GPU here. Compiled and linked for compute capability 9.0 by the real toolchain:\n")
    explanation = cuda_captures.explain(first_element(cuda), SIGNATURE, cc=(9, 0))
    console.print(str(explanation), markup=False)
    for symbol in explanation.slots:
        console.print(f"  slot {symbol}: its address is filled in when the code is loaded", markup=False)
    console.print(f"  machine code: {len(explanation.cubin):,} bytes, for an array of {TABLE.nbytes:,} bytes\n")
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "cuda_captures.cli", "demo"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    console.print(done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr, markup=False)
    console.print("[bold]Not run on a GPU[/]: compiled for one, and run in the simulator.")
    return done.returncode or (0 if explanation.constant_bytes == 0 and explanation.slots else 1)


def simulated(console: Console) -> int:
    """Run a few elements of it in numba's simulator."""
    kernel = first_element(importlib.import_module("numba.cuda"))
    out = np.zeros(64)
    kernel[1, 64](out)
    first = out[0]
    TABLE[:] = 2.0
    kernel[1, 64](out)
    console.print(f"In the simulator the kernel read {first}, and {out[0]} after `TABLE[:] = 2.0` on the host.")
    return 0 if first == 1.0 and (out == 2.0).all() else 1
