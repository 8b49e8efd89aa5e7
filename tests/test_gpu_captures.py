"""On the GPU: captured arrays of every kind, layout and type, in every place where a kernel can name one."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest

import cuda_captures

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::cuda_captures.CapturePerformanceWarning"),  # where pages cannot be watched
]

TABLE = np.arange(100_000) * 0.5
Cell = namedtuple("Cell", "width weight hits")


def read(cuda: Any, array: Any, kind: str = "host") -> Any:
    """Every element of an array, as a kernel that captures it sees them, in C order."""
    captured = array if kind == "host" else cuda.to_device(array)
    shape, ndim = array.shape, array.ndim

    def flat(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = captured[i]

    def square(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = captured[i // shape[1], i % shape[1]]

    def point(out):
        if cuda.grid(1) == 0:
            out[0] = captured[()]

    kernel = cuda.jit({0: point, 1: flat, 2: square}[ndim])
    out = np.zeros(max(array.size, 1), array.dtype)
    kernel[out.size // 128 + 1, 128](out)
    return out[: array.size].reshape(shape)


DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16", "M8[D]", "m8[s]"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["host", "device"])
def test_every_plain_dtype(cuda: Any, dtype: str, kind: str) -> None:
    array = np.random.default_rng(1).integers(0, 2 if dtype == "?" else 100, 9).astype(dtype)
    assert read(cuda, array, kind).tobytes() == array.tobytes()


LAYOUTS = {
    "C": lambda a: a,
    "Fortran": lambda a: np.asfortranarray(a),
    "gapped": lambda a: a[::2, 1::3],
    "negative": lambda a: a[::-1, ::-2],
    "zero stride": lambda a: np.broadcast_to(a[2], (5, a.shape[1])),
    "one row": lambda a: a[3:4, 1:3],
    "transposed": lambda a: a.T,
    "empty": lambda a: a[:0],
    "one dimension, reversed": lambda a: a.ravel()[::-1],
    "0-d": lambda a: a[1, 2, ...].reshape(()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(cuda: Any, layout: str) -> None:
    array = LAYOUTS[layout](np.arange(56.0).reshape(7, 8))
    assert np.array_equal(read(cuda, array), array)


@pytest.mark.parametrize("cut", ["C", "gapped", "transposed"])
def test_layouts_of_device_arrays(cuda: Any, cut: str) -> None:
    whole = np.arange(56.0).reshape(7, 8)
    captured = LAYOUTS[cut](cuda.to_device(whole)) if cut != "transposed" else cuda.to_device(whole).T

    @cuda.jit
    def kernel(out):
        i, j = cuda.grid(2)
        if i < out.shape[0] and j < out.shape[1]:
            out[i, j] = captured[i, j]

    want = LAYOUTS[cut](whole)
    out = np.zeros(want.shape)
    kernel[(1, 1), (8, 8)](out)
    assert np.array_equal(out, want)


RECORD = np.dtype([("a", "u1"), ("b", "f8"), ("c", [("d", "i2"), ("e", "f4")]), ("f", "i4", (3,))])


def test_records(cuda: Any, compiler: str) -> None:
    if compiler == "numba-cuda-mlir":
        pytest.skip("numba-cuda-mlir has no records")
    dtype = np.dtype(RECORD.descr, align=True)  # numba-cuda reads no unaligned member of a record, argument or not
    table = np.zeros(4, dtype)
    table["a"], table["b"] = [1, 2, 3, 4], [0.5, 1.5, 2.5, 3.5]
    table["c"]["d"], table["c"]["e"] = [-1, -2, -3, -4], [0.25, 0.5, 0.75, 1.0]
    table["f"] = np.arange(12).reshape(4, 3)
    field = table["b"]

    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        if i < 4:
            row = table[i]
            out[i] = row.a + row.b + row.c.d + row.c.e + row.f[1] + field[i]

    out = np.zeros(4)
    kernel[1, 32](out)
    want = table["a"] + table["b"] * 2 + table["c"]["d"] + table["c"]["e"] + table["f"][:, 1]
    assert np.array_equal(out, want)


def test_unaligned_fields(cuda: Any) -> None:
    table = np.zeros(5, [("a", "u1"), ("b", "f8"), ("c", "i2")])
    table["b"], table["c"] = np.arange(5) * 0.5, np.arange(5)
    try:
        found = read(cuda, table["b"])
    except cuda_captures.CaptureTypingError as refused:
        if "does not find the elements of `captured`" not in str(refused):
            raise
        pytest.skip("this compiler takes every element for aligned")
    assert np.array_equal(found, table["b"])
    assert np.array_equal(read(cuda, table["c"][::-1]), table["c"][::-1])


def test_writes_to_records_come_back(cuda: Any, compiler: str) -> None:
    if compiler == "numba-cuda-mlir":
        pytest.skip("numba-cuda-mlir has no records")
    table = np.zeros(4, np.dtype(RECORD.descr, align=True))

    @cuda.jit
    def kernel():
        i = cuda.grid(1)
        if i < 4:
            table[i].b = i * 0.5
            table[i]["a"] = i

    kernel[1, 32]()
    assert np.array_equal(table["b"], np.arange(4) * 0.5)
    assert np.array_equal(table["a"], np.arange(4))


def test_the_program_of_the_issue(cuda: Any) -> None:
    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = TABLE[i]

    out = np.zeros(TABLE.size)
    kernel[TABLE.size // 256 + 1, 256](out)
    assert np.array_equal(out, TABLE)


def test_two_closures_of_one_factory_in_one_kernel(cuda: Any) -> None:
    def make(table):
        @cuda.jit(device=True)
        def look(i):
            return table[i]

        return look

    first, second = make(np.arange(4.0)), make(np.arange(4.0) * 10)

    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = first(i) + second(3 - i)

    out = np.zeros(4)
    kernel[1, 32](out)
    assert np.array_equal(out, np.arange(4.0) + np.arange(4.0)[::-1] * 10)


@pytest.mark.parametrize("options", [{}, {"inline": "always"}, {"forceinline": True}])
def test_device_functions_at_depth(cuda: Any, options: dict[str, Any]) -> None:
    table = np.arange(8.0)
    state = np.zeros(8)

    @cuda.jit(device=True, **options)
    def inner(i):
        state[i] = table[i] * 2
        return table[i]

    @cuda.jit(device=True, **options)
    def outer(i):
        return inner(i) + table[7 - i]

    @cuda.jit
    def first(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = outer(i)

    @cuda.jit
    def second(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = outer(i) + inner(i)

    out = np.zeros(8)
    first[1, 32](out)
    assert np.array_equal(out, table + table[::-1])
    assert np.array_equal(state, table * 2)
    table += 1
    second[1, 32](out)
    assert np.array_equal(out, table * 2 + table[::-1])
    assert np.array_equal(state, table * 2)


def test_tuples_named_tuples_and_nests(cuda: Any) -> None:
    cell = Cell(3, np.array([0.5, 1.5, 2.5]), np.zeros(3, np.int32))
    nest = (cell, (cuda.to_device(np.arange(3.0)), 7))

    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        if i < nest[0].width:
            width, weight, hits = nest[0]
            out[i] = weight[i] + nest[1][0][i] + nest[1][1] + width
            cuda.atomic.add(hits, i, i + 1)

    out = np.zeros(3)
    kernel[1, 32](out)
    kernel[1, 32](out)
    assert np.array_equal(out, cell.weight + np.arange(3) + 10)
    assert np.array_equal(cell.hits, [2, 4, 6])


def test_attributes_of_modules(cuda: Any, module: Any) -> None:
    module.weights = np.array([2.0, 4.0, 8.0])
    module.pair = (np.zeros(3), 5)
    module.bias = 1.5

    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = module.weights[i] + module.bias
            module.pair[0][i] = i + module.pair[1]

    out = np.zeros(3)
    kernel[1, 32](out)
    assert np.array_equal(out, [3.5, 5.5, 9.5])
    assert np.array_equal(module.pair[0], [5, 6, 7])


OPTIONS: list[dict[str, Any]] = [
    {},
    {"lto": False},
    {"debug": True, "opt": False},
    {"lineinfo": True},
    {"fastmath": True},
    {"max_registers": 32},
    {"launch_bounds": 64},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options(cuda: Any, options: dict[str, Any]) -> None:
    table = np.arange(1000.0)
    state = np.zeros(1000)

    @cuda.jit(**options)
    def kernel(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = table[i] * 2
            state[i] = i

    out = np.zeros(1000)
    kernel[32, 32](out)
    assert np.array_equal(out, table * 2)
    assert np.array_equal(state, np.arange(1000))


def test_eager_signature_and_filled_later(cuda: Any) -> None:
    table = np.zeros(4)

    @cuda.jit("void(float64[:])")
    def kernel(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = table[i]

    table[:] = [1, 2, 3, 4]
    out = np.zeros(4)
    kernel[1, 32](out)
    assert np.array_equal(out, table)


def test_linked_cuda_source(cuda: Any, tmp_path: Any) -> None:
    source = tmp_path / "twice.cu"
    source.write_text('extern "C" __device__ int twice(double *result, double x) { *result = 2 * x; return 0; }')
    twice = cuda.declare_device("twice", "float64(float64)", link=str(source))
    table = np.arange(8.0)

    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = twice(table[i])

    out = np.zeros(8)
    kernel[1, 32](out)
    assert np.array_equal(out, table * 2)


def test_cooperative_launch(cuda: Any) -> None:
    state = np.zeros(64)

    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        state[i] = i
        cuda.cg.this_grid().sync()
        out[i] = state[63 - i]

    out = np.zeros(64)
    kernel[2, 32](out)
    assert np.array_equal(out, np.arange(64)[::-1])


def test_enabling_reaches_what_was_compiled_before(cuda: Any) -> None:
    small = np.arange(4.0)

    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = small[i]

    out = np.zeros(4)
    cuda_captures.disable()
    try:
        kernel[1, 32](out)
    finally:
        cuda_captures.enable()
    small += 1
    kernel[1, 32](out)
    assert np.array_equal(out, small)
    cuda_captures.disable()
    try:
        small += 1
        kernel[1, 32](out)  # keeps its captures
        assert np.array_equal(out, small)
    finally:
        cuda_captures.enable()


def test_constant_memory_when_asked_for(cuda: Any) -> None:
    table = np.arange(16.0)
    marked = cuda_captures.constant(np.arange(16.0) * 3)

    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = cuda.const.array_like(table)[i] + marked[i]

    out = np.zeros(16)
    kernel[1, 32](out)
    assert np.array_equal(out, np.arange(16) * 4)


def test_slices_in_the_kernel(cuda: Any) -> None:
    plate = np.arange(30.0).reshape(5, 6)

    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        if i < 5:
            row, column, back = plate[i], plate[:, i], plate[i, ::-2]
            out[0, i] = row[2] + row.size
            out[1, i] = column[4]
            out[2, i] = back[1]
            mine = plate[i, 1:3]
            mine[0] = -i

    @cuda.jit
    def argument(out, plate):
        i = cuda.grid(1)
        if i < 5:
            row, column, back = plate[i], plate[:, i], plate[i, ::-2]
            out[0, i] = row[2] + row.size
            out[1, i] = column[4]
            out[2, i] = back[1]

    want = np.array([plate[:, 2] + 6, plate[4, :5], plate[:, 3]])
    out = np.zeros((3, 5))
    argument[1, 32](out, plate)
    if not np.array_equal(out, want):
        pytest.skip("this compiler takes other elements from slices of an argument as well")
    out[:] = 0
    kernel[1, 32](out)
    assert np.array_equal(out, want)
    assert np.array_equal(plate[:, 1], -np.arange(5.0))
