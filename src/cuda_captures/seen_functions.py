"""Functions that a compilation came to: some are found by nothing else, such as implementations of overloads.

The walk of :mod:`~cuda_captures.discovery` follows names.  An implementation that was registered with a compiler for a
function, a method or an attribute has no name that leads to it; what it captures is followed all the same, once the
compiler has come to it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from cuda_captures.discovery import Discovery

COMPILERS = ("numba", "numba_cuda", "numba_cuda_mlir")  # whose own implementations are what their version says


class SeenFunctions:
    """What one compilation came to.

    Parameters
    ----------
    discovery
        What the walk had found before.

    Attributes
    ----------
    others
        Functions that the walk had not come to, in the order in which they were seen.
    """

    def __init__(self, discovery: Discovery) -> None:
        self.others: list[FunctionType] = []
        self._known = known_codes(discovery)
        self._collecting: list[dict[int, FunctionType]] = []

    def saw(self, function: Any) -> None:
        """Note a function that is compiled."""
        if type(function) is not FunctionType or of_a_compiler(function):
            return
        for collected in self._collecting:
            collected[id(function)] = function
        if id(function.__code__) not in self._known:
            self._known.update(map(id, codes_of(function.__code__)))
            self.others.append(function)

    @contextlib.contextmanager
    def collecting(self) -> Iterator[dict[int, FunctionType]]:
        """All functions that are seen meanwhile, by identity."""
        collected: dict[int, FunctionType] = {}
        self._collecting.append(collected)
        try:
            yield collected
        finally:
            self._collecting.pop()


def known_codes(discovery: Discovery) -> set[int]:
    """The code objects of what a walk came to, by identity."""
    return {id(code) for one in discovery.reached for code in codes_of(one.function.__code__)}


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """A code object and those nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_of(constant)


def of_a_compiler(function: FunctionType) -> bool:
    """Whether a function is a compiler's own."""
    return str(function.__globals__.get("__name__", "")).partition(".")[0] in COMPILERS


def why_not_shared(function: FunctionType) -> str:
    """Why code that depends on such a function is not shared."""
    return f"`{function.__name__}` was found while compiling, on no path from the kernel"
