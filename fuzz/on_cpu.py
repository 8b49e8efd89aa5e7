"""Programs with captures on the CPU: compiled as for a GPU, bound, copied, launched; only the driver is in memory.

Device memory is memory of this process outside of every array, so the code that is executed can be given its real
addresses.  It may touch no more than its arguments and, of each captured array, the bytes that are the array's; and
write only those that the compiler's analysis says it writes.
"""

from __future__ import annotations

import ctypes
import gc
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

import backends_under_test
import cuda_captures
from captured_kernels import CapturedKernel, types_of
from copies_in_memory import install
from cpu_lowering import lower
from cuda_captures import device
from cuda_captures.backends.launching import launch_with_copies
from cuda_captures.binding import Follower
from cuda_captures.code import Code
from cuda_captures.instances import Instance
from cuda_captures.session import compiling
from fuzz.program import Program
from fuzz.worlds import Array, World, executed, first, root
from memory_driver import MemoryDriver

ALIGNMENT = 256  # of device memory, as the real one has it


class AddressedDriver(MemoryDriver):
    """A driver in memory whose addresses are real."""

    def mem_alloc(self, nbytes: int) -> int:
        pretended = super().mem_alloc(nbytes)
        context, _ = self.memory.pop(pretended)
        raw = bytearray(b"\xa5" * (nbytes + ALIGNMENT))
        start = ctypes.addressof(ctypes.c_char.from_buffer(raw))
        address = -(-start // ALIGNMENT) * ALIGNMENT
        data: Any = memoryview(raw)[address - start : address - start + nbytes]
        self.memory[address] = context, data
        return address


class Loaded:
    """A loaded module: code with slots of its own, which are filled in the order of the stream."""

    apart = None

    def __init__(self, code: Code, driver: AddressedDriver) -> None:
        self.code = code
        self.slots: dict[str, bytes] = {}
        self._driver = driver

    @property
    def launchable(self) -> Loaded:
        return self

    def fill(self, slots: Sequence[tuple[str, bytes]]) -> None:
        """Write the slots."""
        self.slots = dict(slots)

    def refill(self, slots: Sequence[tuple[str, bytes]], stream: int) -> None:
        """Enqueue writing them again."""
        self._driver.launch(stream, lambda: self.fill(slots))


class Toolchain:
    """A backend's, but for loading."""

    def __init__(self, real: Any, driver: AddressedDriver) -> None:
        self._real = real
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def load(self, code: Code, context: Any) -> Loaded:
        return Loaded(code, self._driver)


class DeviceArray:
    """A device array, as any library has one."""

    def __init__(self, array: Array, driver: AddressedDriver) -> None:
        content, offset = root(array).tobytes("A"), first(array) - first(root(array))
        address = driver.mem_alloc(max(len(content), 1))
        driver.write(address, content)
        shape, kind, strides = array.shape, array.dtype, array.strides
        self.like = array

        def read() -> bytes:
            if not array.size:
                return b""
            return np.ndarray(shape, kind, driver.read(address, len(content)), offset, strides).tobytes()

        self.read = read
        interface = {"shape": shape, "typestr": kind.str, "data": (address + offset, False), "version": 3}
        self.__cuda_array_interface__ = {**interface, "strides": strides}


class CapturedWorld(World):
    """Programs in the captured form.

    Parameters
    ----------
    driver
        In memory.
    stream
        Where kernels are launched.
    optimise
        Whether the code that is executed is optimised first, which takes its promises at their word.
    """

    def __init__(self, driver: AddressedDriver, stream: int = 0, optimise: bool = True) -> None:
        super().__init__()
        self.driver = driver
        self.stream = stream
        self.optimise = optimise
        self.followers: dict[Any, Follower] = {}

    @property
    def cuda(self) -> Any:
        return backends_under_test.cuda()

    def words(self) -> dict[str, Any]:
        return {**super().words(), "cap": cuda_captures}

    def on_device(self, array: Array) -> Any:
        made = DeviceArray(array, self.driver)
        self.arrays.append(made.read)
        return made

    def launch(self, kernel: Any, threads: int, out: Array, values: Sequence[Any], program: Program) -> None:
        backend = backends_under_test.current()
        follower = self.followers.get(kernel)
        if follower is None:
            toolchain = Toolchain(backend.toolchain(kernel, types_of(out), (9, 0), {}), self.driver)
            follower = self.followers[kernel] = Follower(kernel, toolchain, dict(program.policies) or None)
        context, compiled_by = device.current(), follower.toolchain
        problems: list[BaseException] = []

        def again() -> Instance:
            return follower.rebind(context, self.stream)

        def start(loaded: Loaded) -> None:
            arrays = [use.place_for(kernel).read() for use in loaded.code.uses]
            variant: Any = SimpleNamespace(code=loaded.code)

            def execute() -> None:
                memory = [
                    seen(array, loaded.slots[use.slot.symbol], use.written)
                    for use, array in zip(loaded.code.uses, arrays, strict=True)
                ]
                try:
                    backend.execute(compiled_by, variant, (out,), 1, threads, loaded.slots, memory, self.optimise)
                except Exception as error:
                    problems.append(error)

            self.driver.launch(self.stream, execute)

        launch_with_copies(follower.current(context) or again(), self.stream, None, start, again, kernel)
        self.driver.finish()
        if problems:
            raise problems[0]


class ArgumentWorld(World):
    """Programs in the argument form: compiled with nothing to capture, executed on the arrays themselves."""

    def __init__(self, optimise: bool = True) -> None:
        super().__init__()
        self.optimise = optimise

    @property
    def cuda(self) -> Any:
        return backends_under_test.cuda()

    def launch(self, kernel: Any, threads: int, out: Array, values: Sequence[Any], program: Program) -> None:
        CapturedKernel(kernel, types_of(*values, out)).launch(*values, out, block=threads, optimise=self.optimise)


def compiled_in(body: str, table: Any) -> bool:
    """Whether the compiler alone compiles the contents of an array in, where a body reads it."""
    source = f"def probe(out):\n    i = cuda.grid(1)\n{textwrap.indent(body, '    ')}\n"
    function = executed(source, {"cuda": backends_under_test.cuda(), "table": table})["probe"]
    argtypes = types_of(np.zeros(1))
    try:
        with compiling(None):
            if backends_under_test.current().name == "numba-cuda":
                lower(function, argtypes)
            else:
                from numba_cuda_mlir.compiler import compile_result

                from cuda_captures.backends.numba_cuda_mlir.target import compiling_for

                with compiling_for((9, 0)):
                    compile_result(function, argtypes)
    except Exception:
        return False
    return True


def seen(array: Any, slot: bytes, written: bool) -> Array:
    """The device's side of a captured array."""
    like = array.like if isinstance(array, DeviceArray) else array
    address = int(np.frombuffer(slot[:8], np.uint64)[0])
    if not like.size:
        return np.zeros(like.shape, like.dtype)
    steps = [(side - 1) * stride for side, stride in zip(like.shape, like.strides, strict=True)]
    low = sum(step for step in steps if step < 0)
    high = sum(step for step in steps if step > 0) + like.itemsize
    memory = (ctypes.c_char * (high - low)).from_address(address + low)
    made: Array = np.ndarray(like.shape, like.dtype, memory, -low, like.strides)
    made.flags.writeable = written
    return made


@contextmanager
def driver_in_memory(seed: int = 0) -> Iterator[AddressedDriver]:
    """A driver for the length of one program."""
    driver = AddressedDriver(devices=1, seed=seed)
    before = install(driver)
    driver.use(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield driver
    finally:
        driver.finish()
        driver.streams.clear()
        gc.collect(2 if gc.isenabled() else 0)  # if it is not, all that the program made is of the youngest generation
        install(before)
