"""Kernels compiled with captures by the compiler under test, and executed on the CPU.

What a launch does on a GPU happens here on the host: the names are read, the specialisation for what they mean is
taken or compiled, its slots are filled, every thread runs.  Slots lead to the arrays themselves, so there are no
copies and what a kernel writes is there at once.

A captured array that the backend says is not written may only be read: if its analysis of writes is wrong, the
launch ends in :class:`~cpu_execution.BadAccess`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import backends_under_test
from cuda_captures.binding import Follower
from cuda_captures.code import Code

Array = np.ndarray[Any, Any]


class CapturedKernel:
    """A kernel for one tuple of argument types.  Captures must be enabled where it is launched.

    Parameters
    ----------
    kernel
        The function, or what ``cuda.jit`` made of it.
    argtypes
        Argument types, or a signature, in any form that numba takes.
    captures
        As ``cuda.jit(captures=…)`` takes it.
    cc
        Compute capability.
    options
        As ``cuda.jit`` takes them.
    """

    def __init__(
        self,
        kernel: Any,
        argtypes: Any,
        captures: str | Mapping[str, str] | None = None,
        cc: tuple[int, int] = (9, 0),
        **options: Any,
    ) -> None:
        self.backend = backends_under_test.current()
        self.function = getattr(kernel, "py_func", kernel)
        self.toolchain = self.backend.toolchain(self.function, argtypes, cc, options)
        self.follower = Follower(self.function, self.toolchain, captures)

    def code(self) -> Code:
        """The code for what the names mean now."""
        return self.follower.variant().code

    def cubin(self) -> bytes:
        """The machine code for what the names mean now."""
        return self.backend.cubin(self.code().product)

    @property
    def compilations(self) -> int:
        """How many specialisations there are."""
        return len(self.follower.specialisations.codes)

    def launch(self, *args: Any, grid: Any = 1, block: Any = 1, optimise: bool = True) -> None:
        """Run every thread with the names meaning what they mean now."""
        variant = self.follower.variant()
        slots, memory = {}, []
        for use, place in variant.arrays:
            array = place.read()
            slots[use.slot.symbol] = use.slot.pack(array.ctypes.data, array.shape, array.strides)
            memory.append(array if use.written else readonly(array))
        self.backend.execute(self.toolchain, variant, args, grid, block, slots, memory, optimise)


def readonly(array: Array) -> Array:
    """A view that says that it may not be written."""
    view = array.view()
    view.flags.writeable = False
    return view


def types_of(*args: Any) -> tuple[Any, ...]:
    """The types that the compiler under test gives arguments."""
    return backends_under_test.current().types_of(*args)


def launch(kernel: Any, *args: Any, grid: Any = 1, block: Any = 1, **options: Any) -> CapturedKernel:
    """Compile a kernel for its arguments and run it once."""
    made = CapturedKernel(kernel, types_of(*args), **options)
    made.launch(*args, grid=grid, block=block)
    return made
