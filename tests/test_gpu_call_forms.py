"""On the GPU: ufuncs, reductions, overloads and other ways to make and call functions, with large captured tables."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import pytest

import cuda_captures
from generated import namespace

pytestmark = pytest.mark.gpu

N = 1 << 20  # elements: 8 MB, over what constant memory could hold
_numbers = itertools.count()


@pytest.fixture
def numba_cuda(cuda: Any, compiler: str) -> Any:
    """numba-cuda, which alone has ufuncs and reductions."""
    if compiler != "numba-cuda":
        pytest.skip(f"{compiler} has no ufuncs and reductions of its own")
    return cuda


@pytest.fixture
def table() -> np.ndarray:
    return np.random.default_rng(3).random(N)


@pytest.fixture
def where() -> np.ndarray:
    return np.random.default_rng(4).integers(0, N, 10_000)


def test_a_ufunc(numba_cuda: Any, table: np.ndarray, where: np.ndarray) -> None:
    source = """
        from numba import vectorize

        @vectorize(["float64(int64)", "float64(int32)"], target="cuda")
        def look_up(i):
            return table[i] * factor
    """
    began = time.perf_counter()
    names = namespace(source, table=table, factor=2.0, cuda=numba_cuda)
    look_up = names["look_up"]
    assert np.array_equal(look_up(where), 2 * table[where])
    assert time.perf_counter() - began < 20
    assert np.array_equal(look_up(where.astype(np.int32)), 2 * table[where])
    table *= -1
    assert np.array_equal(look_up(where), 2 * table[where])
    names["table"] = np.arange(float(N))
    assert np.array_equal(look_up(where), 2.0 * where)
    names["factor"] = 3.0
    assert np.array_equal(look_up(where), 3.0 * where)
    on_device = look_up(numba_cuda.to_device(where))
    assert np.array_equal(on_device.copy_to_host(), 3.0 * where)


def test_a_ufunc_that_is_reduced(numba_cuda: Any) -> None:
    source = """
        from numba import vectorize

        @vectorize(["float64(float64, float64)"], target="cuda")
        def plus(a, b):
            return a + b + zero[0]
    """
    names = namespace(source, zero=np.zeros(N), cuda=numba_cuda)
    assert names["plus"].reduce(np.arange(1000.0)) == 499_500.0


def test_a_generalized_ufunc(numba_cuda: Any, table: np.ndarray, where: np.ndarray) -> None:
    source = """
        from numba import guvectorize

        @guvectorize(["void(int64[:], float64[:])"], "(n)->(n)", target="cuda")
        def look_up(i, out):
            for k in range(i.shape[0]):
                out[k] = table[i[k]] * factor
    """
    names = namespace(source, table=table, factor=2.0, cuda=numba_cuda)
    rows = where.reshape(-1, 10)
    assert np.array_equal(names["look_up"](rows), 2 * table[rows])
    table[where[0]] = -5
    assert np.array_equal(names["look_up"](rows), 2 * table[rows])
    names["table"], names["factor"] = np.arange(float(N)), 3.0
    assert np.array_equal(names["look_up"](rows), 3.0 * rows)


def test_a_generalized_ufunc_that_writes_what_it_captures(numba_cuda: Any, where: np.ndarray) -> None:
    source = """
        from numba import guvectorize

        @guvectorize(["void(int64[:], int64[:])"], "(n)->(n)", target="cuda")
        def count(i, out):
            for k in range(i.shape[0]):
                cuda.atomic.add(counts, i[k], 1)
                out[k] = i[k]
    """
    names = namespace(source, counts=np.zeros(N, np.int64), cuda=numba_cuda)
    names["count"](where.reshape(-1, 10))
    assert np.array_equal(names["counts"], np.bincount(where, minlength=N))


def test_a_reduction(numba_cuda: Any, table: np.ndarray, where: np.ndarray) -> None:
    source = """
        def better(a, b):
            return a if table[a] >= table[b] else b

        best = cuda.reduce(better)
    """
    names = namespace(source, table=table, cuda=numba_cuda)
    best = names["best"]
    assert best(where, init=where[0]) == where[np.argmax(table[where])]
    table[where[77]] = 9
    assert best(where, init=where[0]) == where[77]
    names["table"] = -table
    assert best(where, init=where[0]) == where[np.argmin(table[where])]


def launched(kernel: Any, where: np.ndarray) -> np.ndarray:
    out = np.zeros(where.size)
    kernel[where.size // 128 + 1, 128](where, out)
    return out


KERNEL = """
@cuda.jit
def kernel(where, out):
    i = cuda.grid(1)
    if i < where.size:
        out[i] = get(where[i])
"""
BODY = "    return table[i] * factor\n"


def is_followed(names: dict[str, Any], table: np.ndarray, where: np.ndarray) -> None:
    """``table[i] * factor``, in whatever way it is computed, is that at every launch."""
    kernel = names["kernel"]
    assert np.array_equal(launched(kernel, where), 2 * table[where])
    table[where[0]] = 7
    assert np.array_equal(launched(kernel, where), 2 * table[where])
    names["table"] = np.arange(float(N))
    assert np.array_equal(launched(kernel, where), 2.0 * where)
    names["factor"] = 3.0
    assert np.array_equal(launched(kernel, where), 3.0 * where)
    names["factor"], names["table"] = 2.0, table
    assert np.array_equal(launched(kernel, where), 2 * table[where])


@pytest.mark.parametrize(
    "decorator",
    [
        "@cuda.jit(device=True)",
        '@cuda.jit(device=True, inline="always")',
        "@cuda.jit(device=True, forceinline=True)",
        "@cuda.jit",
        '@cuda.jit("float64(int64)", device=True)',
        '@cuda.jit(["float64(int64)", "float64(int32)"], device=True)',
    ],
)
def test_device_functions(cuda: Any, decorator: str, table: np.ndarray, where: np.ndarray) -> None:
    source = f"{decorator}\ndef get(i):\n{BODY}{KERNEL}"
    is_followed(namespace(source, table=table, factor=2.0, cuda=cuda), table, where)


def test_an_eager_kernel(cuda: Any, table: np.ndarray, where: np.ndarray) -> None:
    source = KERNEL.replace("@cuda.jit", '@cuda.jit("void(int64[::1], float64[::1])")')
    source = source.replace("get(where[i])", "table[where[i]] * factor")
    is_followed(namespace(source, table=table, factor=2.0, cuda=cuda), table, where)


def test_an_overload(cuda: Any, compiler: str, table: np.ndarray, where: np.ndarray) -> None:
    if compiler == "numba-cuda":
        from numba.cuda.extending import overload

        options: dict[str, Any] = {"target": "cuda"}
    else:
        from numba_cuda_mlir.extending import overload, typing_registry

        options = {"typing_registry": typing_registry}
    source = f"""
def get(i):
    raise NotImplementedError

@overload(get, **options)
def overload_of_get(i):
    def implementation(i):
        return table[i] * factor
    return implementation
{KERNEL}
"""
    names = namespace(source, table=table, factor=2.0, cuda=cuda, overload=overload, options=options)
    is_followed(names, table, where)


def test_kernels_made_by_exec_and_by_factories(cuda: Any, table: np.ndarray, where: np.ndarray) -> None:
    names: dict[str, Any] = {"cuda": cuda, "table": table, "factor": 2.0}
    exec(KERNEL.replace("get(where[i])", "table[where[i]] * factor"), names)
    is_followed(names, table, where)

    def make(captured):
        @cuda.jit
        def kernel(where, out):
            i = cuda.grid(1)
            if i < where.size:
                out[i] = captured[where[i]]

        return kernel

    kernels = [make(table * step) for step in range(3)]
    for step, kernel in enumerate(kernels):
        assert np.array_equal(launched(kernel, where), table[where] * step)
    codes = {cuda_captures.report(kernel).specialisations[0].key for kernel in kernels}
    assert len(codes) == 1


def test_static_methods_and_class_attributes(cuda: Any, table: np.ndarray, where: np.ndarray) -> None:
    class Solver:
        scale = 2.0
        values = table

        @staticmethod
        @cuda.jit(device=True)
        def get(i):
            return Solver.values[i] * Solver.scale

        @staticmethod
        @cuda.jit
        def kernel(where, out):
            i = cuda.grid(1)
            if i < where.size:
                out[i] = Solver.get(where[i])

    assert np.array_equal(launched(Solver.kernel, where), 2 * table[where])
    Solver.values, Solver.scale = np.arange(float(N)), 3.0
    assert np.array_equal(launched(Solver.kernel, where), 3.0 * where)


def test_a_declared_function(cuda: Any, compiler: str, table: np.ndarray, where: np.ndarray) -> None:
    name = f"foreign_{next(_numbers)}"
    code = f'extern "C" __device__ int {name}(double *result, double x) {{ *result = 2 * x; return 0; }}'
    foreign = cuda.declare_device(name, "float64(float64)", link=cuda.CUSource(code))

    @cuda.jit
    def kernel(where, out):
        i = cuda.grid(1)
        if i < where.size:
            out[i] = foreign(table[where[i]])

    assert np.array_equal(launched(kernel, where), 2 * table[where])
    table[where[0]] = 7
    assert np.array_equal(launched(kernel, where), 2 * table[where])


def test_arguments_of_several_layouts(cuda: Any) -> None:
    """One compilation may serve several, as numba-cuda-mlir's do."""
    table = np.arange(8.0)

    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        if i < out.shape[0]:
            for j in range(out.shape[1]):
                out[i, j] = table[i] + 100 * j

    for part in ((), np.s_[::2], np.s_[:, ::3], np.s_[1:5, 2:4], np.s_[:, 5:6]):
        memory = cuda.to_device(np.full((8, 9), -1.0))
        expected = np.full((8, 9), -1.0)
        kernel[1, 32](memory[part] if part else memory)
        view = expected[part] if part else expected
        view[:] = table[: view.shape[0], None] + 100 * np.arange(view.shape[1])
        assert np.array_equal(memory.copy_to_host(), expected), part


def test_parts_of_device_arrays_are_assigned_by_the_compilers_own_kernels(cuda: Any) -> None:
    array = np.arange(35.0).reshape(5, 7)
    on_device = cuda.to_device(array)
    for part, value in ((np.s_[2], 1.0), (np.s_[:, 2], 500.0), (np.s_[1:4, 3:5], 7.0), (np.s_[::2, ::3], -1.0)):
        array[part] = value
        on_device[part] = value
        assert np.array_equal(on_device.copy_to_host(), array), part
