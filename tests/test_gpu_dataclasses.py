"""On the GPU: attributes of dataclass instances, simple namespaces and classes."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cuda_captures

pytestmark = pytest.mark.gpu

LARGE = 1 << 20  # elements: 8 MB, over what constant memory could hold


@dataclasses.dataclass(frozen=True)
class Material:
    attenuation: Any
    density: float = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Scene:
    layers: Any
    counts: Any
    bins: int = 4


@dataclasses.dataclass
class Open:
    table: Any
    count: int = 1


def run(kernel: Any, size: int = 64) -> np.ndarray:
    out = np.zeros(size)
    kernel[1, 64](out)
    return out


def reading(cuda: Any, expression: str, **names: Any) -> Any:
    """The kernel ``out[i] = expression``."""
    namespace: dict[str, Any] = {"cuda": cuda, **names}
    exec(f"def kernel(out):\n    i = cuda.grid(1)\n    if i < out.size:\n        out[i] = {expression}\n", namespace)
    return cuda.jit(namespace["kernel"])


def compilations(kernel: Any) -> int:
    return len(cuda_captures.report(kernel).specialisations)


@pytest.mark.parametrize("place", ["host", "device"])
@pytest.mark.parametrize("kind", [Open, Material, SimpleNamespace])
def test_a_large_table(cuda: Any, kind: Any, place: str) -> None:
    table = np.arange(LARGE, dtype=np.float64)
    held = table if place == "host" else cuda.to_device(table)
    value = kind(table=held) if kind is SimpleNamespace else kind(held)
    name = "attenuation" if kind is Material else "table"
    kernel = reading(cuda, f"value.{name}[i + {LARGE - 64}]", value=value)
    assert np.array_equal(run(kernel), table[-64:])
    if place == "host":
        table[-64:] = 7
        assert np.array_equal(run(kernel), np.full(64, 7.0))


def test_a_scene_of_layers(cuda: Any) -> None:
    rng = np.random.default_rng(3)
    layers = tuple(Material(rng.random(64), density) for density in (0.5, 1.0, 2.0))
    scene = Scene(layers, np.zeros(4, np.int64))

    @cuda.jit(device=True)
    def weight(material, i):
        return material.attenuation[i] * material.density

    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        if i < out.size:
            total = weight(scene.layers[0], i)
            for index in range(len(scene.layers)):
                total += weight(scene.layers[index], i)
            out[i] = total
            cuda.atomic.add(scene.counts, i % scene.bins, 1)

    expected = layers[0].attenuation * 0.5 + sum(layer.attenuation * layer.density for layer in layers)
    assert np.allclose(run(kernel), expected, rtol=1e-14)
    assert scene.counts.tolist() == [16] * 4
    run(kernel)
    assert scene.counts.tolist() == [32] * 4


@pytest.mark.parametrize("kind", [Open, SimpleNamespace])
def test_an_attribute_bound_anew_is_seen_at_the_next_launch(cuda: Any, kind: Any) -> None:
    value = kind(table=np.arange(64.0), count=1)
    kernel = reading(cuda, "value.table[i] * value.count", value=value)
    assert np.array_equal(run(kernel), np.arange(64.0))
    for step in range(5):
        value.table = np.arange(64.0) + step
        assert np.array_equal(run(kernel), np.arange(64.0) + step)
    assert compilations(kernel) == 1
    value.count = 3
    assert np.array_equal(run(kernel), 3 * (np.arange(64.0) + 4))
    value.count = 1
    assert np.array_equal(run(kernel), np.arange(64.0) + 4)
    assert compilations(kernel) == 2
    value.table = cuda.to_device(np.full(64, 5.0))
    assert np.array_equal(run(kernel), np.full(64, 5.0))


def test_the_object_bound_anew_is_seen(cuda: Any) -> None:
    kernel = reading(cuda, "value.attenuation[i]", value=Material(np.arange(64.0)))
    names = kernel.py_func.__globals__
    assert np.array_equal(run(kernel), np.arange(64.0))
    for step in range(5):
        names["value"] = Material(np.arange(64.0) * step)
        assert np.array_equal(run(kernel), np.arange(64.0) * step)
        assert np.array_equal(run(kernel), np.arange(64.0) * step)
    assert compilations(kernel) == 1


def test_a_class(cuda: Any) -> None:
    class Solver:
        table = np.arange(64.0)
        counts = np.zeros(2, np.int64)

        @staticmethod
        @cuda.jit(device=True)
        def get(i):
            return Solver.table[i]

        @staticmethod
        @cuda.jit
        def kernel(out):
            i = cuda.grid(1)
            out[i] = Solver.get(i)
            cuda.atomic.add(Solver.counts, i % 2, 1)

    assert np.array_equal(run(Solver.kernel), np.arange(64.0))
    assert Solver.counts.tolist() == [32, 32]
    Solver.table = np.ones(64)
    assert np.array_equal(run(Solver.kernel), np.ones(64))


def test_an_attribute_that_is_gone(cuda: Any) -> None:
    value = SimpleNamespace(table=np.arange(64.0))
    kernel = reading(cuda, "value.table[i]", value=value)
    run(kernel)
    table = value.table
    del value.table
    with pytest.raises(AttributeError, match="no attribute 'table'"):
        run(kernel)
    value.table = table
    assert np.array_equal(run(kernel), table)
