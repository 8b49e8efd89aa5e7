"""Programs on a GPU: as their authors would run them.

A statement that a compiler gets wrong is not generated for a GPU (:mod:`fuzz.lacking`).  A write outside of a mapped
array, such as numba-cuda-mlir's atomics with negative indices make, is a write to this process's own memory, and may
end it long after.

Kernels are dropped like any object here.  numba-cuda-mlir's native launchers must not be destroyed after a launch, and
are not: a dispatcher is held by its launcher and holds it, out of reach of the collector.  What that keeps of memory
is given back when a process of a run ends, which is after some hundred programs (:mod:`fuzz.running`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

import backends_under_test
import cuda_captures
from fuzz.program import Form, Program
from fuzz.worlds import Array, World, first, root

# After these a context is of no more use; as the driver names them, and as it puts them into words.
FATAL = (
    *("ILLEGAL_ADDRESS", "ILLEGAL_MEMORY_ACCESS", "ILLEGAL_INSTRUCTION", "MISALIGNED_ADDRESS", "INVALID_ADDRESS_SPACE"),
    *("INVALID_PC", "INVALID_PROGRAM_COUNTER", "HARDWARE_STACK_ERROR", "LAUNCH_FAILED", "LAUNCH_FAILURE"),
    *("LAUNCH_TIMEOUT", "LAUNCH_TIMED_OUT", "CUDA_ERROR_ASSERT", "CONTEXT_IS_DESTROYED"),
)


class GpuWorld(World):
    """A GPU, with the compiler under test.

    Parameters
    ----------
    form
        Of the programs.  In the argument form nothing is a device array and nothing is marked.
    """

    def __init__(self, form: Form = "captured") -> None:
        super().__init__()
        self.form = form
        self.kernels: dict[Any, Any] = {}

    @property
    def cuda(self) -> Any:
        return backends_under_test.cuda()

    def words(self) -> dict[str, Any]:
        words = super().words()
        return {**words, "cap": cuda_captures} if self.form == "captured" else words

    def on_device(self, array: Array) -> Any:
        if self.form == "argument":
            return super().on_device(array)
        made = self.cuda.to_device(np.array(array, order="A"))  # to_device takes no odd strides, be it of one element
        self.arrays.append(lambda: made.copy_to_host().tobytes())
        return made

    def launch(self, kernel: Any, threads: int, out: Array, values: Sequence[Any], program: Program) -> None:
        compiled = self.kernels.get(kernel)
        if compiled is None:
            policies = dict(program.policies) if self.form == "captured" else {}
            compiled = self.kernels[kernel] = self.cuda.jit(**({"captures": policies} if policies else {}))(kernel)
        on_device = OnDevice(self.cuda)
        compiled[1, threads](*map(on_device.put, values), out)
        self.cuda.synchronize()  # what mapped arrays wait for
        on_device.fetch()


class OnDevice:
    """Arguments of one launch on the device as they are laid out on the host, which compilers do not do themselves."""

    def __init__(self, cuda: Any) -> None:
        self.cuda = cuda
        self._memory: dict[int, tuple[Array, Any]] = {}

    def put(self, value: Any) -> Any:
        """An argument with arrays on the device; those that share memory share it there."""
        if isinstance(value, tuple):
            items = list(map(self.put, value))
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        if not isinstance(value, np.ndarray) or not value.size:
            return value
        base = root(value)
        if id(base) not in self._memory:
            content = np.frombuffer(base.tobytes("A"), np.uint8)
            self._memory[id(base)] = base, self.cuda.to_device(content)
        memory = self._memory[id(base)][1]
        start = memory.__cuda_array_interface__["data"][0] + first(value) - first(base)
        return self.cuda.as_cuda_array(_Laid(value, start, memory))

    def fetch(self) -> None:
        """Copy everything back."""
        for base, memory in self._memory.values():
            if base.flags.writeable:
                content = memory.copy_to_host().tobytes()
                ctypes.memmove(first(base), content, len(content))


class _Laid:
    """A device array as libraries hand it over."""

    def __init__(self, like: Array, address: int, memory: Any) -> None:
        self.memory = memory
        self.dtype = like.dtype
        self.__cuda_array_interface__ = {
            "shape": like.shape,
            "strides": None if like.flags.c_contiguous else like.strides,  # then it is of NumPy's layout: one element
            "typestr": like.dtype if like.dtype.names else like.dtype.str,  # both compilers forget `descr`
            "data": (address, False),
            "version": 3,
        }


def is_fatal(detail: str) -> bool:
    """Whether an error leaves a context of no more use."""
    return any(word in detail.upper().replace(" ", "_") for word in FATAL)
