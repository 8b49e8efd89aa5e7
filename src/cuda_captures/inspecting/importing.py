"""Importing the module or file that a command line names, and saying what went wrong."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType

from cuda_captures.backends import arrival
from cuda_captures.inspecting.targets import InspectionError


@dataclass(frozen=True)
class Imported:
    """A module that was imported.

    Parameters
    ----------
    module
        The module; what is in it by then, if it was not executed to its end.
    stopped
        Why it was not: empty, or the error of a compiler that found no GPU, as it is told.
    """

    module: ModuleType
    stopped: str = ""


def imported(name: str) -> Imported:
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
        spec = _spec_of_file(name) if is_file else _spec_of_module(name)
        return _executed(spec)
    except (InspectionError, KeyboardInterrupt):
        raise
    except BaseException as error:  # what programs leave with: SystemExit, and test frameworks' own
        if isinstance(error, ModuleNotFoundError) and error.name is not None and _leads_to(name, error.name):
            raise InspectionError(NO_MODULE.format(name=name, directory=os.getcwd())) from error
        raise InspectionError(IMPORT_FAILED.format(name=name, error=_told(error))) from error


def _leads_to(name: str, missing: str) -> bool:
    return name == missing or name.startswith(f"{missing}.")


def _executed(spec: ModuleSpec) -> Imported:
    """Execute a module; one that stops for want of a GPU, say at a launch, is what it was by then."""
    if spec.name in sys.modules:
        return Imported(sys.modules[spec.name])
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        if wants_gpu(error):
            return Imported(module, _told(error))
        del sys.modules[spec.name]
        raise
    return Imported(module)


def wants_gpu(error: BaseException) -> bool:
    """Whether an error is that of a compiler that finds no GPU."""
    return type(error).__name__ == "CudaSupportError"


def _spec_of_module(name: str) -> ModuleSpec:
    if not _are_names(name.split(".")):
        raise InspectionError(f"{name!r} is neither a file that is there nor the name of a module")
    sys.path.insert(0, os.getcwd())
    importlib.invalidate_caches()
    return _spec(name)


def _spec(name: str) -> ModuleSpec:
    spec = importlib.util.find_spec(name)  # imports the packages around it
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return spec


def _are_names(parts: list[str]) -> bool:
    return all(part.isidentifier() for part in parts)


def _spec_of_file(path: str) -> ModuleSpec:
    """A file as Python would run it, but for the name: what is beside it can be imported."""
    path = os.path.abspath(path)
    name, directory = _dotted(path)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    if "." in name:
        return _spec(name)  # of a package: relative imports work
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise InspectionError(f"{path!r} is no Python file: its name does not end in .py")
    return spec


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
    return f"{text}\n{NEEDS_GPU}" if wants_gpu(error) else text


MOVED = "numba_cuda."  # numba-cuda's own files are imported as if they were below `numba`
OURS = {__file__, arrival.__file__}
IS_DIRECTORY = "{name!r} is a directory; name a file in it, or a package by its dotted name"
NO_MODULE = "there is no module {name!r}, neither installed nor in {directory!r}; a file is named by its path"
IMPORT_FAILED = "{name} cannot be imported:\n{error}"
NEEDS_GPU = (
    "What the program does when it is imported needs a GPU. `cuda-captures check` looks through it without importing"
    " it."
)
