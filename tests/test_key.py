"""The key holds what compiled code depends on, and nothing else; what it cannot see it refuses."""

from __future__ import annotations

import enum
import itertools
import os
import pickle
import subprocess
import sys
import textwrap
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_captures.discovery import discover
from cuda_captures.key import SCHEMA, Key, Unkeyable, array_signature, difference, key_of
from cuda_captures.libraries import PYTHON
from cuda_captures.policy import constant, policy_of
from cuda_captures.values import Unidentifiable, dtype_text, text_of
from plain_dispatcher import PlainDispatcher, device
from program_pairs import DTYPES, LIKE, bits


def key(function: Any, captures: Any = None, signature: str = "(int64)", general: bool = False, **options: Any) -> Key:
    """The key of a function under given options."""
    found = discover(function)
    forms = {}
    for capture in found.arrays:
        form = array_signature(capture.value, policy_of(capture.value, capture.place.name, captures, "live"))
        forms[capture.place.key] = form.general() if general else form
    return key_of(found, signature=signature, options=options, target={"cc": "9.0"}, forms=forms)


def reasons(function: Any, **options: Any) -> list[str]:
    with pytest.raises(Unkeyable) as refused:
        key(function, **options)
    assert str(refused.value) == "; ".join(refused.value.reasons)
    return refused.value.reasons


def made(source: str, name: str = "kernel", file: str = "<made>", **names: Any) -> Any:
    namespace = {"__name__": "made", "np": np, "device": device, **names}
    exec(compile(textwrap.dedent(source), file, "exec"), namespace)
    return namespace[name]


# the whole of a key


def test_a_key_as_text() -> None:
    tables = types.ModuleType("tables")
    tables.sine = np.zeros((3, 4))  # type: ignore[attr-defined]
    kernel = made(
        """
        def make(sigma, table):
            @device(fastmath=True, link=[])
            def get(i, n=2):
                return table[i] * sigma
            return get

        get = make(2.5, np.zeros(3, "f4"))

        def kernel(i):
            return get(i) + tables.sine[i] + len(both) + (lambda x: x + 1)(i)
        """,
        tables=tables,
        both=(np.zeros(2), -0.0),
    )
    lines = key(kernel, fastmath=True).text.splitlines()
    # The bytecode and the version's way to put constants and parameters are Python's own affair.
    shown = [line for line in lines if not any(part in line for part in (" code = ", "constant", " parameters = "))]
    assert shown == [
        f"cuda-captures key, schema {SCHEMA}",
        f"bytecode = {sys.implementation.cache_tag}",
        "signature = (int64)",
        "target cc = str '9.0'",
        "option fastmath = bool True",
        "function 0 = `kernel`",
        "function 0 names = get tables sine len both",
        "function 0 variables = i; ; ",
        "function 0 global get = function 1",
        "function 0 global tables = module 'tables'",
        "function 0 global tables.sine = array f8 2d C mutable aligned host live shape (3, 4) strides (32, 8)",
        f"function 0 global len = library builtins.len, {PYTHON}",
        "function 0 global both = tuple builtins.tuple of 2",
        "function 0 global both[0] = array f8 1d C mutable aligned host live shape (2,) strides (8,)",
        "function 0 global both[1] = float -0.0",
        "function 1 = `get`, plain_dispatcher.PlainDispatcher",
        "function 1 names = ",
        "function 1 variables = i n; ; sigma table",
        "function 1 option device = bool True",
        "function 1 option fastmath = bool True",
        "function 1 option link = []",
        "function 1 closure table = array f4 1d C mutable aligned host live shape (3,) strides (4,)",
        "function 1 closure sigma = float 2.5",
        "function 1 default n = int 2",
    ]
    assert any("code `<lambda>`" in line for line in lines)


def test_keys_are_values() -> None:
    first, second = key(made("def kernel(i): return i")), key(made("def kernel(i): return i"))
    assert first == second
    assert hash(first) == hash(second)
    assert len(first.digest) == 40
    assert pickle.loads(pickle.dumps(first)) == first
    assert key(made("def kernel(i): return -i")).digest != first.digest


# what matters, and what does not


def test_contents_and_addresses_do_not_matter() -> None:
    def make(table: Any) -> Any:
        return lambda i: table[i]

    assert key(make(np.zeros(3))) == key(make(np.ones(3)))
    assert key(make(np.zeros(3))) != key(make(np.zeros(4)))
    assert key(make(np.zeros(3)), general=True) == key(make(np.zeros(4)), general=True)
    assert key(make(np.zeros(3)), general=True) != key(make(np.zeros((3, 3))), general=True)


def test_contents_of_constants_matter() -> None:
    def make(table: Any) -> Any:
        return lambda i: table[i]

    first = key(make(constant(np.zeros(3))))
    assert first == key(make(constant(np.zeros(3))))
    assert first != key(make(constant(np.ones(3))))
    assert first != key(make(np.zeros(3)))
    assert key(make(np.zeros(3)), {"table": "constant"}) == first
    assert key(make(np.zeros(3)), {"table": "snapshot"}) != key(make(np.zeros(3)))
    assert key(make(constant(np.eye(3)))) == key(make(constant(np.eye(3)[::-1][::-1].copy())))
    text = difference(first, key(make(constant(np.ones(3)))))
    assert text.startswith("function 0 closure table: array f8 1d C readonly aligned host constant shape (3,)")


def test_contents_matter_where_a_function_asks_for_constant_memory() -> None:
    source = "def copy(table): return const.array_like(table)\ndef kernel(i): return table[i] + copy(table)[i]"
    const = types.ModuleType("const")
    const.array_like = abs  # type: ignore[attr-defined]

    def keys(size: int) -> tuple[Key, Key]:
        return tuple(key(made(source, table=np.full(size, value), const=const)) for value in (1.0, 2.0))  # type: ignore[return-value]

    small, large = keys(10), keys(10_000)
    assert small[0] != small[1]
    assert large[0] == large[1]  # over the limit of constant memory


def test_two_names_of_one_array_are_as_good_as_two_arrays_but_two_names_of_one_place_are_not() -> None:
    def make(first: Any, second: Any) -> Any:
        return lambda i: first[i] + second[i]

    table = np.zeros(3)
    assert key(make(table, table)) == key(make(table, np.zeros(3)))

    def getter(table: Any) -> Any:
        return lambda i: table[i]

    one, two = getter(table), getter(table)
    shared = made("def kernel(i): return f(i) + g(i)", f=one, g=one)
    apart = made("def kernel(i): return f(i) + g(i)", f=one, g=two)
    assert key(shared) != key(apart)
    assert "function 0 global g: function 1 → function 2" in difference(key(shared), key(apart))


def test_two_functions_that_share_a_place_or_not() -> None:
    source = "def first(i): return table[i]\ndef second(i): return table[i] + 1"
    one, two = made(source, "first", table=np.zeros(3)), made(source, "second", table=np.zeros(3))
    both = one.__globals__
    shared = made("def kernel(i): return f(i) + g(i)", f=both["first"], g=both["second"])
    apart = made("def kernel(i): return f(i) + g(i)", f=one, g=two)
    assert "function 2 global table = as function 1 global table" in key(shared).text
    assert key(shared) != key(apart)


def test_a_scalar_does_not_care_where_it_came_from() -> None:
    source = "def first(i): return n\ndef second(i): return n + 1"
    one, two = made(source, "first", n=3), made(source, "second", n=3)
    shared = made("def kernel(i): return f(i) + g(i)", f=one, g=one.__globals__["second"])
    apart = made("def kernel(i): return f(i) + g(i)", f=one, g=two)
    assert key(shared) == key(apart)


def test_place_in_the_source_matters_for_debug_information_only() -> None:
    source = "def kernel(i): return (lambda x: x + 1)(i)"
    first, second = made(source), made("\n\n" + source, file="<elsewhere>")
    assert key(first) == key(second)
    assert key(first, debug=False, lineinfo=False) == key(second, debug=False, lineinfo=False)
    for option in ("debug", "lineinfo"):
        assert key(first, **{option: True}) != key(second, **{option: True})
        assert key(first, **{option: True}) == key(made(source), **{option: True})
        text = difference(key(first, **{option: True}), key(second, **{option: True}))
        assert "function 0 position: '<made>' line 1" in text
    longer = made("def kernel(i): return (lambda x:   x + 1)(i)")
    assert key(first) == key(longer)
    assert key(first, lineinfo=True) != key(longer, lineinfo=True)


def test_a_device_function_with_line_information_of_its_own() -> None:
    source = "@device(lineinfo=True)\ndef get(i): return i\ndef kernel(i): return get(i)"
    assert key(made(source)) != key(made("\n" + source))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("signature", {"signature": "(float64)"}),
        ("option opt", {"opt": True}),
        ("option link", {"link": ("a", "b")}),
        ("option extensions", {"extensions": {"b": 1, "a": [2.0]}}),
    ],
)
def test_signature_and_options_matter(name: str, change: dict[str, Any]) -> None:
    kernel = made("def kernel(i): return i")
    assert f"{name}: " in difference(key(kernel), key(kernel, **change))


def test_the_target_matters() -> None:
    found = discover(made("def kernel(i): return i"))
    texts = [
        key_of(found, signature="()", options={}, target=target, forms={}).text
        for target in ({"cc": "9.0"}, {"cc": "8.0"}, {"cc": "9.0", "numba": "1"}, {"numba": "1", "cc": "9.0"})
    ]
    assert len(set(texts)) == 3
    assert texts[2] == texts[3]


def test_options_and_eager_signatures_of_device_functions_matter() -> None:
    def kernel_with(**options: Any) -> Any:
        return made("def kernel(i): return get(i)", get=PlainDispatcher(made("def get(i): return i", "get"), **options))

    assert key(kernel_with(fastmath=True)) == key(kernel_with(fastmath=True))
    assert difference(key(kernel_with(fastmath=True)), key(kernel_with(fastmath=False))) == (
        "function 1 option fastmath: bool True → bool False"
    )
    eager = kernel_with()
    dispatcher = eager.__globals__["get"]
    dispatcher._can_compile = False
    dispatcher.overloads = {1: SimpleNamespace(signature="(f4) -> f8"), 0: SimpleNamespace(signature="(f4) -> f4")}
    assert difference(key(kernel_with()), key(eager)) == ("function 1 signatures: absent → (f4) -> f4, (f4) -> f8")
    dispatcher.locals = {"x": 1}
    assert "function 1 variable x = int 1" in key(eager).text


def test_eager_signatures_of_numba_matter_and_lazy_ones_do_not() -> None:
    numba = pytest.importorskip("numba")

    def kernel_with(*signature: str) -> Any:
        return made("def kernel(i): return get(i)", get=numba.njit(*signature)(made("def get(i): return i + 1", "get")))

    first, second, lazy = kernel_with("f8(f8)"), kernel_with("f4(f8)"), kernel_with()
    assert difference(key(first), key(second)) == (
        "function 1 signatures: (float64,) -> float64 → (float64,) -> float32"
    )
    before = key(lazy)
    lazy.__globals__["get"](3)
    lazy.__globals__["get"](3.0)
    assert key(lazy) == before


def test_the_kind_of_dispatcher_matters_but_not_for_the_kernel_itself() -> None:
    class Other(PlainDispatcher):
        pass

    get = made("def get(i): return i", "get")
    kernel = made("def kernel(i): return get(i)", get=PlainDispatcher(get))
    first = key(kernel)
    kernel.__globals__["get"] = Other(get)
    assert first != key(kernel)
    assert key(PlainDispatcher(kernel, opt=True)) == key(kernel)


def test_running_tracing_and_specialising_do_not_matter() -> None:
    kernel = made("def kernel(i):\n    total = 0.0\n    for k in range(i):\n        total += k * 2.5\n    return total")
    fresh = key(kernel)
    for _ in range(5000):
        kernel(10)
    assert key(kernel) == fresh
    seen: list[str] = []

    def trace(frame: Any, event: str, argument: Any) -> Any:
        seen.append(event)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        kernel(10)
        inside = key(kernel)
    finally:
        sys.settrace(before)
    assert seen
    assert inside == fresh
    assert key(kernel) == fresh
    assert (
        key(made("def kernel(i):\n    total = 0.0\n    for k in range(i):\n        total += k * 2.5\n    return total"))
        == fresh
    )


# values


def test_text_of_values_tells_what_bits_tell() -> None:
    found: dict[str, Any] = {}
    seen = []
    for value in [*LIKE, *DTYPES]:
        text = text_of(value)
        assert "\n" not in text or isinstance(value, enum.Enum)
        if text in found:
            assert bits(found[text]) == bits(value), text
        found[text] = value
        seen.append((bits(value), text))
    for (one, first), (two, second) in itertools.combinations(seen, 2):
        assert (one == two) == (first == second), (first, second)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text(st.characters(exclude_categories=()))
    | st.binary(),
    lambda items: st.lists(items, max_size=3).map(tuple) | st.frozensets(st.integers() | st.booleans(), max_size=3),
    max_leaves=6,
)


@given(plain, plain)
def test_text_of_any_two_values(one: Any, two: Any) -> None:
    assert (text_of(one) == text_of(two)) == (bits(one) == bits(two))
    assert pickle.loads(pickle.dumps(text_of(one))) == text_of(one)


fields = st.sampled_from(["f4", "i1", "M8[s]", "S3", ("f4", (2,)), [("x", "f8")]])


@given(
    st.lists(st.tuples(st.sampled_from("abc"), fields), min_size=1, max_size=3, unique_by=lambda one: one[0]),
    st.booleans(),
)
def test_text_of_records_tells_their_layout(described: Any, align: bool) -> None:
    dtype = np.dtype([(name, *(kind if isinstance(kind, tuple) else (kind,))) for name, kind in described], align=align)
    text = dtype_text(dtype)
    assert dtype_text(pickle.loads(pickle.dumps(dtype))) == text
    for other in DTYPES:
        assert (dtype_text(other) == text) == (bits(other) == bits(dtype))
    assert str(dtype.itemsize) in text


def test_titles_and_sub_arrays_of_records() -> None:
    titled = np.dtype([(("A title", "a"), "f4"), ("b", "i2", (2, 3))])
    assert dtype_text(titled) == "record{'a': f4 at 0 title str 'A title', 'b': i2[2, 3] at 4} of 16 to 1"


@pytest.mark.parametrize("name", ["float32", "int8", "boolean", "complex64"])
def test_types_of_the_compiler_are_spelt_out(name: str) -> None:
    numba = pytest.importorskip("numba")
    kind = getattr(numba, name)
    assert text_of(kind) == f"compiler type {type(kind).__module__}.{type(kind).__qualname__} {kind.name}"
    assert text_of(kind[:, ::1]) != text_of(kind[::1, :])


def test_types_of_the_compiler_that_refer_to_objects_are_refused() -> None:
    types = pytest.importorskip("numba").types

    class Anything:
        pass

    assert text_of(types.UniTuple(types.float32, 3)).endswith("UniTuple(float32 x 3)")
    for kind in (types.Opaque("x"), types.List(types.float32), types.Tuple((types.float32, types.Opaque("x")))):
        with pytest.raises(
            Unidentifiable, match=r"^it is the compiler's type (Opaque|List), which refers to an object$"
        ):
            text_of(kind)


def test_names_with_line_breaks_cannot_pass_for_other_lines() -> None:
    forged = types.ModuleType("m'\nfunction 0 global n = int 3")
    first = key(made("def kernel(i): return m, n", m=forged, n=4))
    assert "function 0 global n = int 3" not in first.text.splitlines()
    colour = enum.Enum("Colour", {"RED\nfunction 0 global n = int 3": 1})
    first = key(made("def kernel(i): return m, n", m=colour, n=4))
    assert "function 0 global n = int 3" not in first.text.splitlines()


# what cannot be seen


class Opaque:
    n = 3


def test_what_cannot_be_seen_is_refused_by_name() -> None:
    kernel = made(
        "@device()\ndef get(i): return names[i] + both[1][0]\ndef kernel(i): return get(i) + settings.n",
        names=[1, 2],
        both=(np.zeros(3), ({1}, 3)),
        settings=Opaque(),
    )
    container = "whose items may change one by one; an array (`np.array(...)`) is captured by reference"
    assert reasons(kernel) == [
        f"`settings` (global `settings`): it is an object of {__name__}.Opaque, whose meaning for the compiler is"
        " defined elsewhere",
        f"`names` (device function `get` → global `names`): it is a list, {container}",
        f"`both[1][0]` (device function `get` → global `both` → [1] → [0]): it is a set, {container}",
    ]


def test_options_that_cannot_be_seen_are_refused_by_name() -> None:
    get = PlainDispatcher(
        made("def get(i): return i", "get"), inline=made("def cost(i): return i", "cost"), link=[object()]
    )
    kernel = made("def kernel(i): return get(i)", get=get)
    elsewhere = "whose meaning for the compiler is defined elsewhere"
    assert reasons(kernel, extensions=[object()]) == [
        f"option `extensions`: it is an object of builtins.object, {elsewhere}",
        f"device function `get`: option `inline`: it is an object of builtins.function, {elsewhere}",
        f"device function `get`: option `link`: it is an object of builtins.object, {elsewhere}",
    ]


def test_what_is_compiled_from_its_source_text_is_refused() -> None:
    kernel = made("def kernel(i): return i")
    assert reasons(kernel, experimental_ast_transforms=True) == [
        "option `experimental_ast_transforms`: the source text is compiled, not the bytecode"
    ]
    key(kernel, experimental_ast_transforms=False)


def test_constants_that_python_does_not_make_are_refused() -> None:
    kernel = made("def kernel(i): return 'here'")
    code = kernel.__code__
    kernel.__code__ = code.replace(co_consts=tuple([1] if one == "here" else one for one in code.co_consts))
    assert reasons(kernel) == [
        "`kernel` has a constant: it is a list, whose items may change one by one; an array (`np.array(...)`) is"
        " captured by reference"
    ]


def test_a_constant_array_of_objects_is_refused() -> None:
    kernel = made("def kernel(i): return table[i]", table=constant(np.zeros(3, object)))
    assert reasons(kernel) == ["`table`: it is a constant array of Python objects"]


# differences


def test_a_difference_is_told_by_name() -> None:
    def make(sigma: float, table: Any, function: Callable[[int], int]) -> Any:
        return lambda i: table[i] * sigma + function(i)

    first = key(make(2.0, np.zeros(3), abs))
    assert difference(first, first) == ""
    assert difference(first, key(make(2.5, np.zeros(3), abs))) == "function 0 closure sigma: float 2.0 → float 2.5"
    assert difference(first, key(make(2.0, np.zeros((3, 1)), abs))) == (
        "function 0 closure table: array f8 1d C mutable aligned host live shape (3,) strides (8,)"
        " → array f8 2d C mutable aligned host live shape (3, 1) strides (8, 8)"
    )
    lines = difference(first, key(make(2.0, np.zeros(3), made("def get(i): return i", "get")))).splitlines()
    assert lines[0] == f"function 0 closure function: library builtins.abs, {PYTHON} → function 1"
    assert lines[1] == "function 1: absent → `get`"


# other processes

PROGRAM = """
import enum
import sys
from collections import namedtuple
import numpy as np
from cuda_captures.discovery import discover
from cuda_captures.key import array_signature, key_of
from plain_dispatcher import device

class Colour(enum.Enum):
    RED = 1
    GREEN = "g"

Tables = namedtuple("Tables", "sine cosine")
tables = Tables(np.full(5, PADDING), (np.zeros(3, "f4").T, "text", frozenset({"a", "b", "c"})))
record = np.dtype([("a", "i1"), ("b", "f8")], align=True)
anything = frozenset({"x", "y", ("z", 1), 2.0, None, b"w"})
padding = [bytearray(n) for n in range(PADDING)]

@device(options={"b": 1, "a": 2}, zeta=1, alpha=2)
def get(i, *, scale=2.0, bias=1):
    return tables.sine[i] if i in {"k", "l", "m", 1, 2.5} else np.float32(i) * scale + bias

def make(table, n):
    def kernel(i):
        m = np
        found = getattr(m, "pi"), m.sin(i), len(anything)
        return get(i), [table[k] for k in range(n)], record, Colour.RED, {"p", "q", "r"} & {i}, found
    return kernel

kernel = make(np.full((3, 4), PADDING), 3)
found = discover(kernel)
forms = {capture.place.key: array_signature(capture.value, "live") for capture in found.arrays}
text = key_of(found, signature="(int64)", options={"b": 1, "a": (1, 2)}, target={"cc": "9.0"}, forms=forms)
sys.stdout.buffer.write(text.text.encode())
print()
print(text.digest, [capture.recipe for capture in found.arrays])
"""


def test_processes_agree(tmp_path: Path) -> None:
    here = Path(__file__).parent
    said = set()
    for number, seed in enumerate(["0", "1", "4711", "random", "random", "random"]):
        file = tmp_path / str(number) / "program.py"
        file.parent.mkdir()
        file.write_text(f"PADDING = {number * 50}\n" + "\n" * number + PROGRAM)
        done = subprocess.run(
            [sys.executable, str(file)],
            env={
                **os.environ,
                "PYTHONHASHSEED": seed,
                "PYTHONPATH": os.pathsep.join([str(here.parent / "src"), str(here)]),
            },
            capture_output=True,
            text=True,
            check=True,
        )
        said.add(done.stdout)
    assert len(said) == 1
    text = said.pop()
    assert "0x" not in text.replace("flags 0x", "")
    assert "frozenset ((str 'z', int 1), None, bytes 1 77, float 2.0, str 'x', str 'y')" in text
