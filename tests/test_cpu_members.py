"""Attributes of dataclass instances, namespaces and classes as each compiler compiles them, executed on the CPU."""

from __future__ import annotations

import dataclasses
import types
from collections import namedtuple
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

import cuda_captures
from backends_under_test import INSTALLED, current, using
from captured_kernels import CapturedKernel, launch, types_of
from conftest import needs_a_compiler
from generated import function, namespace

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True, scope="module", params=INSTALLED)
def captures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Captures, with each compiler in turn."""
    with using(request.param), cuda_captures.enabled():
        yield


@dataclasses.dataclass(frozen=True)
class Base:
    table: Any
    count: int = 3


@dataclasses.dataclass(frozen=True)
class Derived(Base):
    scale: float = 0.5
    label: str = "anything"
    other: Any = None
    limit: ClassVar[int] = 7

    @property
    def twice(self) -> float:
        return 2 * self.scale

    def method(self) -> int:
        return self.count


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    table: Any
    count: int = 3


@dataclasses.dataclass
class Open:
    table: Any
    count: int = 3


Pair = namedtuple("Pair", "table count")
ONE, TWO = np.arange(6.0), np.arange(6.0) * 10


def kernel(expression: str, **names: Any) -> Any:
    """The kernel ``out[i] = expression``."""
    lines = ["def kernel(out):", "    i = cuda.grid(1)", "    if i < out.size:", f"        out[i] = {expression}"]
    return function("\n".join(lines), **names)


def result(made: CapturedKernel) -> list[float]:
    out = np.zeros(6)
    made.launch(out, block=6)
    return out.tolist()


def following(made: Any) -> CapturedKernel:
    return CapturedKernel(made, types_of(np.zeros(6)))


EXPRESSIONS = {
    "frozen": ("c.table[i] * c.scale + c.count", Derived(ONE)),
    "inherited": ("c.table[i] + c.limit", Derived(ONE)),
    "slots": ("c.table[i] + c.count", Slotted(ONE)),
    "open": ("c.table[i] + c.count", Open(ONE)),
    "simple": ("c.table[i] + c.count", SimpleNamespace(table=ONE, count=2)),
    "nested": ("c.table.table[i] + c.other.count", Derived(Slotted(ONE), other=Open(TWO, 4))),
    "tuple of arrays": ("c.table[1][i] + c.table[i % 2][i]", Derived((ONE, TWO))),
    "tuple of objects": ("c[1].table[i] + c[0].count", (Derived(ONE), Derived(TWO))),
    "objects by a variable": ("c[i % 2].table[i] + c[i % 2].count", (Slotted(ONE, 1), Slotted(TWO, 2))),
    "tuple of objects inside": ("c.other[i % 2].table[i]", Derived(ONE, other=(Open(ONE), Open(TWO)))),
    "named tuple inside": ("c.other.table[i] + c.other.count", Derived(ONE, other=Pair(TWO, 1))),
    "object in a named tuple": ("c.table.table[i]", Pair(Slotted(TWO), 1)),
    "two dimensions": ("c.table[i // 3, i % 3] + c.table.shape[1]", Open(ONE.reshape(2, 3))),
    "bool and NumPy scalar": ("c.table[i] if c.flag else c.n", SimpleNamespace(table=ONE, flag=True, n=np.int8(3))),
    "none": ("c.table[i] if c.mask is None else 0.0", SimpleNamespace(table=ONE, mask=None)),
    "not none": ("c.mask[i] if c.mask is not None else 0.0", SimpleNamespace(table=ONE, mask=TWO)),
    "class": ("c.table[i] + c.count", type("Solver", (), {"table": ONE, "count": 2, "__module__": __name__})),
    "module": ("m.c.table[i] + m.c.count", Derived(ONE)),
}  # fmt: skip


@pytest.mark.parametrize("case", EXPRESSIONS)
def test_reading(case: str) -> None:
    expression, c = EXPRESSIONS[case]
    module = types.ModuleType("module_with_an_object")
    module.c = c  # type: ignore[attr-defined]
    expected = [eval(expression, {"c": c, "m": module, "i": i}) for i in range(6)]
    names = {"m": module} if case == "module" else {"c": c}
    made = following(kernel(expression, **names))
    assert result(made) == expected
    assert all(use.slot is not None for use in made.code().uses)
    if case != "module":  # a module made by hand is not a library's, and known by its name all the same
        assert made.code().key is not None, made.code().why_private


def test_in_a_closure_and_in_a_device_function() -> None:
    source = """
        def make(config):
            @cuda.jit(device=True)
            def get(i):
                return config.table[i] * config.count
            def kernel(out):
                i = cuda.grid(1)
                out[i] = get(i) + config.count
            return kernel
    """
    made = following(namespace(source)["make"](Slotted(ONE, 2)))
    assert result(made) == [2 * one + 2 for one in ONE]


@pytest.mark.parametrize("inline", ["", ', inline="always"'])
def test_passed_to_a_device_function(inline: str) -> None:
    source = f"""
        @cuda.jit(device=True{inline})
        def get(config, i):
            return config.table[i] * config.count
        def kernel(out):
            i = cuda.grid(1)
            out[i] = get(config, i) + get(layers[i % 2], i)
    """
    names = namespace(source, config=Derived(ONE, 2), layers=(Slotted(ONE, 1), Slotted(TWO, 3)))
    made = following(names["kernel"])
    layers = names["layers"]
    assert result(made) == [2 * ONE[i] + layers[i % 2].table[i] * layers[i % 2].count for i in range(6)]


def test_iterating_over_a_tuple_of_objects() -> None:
    source = """
        def kernel(out):
            i = cuda.grid(1)
            for layer in layers:
                out[i] += layer.table[i] * layer.count
    """
    made = following(function(source, layers=(Open(ONE, 1), Open(TWO, 2))))
    if current().name == "numba-cuda-mlir":
        with pytest.raises(
            cuda_captures.CaptureTypingError, match=r"iterate over `layers`(.|\n)*range\(len\(layers\)\)"
        ):
            made.code()
        return
    assert result(made) == [ONE[i] + 2 * TWO[i] for i in range(6)]


def test_counting_through_a_tuple_of_objects() -> None:
    source = """
        def kernel(out):
            i = cuda.grid(1)
            for index in range(len(layers)):
                layer = layers[index]
                out[i] += layer.table[i] * layer.count
    """
    made = following(function(source, layers=(Open(ONE, 1), Open(TWO, 2))))
    assert result(made) == [ONE[i] + 2 * TWO[i] for i in range(6)]


def test_one_of_two_objects() -> None:
    source = """
        def kernel(out):
            i = cuda.grid(1)
            if i % 2:
                config = one
            else:
                config = two
            out[i] = config.table[i] + config.count
    """
    made = following(function(source, one=Slotted(ONE, 1), two=Slotted(TWO, 2)))
    assert result(made) == [(ONE[i] + 1 if i % 2 else TWO[i] + 2) for i in range(6)]


def test_a_number_that_a_shape_needs() -> None:
    source = """
        def kernel(out):
            local = cuda.local.array(config.count, "float64")
            i = cuda.grid(1)
            for k in range(config.count):
                local[k] = config.table[k]
            out[i] = local[i % config.count]
    """
    assert result(following(function(source, config=Derived(ONE, 2)))) == [0.0, 1.0] * 3


def test_functions_in_attributes() -> None:
    source = """
        @cuda.jit(device=True)
        def double(x):
            return 2 * x
        def kernel(out):
            i = cuda.grid(1)
            out[i] = config.f(config.table[i])
    """
    names = namespace(source)
    names["config"] = SimpleNamespace(f=names["double"], table=ONE)
    assert result(following(names["kernel"])) == (2 * ONE).tolist()


def test_writing_an_array() -> None:
    table = ONE.copy()
    made = following(function("def kernel(out): config.table[cuda.grid(1)] += 1", config=Slotted(table)))
    made.launch(np.zeros(6), block=6)
    assert table.tolist() == (ONE + 1).tolist()
    assert [use.written for use in made.code().uses] == [True]


def test_writing_through_a_device_function() -> None:
    source = """
        @cuda.jit(device=True)
        def store(config, i):
            config.table[i] = config.count
        def kernel(out):
            store(config, cuda.grid(1))
    """
    table = ONE.copy()
    made = following(function(source, config=Open(table, 5)))
    made.launch(np.zeros(6), block=6)
    assert table.tolist() == [5.0] * 6


def test_policies_by_the_name_of_the_object_or_of_the_attribute() -> None:
    for captures in ({"config": "snapshot"}, {"config.table": "snapshot"}):
        made = CapturedKernel(kernel("config.table[i]", config=Slotted(ONE)), types_of(np.zeros(6)), captures=captures)
        assert [use.signature.policy for use in made.code().uses] == ["snapshot"]


@pytest.mark.parametrize("kind", [SimpleNamespace, Open])
def test_an_attribute_bound_anew_is_followed(kind: Any) -> None:
    config = kind(table=ONE, count=1)
    made = following(kernel("config.table[i] + config.count", config=config))
    assert result(made) == (ONE + 1).tolist()
    config.table = TWO
    assert result(made) == (TWO + 1).tolist()
    assert made.compilations == 1
    config.count = 2
    assert result(made) == (TWO + 2).tolist()
    config.count = 1
    assert result(made) == (TWO + 1).tolist()
    assert made.compilations == 2
    config.table = np.arange(8.0)  # another length: one general version
    assert result(made) == (np.arange(6.0) + 1).tolist()
    config.table = np.arange(9.0) * 2
    assert result(made) == (np.arange(6.0) * 2 + 1).tolist()
    assert made.compilations == 3


def test_the_object_bound_anew_is_followed() -> None:
    names: dict[str, Any] = {"config": Derived(ONE, 1)}
    made = following(kernel("config.table[i] + config.count", **names))
    namespace_of = made.function.__globals__
    assert result(made) == (ONE + 1).tolist()
    first = made.follower.variant()
    namespace_of["config"] = Derived(TWO, 1, label="another")
    assert result(made) == (TWO + 1).tolist()
    assert made.compilations == 1
    assert made.follower.variant() is first
    assert first.read_arrays() == [namespace_of["config"].table]  # a launch need not look at everything again
    namespace_of["config"] = SimpleNamespace(table=ONE, count=5)
    assert result(made) == (ONE + 5).tolist()


def test_a_tuple_that_is_bound_anew_is_looked_at_once() -> None:
    made = following(kernel("tables[1][i]", tables=(ONE, TWO)))
    first = made.follower.variant()
    made.function.__globals__["tables"] = (TWO, ONE)
    assert first.read_arrays() is None
    assert made.follower.variant() is first
    assert first.read_arrays() is not None


def test_a_class_attribute_is_followed() -> None:
    class Solver:
        table = ONE
        count = 1

        @staticmethod
        def get(i: int) -> float:
            return Solver.table[i] * Solver.count

    Solver.get = staticmethod(_cuda().jit(device=True)(Solver.get))  # type: ignore[assignment]
    made = following(kernel("Solver.get(i)", Solver=Solver, cuda=_cuda()))
    assert result(made) == ONE.tolist()
    Solver.count, Solver.table = 2, TWO
    assert result(made) == (2 * TWO).tolist()


def _cuda() -> Any:
    import backends_under_test

    return backends_under_test.cuda()


def test_kernels_over_equal_objects_share_their_code() -> None:
    codes = [following(kernel("c.table[i] + c.count", c=Derived(table, 2))).code() for table in (ONE, TWO)]
    assert codes[0] is codes[1]


def test_arrays_are_let_go_of() -> None:
    import gc
    import weakref

    table = ONE.copy()
    config = SimpleNamespace(table=table, count=1)
    made = following(kernel("config.table[i]", config=config))
    assert result(made) == ONE.tolist()
    gone = weakref.ref(table)
    config.table = TWO
    del table
    gc.collect()
    assert gone() is None


def test_a_class_with_a_type_of_the_compilers_is_left_to_it() -> None:
    class Typed:
        _numba_type_ = None
        table = ONE

    with pytest.raises(Exception, match=r"Typed|type") as caught:
        following(kernel("c.table[i]", c=Typed())).code()
    assert not isinstance(caught.value, cuda_captures.CaptureError)


REFUSALS = {
    "c.twice": r"^`c.twice`: attribute `twice` of `c` \(a Derived\) is a property, which is code.\n"
    r"  <generated \d+>:4, in kernel\n +out\[i\] = c.twice\n +\^{5}\n(.|\n)*capture the result: `value = c.twice`",
    "c.method()": r"`method` of `c` \(a Derived\) is a method(.|\n)*\^{6}\n(.|\n)*@cuda.jit\(device=True\)",
    "c.nothing": r"`nothing` of `c` \(a Derived\) is not there(.|\n)*can read these .* `c`: `count`, `label`,",
    "c[0]": r"^`c` \(a Derived\) is indexed, (.|\n)*out\[i\] = c\[0\]\n +\^\n(.|\n)*`c.attribute`",
    "c(3)": r"^`c` \(a Derived\) is called, (.|\n)*device function",
    "get(c).twice": r"attribute `twice` of a captured Derived, which was passed on(.|\n)*\^{5}\n(.|\n)*it outside",
    "get(c).label": r"attribute `label` of a captured Derived, which was passed on",
    "c.listed[0]": r"`c.listed` is a list(.|\n)*\^(.|\n)*np.array\(c.listed\)",
}


@pytest.mark.parametrize("expression", REFUSALS)
def test_refusals(expression: str) -> None:
    c = Derived(ONE)
    object.__setattr__(c, "listed", [1.0])
    source = f"""
        def kernel(out):
            i = cuda.grid(1)
            if i < 6:
                out[i] = {expression}
    """
    get = _cuda().jit(device=True)(function("def get(c): return c", "get"))
    with pytest.raises(cuda_captures.CaptureTypingError, match=REFUSALS[expression]):
        following(function(source.replace("            if i < 6:\n    ", ""), c=c, get=get)).code()


BINDINGS = {
    "c.count = 3": r"^a kernel binds attribute `count` of `c` \(a Open\), which is captured(.|\n)*\^(.|\n)*c.count\[",
    "bind(c)": r"^attribute `count` of a captured Open, which was passed on as a whole, is bound",
}


@pytest.mark.parametrize("statement", BINDINGS)
def test_attributes_are_not_bound_by_kernels(statement: str) -> None:
    bind = _cuda().jit(device=True)(function("def bind(c): c.count = 3", "bind"))
    with pytest.raises(cuda_captures.CaptureTypingError, match=BINDINGS[statement]):
        following(function(f"def kernel(out): {statement}", c=Open(ONE), bind=bind)).code()


def test_objects_that_hold_each_other() -> None:
    parent, child = SimpleNamespace(table=ONE), SimpleNamespace(table=TWO)
    parent.child, child.parent = child, parent
    assert result(following(kernel("node.child.parent.child.table[i]", node=parent))) == TWO.tolist()
    source = """
        @cuda.jit(device=True)
        def get(node, i):
            return node.table[i] + node.child.table[i]
        def kernel(out):
            i = cuda.grid(1)
            out[i] = get(node, i)
    """
    assert result(following(function(source, node=parent))) == (ONE + TWO).tolist()
    turning = following(function(source.replace("node.child.table", "node.child.parent.table"), node=parent))
    with pytest.raises(cuda_captures.CaptureTypingError, match="attribute `parent` of a captured SimpleNamespace"):
        turning.code()


def test_a_refused_kernel_works_once_mended() -> None:
    config = SimpleNamespace(count=1)
    made = following(kernel("config.table[i] + config.count", config=config))
    with pytest.raises(cuda_captures.CaptureTypingError, match="`table` of `config`"):
        made.code()
    config.table = ONE
    assert result(made) == (ONE + 1).tolist()


def test_an_attribute_that_is_gone_at_launch() -> None:
    config = SimpleNamespace(table=ONE)
    made = following(kernel("config.table[i]", config=config))
    variant = made.follower.variant()
    del config.table
    with pytest.raises(AttributeError, match="no attribute 'table'"):
        variant.read_arrays()


@needs_a_compiler
def test_explaining_names_the_attributes() -> None:
    from backends_under_test import cuda

    made = cuda().jit(kernel("c.table[i] + c.other.table[i]", c=Derived(ONE, other=Open(TWO))))
    rows = cuda_captures.explain(made, "void(float64[::1])").rows
    assert [(row.name, row.path) for row in rows] == [
        ("c.table", ("global `c`", ".table")),
        ("c.other.table", ("global `c`", ".other", ".table")),
    ]


def test_a_launch_is_the_same_after_edits() -> None:
    table = ONE.copy()
    made = launch(kernel("c.table[i]", c=Slotted(table)), np.zeros(6), block=6)
    table[:] = 7
    assert result(made) == [7.0] * 6
