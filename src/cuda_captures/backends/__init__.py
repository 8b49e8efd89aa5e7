"""The compilers that captures plug into, each behind the same small interface.

A backend is a package of this one with ``enable()``, ``disable()``, ``bind()``, ``explain()`` and ``report()``.
Which compilers are present is asked of the installed distributions.  A compiler that the program has not imported yet
is joined when it is imported: enabling captures imports nothing that the program does not use.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
import threading
from dataclasses import dataclass
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

from cuda_captures.backends.arrival import Arrival
from cuda_captures.errors import CaptureError, CaptureVersionError


@dataclass(frozen=True)
class Compiler:
    """A compiler that there is a backend for.

    Parameters
    ----------
    distribution
        Its name where it is installed from.
    module
        What a program imports.
    backend
        The backend's name in this package.
    supported
        Versions, from and up to but not including.
    """

    distribution: str
    module: str
    backend: str
    supported: tuple[tuple[int, int], tuple[int, int]]

    def check_version(self) -> None:
        """Refuse a version that the backend was not made for.

        Raises
        ------
        CaptureVersionError
            Naming the version found and the range.
        """
        version = importlib.metadata.version(self.distribution)
        numbers = tuple(int(part) for part in version.split(".")[:2])
        if not self.supported[0] <= numbers < self.supported[1]:
            start, stop = (".".join(map(str, bound)) for bound in self.supported)
            wanted = f">={start},<{stop}"
            raise CaptureVersionError(VERSION.format(distribution=self.distribution, version=version, wanted=wanted))


COMPILERS = (
    Compiler("numba-cuda", "numba.cuda", "numba_cuda", ((0, 30), (0, 31))),
    Compiler("numba-cuda-mlir", "numba_cuda_mlir", "numba_cuda_mlir", ((0, 6), (0, 7))),
)

_lock = threading.RLock()
_joined: dict[str, ModuleType] = {}  # backends by distribution; replaced under the lock
_awaited: dict[str, Arrival] = {}


def simulating(distribution: str = "numba-cuda") -> bool:
    """Whether numba's simulator stands for the GPU; it is a part of numba-cuda alone."""
    return distribution == "numba-cuda" and os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


def present() -> list[str]:
    """Distributions of the compilers that are installed."""
    return [compiler.distribution for compiler in COMPILERS if _installed(compiler.distribution)]


def _installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def enable() -> None:
    """Join captures to every compiler that is installed: now if it is imported, else as soon as it is.

    Raises
    ------
    CaptureVersionError
        If there is no compiler, or one that the package was not made for.  Nothing is joined then.
    """
    with _lock:
        compilers = [compiler for compiler in COMPILERS if _installed(compiler.distribution)]
        if not compilers:
            raise CaptureVersionError(NO_COMPILER)
        for compiler in compilers:
            compiler.check_version()
        begun: list[str] = []
        try:
            for compiler in compilers:
                if compiler.distribution in _joined or compiler.distribution in _awaited:
                    continue
                begun.append(compiler.distribution)
                if compiler.module in sys.modules:
                    join(compiler)
                else:
                    _awaited[compiler.distribution] = Arrival(compiler.module, partial(join, compiler))
                    _awaited[compiler.distribution].wait()
        except BaseException:
            for name in begun:
                _leave(name)
            raise


def join(compiler: Compiler) -> None:
    """Join captures to a compiler that is imported.

    Raises
    ------
    CaptureVersionError
        If it is not built as the backend expects; it is left as it was then.
    """
    with _lock:
        _awaited.pop(compiler.distribution, None)
        name = "simulator" if simulating(compiler.distribution) else compiler.backend
        backend = importlib.import_module(f"cuda_captures.backends.{name}")
        backend.enable()
        _joined[compiler.distribution] = backend


def _leave(distribution: str) -> None:
    awaited = _awaited.pop(distribution, None)
    if awaited is not None:
        awaited.forget()
    backend = _joined.pop(distribution, None)
    if backend is not None:
        backend.disable()


def disable() -> None:
    """Leave every compiler as it was."""
    with _lock:
        for distribution in [*_joined, *_awaited]:
            _leave(distribution)


def enabled() -> list[str]:
    """Distributions of the compilers that captures are joined to, or will be once they are imported."""
    return [*_joined, *_awaited]


def backend_of(kernel: object) -> Any:
    """The backend of the compiler that a kernel was decorated with; for a plain function, the first that is joined.

    Raises
    ------
    CaptureError
        If captures are not enabled for that compiler.
    TypeError
        If ``kernel`` is neither a kernel nor a function.
    """
    dispatcher = getattr(kernel, "dispatcher", kernel)  # a configured kernel knows its own
    if isinstance(dispatcher, FunctionType):
        for compiler in COMPILERS:  # no compiler is imported yet: the first that is installed will do
            if not _joined and compiler.distribution in _awaited:
                importlib.import_module(compiler.module)
        if _joined:
            return next(iter(_joined.values()))
        raise CaptureError(NOT_ENABLED)
    for compiler in COMPILERS:
        package = compiler.module.partition(".")[0] + "."
        if any(base.__module__.startswith(package) for base in type(dispatcher).__mro__):
            backend = _joined.get(compiler.distribution)
            if backend is None:
                raise CaptureError(NOT_ENABLED)
            return backend
    raise TypeError(NO_KERNEL.format(kind=type(kernel).__name__, kernel=kernel))


VERSION = """\
{distribution} {version} is installed, and cuda-captures works with {distribution} {wanted}.
Install a version in that range: `pip install "{distribution}{wanted}"`."""

NO_KERNEL = """\
a kernel or a function is needed, and this is neither: {kernel!r}, of type {kind}.
Give what `@cuda.jit` made, or the function below it."""

NOT_ENABLED = """\
captures are not enabled for the compiler of this kernel. Call `cuda_captures.enable()` first, or run the program with
CUDA_CAPTURES=1 in its environment."""

NO_COMPILER = """\
no compiler is installed that captures could be joined to.
Install one with the package: `pip install "cuda-captures[cu13]"` for numba-cuda with CUDA 13, `[cu12]` with CUDA 12,
`[mlir-cu13]` or `[mlir-cu12]` for numba-cuda-mlir."""
