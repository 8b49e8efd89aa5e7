"""The CPU harness gives the results that the GPU would give: tested against NumPy and Python's ``math``."""

from __future__ import annotations

import collections
import enum
import gc
import math
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from numba.cuda import types

import cpu_execution
import cpu_translation
import layouts
from cpu_execution import execute, lower, slot_bytes, slot_sizes, types_of
from generated import function, namespace
from layouts import same
from slot_lowering import slots_for_constants

Array = np.ndarray[Any, Any]


def run(kernel: Any, *args: Any, grid: Any = 1, block: Any = 1, **options: Any) -> None:
    """Execute as lowered and once more optimised; a kernel run by this may be run twice."""
    lowered = lower(kernel, types_of(*args), **options)
    for optimise in (False, True):
        execute(lowered, args, grid, block, optimise=optimise)


def test_special_registers() -> None:
    kernel = function("""
        def kernel(out):
            t, b = cuda.threadIdx, cuda.blockIdx
            row = out[b.z, b.y, b.x, t.z, t.y, t.x]
            row[0], row[1], row[2] = cuda.blockDim.x, cuda.blockDim.y, cuda.blockDim.z
            row[3], row[4], row[5] = cuda.gridDim.x, cuda.gridDim.y, cuda.gridDim.z
            row[6], row[7] = cuda.laneid, cuda.warpsize
            row[8], row[9] = cuda.grid(1), cuda.gridsize(1)
    """)
    out = np.full((2, 3, 4, 2, 3, 7, 10), -1)
    run(kernel, out, grid=(4, 3, 2), block=(7, 3, 2))
    assert (out[..., :6] == [7, 3, 2, 4, 3, 2]).all()
    assert (out[..., 6] == (np.arange(42) % 32).reshape(2, 3, 7)).all()
    assert (out[..., 7] == 32).all()
    block, thread = np.arange(4)[:, None, None, None], np.arange(7)
    assert (out[..., 8] == block * 7 + thread).all()
    assert (out[..., 9] == 28).all()


def test_threads_run_in_order_and_one_by_one() -> None:
    kernel = function("""
        def kernel(out, counter):
            out[cuda.grid(1)] = counter[0]
            counter[0] += 1
    """)
    lowered = lower(kernel, (types.int64[::1], types.int64[::1]))
    out, counter = np.zeros(12, np.int64), np.zeros(1, np.int64)
    execute(lowered, (out, counter), 3, 4)
    assert out.tolist() == list(range(12))


@settings(deadline=None, max_examples=60)
@given(layouts.arrays(layouts.dtypes | layouts.record_dtypes))
def test_arguments_of_every_layout(array: Array) -> None:
    kernel = function(f"""
        def kernel(array, out):
            i = cuda.grid(1)
            if i < out.size:
                out[i] = {layouts.element_source(array.ndim, "array")}
    """)
    out = np.zeros(array.size, array.dtype)
    run(kernel, array, out, grid=3, block=32)
    assert same(out, array.ravel())


@settings(deadline=None, max_examples=30)
@given(layouts.arrays(layouts.dtypes | layouts.record_dtypes, writable=True))
def test_writing_arguments_of_every_layout(array: Array) -> None:
    kernel = function(f"""
        def kernel(source, array):
            i = cuda.grid(1)
            if i < source.size:
                {layouts.element_source(array.ndim, "array")} = source[i]
    """)
    source = layouts.random_elements(array.dtype, array.size, 7)
    expected = source.reshape(array.shape)
    run(kernel, source, array, grid=3, block=32)
    assert same(array, expected)


class Colour(enum.IntEnum):
    RED = 3
    BLUE = -4


Pair = collections.namedtuple("Pair", "first second")


@pytest.mark.parametrize(
    "value",
    [
        True,
        False,
        -5,
        2**63 - 1,
        2.5,
        1 - 2j,
        *[np.dtype(name).type(3) for name in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8")],
        np.int8(-128),
        np.uint64(2**64 - 1),
        np.datetime64("2026-01-02T03:04:05", "s"),
        np.timedelta64(-7, "ms"),
    ],
    ids=repr,
)
def test_scalar_arguments(value: Any) -> None:
    kernel = function("def kernel(out, value): out[0] = value")
    out = np.zeros(1, np.asarray(value).dtype)
    run(kernel, out, value)
    assert out[0] == value


def test_tuples_and_enums_are_flattened() -> None:
    kernel = function("""
        def kernel(out, nested, pair, colour):
            out[0] = nested[0]
            out[1] = nested[1][0][1]
            out[2] = nested[1][1]
            out[3] = pair.first[2]
            pair.second[0] = 5
            if colour == Colour.BLUE:
                out[4] = 1
    """, Colour=Colour)  # fmt: skip
    out, second = np.zeros(5), np.zeros(2, np.int8)
    pair = Pair(np.arange(3.0), second)
    run(kernel, out, (7, (np.arange(4, dtype=np.int16)[::-1], np.float32(1.5))), pair, Colour.BLUE)
    assert out.tolist() == [7, 2, 1.5, 2, 1]
    assert second.tolist() == [5, 0]


def test_records_by_reference() -> None:
    kernel = function("""
        def kernel(one, many, out):
            i = cuda.grid(1)
            many[i].mass = one.mass + i
            many[i].at.y = one.at.x
            many[i].tensor[1, 2] = i
            out[i] = many[i].tensor[1, 2]
            one.charge = 9
    """)
    many, out = np.zeros(4, layouts.PARTICLE), np.zeros(4, np.int64)
    one = np.zeros(1, layouts.PARTICLE)
    one["mass"], one["at"]["x"] = 2.5, 3.5
    run(kernel, one[0], many, out, block=4)
    assert many["mass"].tolist() == [2.5, 3.5, 4.5, 5.5]
    assert many["at"]["y"].tolist() == [3.5] * 4
    assert out.tolist() == many["tensor"][:, 1, 2].tolist() == [0, 1, 2, 3]
    assert one["charge"][0] == 9


def test_slices_and_local_arrays() -> None:
    kernel = function("""
        def kernel(a, out):
            mine = cuda.local.array(4, np.float64)
            rows = a[::-1, 1::2]
            for k in range(4):
                mine[3 - k] = rows[k % rows.shape[0], k % rows.shape[1]]
            for k in range(4):
                out[k] += mine[k]
            out[4:] = 2.0
    """)
    a = np.arange(24.0).reshape(4, 6)
    out = np.zeros(7)
    execute(lower(kernel, types_of(a, out)), (a, out), 1, 1)
    rows = a[::-1, 1::2]
    assert out.tolist() == [rows[k, k % 3] for k in (3, 2, 1, 0)] + [2.0] * 3


def test_upstream_constants() -> None:
    made = namespace("""
        table = np.arange(12, dtype=np.int32).reshape(3, 4)
        @cuda.jit(device=True)
        def deep(i): return table[i % 3, i % 4]
        @cuda.jit(device=True, inline="always")
        def inlined(i): return deep(i) + pair[1][i % 2]
        pair = (np.array([True, False]), np.array([100, 200]))
        def make(scale):
            def kernel(out):
                i = cuda.grid(1)
                out[i] = inlined(i) + scale[i] + pair[0][i % 2]
            return kernel
    """)
    scale, i = np.arange(0, 60, 5), np.arange(12)
    out = np.zeros(12, np.int64)
    run(made["make"](scale), out, grid=3, block=4)
    expected = made["table"][i % 3, i % 4] + made["pair"][1][i % 2] + scale + made["pair"][0][i % 2]
    assert out.tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["i4", "i8", "u4", "u8", "f4", "f8"])
def test_atomics(name: str) -> None:
    kernel = function("""
        def kernel(values, sums, least, most, seen):
            i = cuda.grid(1)
            seen[i] = cuda.atomic.add(sums, i % 2, values[i])
            cuda.atomic.sub(sums, 2, values[i])
            cuda.atomic.min(least, 0, values[i])
            cuda.atomic.max(most, 0, values[i])
            cuda.atomic.nanmin(least, 1, values[i])
            cuda.atomic.nanmax(most, 1, values[i])
    """)
    values = np.array([3, 1, 7, 2, 9, 4, 4, 8], name)
    sums, seen = np.zeros(3, name), np.zeros(8, name)
    least, most = np.full(2, 100, name), np.zeros(2, name)
    execute(lower(kernel, types_of(values, sums, least, most, seen)), (values, sums, least, most, seen), 2, 4)
    wrapped = -38 + (2 ** (8 * int(name[1])) if name[0] == "u" else 0)
    assert sums.tolist() == [23, 15, wrapped]
    assert least.tolist() == [1, 1]
    assert most.tolist() == [9, 9]
    assert seen.tolist() == [0, 0, 3, 1, 10, 3, 19, 7]


@pytest.mark.parametrize("name", ["i4", "i8", "u4", "u8"])
def test_integer_atomics(name: str) -> None:
    kernel = function("""
        def kernel(cells):
            i = cuda.grid(1)
            cuda.atomic.and_(cells, 0, 12 + i)
            cuda.atomic.or_(cells, 1, 1 << i)
            cuda.atomic.xor(cells, 2, i)
            cuda.atomic.exch(cells, 3, i)
            cuda.atomic.cas(cells, 4, i, i + 1)
    """)
    cells = np.array([15, 0, 255, 9, 2], name)
    execute(lower(kernel, types_of(cells)), (cells,), 1, 4)
    assert cells.tolist() == [12, 15, 255, 3, 4]


@pytest.mark.parametrize("name", ["u4", "u8"])
def test_wrapping_atomics(name: str) -> None:
    kernel = function("""
        def kernel(cells):
            cuda.atomic.inc(cells, 0, 3)
            cuda.atomic.dec(cells, 1, 3)
    """)
    cells = np.array([2, 1], name)
    execute(lower(kernel, types_of(cells)), (cells,), 1, 3)
    assert cells.tolist() == [1, 2]  # 2 → 3 → 0 → 1, and 1 → 0 → 3 → 2


FUNCTIONS = ["sin", "cos", "tan", "asin", "atan", "sinh", "tanh", "exp", "expm1", "log1p", "erf", "erfc", "sqrt"]
FUNCTIONS += ["floor", "ceil", "trunc", "fabs", "gamma", "lgamma", "exp2", "log", "log2", "log10"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_mathematics_is_that_of_python(name: str) -> None:
    kernel = function(f"""
        import math
        def kernel(x, out, single, out_single):
            i = cuda.grid(1)
            out[i] = math.{name}(x[i])
            out_single[i] = math.{name}(single[i])
    """)
    x = np.linspace(0.05, 0.95, 16)
    single = x.astype(np.float32)
    out, out_single = np.zeros(16), np.zeros(16, np.float32)
    run(kernel, x, out, single, out_single, block=16)
    exact = getattr(math, name)
    if name in ("gamma", "lgamma"):  # Python has its own
        np.testing.assert_allclose(out, [exact(value) for value in x], rtol=1e-13)
    else:
        assert out.tolist() == [exact(value) for value in x]
    np.testing.assert_allclose(out_single, [exact(float(value)) for value in single], rtol=4e-7)


def test_mathematics_of_two_arguments_and_of_classes() -> None:
    kernel = function("""
        import math
        def kernel(x, y, out, flags):
            i = cuda.grid(1)
            out[i, 0], out[i, 1] = math.pow(x[i], y[i]), x[i] ** 3
            out[i, 2], out[i, 3] = math.atan2(x[i], y[i]), math.hypot(x[i], y[i])
            out[i, 4], out[i, 5] = math.fmod(x[i], y[i]), math.copysign(x[i], y[i])
            out[i, 6], out[i, 7] = min(x[i], y[i]), max(x[i], y[i])
            flags[i, 0], flags[i, 1], flags[i, 2] = math.isnan(x[i]), math.isinf(x[i]), math.isfinite(x[i])
    """)
    x, y = np.array([1.5, -2.25, 4.0, math.inf, math.nan, -math.inf]), np.array([2.0, 3.0, -0.5, 1.0, 2.0, 7.0])
    out, flags = np.zeros((6, 8)), np.zeros((6, 3), bool)
    run(kernel, x, y, out, flags, block=6)
    for row, a, b in zip(out[:3], x.tolist(), y.tolist(), strict=False):
        expected = [math.pow(a, b), a**3, math.atan2(a, b), math.hypot(a, b), math.fmod(a, b), math.copysign(a, b)]
        assert row.tolist() == [*expected, min(a, b), max(a, b)]
    assert flags.T.tolist() == [np.isnan(x).tolist(), np.isinf(x).tolist(), np.isfinite(x).tolist()]


def test_integer_intrinsics() -> None:
    kernel = function("""
        def kernel(x, out):
            i = cuda.grid(1)
            out[i, 0], out[i, 1], out[i, 2] = cuda.popc(x[i]), cuda.clz(x[i]), cuda.ffs(x[i])
            out[i, 3] = cuda.brev(x[i])
    """)
    for bits in (32, 64):
        x = np.array([0, 1, 6, 2 ** (bits - 1), 2**bits - 1], f"u{bits // 8}")
        out = np.zeros((5, 4), f"u{bits // 8}")
        run(kernel, x, out, block=5)
        for value, row in zip(x.tolist(), out.tolist(), strict=True):
            reversed_bits = int(f"{value:0{bits}b}"[::-1], 2)
            lowest = (value & -value).bit_length()
            assert row == [value.bit_count(), bits - value.bit_length(), lowest, reversed_bits]


def test_half_precision() -> None:
    kernel = function("""
        import math
        def kernel(a, b, double, single, out, flags, back):
            i = cuda.grid(1)
            double[i], single[i] = a[i], a[i]
            out[i, 0], out[i, 1], out[i, 2], out[i, 3] = a[i] + b[i], a[i] - b[i], a[i] * b[i], -a[i]
            out[i, 4], out[i, 5] = a[i] / b[i], abs(a[i])
            flags[i, 0], flags[i, 1], flags[i, 2] = a[i] < b[i], a[i] == b[i], a[i] >= b[i]
            back[i] = double[i] * 1.0001
    """)
    a = np.arange(0, 2**16, 37, dtype=np.uint16).view(np.float16)
    b = np.roll(a, 5)[::-1].copy()
    count = a.size
    double, single, back = np.zeros(count), np.zeros(count, np.float32), np.zeros(count, np.float16)
    out, flags = np.zeros((count, 6), np.float16), np.zeros((count, 3), bool)
    args = (a, b, double, single, out, flags, back)
    execute(lower(kernel, types_of(*args)), args, 1, count)
    with np.errstate(all="ignore"):
        expected = np.stack([a + b, a - b, a * b, -a, a / b, abs(a)], axis=1)
        np.testing.assert_array_equal(out, expected)
        np.testing.assert_array_equal(double, a.astype(np.float64))
        np.testing.assert_array_equal(single, a.astype(np.float32))
        np.testing.assert_array_equal(back, (double * 1.0001).astype(np.float16))
    assert flags.T.tolist() == [(a < b).tolist(), (a == b).tolist(), (a >= b).tolist()]


def test_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = slots_for_constants(monkeypatch)
    made = namespace("""
        line = np.arange(20.0)[::-2]
        grid = np.asfortranarray(np.arange(12, dtype=np.int8).reshape(3, 4))
        @cuda.jit(device=True)
        def deep(i): return grid[i % 3, i % 4] + line[0]
        def kernel(out):
            i = cuda.grid(1)
            out[i] = line[i % line.size] * 100 + deep(i)
    """)
    i = np.arange(30)
    lowered = lower(made["kernel"], (types.float64[::1],))
    sizes = slot_sizes(lowered)
    assert sorted(sizes.values()) == [8, 24]
    # The code holds no contents: other arrays come in by filling the slots anew.
    for line, table in ((made["line"], made["grid"]), (np.arange(7.0)[::3], made["grid"] + 1)):
        table = np.asfortranarray(table)
        bound = {symbol: line if arrays[symbol] is made["line"] else table for symbol in sizes}
        slots = {symbol: slot_bytes(bound[symbol], size) for symbol, size in sizes.items()}
        out = np.zeros(30)
        execute(lowered, (out,), 3, 10, slots, memory=[line, table])
        assert out.tolist() == (line[i % line.size] * 100 + table[i % 3, i % 4] + line[0]).tolist()
        execute(lowered, (out,), 3, 10, slots)
    with pytest.raises(ValueError, match=r"declares the slots \['cuda_capture_"):
        execute(lowered, (out,), 3, 10)
    with pytest.raises(cpu_execution.BadAccess, match="reads 8 bytes at 0x"):
        execute(lowered, (out,), 3, 10, slots, memory=[table])


def test_translated_once_and_freed_with_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def translate(*args: Any) -> Any:
        calls.append(args)
        return cpu_translation.translate(*args)

    monkeypatch.setattr(cpu_execution, "translate", translate)
    lowered = lower(function("def kernel(out): out[cuda.grid(1)] += 1"), (types.int64[::1],))
    out = np.zeros(8, np.int64)
    for _ in range(3):
        execute(lowered, (out,), 2, 4)
    assert out.tolist() == [3] * 8
    assert len(calls) == 1
    executable = weakref.ref(cpu_execution.executable(lowered))
    calls.clear()
    del lowered
    gc.collect()
    assert executable() is None


def test_threads_may_launch_the_same_code() -> None:
    lowered = lower(function("def kernel(out, value): out[cuda.grid(1)] += value"), (types.int64[::1], types.int64))
    outs = [np.zeros(64, np.int64) for _ in range(4)]

    def work(out: Array, value: int) -> None:
        for _ in range(50):
            execute(lowered, (out, value), 4, 16)

    threads = [threading.Thread(target=work, args=(out, value)) for value, out in enumerate(outs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [out.tolist() for out in outs] == [[50 * value] * 64 for value in range(4)]


@pytest.mark.parametrize("cc", [(8, 0), (9, 0), (10, 0), (12, 0)])
@pytest.mark.parametrize(
    "options", [{}, {"lineinfo": True}, {"debug": True}, {"fastmath": True}, {"lto": True}], ids=str
)
def test_options(cc: tuple[int, int], options: dict[str, Any]) -> None:
    kernel = function("""
        @cuda.jit(device=True)
        def square(x): return x * x
        def kernel(a, out):
            i = cuda.grid(1)
            if i < a.size:
                out[i] = square(a[i]) + 1
    """)
    a, out = np.arange(10.0), np.zeros(10)
    run(kernel, a, out, grid=3, block=4, cc=cc, launch_bounds=64, max_registers=32, **options)
    assert out.tolist() == (a * a + 1).tolist()


def test_promises_are_taken_at_their_word_when_optimising() -> None:
    """A load wrongly marked ``invariant.load`` gives a wrong result here, as it may on a GPU."""
    kernel = function("""
        def kernel(a, alias, out):
            before = a[0]
            alias[0] = before + 1
            out[0] = a[0]
    """)
    lowered = lower(kernel, (types.int64[::1],) * 3)
    library = lowered.library
    lines = [
        line + ", !invariant.load !90" if " = load i64, i64*" in line and "!range" not in line else line
        for line in library.llvm_strs[0].splitlines()
    ]
    library._llvm_strs = ["\n".join([*lines, "!90 = !{}"])]
    results = {}
    for optimise in (False, True):
        a, out = np.array([5]), np.zeros(1, np.int64)
        execute(lowered, (a, a, out), 1, 1, optimise=optimise)
        results[optimise] = out[0]
    assert results == {False: 6, True: 5}
