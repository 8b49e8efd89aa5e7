"""What belongs to a library, and to which version."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

from cuda_captures import libraries
from cuda_captures.libraries import PYTHON, library_object, library_of

NUMBERS = itertools.count()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that distributions are installed in."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for cached in (libraries.owner_of, libraries._distributions, libraries._owner_in):
        cached.cache_clear()


def install(
    site: Path, name: str, version: str, files: dict[str, str], record: bool = True, editable: bool = False
) -> None:
    """Lay a distribution down as an installer does."""
    metadata = site / f"{name}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [f"{metadata.name}/METADATA,,", f"../../bin/{name},sha256=of-a-script-with-a-path,10"]
    for path, text in files.items():
        target = site / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        lines.append(f"{path},sha256={hash(text)},{len(text)}")
    if record:
        (metadata / "RECORD").write_text("\n".join(lines) + "\n")
    else:
        (metadata / "top_level.txt").write_text(
            "\n".join({path.split("/")[0].removesuffix(".py") for path in files}) + "\n"
        )
    if editable:
        (metadata / "direct_url.json").write_text(json.dumps({"url": "file:///src", "dir_info": {"editable": True}}))


def fresh(stem: str = "library") -> str:
    return f"{stem}_{next(NUMBERS)}_of_test"


def test_the_standard_library_goes_by_the_version_of_python() -> None:
    for module in (math, sys, os, json, json.decoder, itertools, importlib, types):
        assert library_of(module) == PYTHON, module
    assert "python " + ".".join(map(str, sys.version_info[:3])) == PYTHON


def test_installed_distributions_go_by_name_version_and_files() -> None:
    found = library_of(np)
    assert found is not None
    assert found.startswith(f"numpy {np.__version__} (files ")
    assert library_of(np.linalg) == found
    assert str(library_of(hypothesis.strategies)).startswith(f"hypothesis {hypothesis.__version__} (files ")


def test_a_users_modules_are_nobodys() -> None:
    assert library_of(sys.modules[__name__]) is None
    assert library_of(types.ModuleType("math")) is None
    assert library_of(types.ModuleType("numpy")) is None


def test_a_package_and_a_module_of_a_distribution(site: Path) -> None:
    package, module = fresh(), fresh()
    install(site, "Some-Name", "1.5", {f"{package}/__init__.py": "", f"{package}/sub.py": "", f"{module}.py": ""})
    names = (package, f"{package}.sub", module)
    found = {library_of(importlib.import_module(name)) for name in names}
    assert len(found) == 1
    assert str(found.pop()).startswith("Some-Name 1.5 (files ")


def test_a_file_beside_distributions_is_the_users(site: Path) -> None:
    install(site, fresh(), "1.5", {f"{fresh()}.py": ""})
    name = fresh()
    (site / f"{name}.py").write_text("")
    assert library_of(importlib.import_module(name)) is None


def test_an_editable_install_is_the_users(site: Path) -> None:
    name = fresh()
    install(site, name, "1.5", {f"{name}.py": ""}, editable=True)
    assert library_of(importlib.import_module(name)) is None


def test_a_checkout_with_metadata_of_a_build_is_the_users(site: Path) -> None:
    name = fresh()
    (site / f"{name}.py").write_text("")
    (site / f"{name}.egg-info").mkdir()
    (site / f"{name}.egg-info" / "PKG-INFO").write_text(f"Name: {name}\nVersion: 3\n")
    (site / f"{name}.egg-info" / "top_level.txt").write_text(f"{name}\n")
    assert library_of(importlib.import_module(name)) is None


def test_a_distribution_without_a_record_goes_by_its_version(site: Path) -> None:
    name = fresh()
    install(site, name, "1.5", {f"{name}.py": ""}, record=False)
    assert library_of(importlib.import_module(name)) == f"{name} 1.5"


def test_the_same_version_of_other_files_is_another_library(site: Path) -> None:
    name = fresh()
    install(site, name, "1.5", {f"{name}.py": "x = 1"})
    first = library_of(importlib.import_module(name))
    record = site / f"{name}-1.5.dist-info" / "RECORD"
    text = record.read_text()
    for changed in (text.replace("of-a-script", "of-another-script"), "\n".join(reversed(text.splitlines())) + "\n"):
        record.write_text(changed)
        libraries._owner_in.cache_clear()
        assert libraries._owner_in(str(site), name) == first
    record.write_text(text.replace("sha256=", "sha256=1", 2))
    libraries._owner_in.cache_clear()
    assert libraries._owner_in(str(site), name) != first


def test_a_distribution_of_another_name_than_its_package_is_found(site: Path) -> None:
    package = fresh()
    for number in range(3):
        install(site, fresh("other"), str(number), {f"{fresh('module')}.py": ""})
    install(site, fresh("unlike"), "7", {f"{package}/__init__.py": ""})
    assert " 7 (files " in str(library_of(importlib.import_module(package)))


def test_a_namespace_package_belongs_to_all_who_fill_it(site: Path) -> None:
    package = fresh()
    install(site, fresh("b"), "2", {f"{package}/two.py": ""})
    install(site, fresh("a"), "1", {f"{package}/one.py": ""})
    found = str(library_of(importlib.import_module(package)))
    assert " 1 (files " in found
    assert " 2 (files " in found
    assert found.index(" 1 (files ") < found.index(" 2 (files ")


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (math.sin, "math.sin"),
        (len, "builtins.len"),
        (int, "builtins.int"),
        (np.float32, "numpy.float32"),
        (np.sin, "numpy.sin"),
        (np.sum, "numpy.sum"),
        (np.dot, "numpy.dot"),
        (np.linalg.norm, "numpy.linalg.norm"),
        (os.path.join, "posixpath.join"),
        (json.JSONDecoder, "json.decoder.JSONDecoder"),
    ],
)
def test_objects_of_libraries(value: Any, name: str) -> None:
    found = library_object(value)
    assert str(found).startswith(f"library {name}, ")
    assert library_object(value) == found


def impostor() -> None:
    """Says that it is another function."""


impostor.__module__, impostor.__qualname__ = "math", "sin"


class Impostor:
    __module__ = "json.decoder"
    __qualname__ = "JSONDecoder"


@pytest.mark.parametrize(
    "value", [impostor, Impostor, lambda: 1, [].append, Impostor(), test_objects_of_libraries, object()]
)
def test_what_is_not_where_its_name_says_is_no_librarys(value: Any) -> None:
    assert library_object(value) is None
