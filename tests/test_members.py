"""Dataclass instances, simple namespaces and classes: what their attributes are, and how a launch follows them."""

from __future__ import annotations

import dataclasses
import enum
import functools
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from cuda_captures.discovery import MISSING, Discovery, discover, follow
from cuda_captures.following import unchanged_predicate
from cuda_captures.key import array_signature, key_of
from cuda_captures.members import frozen_fields, has_members, why_no_member
from cuda_captures.places import GlobalPlace

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Base:
    table: Any
    count: int = 3


@dataclasses.dataclass(frozen=True)
class Derived(Base):
    scale: float = 2.0
    kind: ClassVar[int] = 7

    @property
    def twice(self) -> float:
        return 2 * self.scale

    @functools.cached_property
    def kept(self) -> float:
        return 3 * self.scale

    def method(self) -> int:
        return self.count

    @classmethod
    def of_class(cls) -> int:
        return 1

    @staticmethod
    def free(x: int) -> int:
        return x


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    table: Any
    count: int = 3


@dataclasses.dataclass
class Open:
    table: Any
    count: int = 3


class Dynamic(SimpleNamespace):
    def __getattr__(self, name: str) -> int:
        if name.startswith("_"):  # pytest looks
            raise AttributeError(name)
        raise AssertionError("an attribute was asked for by running code")


class Colour(enum.IntEnum):
    RED = 1


class Failure(ValueError):
    table = 3


class WithType(SimpleNamespace):
    _numba_type_ = None


class Solver:
    table = np.arange(4.0)


@pytest.mark.parametrize(
    "value", [Base(1), Derived(1), Slotted(1), Open(1), SimpleNamespace(), Dynamic(), Solver, Base]
)
def test_what_has_attributes_of_its_own(value: object) -> None:
    assert has_members(value)


@pytest.mark.parametrize(
    "value",
    [
        *(Solver(), Colour, Colour.RED, Failure, WithType(), WithType, np.float64, np.ndarray, int, np, (1,), 3, "s"),
        *(len, np.float64(1), np.zeros(1), SimpleNamespace, Exception, object()),
    ],
)
def test_what_has_none(value: object) -> None:
    assert not has_members(value)


def test_fields_that_stay() -> None:
    assert frozen_fields(Derived(1)) == {"table", "count", "scale"}
    assert frozen_fields(Slotted(1)) == {"table", "count"}
    for value in (Open(1), SimpleNamespace(x=1), Derived, Solver, 3):
        assert frozen_fields(value) == set()


@pytest.mark.parametrize(
    ("value", "name", "why"),
    [
        (Derived(1), "table", ""),
        (Derived(1), "kind", ""),
        (Derived(1), "free", ""),
        (Slotted(1), "count", ""),
        (Open(1), "count", ""),
        (SimpleNamespace(x=1), "x", ""),
        (Solver, "table", ""),
        (Derived, "method", ""),
        (Derived, "kind", ""),
        (Derived(1), "twice", "is a property, which is code"),
        (Derived(1), "kept", "is a property, which is code"),
        (Derived(1), "method", "is a method, which takes an object"),
        (Derived(1), "of_class", "is a class method, which takes a class"),
        (Derived, "of_class", "is a class method, which takes a class"),
        (Derived(1), "other", "is not there"),
        (SimpleNamespace(x=1), "y", "is not there"),
        (Dynamic(x=1), "y", "is made by `__getattr__`, which is code"),
        (SimpleNamespace(x=1), "__dict__", "is one of Python's special attributes"),
    ],
)
def test_what_an_attribute_is(value: Any, name: str, why: str) -> None:
    assert why_no_member(value, name) == why


def test_a_cached_property_is_plain_once_it_is_there() -> None:
    value = Derived(1)
    assert value.kept == 6
    assert why_no_member(value, "kept") == ""


# discovery


def made(source: str, **names: Any) -> Any:
    namespace: dict[str, Any] = {**names}
    exec(source, namespace)
    return namespace["kernel"]


def discover_in(expression: str, **names: Any) -> Discovery:
    """What a kernel captures that computes an expression."""
    return discover(made(f"def kernel(i): return {expression}", **names))


def captured(found: Discovery) -> dict[str, str]:
    return {capture.place.name: capture.kind for capture in found.captures}


TABLE = np.arange(5.0)


def test_only_what_is_read_is_captured() -> None:
    found = discover_in("config.table[i] * config.scale", config=Derived(TABLE))
    assert captured(found) == {"config": "object", "config.table": "array", "config.scale": "value"}
    assert [capture.path for capture in found.arrays] == [("global `config`", ".table")]


def test_nests() -> None:
    config = SimpleNamespace(inner=Base((TABLE, TABLE * 2)), layers=(Slotted(TABLE, 1), Open(TABLE, 2)))
    found = discover_in("config.inner.table[1][i] + config.layers[i].table[i]", config=config)
    assert [capture.place.name for capture in found.arrays] == [
        "config.inner.table[0]",
        "config.inner.table[1]",
        "config.layers[0].table",
        "config.layers[1].table",
    ]
    assert "config.layers[0].count" not in captured(found)


def test_an_object_that_is_passed_on_is_captured_by_every_attribute_that_is_named_anywhere() -> None:
    source = "def use(c): return c.scale\ndef kernel(i): return use(config) + other.count"
    found = discover(made(source, config=Derived(TABLE), other=SimpleNamespace(count=1)))
    assert set(captured(found)) == {"config", "config.scale", "config.count", "other", "other.count", "use"}


def test_a_field_that_was_never_set() -> None:
    found = discover_in("config.table[i]", config=Slotted.__new__(Slotted))
    assert captured(found) == {"config": "object", "config.table": "missing"}


def test_objects_that_hold_each_other() -> None:
    parent, child = SimpleNamespace(table=TABLE), SimpleNamespace(table=TABLE * 2)
    parent.child, child.parent = child, parent
    source = "def use(c): return c.child.table[0] + c.parent.table[0]\ndef kernel(i): return use(node)"
    found = discover(made(source, node=parent))
    assert [one.place.name for one in found.arrays] == ["node.table", "node.child.table"]
    found = discover_in("node.child.parent.child.table[i]", node=parent)
    assert [one.place.name for one in found.arrays] == ["node.child.parent.child.table"]


def test_properties_and_methods_are_not_run() -> None:
    class Trap(SimpleNamespace):
        @property
        def value(self) -> int:
            raise AssertionError("run")

    found = discover_in("trap.value + trap.x", trap=Trap(x=1))
    assert captured(found) == {"trap": "object", "trap.x": "value"}
    captured(discover_in("use(trap).value", trap=Trap(x=1), use=made("def kernel(t): return t.value")))


def test_a_class_that_is_used_as_a_whole_is_not_identified() -> None:
    assert captured(discover_in("Solver.table[i]", Solver=Solver)) == {"Solver": "object", "Solver.table": "array"}
    found = discover_in("Solver().table[i]", Solver=Solver)
    assert found.by_place[found.captures[0].place.key].kind == "unknown"
    assert "it is a class" in found.captures[0].why


def test_an_object_as_a_default_is_not_followed() -> None:
    found = discover(made("def kernel(i, config=config): return config.table[i]", config=Open(TABLE)))
    assert [(capture.place.name, capture.kind) for capture in found.fixed][1] == ("config.table", "unknown")


def test_device_functions_in_attributes_are_walked() -> None:
    def scatter(i: int) -> Any:
        return TABLE[i]

    found = discover_in("config.f(i)", config=SimpleNamespace(f=scatter))
    assert [capture.place.name for capture in found.arrays] == ["TABLE"]
    assert found.arrays[0].path == ("global `config`", "function `config.f`", "global `TABLE`")


def test_recipes_lead_back() -> None:
    kernel = made("def kernel(i): return config.inner.table[1][i]", config=Open(SimpleNamespace(table=(TABLE, TABLE))))
    kernel.__globals__["config"] = Open(None)
    kernel.__globals__["config"].inner = SimpleNamespace(table=(TABLE, TABLE + 1))
    found = discover(kernel)
    for capture in found.arrays:
        assert follow(kernel, capture.recipe) == capture.place
        assert follow(kernel, capture.recipe).read() is capture.value
    recipe = found.arrays[0].recipe
    kernel.__globals__["config"] = 3
    with pytest.raises(LookupError, match=r"no member 'inner' at `config`"):
        follow(kernel, recipe)


def key_text(expression: str, **names: Any) -> str:
    found = discover_in(expression, **names)
    forms = {capture.place.key: array_signature(capture.value, "live") for capture in found.arrays}
    return key_of(found, signature="", options={}, target={}, forms=forms).text


def test_the_key_holds_what_is_read_and_no_more() -> None:
    expression = "config.table[i] * config.scale"
    one = key_text(expression, config=Derived(TABLE, 1, 0.5))
    assert "global config.scale = float 0.5" in one
    assert one == key_text(expression, config=Derived(TABLE * 3, 2, 0.5))
    assert one != key_text(expression, config=Derived(TABLE, 1, 0.25))
    assert one != key_text(expression, config=Derived(TABLE.astype("f4"), 1, 0.5))
    assert one != key_text(expression, config=SimpleNamespace(table=TABLE, scale=0.5))


# following


def predicate(found: Discovery) -> Any:
    """Whether what was captured is unchanged: roots only, as a launch looks."""
    roots = {capture.place.root.key: capture.place.root for capture in found.captures}
    return unchanged_predicate([(place, place.peek()) for place in roots.values()])


def test_a_frozen_object_is_looked_at_as_one() -> None:
    found = discover_in("config.table[i] * config.count", config=Derived(TABLE))
    assert {capture.place.root.name for capture in found.captures} == {"config"}


@pytest.mark.parametrize("kind", [SimpleNamespace, Open])
def test_each_attribute_of_an_open_object_is_looked_at(kind: Any) -> None:
    config = kind(table=TABLE, count=2)
    found = discover_in("config.table[i] * config.count", config=config)
    unchanged = predicate(found)
    assert unchanged()
    config.count = 3
    assert not unchanged()
    config.count = 2
    assert unchanged()
    config.table = TABLE.copy()
    assert not unchanged()


def test_a_class_variable_of_a_frozen_class_is_looked_at() -> None:
    @dataclasses.dataclass(frozen=True)
    class Config:
        table: Any
        limit: ClassVar[int] = 3

    unchanged = predicate(discover_in("config.limit + config.table[i]", config=Config(TABLE)))
    assert unchanged()
    Config.limit = 4
    assert not unchanged()


def test_nested_attributes_are_looked_at_through_their_owners() -> None:
    config = SimpleNamespace(inner=SimpleNamespace(table=TABLE), frozen=Base(SimpleNamespace(count=1)))
    unchanged = predicate(discover_in("config.inner.table[i] + config.frozen.table.count", config=config))
    assert unchanged()
    config.frozen.table.count = 2
    assert not unchanged()
    config.frozen.table.count = 1
    assert unchanged()
    config.inner = SimpleNamespace(table=TABLE)
    assert not unchanged()


def test_an_attribute_that_is_gone() -> None:
    config = SimpleNamespace(table=TABLE)
    found = discover_in("config.table[i]", config=config)
    unchanged = predicate(found)
    del config.table
    with pytest.raises(AttributeError):
        unchanged()
    assert found.arrays[0].place.peek() is MISSING
    with pytest.raises(AttributeError, match="no attribute 'table'"):
        found.arrays[0].place.read()


def test_places_of_attributes_are_equal_by_path() -> None:
    namespace = {"config": SimpleNamespace(table=TABLE)}
    one, other = (GlobalPlace(namespace, "config").member("table") for _ in range(2))
    assert one == other
    assert one != GlobalPlace(namespace, "config").member("count")
    assert one.read() is TABLE
    assert one.step == ("member", "table")
