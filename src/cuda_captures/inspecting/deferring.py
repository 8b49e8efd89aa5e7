"""Importing a program that compiles kernels while it is imported, on a machine without a GPU.

``cuda.jit`` with a signature compiles at once, for the GPU that is there.  While a program is imported for
inspection, what it calls ``cuda.jit`` takes the signature down instead, and the kernel is compiled by the inspection.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from cuda_captures.backends.arrival import Arrival

MODULES = ("numba.cuda", "numba_cuda_mlir.cuda")  # with the public name `jit`


class Deferred:
    """The signatures that kernels were decorated with."""

    def __init__(self) -> None:
        self._signatures: dict[int, tuple[Any, list[Any]]] = {}

    def add(self, dispatcher: Any, signatures: list[Any]) -> None:
        """Take signatures down; holds the dispatcher, so that its identity stays its own."""
        self._signatures[id(dispatcher)] = dispatcher, signatures

    def of(self, dispatcher: Any) -> list[Any]:
        """The signatures that a dispatcher was made with."""
        return self._signatures.get(id(dispatcher), (None, []))[1]


@contextlib.contextmanager
def deferring() -> Iterator[Deferred]:
    """Let nothing be compiled by decorators within the ``with`` block."""
    deferred = Deferred()
    waiting = []
    replaced: list[tuple[Any, Any]] = []

    def replace(name: str) -> None:
        module = sys.modules[name]
        replaced.append((module, module.jit))
        module.jit = _taking_down(module.jit, deferred)  # type: ignore[attr-defined]

    for name in MODULES:
        if name in sys.modules:
            replace(name)
        else:
            waiting.append(Arrival(name, functools.partial(replace, name)))
            waiting[-1].wait()
    try:
        yield deferred
    finally:
        for arrival in waiting:
            arrival.forget()
        for module, jit in replaced:
            module.jit = jit


def _taking_down(jit: Any, deferred: Deferred) -> Any:
    """A ``jit`` that takes signatures down."""

    @functools.wraps(jit)
    def wrapper(func_or_sig: Any = None, *args: Any, **options: Any) -> Any:
        if func_or_sig is None or isinstance(func_or_sig, FunctionType) or hasattr(func_or_sig, "py_func"):
            return jit(func_or_sig, *args, **options)
        signatures = list(func_or_sig) if isinstance(func_or_sig, list) else [func_or_sig]
        decorate = jit(None, *args, **options)

        def decorated(function: Any) -> Any:
            dispatcher = decorate(function)
            deferred.add(dispatcher, signatures)
            return dispatcher

        return decorated

    return wrapper
