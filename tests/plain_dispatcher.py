"""A dispatcher without a compiler: what discovery and key know a device function by, callable as plain Python."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any


class PlainDispatcher:
    """Stands where a compiler's dispatcher stands around a Python function.

    Parameters
    ----------
    function
        The Python function.
    options
        The compiler's options.
    """

    def __init__(self, function: FunctionType, **options: Any) -> None:
        self.py_func = function
        self.targetoptions = options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.py_func(*args, **kwargs)


def device(**options: Any) -> Callable[[FunctionType], PlainDispatcher]:
    """A decorator, as ``cuda.jit(device=True)`` is one."""
    return lambda function: PlainDispatcher(function, device=True, **options)
