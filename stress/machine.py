"""Where stress programs run: a GPU with one compiler.

What a program asks of it is little, so that tests can put a driver in memory in its place.
"""

from __future__ import annotations

import importlib
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

import numpy as np

import cuda_captures
from cuda_captures import device

Array = np.ndarray[Any, Any]
Launch = Callable[[Any], object]
"""Takes a device array for what the kernel puts out."""

COMPILERS = ("numba.cuda", "numba_cuda_mlir.cuda")
THREADS = 32  # of a launch: one block


class NoGpu(Exception):
    """There is nothing to run on."""


class Gpu:
    """A GPU, and one of the compilers.

    Parameters
    ----------
    compiler
        ``"numba.cuda"`` or ``"numba_cuda_mlir.cuda"``.

    Attributes
    ----------
    cuda
        The compiler's module, which kernels name.
    toolchain, module
        The backend's class that compiles, and its class of a loaded module.
    lets_go
        Whether a kernel that nobody refers to goes.  numba-cuda-mlir (0.6.0) keeps every one: its native launcher and
        its dispatcher hold each other, and take no part in garbage collection.

    Raises
    ------
    NoGpu
        If there is no GPU here.
    """

    def __init__(self, compiler: str) -> None:
        if not device.available():
            raise NoGpu("no GPU here, and no driver: stress programs launch on one")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a compiler warns about on import is its own affair
            self.cuda = importlib.import_module(compiler)
        self.lets_go = compiler == "numba.cuda"
        cuda_captures.enable()
        backend = "numba_cuda" if self.lets_go else "numba_cuda_mlir"
        kernel = importlib.import_module(f"cuda_captures.backends.{backend}.kernel")
        self.toolchain: Any = kernel.NumbaCudaToolchain if self.lets_go else kernel.MLIRToolchain
        self.module: type = kernel.BoundKernel

    def kernel(self, function: FunctionType) -> Launch:
        """What launches a kernel of one argument with one block of :data:`THREADS`."""
        launch: Launch = self.cuda.jit(function)[1, THREADS]
        return launch

    def device_function(self, function: FunctionType) -> Any:
        """A function that kernels call."""
        return self.cuda.jit(device=True)(function)

    def output(self, size: int = THREADS) -> Any:
        """A device array of zeros, float64."""
        return self.cuda.to_device(np.zeros(size))

    def read(self, output: Any) -> Array:
        """What a device array holds once everything launched so far is done."""
        content: Array = output.copy_to_host()
        return content

    def device_bytes(self) -> int:
        """Bytes of the device's memory that are in use, by whomever."""
        from cuda.bindings import driver

        self.cuda.synchronize()
        code, free, total = driver.cuMemGetInfo()
        assert code == 0, code
        return int(total) - int(free)

    @contextmanager
    def compilations(self) -> Iterator[list[CodeType]]:
        """What is compiled meanwhile, by whatever thread: the kernels' code, once for each compilation."""
        with counted(self.toolchain) as compiled:
            yield compiled


@contextmanager
def counted(toolchain: Any) -> Iterator[list[CodeType]]:
    """The code of the kernels that a class of toolchains compiles meanwhile."""
    real, compiled = toolchain.compile, []

    def compile(self: Any, session: Any) -> Any:
        compiled.append(self.py_func.__code__)  # atomic
        return real(self, session)

    toolchain.compile = compile
    try:
        yield compiled
    finally:
        toolchain.compile = real


def at_once(works: Sequence[Callable[[], object]], patience: float = 300.0) -> None:
    """Run functions in a thread each, which all begin together; raises what the first of them raised.

    Parameters
    ----------
    patience
        Seconds to wait for each thread; a hang is an error.
    """
    barrier = threading.Barrier(len(works))
    failed: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            barrier.wait(patience)
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience)
    if any(thread.is_alive() for thread in threads):
        raise TimeoutError(f"threads are not through after {patience:.0f} s")
    if failed:
        raise failed[0]
