"""What is to be inspected: the module or file of a command line, imported, and the kernels in it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

from cuda_captures.backends import arrival
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


def imported(name: str) -> ModuleType:
    """Import a module by its dotted name, or a file by its path, which is then known by the name of the file.

    Raises
    ------
    InspectionError
        If there is none, or if it raises: with the original error and where it was raised.
    """
    is_file = name.endswith(".py") or os.sep in name or os.path.isfile(name)
    if is_file and os.path.isdir(name):
        raise InspectionError(IS_DIRECTORY.format(name=name))
    if is_file and not os.path.exists(name):
        raise InspectionError(f"there is no file {name!r}")
    try:
        return _file(name) if is_file else _module(name)
    except (InspectionError, KeyboardInterrupt):
        raise
    except BaseException as error:  # what programs leave with: SystemExit, and test frameworks' own
        if isinstance(error, ModuleNotFoundError) and error.name is not None and _leads_to(name, error.name):
            raise InspectionError(NO_MODULE.format(name=name, directory=os.getcwd())) from error
        raise InspectionError(IMPORT_FAILED.format(name=name, error=_told(error))) from error


def _leads_to(name: str, missing: str) -> bool:
    return name == missing or name.startswith(f"{missing}.")


def _module(name: str) -> ModuleType:
    if not _are_names(name.split(".")):
        raise InspectionError(f"{name!r} is neither a file that is there nor the name of a module")
    sys.path.insert(0, os.getcwd())
    importlib.invalidate_caches()
    return importlib.import_module(name)


def _are_names(parts: list[str]) -> bool:
    return all(part.isidentifier() for part in parts)


def _file(path: str) -> ModuleType:
    """A file as Python would run it, but for the name: what is beside it can be imported."""
    path = os.path.abspath(path)
    name, directory = _dotted(path)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    if "." in name:
        return importlib.import_module(name)  # of a package: relative imports work
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InspectionError(f"{path!r} is no Python file: its name does not end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _dotted(path: str) -> tuple[str, str]:
    """The dotted name of a file, and the directory that this starts from.

    The directory is one that Python looks in already, if the file can be imported from there: to add one in the
    middle of an installed package would let its parts hide other packages.
    """
    for entry in filter(os.path.isdir, map(os.path.abspath, sys.path)):
        relative = os.path.relpath(path, entry)
        parts = relative.removesuffix(".py").removesuffix(os.sep + "__init__").split(os.sep)
        if len(parts) > 1 and os.path.exists(os.path.join(entry, parts[0], "__init__.py")) and _are_names(parts):
            name = ".".join(parts)
            return (name.removeprefix(MOVED) if name.startswith(f"{MOVED}numba.") else name), entry
    directory, stem = os.path.dirname(path), os.path.splitext(os.path.basename(path))[0]
    parts = [] if stem == "__init__" else [stem]
    while os.path.exists(os.path.join(directory, "__init__.py")) and os.path.dirname(directory) != directory:
        parts.append(os.path.basename(directory))
        directory = os.path.dirname(directory)
    return ".".join(reversed(parts)), directory


def _told(error: BaseException) -> str:
    """An error as Python tells it: where the program was, where it was raised, and what it says."""
    frames = traceback.extract_tb(error.__traceback__)
    kept = [one for one in frames if one.filename not in OURS and "importlib" not in one.filename]
    lines = traceback.format_list(kept if len(kept) < 2 else [kept[0], kept[-1]])
    text = "".join(lines + traceback.format_exception_only(error)).rstrip(" \n:")
    return f"{text}\n{NEEDS_GPU}" if type(error).__name__ == "CudaSupportError" else text


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


MOVED = "numba_cuda."  # numba-cuda's own files are imported as if they were below `numba`
OURS = {__file__, arrival.__file__}
IS_DIRECTORY = "{name!r} is a directory; name a file in it, or a package by its dotted name"
NO_MODULE = "there is no module {name!r}, neither installed nor in {directory!r}; a file is named by its path"
IMPORT_FAILED = "{name} cannot be imported:\n{error}"
NEEDS_GPU = (
    "What the program does when it is imported needs a GPU. `cuda-captures check` looks through it without importing"
    " it."
)
NO_KERNELS = (
    "there is no kernel or device function in {module}: only what is made when it is imported can be inspected, not"
    " what functions of it make later"
)
