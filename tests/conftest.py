"""Fixtures: the compilers that are installed, one test run each, and whether there is a GPU."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

import cuda_captures
from cuda_captures import backends

if TYPE_CHECKING:
    from memory_driver import MemoryDriver

os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")

SIMULATOR = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
needs_a_compiler = pytest.mark.skipif(SIMULATOR, reason="needs a compiler, not its simulator")
COMPILERS = {"numba-cuda": "numba.cuda", "numba-cuda-mlir": "numba_cuda_mlir.cuda"}


def module_of(compiler: str) -> Any:
    """The module ``cuda`` of a compiler."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a compiler warns about on import is its own affair
        return importlib.import_module(COMPILERS[compiler])


def has_gpu() -> bool:
    """Whether kernels can be launched here: a real device, not the simulator."""
    if SIMULATOR:
        return False
    from cuda_captures import device

    return device.available()


@pytest.fixture(scope="session")
def gpu() -> None:
    """Skips a test where there is no GPU."""
    if not has_gpu():
        pytest.skip("needs a GPU")


@pytest.fixture(params=[name for name in COMPILERS if name in backends.present()])
def compiler(request: pytest.FixtureRequest) -> str:
    """Each installed compiler in turn."""
    if SIMULATOR:
        pytest.skip("needs a compiler, not its simulator")
    return str(request.param)


@pytest.fixture
def cuda(compiler: str) -> Iterator[Any]:
    """The module ``cuda`` of each installed compiler, with captures enabled."""
    module = module_of(compiler)
    with cuda_captures.enabled():
        yield module


@pytest.fixture
def fake() -> Iterator[MemoryDriver]:
    """A driver that lives in memory, in the place of the real one."""
    from copies_in_memory import in_memory

    yield from in_memory()


@pytest.fixture
def module(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A new module, importable by its name for the length of the test."""
    made = importlib.util.module_from_spec(importlib.machinery.ModuleSpec(f"module_of_{request.node.name}", None))
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked gpu are skipped where there is none."""
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if needing and not has_gpu():
        for item in needing:
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))
