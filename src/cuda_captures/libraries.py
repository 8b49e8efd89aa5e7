"""What belongs to a library, and to which version of it.

A library is the standard library, or an installed distribution (not an editable install): its code is taken to be
what its version says.  The version is the distribution's, with a digest of the list of its files, so that the same
version built again is another one.

Answers are kept for the life of the process; they are read and written without a lock, by any thread, because every
thread finds the same.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import sys
import sysconfig
import weakref
from collections.abc import Iterator
from functools import cache
from types import BuiltinFunctionType, ModuleType
from typing import Any

import numpy as np

PYTHON = f"python {sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"


def library_of(module: ModuleType) -> str | None:
    """Name and version of the library that a module belongs to; None for a user's own module."""
    try:
        return _libraries[module]
    except KeyError:
        pass
    spec = getattr(module, "__spec__", None)
    origin = getattr(spec, "origin", None) or getattr(module, "__file__", None)
    if origin in ("built-in", "frozen"):
        found: str | None = PYTHON
    elif origin is None:  # a namespace package, or a module made by hand
        places = list(getattr(module, "__path__", ()))
        found = owner_of(os.path.join(places[0], "")) if places else None
    else:
        found = owner_of(origin)
    _libraries[module] = found
    return found


_libraries: weakref.WeakKeyDictionary[ModuleType, str | None] = weakref.WeakKeyDictionary()


@cache
def owner_of(path: str) -> str | None:
    """Name and version of the library that a file belongs to."""
    path = os.path.realpath(path)
    below = path
    while True:
        folder, below_name = os.path.split(below)
        if folder == below:
            break
        if _distributions(folder):
            return _owner_in(folder, below_name.partition(".")[0] if below == path else below_name)
        below = folder
    for kind in ("stdlib", "platstdlib"):
        if path.startswith(os.path.realpath(sysconfig.get_path(kind)) + os.sep):
            return PYTHON
    return None


@cache
def _distributions(folder: str) -> tuple[str, ...]:
    """Metadata folders of the distributions installed in a folder.

    An ``.egg-info`` counts in a site folder only: elsewhere it lies beside sources that are still worked on.
    """
    try:
        entries = os.listdir(folder)
    except OSError:
        return ()
    site = os.path.basename(folder) in ("site-packages", "dist-packages")
    return tuple(sorted(one for one in entries if one.endswith(".dist-info") or (site and one.endswith(".egg-info"))))


@cache
def _owner_in(folder: str, top: str) -> str | None:
    """The distribution that installed a top-level module or package into a folder."""
    named = _normal(top)
    metadata = _distributions(folder)
    likely = [one for one in metadata if _normal(one.partition("-")[0].removesuffix(".egg-info")) == named]
    for candidates in (likely, metadata):
        owners = []
        for one in candidates:
            distribution = importlib.metadata.Distribution.at(os.path.join(folder, one))
            files = _files(distribution)
            owns = any(line.startswith((f"{top}/", f"{top}.", f"{top}\n")) for line in files)
            if owns and not _editable(distribution):
                owners.append(f"{distribution.metadata['Name']} {distribution.version}{_digest(distribution)}")
        if owners:
            return ", ".join(owners)
    return None


def _files(distribution: importlib.metadata.Distribution) -> list[str]:
    """Lines that begin with the files or top-level names of a distribution."""
    record = distribution.read_text("RECORD")
    if record is None:
        return (distribution.read_text("top_level.txt") or "").splitlines(keepends=True)
    return record.splitlines(keepends=True)


def _digest(distribution: importlib.metadata.Distribution) -> str:
    """A digest of the installed files by their own digests; scripts, which hold paths, are left out."""
    record = distribution.read_text("RECORD")
    if record is None:
        return ""
    lines = sorted(
        line
        for line in record.splitlines()
        if not line.startswith(("..", "/")) and ".dist-info/" not in line and "__pycache__" not in line
    )
    return f" (files {hashlib.blake2b(chr(10).join(lines).encode(), digest_size=6).hexdigest()})"


def _editable(distribution: importlib.metadata.Distribution) -> bool:
    text = distribution.read_text("direct_url.json")
    try:
        return bool(text) and bool(json.loads(text or "{}").get("dir_info", {}).get("editable", False))
    except ValueError:
        return False


def _normal(name: str) -> str:
    """A distribution's name as PEP 503 normalises it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def library_object(value: Any, hint: str = "") -> str | None:
    """Qualified name and version of an object that a library defines, as text; None if it is not one for certain.

    Parameters
    ----------
    value
        A function, class, ufunc, or other object.
    hint
        The name that it was found under, to look for objects that do not know their own name.
    """
    known = known_library_object(value)
    if known is not None:
        return known
    found = _identify(value, hint)
    if found is not None:
        remember(value, found)
    return found


def known_library_object(value: Any) -> str | None:
    """The answer of :func:`library_object` if it was asked before, else None; costs one look-up."""
    known = _objects.get(id(value))
    return known[1] if known is not None and known[0] is value else None


def remember(value: Any, text: str) -> None:
    """Keep the text of an object or module of a library."""
    _objects[id(value)] = (value, text)


# Holds library objects strongly: they are their module's, and live as long as the process.
_objects: dict[int, tuple[Any, str]] = {}


def _identify(value: Any, hint: str) -> str | None:
    for module_name, qualified in _own_names(value, hint):
        module = sys.modules.get(module_name)
        if module is None or (version := library_of(module)) is None:
            continue
        found: Any = module
        for part in qualified.split("."):
            found = getattr(found, part, None)
        if found is value:
            return f"library {module_name}.{qualified}, {version}"
    return None


def _own_names(value: Any, hint: str) -> Iterator[tuple[str, str]]:
    """Module and qualified name that an object may have, likely ones first."""
    qualified = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    home = getattr(value, "__module__", None)
    if isinstance(value, BuiltinFunctionType) and isinstance(value.__self__, ModuleType):
        home = value.__self__.__name__
    if isinstance(value, np.ufunc):
        yield "numpy", value.__name__
        yield "scipy.special", value.__name__
    names = [name for name in (qualified, hint) if isinstance(name, str) and name]
    for module in (home, type(value).__module__):
        while isinstance(module, str) and module:
            for name in names:
                yield module, name
            module = module.rpartition(".")[0]
