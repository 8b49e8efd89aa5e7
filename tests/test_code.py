"""What compiled code holds: slots and no contents, loads from global memory; and what it costs to compile."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import cuda_captures
from generated import namespace
from linking import constant_sections

SIGNATURE = "void(int64[::1], float64[::1])"
CAPABILITIES = [(8, 0), (9, 0), (10, 0), (12, 0)]


def gathering(cuda: Any, table: Any, **options: Any) -> Any:
    @cuda.jit(**options)
    def kernel(where, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = table[where[i]]

    return kernel


@pytest.mark.parametrize("lto", [True, False])
@pytest.mark.parametrize("cc", CAPABILITIES, ids=str)
def test_only_slots_are_in_constant_memory(cuda: Any, cc: tuple[int, int], lto: bool) -> None:
    explanation = cuda_captures.explain(gathering(cuda, np.arange(100_000.0), lto=lto), SIGNATURE, cc)
    sections = constant_sections(explanation.cubin)
    banks = {name: size for name, size in sections.items() if not name.startswith(".nv.constant0")}  # 0: parameters
    assert sum(banks.values()) == 8, sections
    assert explanation.constant_bytes == 0


def test_loads_are_from_global_memory_and_not_coherent(cuda: Any) -> None:
    for table in (np.arange(1000.0), np.arange(2000.0)[::-2], np.arange(1000, dtype=np.float32)):
        ptx = cuda_captures.explain(gathering(cuda, table), SIGNATURE).ptx
        assert re.search(r"ld\.global\.nc\.[fb](32|64)", ptx), ptx
        assert not re.search(r"ld\.[fb](32|64)", ptx), ptx


def test_what_is_written_is_loaded_coherently(cuda: Any) -> None:
    table, state = np.arange(1000.0), np.zeros(1000)

    @cuda.jit
    def kernel(where, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = table[where[i]]
            state[i] = out[i]  # may be bound to the same array as `table` some day

    assert "ld.global.nc.f64" not in cuda_captures.explain(kernel, SIGNATURE).ptx


def test_remainders_of_known_divisors_are_taken_in_32_bits(cuda: Any) -> None:
    table = np.arange(1000.0)
    size = table.size

    @cuda.jit
    def kernel(where, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = table[where[i] % size] + table[where[i] % table.size]

    ptx = cuda_captures.explain(kernel, "void(int32[::1], float64[::1])").ptx
    assert re.search(r"mul\.(hi|wide)\.s32", ptx), ptx
    assert not re.search(r"mul\.hi\.s64|mul\.wide\.s64|[dr](iv|em)\.s64", ptx), ptx


def test_rounds_of_loops_are_counted(cuda: Any) -> None:
    table = np.arange(1000.0)

    @cuda.jit
    def kernel(out):
        total = 0.0
        for k in range(1000):
            total += table[k] * out[k]
        out[0] = total

    ptx = cuda_captures.explain(kernel, "void(float64[::1])").ptx
    assert len(re.findall(r"ld\.global\.nc\.f64", ptx)) > 1, ptx  # unrolled
    assert len(re.findall(r"\bbra\b", ptx)) == 1, ptx
    assert "selp" not in ptx, ptx  # between two counts of rounds that are left


@pytest.mark.parametrize("cc", CAPABILITIES, ids=str)
def test_indices_that_count_threads_do_not_wrap_around(cuda: Any, cc: tuple[int, int]) -> None:
    table = np.arange(1000.0)

    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = table[i] + table[i + 1]

    ptx = cuda_captures.explain(kernel, "void(float64[::1])", cc).ptx
    assert not re.search(r"selp|shr\.s64", ptx), ptx  # ways to add the length where an index is negative
    assert re.search(r"\+8\]|add\.s64\s+%\w+, %\w+, 8;", ptx), ptx  # the element beside it, at a constant offset


def test_slots_are_loaded_once(cuda: Any) -> None:
    table = np.arange(1000.0)

    @cuda.jit
    def kernel(where, out):
        for i in range(out.size):
            out[i] = table[i] + table[i + 1] * table[where[i]]

    explanation = cuda_captures.explain(kernel, SIGNATURE)
    assert len(re.findall(r"ld\.const\.\w+\s+\S+ \[cuda_capture", explanation.ptx)) == 1


def test_code_does_not_depend_on_contents_or_address(cuda: Any) -> None:
    first = cuda_captures.explain(gathering(cuda, np.arange(1000.0)), SIGNATURE)
    second = cuda_captures.explain(gathering(cuda, np.zeros(1000)), SIGNATURE)
    longer = cuda_captures.explain(gathering(cuda, np.zeros(1001)), SIGNATURE)
    assert first.key == second.key
    assert longer.key != first.key


def test_constants_are_in_constant_memory(cuda: Any) -> None:
    table = np.arange(100.0)

    @cuda.jit
    def kernel(where, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = cuda.const.array_like(table)[where[i]]

    explanation = cuda_captures.explain(kernel, SIGNATURE)
    assert explanation.constant_bytes == 800
    assert explanation.slots == ()
    assert sum(constant_sections(explanation.cubin).values()) >= 800


def test_cuda_compile_stays_as_it_was(cuda: Any, compiler: str) -> None:
    if compiler != "numba-cuda":
        pytest.skip("asks numba-cuda's way")
    table = np.arange(10.0)

    def kernel(out):
        out[0] = table[int(out[1])]

    ptx, _ = cuda.compile_ptx(kernel, (cuda_type("float64[::1]"),), cc=(9, 0))
    assert "cuda_capture" not in ptx
    assert "_cudapy_cmem" in ptx


def cuda_type(text: str) -> Any:
    from numba import float64

    return {"float64[::1]": float64[::1]}[text]


ATOMICS = [
    ("add", "int32", "add.u32"),
    ("add", "uint64", "add.u64"),
    ("add", "float32", "add.f32"),
    ("add", "float64", "add.f64"),
    ("max", "int32", "max.s32"),
    ("min", "int64", "min.s64"),
    ("and_", "int64", "and.b64"),
    ("xor", "uint32", "xor.b32"),
]


@pytest.mark.parametrize(("name", "dtype", "instruction"), ATOMICS, ids=str)
@pytest.mark.parametrize("used", [False, True])
def test_an_atomic_operation_whose_result_nobody_uses_is_a_reduction(
    cuda: Any, name: str, dtype: str, instruction: str, used: bool
) -> None:
    source = f"""
        @cuda.jit
        def kernel(where, out):
            i = cuda.grid(1)
            if i < out.size:
                {"out[i] = " * used}cuda.atomic.{name}(state, where[i], 1)
    """
    kernel = namespace(source, cuda=cuda, state=np.zeros(100, dtype))["kernel"]
    ptx = cuda_captures.explain(kernel, SIGNATURE).ptx
    assert (f"red.global.{instruction}" in ptx) is not used, ptx
    assert ("atom.global." in ptx) is used, ptx


@pytest.mark.parametrize("options", [{"debug": True, "opt": False}, {"lineinfo": True}, {"lto": True}], ids=str)
def test_unused_atomics_compile_with_every_option(cuda: Any, options: dict[str, bool]) -> None:
    state, values = np.zeros(100, np.int32), np.zeros(100)

    @cuda.jit(**options)
    def kernel(where, out):
        i = cuda.grid(1)
        if i < out.size:
            cuda.atomic.add(state, where[i], 1)
            cuda.atomic.add(values, where[i], out[i])
            found = cuda.atomic.max(state, where[i], i)
            found = cuda.atomic.min(state, where[i], i)
            out[i] = found

    assert cuda_captures.explain(kernel, SIGNATURE).cubin


@pytest.mark.parametrize("cc", CAPABILITIES, ids=str)
def test_a_reduction_has_the_scope_of_the_operation(cuda: Any, cc: tuple[int, int]) -> None:
    state, values = np.zeros(100, np.int32), np.zeros(100)

    def ptx(statements: str) -> str:
        source = f"""
            @cuda.jit
            def kernel(where, out):
                i = cuda.grid(1)
                {statements}
        """
        kernel = namespace(source, cuda=cuda, state=state, values=values)["kernel"]
        return str(cuda_captures.explain(kernel, SIGNATURE, cc).ptx)

    for name, kind in (("state", "u32"), ("values", "f64")):
        used = ptx(f"out[i] = cuda.atomic.add({name}, where[i], 1)")
        unused = ptx(f"cuda.atomic.add({name}, where[i], 1)")
        system = f"atom.relaxed.sys.global.add.{kind}" in used
        assert ("red.relaxed.sys.global.add" if system else f"red.global.add.{kind}") in unused, (used, unused)


def test_atomics_inside_of_what_is_called_are_left_alone(compiler: str, cuda: Any) -> None:
    if compiler != "numba-cuda":
        pytest.skip("intrinsics of numba-cuda's kind")
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    @intrinsic
    def ticket(context, array, out, index):
        def lower(context, builder, signature, arguments):
            of_array, of_out = (
                context.make_array(kind)(context, builder, value)
                for kind, value in zip(signature.args[:2], arguments[:2], strict=True)
            )
            before = builder.atomic_rmw("add", of_array.data, of_array.data.type.pointee(1), "monotonic")
            builder.store(builder.sitofp(before, of_out.data.type.pointee), builder.gep(of_out.data, [arguments[2]]))

        return types.void(array, out, index), lower

    state = np.zeros(100, np.int32)

    @cuda.jit
    def kernel(where, out):
        i = cuda.grid(1)
        if i < out.size:
            ticket(state, out, i)

    ptx = cuda_captures.explain(kernel, SIGNATURE).ptx
    assert "atom." in ptx
    assert "red." not in ptx
