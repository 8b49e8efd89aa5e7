"""The compilers that captures plug into, each behind the same small interface.

A backend is a module (or package) with ``NAME``, ``DISTRIBUTION``, ``MODULE``, ``enable()`` and ``disable()``.
Which are present is asked of the installed distributions; nothing is imported before it is enabled.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import threading
from types import FunctionType, ModuleType
from typing import Any

from cuda_captures.errors import CaptureError, CaptureVersionError

# Module of the backend, by distribution of its compiler.
BACKENDS = {"numba-cuda": "numba_cuda", "numba-cuda-mlir": "numba_cuda_mlir"}

_lock = threading.RLock()
_enabled: dict[str, ModuleType] = {}


def present() -> list[str]:
    """Distributions of the compilers that are installed."""
    found = []
    for distribution in BACKENDS:
        try:
            importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        found.append(distribution)
    return found


def enable() -> None:
    """Join captures to every compiler that is installed; those that are joined already are left as they are.

    Raises
    ------
    CaptureVersionError
        If there is no compiler, or one that the package was not made for.  Nothing is joined then.
    """
    with _lock:
        names = present()
        if not names:
            raise CaptureVersionError(NO_COMPILER)
        begun = []
        try:
            for name in names:
                if name not in _enabled:
                    backend = importlib.import_module(f"cuda_captures.backends.{BACKENDS[name]}")
                    backend.enable()
                    _enabled[name] = backend
                    begun.append(name)
        except BaseException:
            for name in begun:
                _enabled.pop(name).disable()
            raise


def disable() -> None:
    """Leave every compiler as it was."""
    with _lock:
        while _enabled:
            _, backend = _enabled.popitem()
            backend.disable()


def enabled() -> list[str]:
    """Distributions of the compilers that captures are joined to."""
    return list(_enabled)


def backend_of(kernel: object) -> Any:
    """The backend of the compiler that a kernel was decorated with; for a plain function, the first that is enabled.

    Raises
    ------
    CaptureError
        If captures are not enabled for that compiler.
    TypeError
        If ``kernel`` is neither a kernel nor a function.
    """
    dispatcher = getattr(kernel, "dispatcher", kernel)  # a configured kernel knows its own
    for backend in _enabled.values():
        if type(dispatcher).__module__.startswith(backend.MODULE):
            return backend
    if isinstance(dispatcher, FunctionType) and _enabled:
        return next(iter(_enabled.values()))
    if isinstance(dispatcher, FunctionType) or hasattr(dispatcher, "py_func"):
        raise CaptureError(NOT_ENABLED)
    raise TypeError(f"a kernel or a function is needed, and this is a {type(kernel).__name__}: {kernel!r}")


NOT_ENABLED = """\
captures are not enabled for the compiler of this kernel. Call `cuda_captures.enable()` first, or run the program with
CUDA_CAPTURES=1 in its environment."""

NO_COMPILER = """\
no compiler is installed that captures could be joined to.
Install one with the package: `pip install "cuda-captures[cu13]"` for numba-cuda with CUDA 13, `[cu12]` with CUDA 12,
`[mlir-cu13]` or `[mlir-cu12]` for numba-cuda-mlir."""
