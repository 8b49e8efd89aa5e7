"""What a function sees is what Python would look up, and every place is found again."""

from __future__ import annotations

import builtins
import gc
import math
import os
import sys
import types
import weakref
from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cuda_captures.discovery import (
    MISSING,
    AttributePlace,
    CellPlace,
    DefaultPlace,
    GlobalPlace,
    ItemPlace,
    ModulePlace,
    discover,
    follow,
    is_device_array,
)
from plain_dispatcher import PlainDispatcher, device

Tables = namedtuple("Tables", "sine cosine")


def made(source: str, name: str = "kernel", **names: Any) -> Any:
    """A function from source, in a namespace of its own."""
    namespace = {"__name__": "made", "np": np, "device": device, **names}
    exec(source, namespace)
    return namespace[name]


def kinds(function: Any) -> dict[str, str]:
    """Kinds of what a function sees by the last step of the path."""
    found = discover(function)
    return {capture.path[-1]: capture.kind for capture in found.captures}


def paths(function: Any, kind: str) -> list[tuple[str, ...]]:
    return [capture.path for capture in discover(function).captures if capture.kind == kind]


def module(**attributes: Any) -> types.ModuleType:
    created = types.ModuleType("tables")
    vars(created).update(attributes)
    return created


class DeviceArray:
    """Has what the walk knows device arrays by."""

    def __init__(self) -> None:
        self.__cuda_array_interface__ = {"shape": (3,), "typestr": "<f8", "data": (256, False), "version": 3}


# resolution of names


def test_globals_closures_and_builtins() -> None:
    table = np.zeros(3)
    function = made(
        "def make(sigma):\n    def kernel(out, i):\n        out[i] = table[i] * sigma * len(out) + N\n"
        "    return kernel\nkernel = make(2.5)",
        table=table,
        N=3,
    )
    assert kinds(function) == {
        "closure `sigma`": "value",
        "global `table`": "array",
        "global `len`": "library",
        "global `N`": "value",
    }
    found = discover(function)
    assert found.function is function
    assert found.functions == [function]
    assert [capture.value for capture in found.arrays] == [table]
    assert found.unknown == []


@pytest.mark.parametrize(
    "body",
    [
        "def kernel(table): return table[0]",
        "def kernel(*table): return table[0]",
        "def kernel(**table): return table",
        "def kernel(*, table=None): return table",
        "def kernel(i):\n    table = i\n    return table",
        "def kernel(i):\n    for table in range(i): pass\n    return table",
        "def kernel(i): return (lambda table: table)(i)",
        "def kernel(i): return [table for table in range(i)]",
        "def kernel(i):\n    def inner(table): return table\n    return inner(i)",
        "def kernel(i):\n    table = i\n    def inner(): return table\n    return inner()",
        "def kernel(i):\n    table = i\n    return (lambda: (lambda: table)())()",
        "def kernel(i):\n    with i as table: return table",
        "def kernel(i):\n    try: return i\n    except ValueError as table: return table",
        "def kernel(i):\n    if (table := i): return table",
        "def kernel(i):\n    import math as table\n    return table",
        "def kernel(i):\n    def table(): return table\n    return table()",
    ],
)
def test_local_names_are_no_captures(body: str) -> None:
    found = discover(made(body, table=np.zeros(3)))
    assert found.arrays == []


@pytest.mark.parametrize(
    "body",
    [
        "def kernel(i): return table[i]",
        "def kernel(i): return (lambda: table[i])()",
        "def kernel(i): return [table[i] for k in range(i)]",
        "def kernel(i): return [k for k in table]",
        "def kernel(i): return (lambda table=table: table)()",
        "def kernel(i):\n    def inner():\n        def deeper(): return table\n        return deeper\n    return inner",
        "def kernel(i):\n    class Inner:\n        item = table\n    return Inner.item",
        "def kernel(i):\n    del i\n    return table",
        "def kernel(i):\n    return f'{table[i]}'",
        "def kernel(i):\n    if i:\n        return 1\n    return table",
        "def kernel(i):\n    global table\n    return table",
    ],
)
def test_globals_are_captures_wherever_the_code_names_them(body: str) -> None:
    table = np.zeros(3)
    found = discover(made(body, table=table))
    assert [capture.path for capture in found.arrays] == [("global `table`",)]
    assert found.arrays[0].value is table


@pytest.mark.parametrize(
    "inner",
    [
        "return table[i]",
        "return (lambda: table[i])()",
        "return (lambda: (lambda: table[i])())()",
        "return [table[k] for k in range(i)]",
        "return tuple(table[k] for k in range(i))",
        "return (lambda i, table=table: table[i])(i)",
        "return f'{table[i]}' + f'{table}'",
        "class Inner:\n            item = table\n        return Inner.item",
        "nonlocal table\n        return table",
    ],
)
def test_free_variables_are_captures_wherever_the_code_names_them(inner: str) -> None:
    table = np.zeros(3)
    other = 3.0
    source = (
        "def make(other, table):\n    def kernel(i):\n        other\n        " + inner + "\n    return kernel\n"
        "kernel = make(given_other, given_table)"
    )
    function = made(source, given_table=table, given_other=other)
    found = discover(function)
    assert [capture.path for capture in found.arrays] == [("closure `table`",)]
    place = found.arrays[0].place
    assert isinstance(place, CellPlace)
    assert place.read() is table
    assert place.cell is function.__closure__[function.__code__.co_freevars.index("table")]


def test_a_local_of_a_nested_function_hides_a_free_variable_there_only() -> None:
    source = (
        "def make(table):\n    def kernel(i):\n        return (lambda: (lambda table: table)(i))(), table[i]\n"
        "    return kernel\nkernel = make(given)"
    )
    assert paths(made(source, given=np.zeros(3)), "array") == [("closure `table`",)]


def test_a_global_hides_a_builtin_and_uncovers_it_again() -> None:
    function = made("def kernel(i): return len(i)")
    assert kinds(function) == {"global `len`": "library"}
    place = discover(function).captures[0].place
    assert place.read() is len
    function.__globals__["len"] = 3
    assert kinds(function) == {"global `len`": "value"}
    assert place.read() == 3
    del function.__globals__["len"]
    assert place.read() is len


def test_builtins_of_a_namespace_are_its_own() -> None:
    function = made("def kernel(): return table", __builtins__={"table": 5})
    assert discover(function).captures[0].value == 5
    assert function() == 5


def test_none_is_a_value() -> None:
    function = made("def kernel(i): return nothing", nothing=None)
    capture = discover(function).captures[0]
    assert (capture.kind, capture.value, capture.text) == ("value", None, "None")


# what is missing


def python_says(function: Any) -> tuple[type, str]:
    with pytest.raises(NameError) as raised:
        function(0)
    return type(raised.value), str(raised.value)


def test_a_missing_global_raises_what_python_raises_and_comes_back() -> None:
    function = made("def kernel(i): return later")
    capture = discover(function).captures[0]
    assert (capture.kind, capture.value) == ("missing", MISSING)
    with pytest.raises(NameError) as raised:
        capture.place.read()
    assert (
        (type(raised.value), str(raised.value)) == python_says(function) == (NameError, "name 'later' is not defined")
    )
    assert raised.value.name == "later"
    function.__globals__["later"] = 3
    assert capture.place.read() == 3
    assert discover(function).captures[0].kind == "value"


def test_an_empty_cell_raises_what_python_raises_and_comes_back() -> None:
    function = made(
        "def make():\n    def kernel(i): return later\n"
        "    def fill(value):\n        nonlocal later\n        later = value\n"
        "    def empty():\n        nonlocal later\n        del later\n    later = 1\n    return kernel, fill, empty\n"
        "kernel, fill, empty = make()"
    )
    empty, fill = function.__globals__["empty"], function.__globals__["fill"]
    empty()
    capture = discover(function).captures[0]
    assert (capture.kind, capture.value) == ("missing", MISSING)
    with pytest.raises(NameError) as raised:
        capture.place.read()
    assert str(raised.value) == python_says(function)[1]
    assert str(raised.value) == (
        "cannot access free variable 'later' where it is not associated with a value in enclosing scope"
    )
    fill(4)
    assert capture.place.read() == 4


def test_a_missing_attribute_raises_what_python_raises() -> None:
    tables = module()
    function = made("def kernel(i): return tables.sine", tables=tables)
    captures = discover(function).captures
    assert [capture.kind for capture in captures] == ["module", "missing"]
    with pytest.raises(AttributeError) as expected:
        function(0)
    with pytest.raises(AttributeError) as raised:
        captures[1].place.read()
    assert str(raised.value) == str(expected.value) == "module 'tables' has no attribute 'sine'"
    tables.sine = np.zeros(3)  # type: ignore[attr-defined]
    assert captures[1].place.read() is tables.sine


# modules


def test_a_chain_of_attributes_takes_only_what_it_names() -> None:
    tables = module(sub=module(sine=np.zeros(3), other=np.ones(3)), sine=np.ones(3), N=3)
    found = discover(made("def kernel(i): return tables.sub.sine[i] + tables.N", tables=tables))
    assert [(capture.path, capture.kind) for capture in found.captures] == [
        (("global `tables`",), "module"),
        (("module `tables`", "attribute `sub`"), "module"),
        (("module `tables`", "module `sub`", "attribute `sine`"), "array"),
        (("module `tables`", "attribute `N`"), "value"),
    ]
    assert found.arrays[0].place == AttributePlace(tables.sub, "sine")
    assert found.arrays[0].recipe == (("global", "tables"), ("attribute", "sub"), ("attribute", "sine"))


@pytest.mark.parametrize(
    ("before", "body"),
    [
        ("", "m = tables; return m.sine[i]"),
        ("", "m = tables if i else other; return m.sine[i]"),
        ("", "m = (1, tables); return m[1].sine"),
        ("", "return getattr(tables, 'sine')[i]"),
        ("NAME = 'sine'", "return getattr(tables, NAME)[i]"),
        ("NAMES = ('cosine', ('sine',))", "return getattr(tables, NAMES[1][0])[i]"),
        ("def take(m, i): return m.sine[i]", "return take(tables, i)"),
        ("@device()\ndef take(m, i): return m.sine[i]", "return take(tables, i)"),
        ("def give(): return tables", "return give().sine"),
        ("def take(m): return (lambda: m.sine)()\n@device()\ndef pass_on(m): return take(m)", "return pass_on(tables)"),
        ("both = (0, tables)", "return both[1].sine"),
        ("both = ((tables,),)", "m = both[0][0]; return m.sine"),
        ("other.sub = tables", "m = other.sub; return m.sine"),
        ("other.sub = tables", "m = other; return m.sub.sine"),
        ("", "return (lambda m=tables: m.sine[i])()"),
        ("", "\n    with tables as m: return m.sine"),
    ],
)
def test_a_module_that_is_stored_or_passed_on_gives_all_that_the_code_could_take(before: str, body: str) -> None:
    tables, other = module(sine=np.zeros(3), unused=np.ones(3)), module()
    source = f"{before}\ndef kernel(i): {body}"
    found = discover(made(source, tables=tables, other=other))
    assert [capture.place for capture in found.arrays] == [AttributePlace(tables, "sine")]
    assert follow(found.function, found.arrays[0].recipe) == found.arrays[0].place


def test_modules_imported_in_the_body(monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.zeros(3)
    package = module(sub=module(sine=table))
    package.__path__ = []
    monkeypatch.setitem(sys.modules, "made_package", package)
    monkeypatch.setitem(sys.modules, "made_package.sub", package.sub)
    for body in (
        "import made_package.sub; return made_package.sub.sine",
        "import made_package.sub as m; return m.sine",
        "from made_package import sub; return sub.sine",
        "from made_package.sub import sine; return sine",
        "from . import sub; return sub.sine",
        "from .sub import sine; return sine",
    ):
        function = made(f"def kernel(i): {body}", __package__="made_package")
        found = discover(function)
        assert [capture.value for capture in found.arrays] == [table], body
        assert follow(function, found.arrays[0].recipe) == found.arrays[0].place
        assert function(0) is table


def test_a_module_that_is_not_loaded_yet_is_unknown() -> None:
    found = discover(made("def kernel(i):\n    import not_loaded_yet\n    return not_loaded_yet.x"))
    assert [(capture.place.name, capture.why) for capture in found.unknown] == [
        ("not_loaded_yet", "it is imported in the body, and the module is not loaded yet")
    ]
    assert isinstance(found.unknown[0].place, ModulePlace)
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'not_loaded_yet'$"):
        found.unknown[0].place.read()


def test_attributes_of_library_modules() -> None:
    function = made("def kernel(i): return math.sin(i) * math.pi + np.float32(np.e) + np.random.rand()", math=math)
    found = discover(function)
    assert {capture.path[-1]: capture.kind for capture in found.captures} == {
        "global `math`": "library",
        "attribute `sin`": "library",
        "attribute `pi`": "value",
        "global `np`": "library",
        "attribute `float32`": "library",
        "attribute `e`": "value",
        "attribute `random`": "library",
        "attribute `rand`": "library",
    }
    assert found.unknown == []


def test_an_array_that_is_an_attribute_of_a_library_module_is_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.zeros(3)
    monkeypatch.setattr(math, "table", table, raising=False)
    monkeypatch.setattr(math, "tables", (table, 1), raising=False)
    function = made("def kernel(i): return math.table[i] + math.tables[0][i]", math=math)
    found = discover(function)
    assert [capture.path for capture in found.arrays] == [
        ("module `math`", "attribute `table`"),
        ("module `math`", "attribute `tables`", "[0]"),
    ]


def test_what_somebody_else_put_into_a_library_module_is_not_the_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    class Local:
        pass

    monkeypatch.setattr(math, "mine", Local(), raising=False)
    monkeypatch.setattr(math, "list_of_mine", [1], raising=False)
    monkeypatch.setattr(math, "function_of_mine", made("def kernel(): return 1"), raising=False)
    function = made("def kernel(i): return math.mine, math.list_of_mine, math.function_of_mine()", math=math)
    assert kinds(function) == {
        "global `math`": "library",
        "attribute `mine`": "unknown",
        "attribute `list_of_mine`": "unknown",
        "attribute `function_of_mine`": "function",
    }


def test_names_bound_to_things_of_libraries() -> None:
    names = {
        "sin": math.sin,
        "npsin": np.sin,
        "total": np.sum,
        "f32": np.float32,
        "dot": np.dot,
        "integer": int,
        "length": len,
        "Tables": Tables,
        "rand": np.random.rand,
        "interpolate": np.interp,
    }
    function = made(f"def kernel(i): return {', '.join(names)}", **names)
    found = kinds(function)
    assert found.pop("global `Tables`") == "value"
    assert set(found.values()) == {"library"}


# containers


def test_tuples_and_named_tuples_with_arrays() -> None:
    first, second, third = np.zeros(3), np.ones(3), DeviceArray()
    both = (first, (2, second), Tables(third, 4.0))
    found = discover(made("def kernel(i): return both[0][i]", both=both))
    assert [(capture.path, capture.kind, capture.place.name) for capture in found.captures] == [
        (("global `both`",), "tuple", "both"),
        (("global `both`", "[0]"), "array", "both[0]"),
        (("global `both`", "[1]"), "tuple", "both[1]"),
        (("global `both`", "[1]", "[0]"), "value", "both[1][0]"),
        (("global `both`", "[1]", "[1]"), "array", "both[1][1]"),
        (("global `both`", "[2]"), "tuple", "both[2]"),
        (("global `both`", "[2]", ".sine"), "array", "both[2].sine"),
        (("global `both`", "[2]", ".cosine"), "value", "both[2].cosine"),
    ]
    for capture in found.arrays:
        assert isinstance(capture.place, ItemPlace)
        assert capture.place.root == found.captures[0].place
        assert capture.place.read() is capture.value
        assert follow(found.function, capture.recipe) == capture.place
    root = found.captures[0].place
    assert root.item(2).item(0).name == "both[2].sine"
    assert root.item(2).item(0) == found.arrays[2].place


def test_a_tuple_without_arrays_is_one_value() -> None:
    found = discover(made("def kernel(i): return both", both=(1, 2.0, ("a", None), np.float32(1), np.dtype("f4"))))
    assert [capture.kind for capture in found.captures] == ["value"]


def test_an_item_place_of_what_is_no_tuple_any_more() -> None:
    function = made("def kernel(i): return both[1]", both=(1, np.zeros(3)))
    place = discover(function).arrays[0].place
    for now in (np.zeros((2, 3)), (1,), None):
        function.__globals__["both"] = now
        assert place.peek() is MISSING
        with pytest.raises(NameError, match=r"^name 'both' is no tuple with an item 1 now$"):
            place.read()


def test_one_array_under_two_names_is_two_captures_and_one_place_is_one() -> None:
    table = np.zeros(3)
    function = made(
        "def first(i): return table[i]\ndef second(i): return table[i] + other[i]\n"
        "def kernel(i): return first(i) + second(i) + table[i]",
        table=table,
        other=table,
    )
    assert paths(function, "array") == [("global `table`",), ("function `second`", "global `other`")]


# functions


def test_device_functions_plain_functions_and_what_they_see() -> None:
    source = (
        "def make(table):\n    @device()\n    def get(i): return table[i]\n    return get\n"
        "get = make(first)\n"
        "def plain(i): return get(i) + second[i]\n"
        "@device()\ndef kernel(i): return plain(i)"
    )
    kernel = made(source, first=np.zeros(3), second=np.ones(3))
    found = discover(kernel)
    assert found.function is kernel.py_func
    assert [function.__name__ for function in found.functions] == ["kernel", "plain", "get"]
    assert [capture.path for capture in found.arrays] == [
        ("function `plain`", "global `second`"),
        ("function `plain`", "device function `get`", "closure `table`"),
    ]
    assert found.arrays[1].recipe == (("global", "plain"), ("global", "get"), ("cell", "table"))
    assert found.arrays[1].function is found.functions[2]
    assert [capture.place.name for capture in found.plain_functions] == ["plain"]


def test_functions_inside_tuples_modules_and_defaults() -> None:
    source = (
        "def first(i): return table[i]\n@device()\ndef second(i): return table[i] + 1\n"
        "def third(i, f=first, *, g=second): return f(i) + g(i)\n"
        "def kernel(i): return both[0](i) + tables.second(i) + third(i)"
    )
    function = made(source, table=np.zeros(3), both=(), tables=module())
    namespace = function.__globals__
    namespace["both"] = (namespace["first"], 3)
    namespace["tables"].second = namespace["second"]
    found = discover(function)
    assert [one.__name__ for one in found.functions] == ["kernel", "first", "second", "third"]
    assert [capture.path for capture in found.arrays] == [
        ("global `both`", "[0]", "function `both[0]`", "global `table`")
    ]
    assert [capture.place.name for capture in found.fixed] == ["f", "g"]
    assert [follow(function, capture.recipe) == capture.place for capture in found.fixed] == [True, True]


def test_recursion() -> None:
    source = (
        "@device()\ndef even(i): return table[i] if i == 0 else odd(i - 1)\n"
        "@device()\ndef odd(i): return even(i - 1)\n"
        "def kernel(i): return even(i) + kernel(i - 1)"
    )
    found = discover(made(source, table=np.zeros(3)))
    assert [function.__name__ for function in found.functions] == ["kernel", "even", "odd"]
    assert [capture.path for capture in found.arrays] == [("device function `even`", "global `table`")]


def test_a_function_that_closes_over_itself() -> None:
    source = (
        "def make(table):\n    @device()\n    def down(i): return table[i] if i == 0 else down(i - 1)\n"
        "    return down\nkernel = make(np.zeros(3))"
    )
    found = discover(made(source))
    assert len(found.functions) == 1
    assert [capture.path for capture in found.arrays] == [("closure `table`",)]


def test_defaults_are_not_looked_at_again() -> None:
    function = made("def kernel(i, n=3, *, scale=2.0, table=np.zeros(3)): return n * scale")
    found = discover(function)
    assert [(capture.place.name, capture.kind, capture.value) for capture in found.fixed[:2]] == [
        ("n", "value", 3),
        ("scale", "value", 2.0),
    ]
    assert found.captures == []
    assert not any(capture.place.followed for capture in found.fixed)
    assert [capture.path for capture in found.unknown] == [("default of `table`",)]
    assert (
        found.unknown[0].why == "it is an array as a default value, which is compiled in; name it in the body instead"
    )


def test_default_places_read_what_the_function_has() -> None:
    function = made("def kernel(i, n=3, *, scale=2.0): return n * scale")
    first, second = DefaultPlace(function, 0, "n"), DefaultPlace(function, "scale", "scale")
    function.__defaults__, function.__kwdefaults__ = (5,), {"scale": 6}
    assert (first.read(), second.read()) == (5, 6)
    function.__defaults__ = function.__kwdefaults__ = None
    for place in (first, second):
        with pytest.raises(NameError, match=rf"^parameter '{place.name}' has no default$"):
            place.read()


def test_code_of_the_kernel_that_asks_for_constant_memory_is_noted() -> None:
    const = SimpleNamespace(array_like=len)
    assert discover(made("def kernel(i): return const.array_like(i)", const=const)).asks_for_constants
    assert discover(made("def inner(i): return const.array_like(i)\ndef kernel(i): return inner(i)")).asks_for_constants
    assert discover(
        made("def array_like(): pass\nrenamed = array_like\ndef kernel(i): return renamed(i)")
    ).asks_for_constants
    assert not discover(made("def kernel(i): return i")).asks_for_constants


@pytest.mark.parametrize("what", [3, None, np.zeros(3), len, SimpleNamespace(py_func=3)])
def test_discover_takes_functions_and_kernels_only(what: Any) -> None:
    with pytest.raises(TypeError) as raised:
        discover(what)
    assert str(raised.value) == f"discover() takes a Python function or a kernel, not {type(what).__qualname__}"


def test_dispatchers_of_numba() -> None:
    numba = pytest.importorskip("numba")
    table = np.zeros(3)

    @numba.njit
    def get(i: int) -> Any:
        return table[i] + math.sin(i)

    found = discover(made("def kernel(i): return get(i)", get=get))
    assert [function.__name__ for function in found.functions] == ["kernel", "get"]
    assert [capture.path for capture in found.arrays] == [("device function `get`", "closure `table`")]
    assert found.unknown == []


compiled = pytest.mark.skipif(os.environ.get("NUMBA_ENABLE_CUDASIM") == "1", reason="the simulator compiles nothing")


@compiled
@pytest.mark.parametrize("name", ["numba.cuda", "numba_cuda_mlir.cuda"])
def test_kernels_of_the_compilers(name: str) -> None:
    cuda = pytest.importorskip(name)
    table = np.zeros(3)

    @cuda.jit(device=True)
    def get(i: int) -> Any:
        return table[i]

    @cuda.jit
    def kernel(out: Any) -> None:
        i = cuda.grid(1)
        shared = cuda.shared.array(32, np.float32)
        if i < out.size:
            shared[cuda.threadIdx.x] = get(i)
            cuda.syncthreads()
            cuda.atomic.add(out, i, shared[cuda.threadIdx.x])

    found = discover(kernel)
    assert found.unknown == []
    assert [capture.path for capture in found.arrays] == [("device function `get`", "closure `table`")]
    assert {capture.kind for capture in found.captures} == {"library", "function", "array"}


@compiled
def test_names_imported_from_a_compiler_are_the_librarys() -> None:
    cuda = pytest.importorskip("numba.cuda")
    numba = pytest.importorskip("numba")
    names = {
        name: getattr(cuda, name) for name in ("grid", "threadIdx", "shared", "atomic", "syncthreads", "float32x4")
    }
    found = discover(made(f"def kernel(i): return {', '.join(names)}", **names))
    assert [(capture.place.name, capture.kind) for capture in found.captures] == [(name, "library") for name in names]
    found = discover(made("def kernel(i): return f4, table", f4=numba.float32, table=numba.float64[:, ::1]))
    assert [capture.kind for capture in found.captures] == ["value", "value"]


# what cannot be identified


class Opaque:
    pass


CONTAINER = "whose items may change one by one; an array (`np.array(...)`) is captured by reference"
ELSEWHERE = "whose meaning for the compiler is defined elsewhere"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([1, 2], f"it is a list, {CONTAINER}"),
        ({1: 2}, f"it is a dict, {CONTAINER}"),
        ({1, 2}, f"it is a set, {CONTAINER}"),
        (bytearray(b"12"), f"it is a bytearray, {CONTAINER}"),
        (Opaque(), f"it is an object of {__name__}.Opaque, {ELSEWHERE}"),
        (Opaque, f"it is a class, {ELSEWHERE}"),
        ([].append, f"it is an object of builtins.builtin_function_or_method, {ELSEWHERE}"),
        (np.zeros(1, [("a", "O")])[0], "it is a record with Python objects"),
    ],
)
def test_unknown_values_have_a_reason(value: Any, why: str) -> None:
    capture = discover(made("def kernel(i): return value", value=value)).captures[0]
    assert (capture.kind, capture.why) == ("unknown", why)
    assert capture.place.read() is value


def test_a_list_inside_a_tuple_is_unknown_by_its_own_path() -> None:
    found = discover(made("def kernel(i): return both", both=(1, ([2],))))
    assert [capture.path for capture in found.unknown] == [("global `both`", "[1]", "[0]")]


@pytest.mark.parametrize(
    "value",
    [
        np.ma.zeros(3),
        np.zeros(3, object),
        np.zeros(3, ">f8"),
        np.zeros(3, [("a", "f4")]).view(np.recarray),
        np.zeros(()),
        np.zeros((0, 3)),
        DeviceArray(),
    ],
)
def test_every_array_is_an_array_here(value: Any) -> None:
    """The backend refuses those that no kernel can read, with their names."""
    assert kinds(made("def kernel(i): return value", value=value)) == {"global `value`": "array"}


def test_device_arrays_are_known_by_their_interface() -> None:
    class Tensor:
        """On a device or not."""

        def __init__(self, on: str) -> None:
            self.on = on

        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            if self.on == "host":
                raise AttributeError("not on a device")
            if self.on == "graph":
                raise RuntimeError("this one requires grad")
            return {"shape": (3,), "typestr": "<f8", "data": (256, False), "version": 3}

    assert is_device_array(Tensor("device"))
    assert not is_device_array(Tensor("host"))
    assert not is_device_array(Tensor)
    assert not is_device_array(np.zeros(3))
    assert kinds(made("def kernel(i): return value", value=Tensor("device"))) == {"global `value`": "array"}
    assert kinds(made("def kernel(i): return value", value=Tensor("host"))) == {"global `value`": "unknown"}
    capture = discover(made("def kernel(i): return value", value=Tensor("graph"))).captures[0]
    assert (capture.kind, capture.why) == (
        "unknown",
        "its __cuda_array_interface__ cannot be read: this one requires grad",
    )


# places


def test_places_are_equal_by_what_they_read() -> None:
    first, second = made("def kernel(): return 1"), made("def kernel(): return 1")
    space = first.__globals__
    assert GlobalPlace(space, "x") == GlobalPlace(space, "x")
    assert hash(GlobalPlace(space, "x")) == hash(GlobalPlace(space, "x"))
    assert GlobalPlace(space, "x") != GlobalPlace(space, "y")
    assert GlobalPlace(space, "x") != GlobalPlace(second.__globals__, "x")
    assert GlobalPlace(space, "x").key == ("global", id(space), "x")
    cell = types.CellType(3)
    assert CellPlace(cell, "x") == CellPlace(cell, "other name")
    assert CellPlace(cell, "x") != CellPlace(types.CellType(3), "x")
    assert CellPlace(cell, "x").key == ("cell", id(cell))
    tables = module()
    assert AttributePlace(tables, "x").key == ("attribute", id(tables), "x")
    assert CellPlace(cell, "x").item(1).key == ("cell", id(cell), 1)
    assert CellPlace(cell, "x") != cell
    assert repr(CellPlace(cell, "x").item(1)) == "<ItemPlace x[1]>"


def test_functions_of_one_module_share_places_and_closures_do_not() -> None:
    source = "def first(i): return table\ndef kernel(i): return table"
    kernel = made(source, table=np.zeros(3))
    assert discover(kernel).captures[0].place == discover(kernel.__globals__["first"]).captures[0].place

    def make(table: Any) -> Any:
        return lambda i: table[i]

    table = np.zeros(3)
    one, two = discover(make(table)), discover(make(table))
    assert one.captures[0].place != two.captures[0].place
    assert one.captures[0].recipe == two.captures[0].recipe


def test_recipes_lead_to_the_arrays_of_another_kernel_of_the_same_code() -> None:
    tables = module(sine=np.zeros(3))

    def make(first: Any, second: Any) -> Any:
        @PlainDispatcher  # type: ignore[arg-type]
        def get(i: int) -> Any:
            return second[1][i] + tables.sine[i]

        def kernel(i: int) -> Any:
            return first[i] + get(i)

        return kernel

    one = make(np.zeros(3), (1, np.zeros(3)))
    first, second = np.ones(3), np.ones(3)
    two = make(first, (1, second))
    found = [follow(two, capture.recipe).read() for capture in discover(one).arrays]
    assert [id(array) for array in found] == [id(first), id(second), id(tables.sine)]


@pytest.mark.parametrize(
    ("recipe", "text"),
    [
        ((), "an empty recipe leads to no place"),
        ((("cell", "absent"),), "no cell 'absent' at <function kernel at"),
        ((("global", "table"), ("item", 0)), "no item 0 at `table`"),
        ((("global", "both"), ("item", 7)), "no item 7 at `both`"),
        ((("global", "table"), ("attribute", "x")), "no attribute 'x' at `table`"),
        ((("global", "table"), ("global", "x")), "no global 'x' at `table`"),
        ((("global", "absent"), ("global", "x")), "no global 'x' at `absent`"),
        ((("item", 0),), "no item 0 at <function kernel at"),
    ],
)
def test_a_recipe_that_leads_nowhere(recipe: Any, text: str) -> None:
    function = made("def kernel(i): return table, both", table=np.zeros(3), both=(1, 2))
    with pytest.raises(LookupError) as raised:
        follow(function, recipe)
    assert str(raised.value).startswith(text)


# what is kept


def test_nothing_outlives_a_discovery_even_without_the_garbage_collector() -> None:
    def make() -> Any:
        table = np.zeros(3)
        both = (table, (np.ones(3),))
        tables = module(sine=np.zeros(3))

        def get(i: int) -> Any:
            return table[i] + tables.sine[i]

        def kernel(i: int) -> Any:
            local = tables
            return both[1][0][i] + get(i) + local.sine

        return kernel, [weakref.ref(table), weakref.ref(both[1][0]), weakref.ref(tables), weakref.ref(kernel)]

    gc.collect()
    gc.disable()
    try:
        kernel, references = make()
        found = discover(kernel)
        assert len(found.arrays) == 4
        place = found.arrays[0].place
        del kernel, found, place
        assert [reference() for reference in references] == [None] * 4
    finally:
        gc.enable()


def test_what_is_known_of_code_goes_with_the_code() -> None:
    from cuda_captures import key, names

    gc.collect()
    before = len(names._known), len(key._code_texts)
    for number in range(50):
        discover(made(f"def kernel(i): return table + {number}", table=1))
    gc.collect()
    assert (len(names._known), len(key._code_texts)) == before


def test_reading_builtins_of_an_unusual_namespace() -> None:
    assert GlobalPlace({"__builtins__": builtins}, "len").read() is len
    assert GlobalPlace({"__builtins__": {"len": 3}}, "len").read() == 3
    assert GlobalPlace({}, "len").read() is len
