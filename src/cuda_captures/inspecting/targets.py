"""The kernels of a program that a command line names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

from cuda_captures.places import function_of


class InspectionError(Exception):
    """What is wrong with what was asked for, said so that the reader can mend it."""


def split(target: str) -> tuple[str, str | None]:
    """The module or file, and the name of a kernel in it.

    A colon is part of a path that is there.
    """
    if os.path.exists(target):
        return target, None
    module, colon, kernel = target.rpartition(":")
    if not colon:
        return target, None
    if not module or not kernel:
        raise InspectionError(f"{target!r} should be a module or a file, or one with a kernel: `module:kernel`")
    return module, kernel


def kernels_in(module: ModuleType, compilers: tuple[str, ...]) -> dict[str, Any]:
    """The kernels and device functions of a module by name, those of its classes too, in the order of definition.

    Those that were imported from modules elsewhere are left out, unless there are no others.
    """
    found = dict(_dispatchers(vars(module), compilers, ""))
    own = {name: one for name, one in found.items() if _function(one).__module__ == module.__name__}
    return own or found


def _dispatchers(namespace: Any, compilers: tuple[str, ...], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in list(namespace.items()):
        value = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if isinstance(value, type):
            if not prefix and value.__module__ == namespace.get("__name__"):
                yield from _dispatchers(vars(value), compilers, f"{name}.")
        elif is_dispatcher(value, compilers):
            yield prefix + name, value


def is_dispatcher(value: Any, compilers: tuple[str, ...]) -> bool:
    """Whether something is what ``cuda.jit`` of one of the compilers makes."""
    top = type(value).__module__.partition(".")[0]
    if top not in compilers or function_of(value) is None or isinstance(value, FunctionType):
        return False
    return "CUDA" in type(value).__name__ or "MLIR" in type(value).__name__


def _function(dispatcher: Any) -> FunctionType:
    function = function_of(dispatcher)
    assert function is not None
    return function


def chosen(kernels: dict[str, Any], name: str | None, module: str) -> dict[str, Any]:
    """The kernel that was asked for, or all.

    Raises
    ------
    InspectionError
        If there is none of that name: with those that there are.
    """
    if name is None:
        if not kernels:
            raise InspectionError(NO_KERNELS.format(module=module))
        return kernels
    if name in kernels:
        return {name: kernels[name]}
    if not kernels:
        raise InspectionError(f"there is no kernel {name!r} in {module}: {NO_KERNELS.format(module=module)}")
    raise InspectionError(f"there is no kernel {name!r} in {module}; there are: {', '.join(kernels)}")


NO_KERNELS = (
    "there is no kernel or device function in {module}: only what is made when it is imported can be inspected, not"
    " what functions of it make later"
)
