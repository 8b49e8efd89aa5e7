"""The compiler that tests of lowering compile with: tests are written once, and run for each that is installed.

One at a time, in a process: :func:`using` sets it for the length of a module's tests.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from cuda_captures import backends
from cuda_captures.session import compiling
from cuda_captures.variants import Variant

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

    def takes(self, statements: str, out: Array, table: Array) -> bool:
        """Whether the compiler takes statements on an array ``table`` that is an argument."""
        return True

    def gives(self, statements: str, table: Array, expected: Array) -> bool:
        """Whether the compiler finds in an array ``table`` that is an argument what Python does."""
        return True

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

    def takes(self, statements: str, out: Array, table: Array) -> bool:
        assert _compiles("out[i] = table[i]", self.types_of(np.zeros(1), np.zeros(1))), "asking does not work"
        return addressable(table) and _compiles(statements, self.types_of(out, table))

    def gives(self, statements: str, table: Array, expected: Array) -> bool:
        from captured_kernels import launch
        from cpu_execution import BadAccess
        from generated import function

        out = np.zeros_like(expected)
        if not self.takes(statements, out, table):
            return False
        try:
            launch(function(probe(statements), "probe"), out, table, block=max(out.size, 1))
        except BadAccess:
            return False
        return out.tobytes() == expected.tobytes()

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


def addressable(array: Array) -> bool:
    """Whether numba-cuda-mlir finds the elements of an array that is an argument.

    It divides strides by the size of an element, and of records and strings it takes no notice of strides.
    """
    if array.dtype.kind in "VSU":
        return array.ndim == 1 and array.flags.c_contiguous
    return array.flags.aligned and not any(stride % array.itemsize for stride in array.strides)


def probe(statements: str) -> str:
    """Source of a kernel with arguments ``out`` and ``table``, in which ``i`` is below the size of ``out``."""
    body = textwrap.indent(statements, "        ")
    return f"def probe(out, table):\n    i = cuda.grid(1)\n    if i < out.size:\n{body}"


@functools.cache
def _compiles(statements: str, argtypes: tuple[Any, ...]) -> bool:
    """Whether numba-cuda-mlir compiles statements on arguments, with captures out of the way."""
    from numba_cuda_mlir.compiler import compile_result

    from cuda_captures.backends.numba_cuda_mlir.target import compiling_for
    from generated import function

    try:
        with compiling_for((10, 0)), compiling(None), contextlib.redirect_stdout(io.StringIO()):
            compile_result(function(probe(statements), "probe"), argtypes)
    except Exception:
        return False
    return True


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
