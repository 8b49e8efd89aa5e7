"""Lowering a kernel of numba-cuda to LLVM IR without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from cuda_captures import backends

if "numba-cuda" not in backends.present() or backends.simulating():
    pytest.skip("needs numba-cuda's compiler, which is not here or simulated", allow_module_level=True)

from numba.cuda import dispatcher as numba_dispatcher
from numba.cuda import types
from numba.cuda.compiler import compile_cuda, kernel_fixup
from numba.cuda.core import sigutils
from numba.cuda.cudadrv import nvvm
from numba.cuda.descriptor import cuda_target
from numba.cuda.typing.typeof import Purpose, typeof


@dataclass(eq=False)
class Lowered:
    """A kernel in LLVM IR.

    Parameters
    ----------
    library
        numba-cuda's code library; keeps the IR of the kernel and of all device functions.
    entry
        Name of the kernel in it.
    argtypes
        numba's types of the arguments.
    call_helper
        Knows the exceptions that the kernel may raise (``debug=True``); None if it is not known.
    """

    library: Any
    entry: str
    argtypes: tuple[Any, ...]
    call_helper: Any = None

    @property
    def text(self) -> str:
        """LLVM IR of the kernel and of what is linked with it."""
        return str(self.library.get_llvm_str())


def types_of(*args: Any) -> tuple[Any, ...]:
    """numba's types of values passed to a kernel."""
    return tuple(typeof(arg, Purpose.argument) for arg in args)


def lower(
    py_func: Any,
    argtypes: Any,
    *,
    debug: bool = False,
    lineinfo: bool = False,
    fastmath: bool = False,
    opt: bool | None = None,
    lto: bool = False,
    max_registers: int | None = None,
    launch_bounds: int | tuple[int, ...] | None = None,
    cc: tuple[int, int] = (9, 0),
) -> Lowered:
    """Lower a kernel without a GPU.

    Parameters
    ----------
    py_func
        The function, or what ``cuda.jit`` made of it.
    argtypes
        Argument types, or a signature that returns nothing, in any form that numba takes.
    debug, lineinfo, fastmath, opt, lto, max_registers, launch_bounds
        As ``cuda.jit`` takes them; ``opt`` is on unless ``debug`` is.
    cc
        Compute capability.
    """
    options: dict[str, Any] = {"fastmath": fastmath, "opt": 3 if (not debug if opt is None else opt) else 0}
    if debug:
        options["g"] = None
    argtypes, _ = sigutils.normalize_signature(argtypes)
    cuda_target.target_context.refresh()
    with pretended_device(cc):
        compiled = compile_cuda(
            getattr(py_func, "py_func", py_func),
            types.void,
            argtypes,
            debug=debug,
            lineinfo=lineinfo,
            fastmath=fastmath,
            nvvm_options=options,
            cc=cc,
            max_registers=max_registers,
            lto=lto,
        )
    library, entry = compiled.library, compiled.fndesc.llvm_func_name
    kernel = library.get_function(entry)
    library._entry_name = entry
    kernel_fixup(kernel, debug)
    nvvm.set_launch_bounds(kernel, launch_bounds)
    return Lowered(library, entry, tuple(compiled.signature.args), compiled.call_helper)


@contextmanager
def pretended_device(cc: tuple[int, int]) -> Iterator[None]:
    """Let numba-cuda find a device of a compute capability; it asks for one to compile device functions."""

    class Device:
        compute_capability = cc

    before = numba_dispatcher.get_current_device
    numba_dispatcher.get_current_device = Device
    try:
        yield
    finally:
        numba_dispatcher.get_current_device = before
