"""Where stress programs run without a GPU: the driver is in memory, and kernels are not compiled.

A launch executes the kernel's Python function, thread after thread, when the driver comes to it, on what the slots of
the loaded module lead to: the device's bytes, not the host's.  Everything between is the real thing: discovery, keys,
binding, device copies, launching.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import CellType, CodeType, FunctionType, SimpleNamespace
from typing import Any

import numpy as np

import kernels_in_memory
from cuda_captures import backends, device, driver
from cuda_captures.backends.launching import launch_with_copies
from cuda_captures.binding import Follower
from cuda_captures.code import Code
from memory_driver import MemoryDriver
from stress.machine import THREADS, Array, Launch, counted


class Loaded(kernels_in_memory.Loaded):
    """A loaded module: slots of its own, filled in the order of the stream."""

    def __init__(self, code: Code, fake: MemoryDriver) -> None:
        super().__init__(code)
        self.slots: dict[str, bytes] = {}
        self._fake = fake

    def fill(self, slots: Any) -> None:
        self.slots = dict(slots)

    def refill(self, slots: Any, stream: int) -> None:
        self._fake.launch(stream, lambda: self.fill(slots))


class Toolchain(kernels_in_memory.Toolchain):
    """Loads into the driver in memory.  A kernel writes what is called ``state``."""

    def __init__(self, function: FunctionType, fake: MemoryDriver, lock: Any) -> None:
        super().__init__(written=("state",))
        self.py_func = function
        self.lock = lock
        self._fake = fake

    def load(self, code: Code, context: Any) -> Any:
        return Loaded(code, self._fake)


class Memory:
    """Takes the place of :class:`stress.machine.Gpu`."""

    lets_go = True
    module = Loaded

    def __init__(self, fake: MemoryDriver) -> None:
        self.fake = fake
        name = {"numba-cuda": "numba.cuda", "numba-cuda-mlir": "numba_cuda_mlir.cuda"}[backends.present()[0]]
        self.cuda = importlib.import_module(name)  # kernels name it, so it must be something that the key can see
        self.toolchain = type("CountedToolchain", (Toolchain,), {})
        self._lock = threading.RLock()  # as the compilers have one for all kernels

    def kernel(self, function: FunctionType) -> Launch:
        return Kernel(function, self).launch

    def device_function(self, function: FunctionType) -> Any:
        return function

    def output(self, size: int = THREADS) -> Array:
        return np.zeros(size)

    def read(self, output: Array) -> Array:
        driver.calls.stream_synchronize(0)
        return output.copy()

    def device_bytes(self) -> int:
        self.fake.finish()
        return self.fake.held()

    def compilations(self) -> AbstractContextManager[list[CodeType]]:
        return counted(self.toolchain)


class Kernel:
    """A kernel of one argument."""

    def __init__(self, function: FunctionType, machine: Memory) -> None:
        self.function = function
        self.machine = machine
        self.toolchain = machine.toolchain(function, machine.fake, machine._lock)
        self.follower = Follower(function, self.toolchain, None)

    def launch(self, output: Array) -> None:
        context = device.current()
        follower = self.follower
        instance = follower.current(context) or follower.rebind(context, 0)
        launch_with_copies(
            *(instance, 0, None, lambda loaded: self._start(loaded, output)),
            *(lambda: follower.rebind(context, 0), self.function),
        )

    def _start(self, loaded: Loaded, output: Array) -> None:
        arrays = [(use.slot.symbol, use.place_for(self.function).read()) for use in loaded.code.uses]
        fake, function = self.machine.fake, self.function

        def work() -> None:
            copies = {}
            for symbol, array in arrays:
                address = int.from_bytes(loaded.slots[symbol][:8], "little")
                copies[id(array)] = address, np.frombuffer(self._content(address, array.nbytes), array.dtype).copy()
            index = SimpleNamespace(grid=lambda dimensions: index.now, now=0)
            kernel = on_device(function, {array: copy for array, (_, copy) in copies.items()}, index)
            for index.now in range(THREADS):
                kernel(output)
            for symbol, array in arrays:
                if "state" in symbol:
                    address, copy = copies[id(array)]
                    fake.write(address, copy.tobytes())

        fake.launch(0, work)

    def _content(self, address: int, nbytes: int) -> bytes:
        """What the device reads: its own memory, or the host's where it is mapped."""
        for start, size in self.machine.fake.registered.items():
            if start <= address and address + nbytes <= start + size:
                return ctypes.string_at(address, nbytes)
        return self.machine.fake.read(address, nbytes)


def on_device(value: Any, copies: Mapping[int, Array], cuda: Any, name: str = "") -> Any:
    """A value as a kernel has it: arrays are the device's, and so in all that it holds or calls."""
    if name == "cuda":
        return cuda
    if isinstance(value, tuple):
        return tuple(on_device(item, copies, cuda) for item in value)
    if isinstance(value, FunctionType):
        names = value.__code__.co_names
        seen = {one: on_device(value.__globals__[one], copies, cuda, one) for one in names if one in value.__globals__}
        cells = (CellType(on_device(cell.cell_contents, copies, cuda)) for cell in value.__closure__ or ())
        return FunctionType(value.__code__, seen, value.__name__, None, tuple(cells) or None)
    return copies.get(id(value), value)
