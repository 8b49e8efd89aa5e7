"""What the CPU harness refuses, and the accesses that it reports."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba.cuda import types

from cpu_execution import BadAccess, NotExecutable, execute, lower, types_of
from generated import function

Array = np.ndarray[Any, Any]


def run(source: str, *args: Any, grid: Any = 1, block: Any = 1, argtypes: Any = None, **options: Any) -> None:
    kernel = function(source, types=types)
    execute(lower(kernel, argtypes or types_of(*args), **options), args, grid, block)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("cuda.syncthreads()", r"calls `llvm\.nvvm\.barrier0`, .* threads run one after another"),
        ("cuda.syncwarp()", r"calls `llvm\.nvvm\.bar\.warp\.sync`"),
        ("a[0] = cuda.shfl_sync(-1, a[0], 0)", r"calls `llvm\.nvvm\.shfl\.sync\.i32`"),
        ("print(a[0])", "calls `vprintf`"),
        ("a[0] = cuda.activemask()", r"PTX .* nothing: activemask\.b32"),
        ("a[0] = cuda.shared.array(0, types.float64).size", "PTX .* nothing: mov.u32 .*dynamic_smem_size"),
        ("cuda.nanosleep(1)", r"PTX .* nothing: nanosleep\.u32"),
    ],
)
def test_what_needs_a_gpu_is_not_executable(statement: str, message: str) -> None:
    with pytest.raises(NotExecutable, match=f"(?s){message}"):
        run(f"def kernel(a): {statement}", np.zeros(1))


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("out[0] = a[4]", r"reads 8 bytes at 0x[0-9a-f]+, byte 32 of argument 0, which has 32$"),
        ("out[0] = a[-5]", r"reads 8 bytes at 0x[0-9a-f]+, byte -8 of argument 0, which has 32$"),
        ("out[i + 1] = 1", r"writes 8 bytes at 0x[0-9a-f]+, byte 24 of argument 1, which has 24$"),
        ("cuda.atomic.add(out, i + 1, 1)", r"writes 8 bytes at 0x[0-9a-f]+, byte 24 of argument 1, which has 24$"),
    ],
)
def test_accesses_out_of_bounds(statement: str, message: str) -> None:
    a, out = np.zeros(40)[:4], np.zeros(40)[8:11]
    with pytest.raises(BadAccess, match=r"^thread \(\d, 0, 0\) of block \(0, 0, 0\) " + message):
        run(f"def kernel(a, out):\n  i = cuda.grid(1)\n  {statement}", a, out, block=3)


def test_a_bad_access_ends_the_launch_and_names_its_thread() -> None:
    out = np.zeros(20)[:6]
    with pytest.raises(BadAccess, match=r"^thread \(0, 1, 0\) of block \(1, 0, 0\) writes"):
        run("""
            def kernel(out):
                i = cuda.threadIdx.x + 2 * cuda.threadIdx.y + 4 * cuda.blockIdx.x
                out[i] = i + 1
        """, out, grid=(3, 1), block=(2, 2))  # fmt: skip
    assert out.tolist() == [1, 2, 3, 4, 5, 6]


def test_records_and_copies_are_checked() -> None:
    kind = np.dtype([("x", "f8"), ("y", "f8")])
    records = np.zeros(9, kind)[:4]
    with pytest.raises(BadAccess, match=r"writes 16 bytes .* byte 64 of argument 0, which has 64"):
        run("def kernel(r):\n  for i in range(5): r[i] = r[0]", records)
    with pytest.raises(BadAccess, match=r"writes 8 bytes .* byte 72 of argument 0, which has 64"):
        run("def kernel(r):\n  for i in range(5): r[i].y = i", records)


def test_memory_that_may_only_be_read() -> None:
    a = np.zeros(4)
    argtypes = types_of(a)
    a.flags.writeable = False
    with pytest.raises(BadAccess, match=r"writes 8 bytes .* byte 16 of argument 0, which it may only read"):
        run("def kernel(a): a[2] = 1", a, argtypes=argtypes)


def test_alignment_that_the_code_claims() -> None:
    """The GPU faults on this; an x86 processor does not."""
    packed = np.zeros(4, np.dtype([("a", "i1"), ("b", "f8")]))
    field, out = packed["b"], np.zeros(1)
    source = "def kernel(a, out): out[0] = a[2]"
    with pytest.raises(BadAccess, match=r"reads 8 bytes .* of argument 0, and its code claims an alignment of 8"):
        run(source, field, out)
    field[2] = 2.5
    honest = types.Array(types.float64, 1, "A", aligned=False)
    run(source, field, out, argtypes=(honest, types.float64[::1]))
    assert out[0] == 2.5


def test_local_arrays_may_not_reach_beyond_the_stack() -> None:
    source = """
        def kernel(out, index):
            mine = cuda.local.array(4, np.float64)
            mine[index] = 5
            out[0] = mine[index]
    """
    out = np.zeros(1)
    run(source, out, 3)
    assert out[0] == 5
    with pytest.raises(BadAccess, match=r"writes 8 bytes at"):
        run(source, out, 10**6)


def test_exceptions_of_a_kernel_with_debug() -> None:
    source = """
        def kernel(a):
            i = cuda.grid(1)
            if a[i] == 2:
                raise ValueError("two", 3)
            a[i] = 6 // a[i]
            assert a[i] != 1
    """
    for values, expected in (([3, 2], ValueError), ([0, 3], ZeroDivisionError), ([6, 3], AssertionError)):
        with pytest.raises(expected) as raised:
            run(source, np.array(values), block=2, debug=True)
        if expected is ValueError:
            assert raised.value.args == ("two", 3)
    a = np.array([3, 1])
    run(source, a, block=2, debug=True)
    assert a.tolist() == [2, 6]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((np.zeros(3),), r"takes 2 arguments \(got 1\)"),
        ((np.zeros(3, np.float32), 1), r"argument 0: .* does not fit float32\[3\], strides \(4,\)"),
        ((np.zeros(6)[::2], 1), "argument 0: .* does not fit float64"),
        (([1.0], 1), r"argument 0: .* takes a NumPy array \(got list\)"),
    ],
)
def test_wrong_arguments(args: tuple[Any, ...], message: str) -> None:
    lowered = lower(function("def kernel(a, b): a[0] = b"), (types.float64[::1], types.int64))
    with pytest.raises(TypeError, match=message):
        execute(lowered, args, 1, 1)


def test_wrong_grids() -> None:
    lowered = lower(function("def kernel(a): a[0] = 1"), (types.float64[::1],))
    for grid in (0, (1, 0), (1, 1, 1, 1)):
        with pytest.raises(ValueError, match="an extent has one to three dimensions of at least 1"):
            execute(lowered, (np.zeros(1),), grid, 1)
