"""The compiler that tests of lowering compile with: tests are written once, and run for each that is installed.

One at a time, in a process: :func:`using` sets it for the length of a module's tests.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from cuda_captures import backends
from cuda_captures.binding import Variant

Array = np.ndarray[Any, Any]

MODULES = {"numba-cuda": "numba.cuda", "numba-cuda-mlir": "numba_cuda_mlir.cuda"}
INSTALLED = [name for name in MODULES if name in backends.present()]


class NumbaCuda:
    """numba-cuda: its own LLVM IR is executed."""

    name = "numba-cuda"

    def toolchain(self, function: Any, argtypes: Any, cc: tuple[int, int], options: dict[str, Any]) -> Any:
        """What compiles a kernel."""
        from numba.cuda.core import sigutils

        from cuda_captures.backends.numba_cuda.kernel import NumbaCudaToolchain

        argtypes, _ = sigutils.normalize_signature(argtypes)
        options = {"debug": False, "opt": not options.get("debug"), "lto": not options.get("debug"), **options}
        made = NumbaCudaToolchain(function, argtypes, options, None)
        made.cc = cc
        return made

    def types_of(self, *args: Any) -> tuple[Any, ...]:
        """The compiler's types of arguments."""
        from cpu_lowering import types_of

        return types_of(*args)

    def cubin(self, product: Any) -> bytes:
        """The machine code of a compiled kernel."""
        import linking

        return linking.linked(product, None)  # type: ignore[arg-type]

    def execute(
        self,
        toolchain: Any,
        variant: Variant,
        args: tuple[Any, ...],
        grid: Any,
        block: Any,
        slots: dict[str, bytes],
        memory: Iterable[Array],
        optimise: bool,
    ) -> None:
        """Run a compiled kernel on the CPU."""
        from cpu_execution import execute

        execute(variant.code.product, args, grid, block, slots, memory=memory, optimise=optimise)


class NumbaCudaMLIR(NumbaCuda):
    """numba-cuda-mlir: executed is what it makes for compute capability 10.0, whose LLVM IR can be had as text."""

    name = "numba-cuda-mlir"

    def toolchain(self, function: Any, argtypes: Any, cc: tuple[int, int], options: dict[str, Any]) -> Any:
        from numba_cuda_mlir import decorators
        from numba_cuda_mlir.numba_cuda.core import sigutils

        from cuda_captures.backends.numba_cuda_mlir.kernel import MLIRToolchain

        argtypes, _ = sigutils.normalize_signature(argtypes)
        options = {"opt": not options.get("debug"), **options}
        return MLIRToolchain(None, function, argtypes, decorators.verify_target_options(options), cc=cc)

    def types_of(self, *args: Any) -> tuple[Any, ...]:
        from mlir_execution import types_of

        return types_of(*args)

    def cubin(self, product: Any) -> bytes:
        return bytes(product.cubin)

    def execute(
        self,
        toolchain: Any,
        variant: Variant,
        args: tuple[Any, ...],
        grid: Any,
        block: Any,
        slots: dict[str, bytes],
        memory: Iterable[Array],
        optimise: bool,
    ) -> None:
        from mlir_execution import execute

        execute(variant.code.product, toolchain.argtypes, args, grid, block, slots, memory, optimise)


BACKENDS: Sequence[NumbaCuda] = (NumbaCuda(), NumbaCudaMLIR())

_current: list[NumbaCuda] = [BACKENDS[0]]


def current() -> NumbaCuda:
    """The compiler that is used now."""
    return _current[0]


def cuda() -> Any:
    """Its module ``cuda``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a compiler warns about on import is its own affair
        return importlib.import_module(MODULES[current().name])


@contextmanager
def using(name: str) -> Iterator[NumbaCuda]:
    """Use a compiler meanwhile."""
    before = _current[0]
    _current[0] = next(one for one in BACKENDS if one.name == name)
    try:
        yield _current[0]
    finally:
        _current[0] = before
