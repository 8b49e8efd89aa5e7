"""Captured arrays as each compiler lowers them, executed on the CPU and compared with NumPy bit for bit."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import cuda_captures
import layouts
import linking
from backends_under_test import INSTALLED, current, using
from captured_kernels import CapturedKernel, launch, types_of
from containers import CONTAINERS, Container, Program, programs
from generated import namespace
from layouts import element_source, same

Array = np.ndarray[Any, Any]

BARE = CONTAINERS[0]
# Each example is a compilation and a link, about 0.2 s.
EXAMPLES = int(os.environ.get("CUDA_CAPTURES_EXAMPLES", "12"))
SUPPRESSED = [HealthCheck.too_slow, HealthCheck.filter_too_much]
quick = settings(deadline=None, max_examples=EXAMPLES, suppress_health_check=SUPPRESSED)
more = settings(quick, max_examples=3 * EXAMPLES)


@pytest.fixture(autouse=True, scope="module", params=INSTALLED)
def captures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Captures, with each compiler in turn."""
    with using(request.param), cuda_captures.enabled():
        yield


def run(kernel: Any, *args: Any, grid: int = 1, block: int = 1, **options: Any) -> CapturedKernel:
    """Execute as lowered and once more optimised; for kernels that may run twice."""
    made = CapturedKernel(kernel, types_of(*args), **options)
    for optimise in (False, True):
        made.launch(*args, grid=grid, block=block, optimise=optimise)
    return made


def takes(statements: str, out: Array, table: Array) -> bool:
    """Whether the compiler takes statements on an array ``table`` that is an argument; asked, not listed."""
    return current().takes(statements, out, table)


def gives(statements: str, table: Array, expected: Array) -> bool:
    """Whether the compiler finds in an array ``table`` that is an argument what Python does."""
    return current().gives(statements, table, expected)


def wanted(item: str, array: Array) -> Array:
    """An integer property of an array, as a kernel gives it."""
    return np.array([eval(item, {"ARRAY": array})], np.int64)


def needs(statements: str, out: Array, table: Array) -> None:
    """Skip a test of what the compiler does not take on an array that is an argument."""
    if not takes(statements, out, table):
        pytest.skip(f"{current().name} does not take this: {statements}")


def only_slots(kernel: CapturedKernel) -> bool:
    """Whether the machine code has nothing in constant memory but the slots of what it captures."""
    return constants(kernel) == {use.slot.symbol: 8 * use.slot.words for use in kernel.code().uses}


def constants(kernel: CapturedKernel) -> dict[str, int]:
    """What the machine code has in constant memory."""
    return linking.user_constants(kernel.cubin())


@more
@given(programs(), layouts.arrays(unaligned=True))
def test_reading_from_every_place(program: Program, array: Array) -> None:
    out = np.zeros(array.size, array.dtype)
    assume(takes(f"out[i] = {element_source(array.ndim, 'table')}", out, array))
    kernel = run(program.kernel(array, element_source(array.ndim, "ARRAY")), out, block=max(array.size, 1))
    assert same(out, array.ravel())
    assert only_slots(kernel)


@quick
@given(st.sampled_from(CONTAINERS), st.booleans(), layouts.arrays(layouts.record_dtypes))
def test_reading_records_from_every_place(container: Container, closure: bool, array: Array) -> None:
    out = np.zeros(array.size, array.dtype)
    assume(takes(f"out[i] = {element_source(array.ndim, 'table')}", out, array))
    program = Program(container, closure)
    kernel = run(program.kernel(array, element_source(array.ndim, "ARRAY")), out, block=max(array.size, 1))
    assert same(out, array.ravel())
    assert only_slots(kernel)


ATTRIBUTES = ("ndim", "size", "itemsize", "nbytes", "shape", "strides")


@quick
@given(programs(max_depth=1), layouts.arrays(min_dims=1))
def test_shape_and_strides(program: Program, array: Array) -> None:
    items = ["ARRAY.ndim", "ARRAY.size", "ARRAY.itemsize", "ARRAY.nbytes", "len(ARRAY)"]
    items += [f"ARRAY.{name}[{axis}]" for name in ("shape", "strides") for axis in range(array.ndim)]
    items = [item for item in items if gives(f"out[i] = {item.replace('ARRAY', 'table')}", array, wanted(item, array))]
    access = "(" + ", ".join([*items, "0"]) + ")[i]"
    assume(items and takes(f"out[i] = {access.replace('ARRAY', 'table')}", np.zeros(1, "i8"), array))
    expected = [int(eval(item, {"ARRAY": array})) for item in items]
    out = np.zeros(len(items), np.int64)
    run(program.kernel(array, access), out, block=out.size)
    assert out.tolist() == expected


@st.composite
def sliced(draw: st.DrawFn) -> tuple[Array, str]:
    """An array, and source text of a part of it: slices, reversed ones, and indices, fewer than there are axes too."""
    array = draw(layouts.arrays(min_dims=1, min_side=1))
    parts = []
    for extent in array.shape[: draw(st.integers(1, array.ndim))]:
        if draw(st.booleans()):
            parts.append(str(draw(st.integers(-extent, extent - 1))))
        else:
            bound = st.none() | st.integers(-extent - 1, extent + 1)
            ends = [draw(bound), draw(bound), draw(st.sampled_from([None, 1, 2, -1, -2]))]
            parts.append(":".join("" if end is None else str(end) for end in ends))
    return array, ", ".join(parts)


@more
@given(st.sampled_from(CONTAINERS), st.booleans(), sliced())
def test_slices(container: Container, closure: bool, array_and_part: tuple[Array, str]) -> None:
    array, part = array_and_part
    expected = np.asarray(eval(f"array[{part}]"))
    access = "view" if expected.ndim == 0 else element_source(expected.ndim, "view")
    lines = [
        "def kernel(out):",
        "    i = cuda.grid(1)",
        "    if i < out.size:",
        f"        view = {container.expression}[{part}]",
        f"        out[i] = {access}",
    ]
    out = np.zeros(expected.size, array.dtype)
    assume(gives(f"view = table[{part}]\nout[i] = {access}", array, expected.ravel()))
    run(Program(container, closure).function(array, lines), out, block=max(out.size, 1))
    assert same(out, expected.ravel())


@quick
@given(
    st.sampled_from(CONTAINERS),
    st.booleans(),
    layouts.arrays(layouts.dtypes | layouts.record_dtypes, writable=True, unaligned=True),
)
def test_writing(container: Container, closure: bool, array: Array) -> None:
    lines = [
        "def kernel(source):",
        "    i = cuda.grid(1)",
        "    if i < source.size:",
        f"        {element_source(array.ndim, container.expression)} = source[i]",
    ]
    source = layouts.random_elements(array.dtype, array.size, 3)
    assume(takes(f"{element_source(array.ndim, 'table')} = out[i]", source, array))
    kernel = run(Program(container, closure).function(array, lines), source, block=max(source.size, 1))
    assert same(array, source.reshape(array.shape))
    assert only_slots(kernel)
    assert any(use.written for use in kernel.code().uses)


@quick
@given(
    st.sampled_from(CONTAINERS),
    st.booleans(),
    layouts.arrays(st.sampled_from([np.dtype(name) for name in ("i2", "f8", "c8")]), min_dims=1, writable=True),
    st.sampled_from(["::-1", "1:", "::2", ":-1"]),
)
def test_writing_through_a_view_in_a_device_function(
    container: Container, closure: bool, array: Array, part: str
) -> None:
    expected = array.copy()
    expected[eval(f"np.s_[{part}]")] = 5
    lines = [
        "@cuda.jit(device=True)",
        "def fill(view):",
        "    for k in range(view.shape[0]):",
        "        view[k] = 5" if array.ndim == 1 else f"        view[k][{', '.join([':'] * (array.ndim - 1))}] = 5",
        "@cuda.jit(device=True)",
        "def outer(i):",
        f"    fill({container.expression}[{part}])",
        "def kernel(out):",
        "    i = 1",
        "    outer(i)",
    ]
    rest = "" if array.ndim == 1 else f"[{', '.join([':'] * (array.ndim - 1))}]"
    assume(takes(f"view = table[{part}]\nfor k in range(view.shape[0]): view[k]{rest} = 5", np.zeros(1), array))
    assume(gives(f"out[i] = table[{part}].shape[0]", array, np.array([len(array[eval(f"np.s_[{part}]")])])))
    run(Program(container, closure).function(array, lines), np.zeros(1))
    assert same(array, expected)


ATOMIC_DTYPES = st.sampled_from([np.dtype(name) for name in ("i4", "u4", "i8", "u8", "f4", "f8")])


@quick
@given(st.sampled_from(CONTAINERS), st.booleans(), layouts.arrays(ATOMIC_DTYPES, 1, 3, 1, writable=True), st.data())
def test_atomics(container: Container, closure: bool, array: Array, data: st.DataObject) -> None:
    array[...] = np.arange(array.size).reshape(array.shape) % 5
    operation = data.draw(st.sampled_from(["add", "sub", "max", "min"]))
    threads = 16
    places = np.array(data.draw(st.lists(st.integers(0, array.size - 1), min_size=threads, max_size=threads)))
    expected, before = array.copy(), []
    function = {"add": np.add, "sub": np.subtract, "max": np.maximum, "min": np.minimum}[operation]
    for value, place in enumerate(places):
        index = np.unravel_index(place, array.shape)
        before.append(expected[index])
        with np.errstate(over="ignore"):
            expected[index] = function(expected[index], array.dtype.type(value))
    subscript = element_source(array.ndim, container.expression, "places[i]").removeprefix(container.expression)[1:-1]
    if array.ndim > 1:
        subscript = f"({subscript})"
    lines = [
        "def kernel(places, seen):",
        "    i = cuda.grid(1)",
        f"    seen[i] = cuda.atomic.{operation}({container.expression}, {subscript}, seen.dtype.type(i))",
    ]
    seen = np.zeros(threads, array.dtype)
    launch(Program(container, closure).function(array, lines), places, seen, block=threads)
    assert same(array, expected)
    assert seen.tolist() == before


def test_exchange_and_compare_and_swap() -> None:
    made = namespace("""
        cells = np.zeros((2, 3), np.int64)[::-1]
        def kernel(seen):
            i = cuda.grid(1)
            seen[i, 0] = cuda.atomic.exch(cells, (1, 1), i)
            seen[i, 1] = cuda.atomic.cas(cells, (0, 2), i, i + 1)
    """)
    seen = np.zeros((4, 2), np.int64)
    launch(made["kernel"], seen, block=4)
    assert made["cells"].tolist() == [[0, 0, 4], [0, 3, 0]]
    assert seen.tolist() == [[0, 0], [0, 1], [1, 2], [2, 3]]


def test_fields_of_records() -> None:
    made = namespace("""
        particles = (np.zeros(4, PARTICLE)[::-1],)
        one = np.zeros((), PARTICLE)
        @cuda.jit(device=True)
        def move(i): particles[0][i].at.x += one[()].mass
        def kernel(out):
            i = cuda.grid(1)
            p = particles[0][i]
            p.mass = 2.0 * i
            p.at.y = p.at.x
            p.tensor[1, 2] = i
            p.tensor[0] = 7
            particles[0][i]["charge"] = -i
            p.alive = i % 2
            move(i)
            out[i] = particles[0].at[i].x + particles[0].tensor[i][1, 2]
    """, PARTICLE=layouts.PARTICLE)  # fmt: skip
    needs("out[0] = table[()].mass", np.zeros(1), made["one"])
    needs("table[i].at.x += 1", np.zeros(1), made["particles"][0])
    made["one"]["mass"] = 0.5
    out = np.zeros(4)
    launch(made["kernel"], out, block=4)
    (particles,) = made["particles"]
    assert particles["mass"].tolist() == [0, 2, 4, 6]
    assert particles["at"]["x"].tolist() == [0.5] * 4
    assert particles["tensor"][:, 1, 2].tolist() == [0, 1, 2, 3]
    assert (particles["tensor"][:, 0] == 7).all()
    assert particles["charge"].tolist() == [0, -1, -2, -3]
    assert particles["alive"].tolist() == [False, True, False, True]
    assert out.tolist() == [0.5, 1.5, 2.5, 3.5]


@quick
@given(st.data(), st.sampled_from(CONTAINERS), layouts.dtypes, st.integers(1, 3))
def test_one_general_version_serves_every_shape(
    data: st.DataObject, container: Container, dtype: np.dtype[Any], ndim: int
) -> None:
    arrays = [data.draw(layouts.arrays(dtype, ndim, ndim, writable=True)) for _ in range(5)]
    out = np.zeros(1, dtype)
    assume(all(takes(f"out[i] = {element_source(ndim, 'table')}", out, array) for array in arrays))
    program = Program(container)
    source = f"{element_source(ndim, 'ARRAY')} if i < ARRAY.size else out[i]"
    function = program.kernel(arrays[0], source)
    kernel = CapturedKernel(function, (types_of(arrays[0].reshape(-1).copy())[0],))
    for number, array in enumerate(arrays):
        program.names["table"] = container.value(array)
        if "module" in container.label:
            kernel = CapturedKernel(function, kernel.toolchain.argtypes)
        out = np.zeros(array.size + 1, dtype)
        for optimise in (False, True):
            kernel.launch(out, block=out.size, optimise=optimise)
        assert same(out[:-1], array.ravel()), number
        # exact, general of one layout, general of any
        assert kernel.compilations <= min(number + 1, 3)
    assert only_slots(kernel)


@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_general_version_knows_that_arrays_are_contiguous(order: Any, ndim: int) -> None:
    shapes = [(2, 3, 4)[:ndim], (3, 4, 2)[:ndim], (4, 1, 5)[:ndim], (1, 1, 1)[:ndim], (1, 4, 3)[:ndim]]
    arrays = [np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape, order=order) for shape in shapes]
    items = [f"ARRAY.{name}[{axis}]" for name in ("shape", "strides") for axis in range(ndim)]
    needs("out[0] = table.strides[0]", np.zeros(1, np.int64), arrays[0])
    element = element_source(ndim, "ARRAY", f"(i - {len(items)})")
    access = f"({', '.join(items)})[i] if i < {len(items)} else {element}"
    program = Program(BARE)
    kernel = CapturedKernel(program.kernel(arrays[0], access), "void(int64[::1])")
    for number, array in enumerate(arrays):
        program.names["table"] = array
        out = np.zeros(len(items) + array.size, np.int64)
        kernel.launch(out, block=out.size)
        assert out[: 2 * ndim].tolist() == [*array.shape, *array.strides]
        assert out[2 * ndim :].tolist() == array.ravel().tolist()
        # An array that is contiguous both ways counts as C, so among F arrays it asks for a version of any layout.
        assert kernel.compilations <= min(number + 1, 2 if order == "C" else 3)


def test_rebinding_to_an_equal_array_compiles_nothing() -> None:
    made = namespace("""
        table = np.arange(6.0)
        def kernel(out): out[cuda.grid(1)] = table[cuda.grid(1)]
    """)
    kernel, out = CapturedKernel(made["kernel"], "void(float64[::1])"), np.zeros(6)
    for factor in (1, 2, 3):
        made["table"] = np.arange(6.0) * factor
        kernel.launch(out, block=6)
        assert out.tolist() == (np.arange(6.0) * factor).tolist()
    assert kernel.compilations == 1


def test_scalars_are_followed() -> None:
    made = namespace("""
        table, scale = np.arange(6.0), 2
        def kernel(out): out[cuda.grid(1)] = table[cuda.grid(1)] * scale
    """)
    kernel, out = CapturedKernel(made["kernel"], "void(float64[::1])"), np.zeros(6)
    for scale, compilations in ((2, 1), (3, 2), (2, 2), (2.5, 3)):
        made["scale"] = scale
        kernel.launch(out, block=6)
        assert out.tolist() == (np.arange(6.0) * scale).tolist()
        assert kernel.compilations == compilations


@pytest.mark.parametrize("optimise", [False, True])
@pytest.mark.parametrize("shift", [0, 1, -1])
def test_two_names_for_one_piece_of_memory(shift: int, optimise: bool) -> None:
    """A write through one name is read through the other, whatever the compiler was told of the loads."""
    made = namespace("""
        read = np.zeros(1)
        write = np.zeros(1)
        def kernel(out):
            before = read[1]
            write[1] = before + 1
            write[2] = before + 2
            out[0], out[1], out[2] = before, read[1], read[2]
    """)
    memory = np.array([10.0, 20.0, 30.0, 40.0, 50.0])
    made["read"], made["write"] = memory[1:4], memory[1 + shift : 4 + shift]
    out = np.zeros(3)
    expected_memory = memory.copy()
    read, write = expected_memory[1:4], expected_memory[1 + shift : 4 + shift]
    before = read[1]
    write[1:3] = before + 1, before + 2
    expected = [before, read[1], read[2]]
    CapturedKernel(made["kernel"], "void(float64[::1])").launch(out, optimise=optimise)
    assert out.tolist() == expected
    assert memory.tolist() == expected_memory.tolist()


@pytest.mark.parametrize("optimise", [False, True])
def test_a_mapped_array_that_is_an_argument_too(optimise: bool) -> None:
    """Mapped memory is used in place, so an argument may be the same; the copy of a ``live`` array is its own."""
    made = namespace("""
        table = np.array([10.0, 20.0])
        def kernel(out):
            before = table[0]
            out[0] = before + 1
            out[1] = table[0]
    """)
    kernel = CapturedKernel(made["kernel"], "void(float64[::1])", captures="mapped")
    kernel.launch(made["table"], optimise=optimise)
    assert made["table"].tolist() == [11.0, 11.0]


def test_closures_of_one_factory_in_one_kernel() -> None:
    made = namespace("""
        def make(table):
            @cuda.jit(device=True)
            def look(i): return table[i]
            return look
        first, second = make(np.arange(4) + 10), make(np.arange(4) + 20)
        def kernel(out):
            i = cuda.grid(1)
            out[i] = first(i) * 100 + second(i)
    """)
    out = np.zeros(4, np.int64)
    kernel = run(made["kernel"], out, block=4)
    assert out.tolist() == [1020, 1121, 1222, 1323]
    assert len(kernel.code().uses) == 2


def test_a_parameter_and_a_local_shadow_the_global() -> None:
    made = namespace("""
        table = np.arange(4.0)
        @cuda.jit(device=True)
        def look(table, i): return table[i]
        def kernel(out, other):
            i = cuda.grid(1)
            out[i] = look(other, i) * 10 + table[i]
    """)
    out, other = np.zeros(4), np.arange(4.0) + 5
    kernel = run(made["kernel"], out, other, block=4)
    assert out.tolist() == (other * 10 + np.arange(4.0)).tolist()
    assert len(kernel.code().uses) == 1


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"debug": True},
        {"lineinfo": True},
        {"fastmath": True},
        {"lto": False},
        {"max_registers": 24},
        {"opt": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("cc", [(8, 0), (9, 0), (10, 0), (12, 0)])
def test_options(options: dict[str, Any], cc: tuple[int, int]) -> None:
    made = namespace("""
        table = np.arange(12, dtype=np.int32).reshape(3, 4)[:, ::-2]
        state = (np.zeros(6),)
        @cuda.jit(device=True)
        def look(i): return table[i % 3, i % 2]
        def kernel(out):
            i = cuda.grid(1)
            state[0][i] += look(i)
            out[i] = state[0][i]
    """)
    out, i = np.zeros(6), np.arange(6)
    kernel = launch(made["kernel"], out, block=6, cc=cc, **options)
    assert out.tolist() == made["state"][0].tolist() == made["table"][i % 3, i % 2].tolist()
    assert linking.compute_capability(kernel.cubin()) == cc
    assert sorted(constants(kernel).values()) == [8, 8]


def test_constant_memory_where_it_is_asked_for() -> None:
    made = namespace("""
        table = np.arange(12, dtype=np.int32).reshape(3, 4)[::-1]
        lookup = np.arange(6.0)
        def kernel(out):
            i = cuda.grid(1)
            constant = cuda.const.array_like(table)
            out[i] = constant[i % 3, i % 4] + lookup[i]
    """)
    out, i = np.zeros(6), np.arange(6)
    expected = (made["table"][i % 3, i % 4] + made["lookup"]).tolist()
    kernel = run(made["kernel"], out, block=6)
    assert out.tolist() == expected
    assert sorted(constants(kernel).values()) == [8, 48]
    assert kernel.code().constant_bytes == 48
    kernel = run(made["kernel"], out, block=6, captures="constant")
    assert out.tolist() == expected
    assert sorted(constants(kernel).values()) == [48, 48]
    assert not kernel.code().uses


def test_unaligned_fields_of_packed_records() -> None:
    packed = np.zeros(5, np.dtype([("tag", "i1"), ("value", "f8"), ("pair", "i2", (3,))]))
    packed["value"], packed["pair"] = np.arange(5) + 0.5, np.arange(15).reshape(5, 3)
    made = namespace("""
        def kernel(out):
            i = cuda.grid(1)
            out[i] = values[i] + pairs[i, 2]
            values[i] = i
            pairs[i][1] = -i
    """, values=packed["value"], pairs=packed["pair"])  # fmt: skip
    out = np.zeros(5)
    needs("out[i] = table[i]", out, packed["value"])
    launch(made["kernel"], out, block=5)
    assert out.tolist() == [2.5, 6.5, 10.5, 14.5, 18.5]
    assert packed["value"].tolist() == [0, 1, 2, 3, 4]
    assert packed["pair"][:, 1].tolist() == [0, -1, -2, -3, -4]
    assert not packed["tag"].any()


@pytest.mark.parametrize("unit", ["ns", "s", "D"])
def test_dates(unit: str) -> None:
    made = namespace(
        """
        start = np.array(["2026-01-01", "2026-06-30", "NaT"], "M8[UNIT]")
        steps = np.array([1, -5, 3], "m8[UNIT]")
        def kernel(out, gone):
            i = cuda.grid(1)
            out[i] = start[i] + steps[i]
            steps[i] += steps[i]
            gone[i] = start[i] < start[0]
    """.replace("UNIT", unit)
    )
    out, gone = np.zeros(3, f"M8[{unit}]"), np.zeros(3, bool)
    needs("table[i] += table[i]", out, made["steps"])
    needs("out[i] = table[i] < table[0]", gone, made["start"])
    launch(made["kernel"], out, gone, block=3)
    assert same(out, made["start"] + np.array([1, -5, 3], f"m8[{unit}]"))
    assert made["steps"].astype(int).tolist() == [2, -10, 6]
    assert gone.tolist() == [False, False, False]


def test_iteration_rows_and_membership() -> None:
    made = namespace("""
        table = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::-1]
        def kernel(out):
            row = table[cuda.grid(1)]
            total = 0.0
            for value in row:
                total += value
            for k, value in enumerate(row):
                total += k * value
            out[cuda.grid(1)] = total + len(table) + table.T[1, 2] + table.shape[1]
    """)
    table = made["table"].astype(float)
    out = np.zeros(3)
    needs("for k, value in enumerate(table[0]): out[k] = value", out, made["table"])
    needs("out[0] = table.T[1, 2]", out, made["table"])
    run(made["kernel"], out, block=3)
    expected = table.sum(axis=1) + (table * np.arange(4)).sum(axis=1) + 3 + table.T[1, 2] + 4
    assert out.tolist() == expected.tolist()


NARROW = ["int8", "uint8", "int16", "uint16", "int32", "uint32"]


@st.composite
def divided(draw: st.DrawFn) -> tuple[Array, int]:
    """Integers of at most 32 bits, with the extremes of their type, and a divisor that has at most 31."""
    dtype = np.dtype(draw(st.sampled_from(NARROW)))
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    values = draw(st.lists(st.integers(least, most), min_size=1, max_size=8))
    divisor = draw(st.integers(1, 9) | st.integers(1, (1 << 31) - 1) | st.just((1 << 31) - 1))
    return np.array([*values, least, most], dtype), divisor


@more
@given(divided())
def test_quotients_and_remainders_are_those_of_python(values_and_divisor: tuple[Array, int]) -> None:
    values, divisor = values_and_divisor
    source = """
        def kernel(out):
            i = cuda.grid(1)
            out[0, i] = values[i] % divisor
            out[1, i] = values[i] // divisor
            out[2, i] = values[i] % values.size
            remainder = values[i]
            remainder %= divisor
            out[3, i] = remainder
            out[4, i] = values[i] % -divisor
        """
    kernel = namespace(source, values=values, divisor=divisor)["kernel"]
    out = np.zeros((5, values.size), np.int64)
    run(kernel, out, block=values.size)
    wide = [int(value) for value in values]
    assert out[0].tolist() == [value % divisor for value in wide]
    assert out[1].tolist() == [value // divisor for value in wide]
    assert out[2].tolist() == [value % len(wide) for value in wide]
    assert out[3].tolist() == out[0].tolist()
    assert out[4].tolist() == [value % -divisor for value in wide]


def test_the_size_of_arrays_of_any_length_is_no_constant() -> None:
    source = """
        def kernel(where, out):
            i = cuda.grid(1)
            out[i] = table[where[i] % table.size]
        """
    where, names = np.array([-1, 0, 7, 100], np.int32), namespace(source, table=np.arange(3.0))
    for size in (3, 4, 5):  # the second length makes a version for every length
        names["table"] = np.arange(float(size))
        out = np.zeros(where.size)
        run(names["kernel"], where, out, block=where.size)
        assert out.tolist() == (where % size).tolist()


def test_negative_indices_from_threads_wrap_around() -> None:
    source = """
        def kernel(out):
            i = cuda.grid(1)
            out[i] = table[i - 4] + table[cuda.threadIdx.x - 4]
        """
    table, out = np.arange(10.0), np.zeros(10)
    run(namespace(source, table=table)["kernel"], out, block=out.size)
    assert out.tolist() == [2 * table[i - 4] for i in range(out.size)]


@quick
@given(st.integers(-5, 5), st.integers(-5, 5), st.sampled_from([-3, -2, -1, 1, 2, 3]))
def test_loops_over_ranges(start: int, stop: int, step: int) -> None:
    source = """
        def kernel(out):
            rounds, total = 0, 0
            for number in range(bounds[0], bounds[1], bounds[2]):
                rounds += 1
                total += 10 * number
                for inner in range(number):
                    if inner == 3:
                        break
                    total += inner
            out[0] = rounds
            out[1] = total
        """
    bounds, out = np.array([start, stop, step]), np.zeros(2, np.int64)
    run(namespace(source, bounds=bounds)["kernel"], out)
    numbers = range(start, stop, step)
    assert out.tolist() == [len(numbers), sum(10 * number + sum(range(min(number, 3))) for number in numbers)]


def test_an_exhausted_range_stays_so() -> None:
    statements = """
numbers = iter(range(4))
for number in numbers:
    if number == 1:
        break
for number in numbers:
    out[0] += number
for number in numbers:
    out[1] += 1
for number in numbers:
    out[1] += 1
"""
    table, out = np.zeros(1), np.zeros(2)
    needs(statements, out, table)
    source = f"def kernel(out):\n{textwrap.indent(statements, '    ')}\n    out[1] += table[0]\n"
    kernel = CapturedKernel(namespace(source, table=table)["kernel"], types_of(out))
    kernel.launch(out)
    assert out.tolist() == [5, 0]


@pytest.mark.parametrize("dtype", ["float64", "complex128", "int8", "bool"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arguments_without_gaps(dtype: str, order: str) -> None:
    source = """
        def kernel(values, out):
            i = cuda.grid(1)
            for j in range(values.shape[1]):
                out[i, j] = values[i, j] if table[i] else values[i, -1 - j]
        """
    values = np.asarray(np.arange(12).reshape(3, 4) % 5, dtype, order=order)
    table, out = np.array([1, 0, 1]), np.zeros((3, 4), dtype, order)
    needs("out[0, 0] = table[0, 0]", out, values)
    run(namespace(source, table=table)["kernel"], values, out, block=3)
    assert same(out, np.where(table[:, None], values, values[:, ::-1]))


def test_arguments_that_are_bound_again() -> None:
    source = """
        def kernel(values, out):
            if table[0] == 1:
                values = values[1:]
            out[0] = values[0] + values[-1]
        """
    values, out = np.arange(5.0), np.zeros(1)
    needs("if out[0] == 1:\n    table = table[1:]\nout[0] = table[0]", out, values)
    for first, expected in ((1, 5.0), (0, 4.0)):
        run(namespace(source, table=np.array([first]))["kernel"], values, out)
        assert out[0] == expected
