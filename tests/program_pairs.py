"""Programs made by Hypothesis, in pairs that differ in one thing, for the search for wrong hits of the key.

A program is a few pieces; each adds definitions and one observation to what its kernel returns.  Everything runs as
plain Python.
"""

from __future__ import annotations

import enum
import math
import operator
import struct
import types
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from plain_dispatcher import PlainDispatcher


@dataclass(frozen=True)
class Piece:
    """One piece of a program: its kind, and what was drawn for it."""

    kind: str
    drawn: Any

    def __repr__(self) -> str:
        return f"{self.kind}{self.drawn!r}"


@dataclass
class Source:
    """A program in the making."""

    names: dict[str, Any] = field(default_factory=dict)
    module: list[str] = field(default_factory=list)
    cells: dict[str, str] = field(default_factory=dict)
    parameters: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    salt: int = 0
    count: int = 0

    def name(self, stem: str) -> str:
        """A name that no other piece has."""
        self.count += 1
        return f"{stem}{self.count}"

    def give(self, stem: str, value: Any) -> str:
        """Give the module a global with a value."""
        name = self.name(stem)
        self.names[name] = value
        return name

    def close_over(self, stem: str, value: Any) -> str:
        """Give the kernel's closure a value."""
        name = self.name(stem)
        self.cells[name] = self.give(f"given_{stem}", value)
        return name

    def array(self, drawn: tuple[str, tuple[int, ...], str], salted: bool = True) -> np.ndarray[Any, Any]:
        """An array whose contents differ from one making of a program to the next, unless they are not salted."""
        dtype, shape, order = drawn
        self.count += 1
        contents = np.arange(math.prod(shape)) * 3 + self.count * 1000 + (self.salt if salted else 0)
        return np.asarray(contents.reshape(shape), dtype, order=order)  # type: ignore[no-any-return,call-overload]


Maker = Callable[[Source, Any], None]
KINDS: dict[str, tuple[st.SearchStrategy[Any], Maker]] = {}


def piece(strategy: st.SearchStrategy[Any]) -> Callable[[Maker], Maker]:
    """Register a kind of piece: how it is drawn, and how it is written."""

    def register(maker: Maker) -> Maker:
        KINDS[maker.__name__] = (strategy, maker)
        return maker

    return register


class Colour(enum.Enum):
    RED = 1
    GREEN = 2
    CRIMSON = 1  # noqa: PIE796 - an alias


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Rank(enum.IntFlag):
    LOW = 1
    HIGH = 2


Point = namedtuple("Point", "x y")
Pair = namedtuple("Pair", "y x")

ALIGNED = np.dtype([("a", "i1"), ("b", "f8")], align=True)
PACKED = np.dtype([("a", "i1"), ("b", "f8")])
DTYPES = [
    np.dtype(text) for text in ("f4", "f8", ">f8", "i4", "u4", "i8", "?", "S2", "S3", "M8[s]", "M8[ms]", "c8", "V8")
]
DTYPES += [ALIGNED, PACKED, np.dtype([("b", "i1"), ("a", "f8")]), np.dtype([("a", "i1"), ("b", "f8", (1,))])]
DTYPES += [np.dtype({"names": ["a", "b"], "formats": ["i1", "f8"], "offsets": [8, 0], "itemsize": 16})]

# Values that are equal, or look alike, and mean something else.
LIKE = [
    *(0, 0.0, -0.0, False, 0j, complex(0.0, -0.0), complex(-0.0, 0.0), 1, 1.0, True, 1 + 0j, "1", b"1", "", b"", None),
    *(math.nan, struct.unpack("d", struct.pack("Q", 0xFFF8000000000001))[0], math.inf, -math.inf, 2**70, ..., 1e-310),
    *((0.0,), (-0.0,), (False,), (0,), (), ((),), (1, True), (True, 1), frozenset({1}), frozenset({True}), frozenset()),
    *(slice(0, 1), slice(False, 1), slice(0, 1, 1), range(3), range(0, 3, 2), range(0)),
    *(np.float64(0.0), np.float64(-0.0), np.float32(0.0), np.int64(0), np.int32(0), np.uint32(0), np.bool_(False)),
    *(
        np.complex64(0),
        np.str_("1"),
        np.bytes_(b"1"),
        np.datetime64(0, "s"),
        np.datetime64(0, "ms"),
        np.timedelta64(0, "s"),
    ),
    *(np.float64(math.nan), np.zeros((), ALIGNED)[()], np.zeros((), PACKED)[()], np.ones((), ALIGNED)[()]),
    *(
        Colour.RED,
        Colour.GREEN,
        Level.LOW,
        Rank.LOW,
        Rank.HIGH,
        Rank(3),
        Point(1, 2),
        Pair(1, 2),
        Point(1, 2.0),
        (1, 2),
    ),
    *(int, float, np.float32, np.float64, bool, Colour, Level, Rank, Point, Pair),
    *(math.pi, math.e, "é", "\ud800", "a\nb", "a", "a" * 300, b"a" * 300, b"a" * 299 + b"b"),
]
values = st.sampled_from(LIKE) | st.integers(-2, 300) | st.floats(width=32) | st.sampled_from(DTYPES)
LITERALS = [
    *(
        "0",
        "0.0",
        "-0.0",
        "False",
        "0j",
        "-0j",
        "1",
        "1.0",
        "True",
        "1j",
        "'1'",
        "b'1'",
        "None",
        "...",
        "1e400",
        "-1e400",
    ),
    *("(0.0, 1)", "(-0.0, 1)", "(0, 1)", "(False, 1)", "(0.0, True)", "((0.0,), 1)", "((-0.0,), 1)", "()", "(None,)"),
    *("i in {0, 1}", "i in {0, 2}", "i in {1, 0}", "i in (0, 1)", "i in {0.0, 1}", "'a' 'b'", "'é'", "1e400 - 1e400"),
    *("0x10", "1_6", "2**70", "'\\n'", "'\\\\n'", "b'\\0'", "(1e400 - 1e400,)"),
]
literals = st.sampled_from(LITERALS) | st.integers(-3, 500).map(repr)
arrays = st.tuples(
    st.sampled_from(["f8", "f4", "i4", "i8", "u1", "?"]),
    st.sampled_from([(3,), (4,), (3, 2), (2, 3), (3, 3)]),
    st.sampled_from("CF"),
)


@piece(literals)
def literal(source: Source, text: str) -> None:
    source.results.append(text)


@piece(st.tuples(literals, st.booleans()))
def nested_lambda(source: Source, drawn: tuple[str, bool]) -> None:
    text, deeper = drawn
    source.results.append(f"(lambda i: (lambda: ({text}, i))())(i)" if deeper else f"(lambda i: ({text}, i))(i)")


@piece(st.tuples(literals, st.sampled_from("xy")))
def nested_default(source: Source, drawn: tuple[str, str]) -> None:
    text, name = drawn
    source.results.append(f"(lambda x, y=({text}), z=2: ({name}, z))(i)")


@piece(st.tuples(literals, st.sampled_from(["tuple([{} for k in range(3)])", "tuple({} for k in range(3) if k)"])))
def comprehension(source: Source, drawn: tuple[str, str]) -> None:
    text, form = drawn
    source.results.append(form.format(text))


EXPRESSIONS = [
    *("i+1", "i-1", "i*1", "i**1", "i//2", "i%2", "i<1", "i<=1", "i==1", "i!=1", "i>1", "-i", "~i", "+i", "i&1", "i|1"),
    *("i^1", "i<<1", "i>>1", "(i,1)", "(1,i)", "(i,i)", "i*2.0", "i/2", "1-i", "i@np.ones(())", "not i", "i and 5"),
    *("i or 5", "5 if i else 6", "6 if i else 5", "5 if not i else 6", "f'{i}'", "f'{i!r:>3}'", "f'{i:02d}'", "abs(i)"),
    *("(*range(i), 1)", "(i is None)", "(i is not None)", "0 < i < 2", "0 <= i < 2", "str(i)", "'abc'[i]", "'abc'[i:]"),
    *("'abc'[:i]", "'abc'[::i + 1]", "max(i, 1)", "min(i, 1)", "max(1, i, key=lambda x: -x)", "i.__add__(1)"),
]


@piece(st.sampled_from(EXPRESSIONS))
def bytecode(source: Source, text: str) -> None:
    source.results.append(text)


@piece(st.tuples(st.sampled_from(["ZeroDivisionError", "ValueError", "Exception"]), literals, st.booleans()))
def handler(source: Source, drawn: tuple[str, str, bool]) -> None:
    error, text, after = drawn
    name = source.name("caught")
    source.body += [f"{name} = None", "try:", f"    {name} = 1 // i", f"except {error}:", f"    {name} = {text}"]
    if after:
        source.body += ["else:", f"    {name} = ({name}, 1)"]
    source.results.append(name)


@piece(st.tuples(literals, literals, st.sampled_from(["while", "for", "with"])))
def loop(source: Source, drawn: tuple[str, str, str]) -> None:
    first, second, kind = drawn
    name = source.name("last")
    if kind == "with":
        source.body += ["with np.errstate():", f"    {name} = ({first}, {second})"]
    else:
        head = "for k in range(i):" if kind == "for" else "while i > 1:"
        source.body += [
            f"{name} = {first}",
            head,
            f"    {name} = {second}",
            "    break",
            "else:",
            f"    {name} = ({name},)",
        ]
    source.results.append(name)


@piece(values)
def global_value(source: Source, value: Any) -> None:
    source.results.append(source.give("G", value))


@piece(st.tuples(values, values, st.booleans()))
def two_globals(source: Source, drawn: tuple[Any, Any, bool]) -> None:
    first, second = source.give("G", drawn[0]), source.give("G", drawn[1])
    source.results.append(f"({first}, {second})" if drawn[2] else f"({second}, {first})")


@piece(values)
def closure_value(source: Source, value: Any) -> None:
    source.results.append(source.close_over("c", value))


@piece(st.tuples(values, values, st.permutations("abc")))
def cell_order(source: Source, drawn: tuple[Any, Any, list[str]]) -> None:
    first, second, order = drawn
    number = source.name("")
    for stem, value in zip("abc", (first, second, 3), strict=True):
        source.cells[f"{stem}{number}"] = source.give("given", value)
    source.results.append("(" + ", ".join(f"{stem}{number}" for stem in order) + ")")


@piece(st.tuples(values, st.booleans()))
def nested_cell(source: Source, drawn: tuple[Any, bool]) -> None:
    value, local = drawn
    name = source.close_over("c", value)
    source.results.append(f"(lambda: (lambda {name}=5: {name})())()" if local else f"(lambda: (lambda: {name})())()")


@piece(st.tuples(values, st.booleans()))
def default(source: Source, drawn: tuple[Any, bool]) -> None:
    value, keyword = drawn
    name = source.name("p")
    given = source.give("default", value)
    source.parameters.insert(len(source.parameters) if keyword else 0, f"{name}={given}")
    source.results.append(name)


@piece(st.tuples(values, st.sampled_from(["global", "local", "closure", "lambda", "nested"])))
def shadowing(source: Source, drawn: tuple[Any, str]) -> None:
    value, who = drawn
    name = source.give("N", value)
    if who == "closure":
        source.cells[name] = "'from the closure'"
    elif who == "local":
        source.body.append(f"{name} = 'local'")
    source.results.append({"lambda": f"(lambda {name}: {name})(7)", "nested": f"(lambda: {name})()"}.get(who, name))


@piece(st.tuples(st.sampled_from(["len", "sum", "max"]), st.sampled_from(["builtin", "global", "same", "closure"])))
def builtin_shadow(source: Source, drawn: tuple[str, str]) -> None:
    name, who = drawn
    if who == "global":
        source.module.append(f"def {name}(*a): return 'mine'")
    elif who == "same":
        source.names[name] = {"len": len, "sum": sum, "max": max}[name]
    elif who == "closure":
        source.cells[name] = "min"
    source.results.append(f"{name}((1, 2, 3))")


@piece(st.tuples(st.sampled_from(["missing", "present", "builtin", "untaken"]), values))
def absent(source: Source, drawn: tuple[str, Any]) -> None:
    kind, value = drawn
    name = source.name("Q")
    if kind in ("present", "untaken"):
        source.names[name] = value
    source.results.append("abs(i)" if kind == "builtin" else f"({name} if i > 0 else 0)")


@piece(st.tuples(st.integers(1, 4), literals, st.booleans(), st.booleans()))
def device_chain(source: Source, drawn: tuple[int, str, bool, bool]) -> None:
    depth, text, plain, argument = drawn
    called = ""
    for level in range(depth):
        name = source.name("device")
        inner = f"({text}, i)" if not called else f"{called}(i + {int(argument)})"
        source.module.append(f"def {name}(i): return {inner}")
        if not plain:
            source.module.append(f"{name} = PlainDispatcher({name}, level={level})")
        called = name
    source.results.append(f"{called}(i)")


@piece(st.tuples(values, st.sampled_from(["global", "default", "keyword", "closure", "argument"])))
def device_value(source: Source, drawn: tuple[Any, str]) -> None:
    value, where = drawn
    given, inner, outer = source.give("V", value), source.name("inner"), source.name("outer")
    if where == "closure":
        source.module += [f"def made_{inner}(v):", "    def get(i): return (i, v)", "    return PlainDispatcher(get)"]
        source.module.append(f"{inner} = made_{inner}({given})")
    else:
        parameters = {"default": f"i, v={given}", "keyword": f"i, *, v={given}", "argument": "i, v=None"}.get(
            where, "i"
        )
        result = f"(i, {given if where == 'global' else 'v'})"
        source.module += [f"def {inner}({parameters}): return {result}", f"{inner} = PlainDispatcher({inner})"]
    call = f"{inner}(i, {given})" if where == "argument" else f"{inner}(i)"
    source.module += [f"def {outer}(i): return {call}", f"{outer} = PlainDispatcher({outer})"]
    source.results.append(f"{outer}(i)")


CALLS = ["a=i, b=1", "b=i, a=1", "i, b=1", "1, i", "i, 1", "*(i, 1)", "**{'a': i, 'b': 1}"]
PARAMETERS = ["a, b", "b, a", "a, b, /", "b, a, /", "*, a, b", "a, *, b", "*a, **b"]


@piece(st.tuples(st.sampled_from(CALLS), st.sampled_from(PARAMETERS), st.sampled_from(["a, b", "b, a"])))
def calling(source: Source, drawn: tuple[str, str, str]) -> None:
    call, parameters, order = drawn
    name = source.name("called")
    source.module.append(f"def {name}({parameters}): return str(({order}))")
    source.results.append(f"{name}({call})")


@piece(st.tuples(literals, st.booleans(), st.booleans()))
def recursion(source: Source, drawn: tuple[str, bool, bool]) -> None:
    text, mutual, wrapped = drawn
    first, second = source.name("even"), source.name("odd")
    again = second if mutual else first
    source.module.append(f"def {first}(i): return ({text},) if i <= 0 else (i, *{again}(i - 1))")
    source.module.append(f"def {second}(i): return ('odd',) if i <= 0 else (-i, *{first}(i - 1))")
    if wrapped:
        source.module.append(f"{first} = PlainDispatcher({first}); {second} = PlainDispatcher({second})")
    source.results.append(f"{first}(i)")


@piece(
    st.tuples(st.sampled_from(range(len(DTYPES))), st.sampled_from(["{}", "np.zeros(2, {})", "np.dtype({}).itemsize"]))
)
def dtype(source: Source, drawn: tuple[int, str]) -> None:
    source.results.append(drawn[1].format(source.give("D", DTYPES[drawn[0]])))


ENUMS = [
    *("enum.Enum RED=1 GREEN=2", "enum.Enum RED=2 GREEN=1", "enum.Enum RED=1.0 GREEN=2", "enum.IntEnum RED=1 GREEN=2"),
    *("enum.Enum GREEN=1 RED=2", "enum.Enum RED=1 GREEN=1", "enum.IntFlag RED=1 GREEN=2", "enum.Enum RED=(1,) GREEN=2"),
]


@piece(st.tuples(st.sampled_from(ENUMS), st.sampled_from(["RED", "GREEN"]), st.booleans()))
def enumeration(source: Source, drawn: tuple[str, str, bool]) -> None:
    base, *members = drawn[0].split()
    name = source.name("Kind")
    source.module += [f"class {name}({base}):", *(f"    {member}" for member in members)]
    if drawn[2]:
        source.results.append(f"{name}.{drawn[1]}")
    else:
        source.module.append(f"the_{name} = {name}.{drawn[1]}")
        source.results.append(f"(the_{name}, the_{name}.value)")


ACCESS = ["direct", "sub", "alias", "getattr", "named", "passed", "tuple", "closure", "imported", "returned"]


@piece(st.tuples(values | arrays.map(lambda drawn: ("array", drawn)), st.sampled_from(ACCESS), st.sampled_from("xy")))
def module_attribute(source: Source, drawn: tuple[Any, str, str]) -> None:
    value, access, attribute = drawn
    if type(value) is tuple and value[:1] == ("array",):
        value = source.array(value[1])
    module, sub = types.ModuleType(f"m{source.count}"), types.ModuleType(f"s{source.count}")
    module.x, module.y, module.sub = value, "y", sub  # type: ignore[attr-defined]
    sub.x, sub.y = (value, 1), "sub.y"  # type: ignore[attr-defined]
    name = source.give("module", module)
    result = f"{name}.{attribute}"
    if access == "sub":
        result = f"{name}.sub.{attribute}"
    elif access == "alias":
        source.body += [f"local_{name} = {name}.sub", f"local_{name}_2 = {name}"]
        result = f"(local_{name}.{attribute}, local_{name}_2.{attribute})"
    elif access == "getattr":
        result = f"getattr({name}, '{attribute}')"
    elif access == "named":
        result = f"getattr({name}, {source.give('attribute', attribute)})"
    elif access in ("passed", "returned"):
        function = source.name("taker")
        source.module.append(f"def {function}(m): return m.sub.{attribute}, m.{attribute}")
        if access == "returned":
            source.module.append(f"def returned_{function}(): return {name}")
            result = f"{function}(returned_{function}())"
        else:
            result = f"{function}({name})"
    elif access == "tuple":
        result = f"{source.give('modules', (1, module, (sub,)))}[1].{attribute}"
    elif access == "closure":
        source.cells[f"closed_{name}"] = name
        result = f"(lambda: closed_{name}.sub.{attribute})()"
    elif access == "imported":
        source.body.append("import math, os.path as path")
        result = f"(math.pi, path.sep, {name}.{attribute})"
    source.results.append(result)


@piece(st.tuples(st.lists(values, max_size=3).map(tuple), st.sampled_from(["tuple", "Point", "nested"]), st.booleans()))
def tuples(source: Source, drawn: tuple[tuple[Any, ...], str, bool]) -> None:
    items, form, with_array = drawn
    if form == "Point":
        items = Point(*(*items, 0, 1)[:2])
    elif form == "nested":
        items = (items, 1)
    if with_array:
        items = (*items, source.array(("f8", (3,), "C")), PlainDispatcher(lambda i: i + 1))
        source.results.append(f"(lambda t: (t[:-2], t[-2][i], t[-1](i)))({source.give('T', items)})")
    else:
        source.results.append(source.give("T", items))


WHERE = ["global", "closure", "tuple", "named tuple", "device"]
USES = ["[i]", ".shape", ".dtype", ".sum()", ".ravel()", ".strides"]


POLICIES = ["live", "constant", "constant, same contents"]


@piece(st.tuples(arrays, st.sampled_from(WHERE), st.sampled_from(USES), st.sampled_from(POLICIES)))
def array(source: Source, drawn: tuple[Any, str, str, str]) -> None:
    shape, where, use, policy = drawn
    made = source.array(shape, salted=policy != "constant, same contents")
    if policy != "live":
        from cuda_captures.policy import constant

        made = constant(made)
    if where == "global":
        name = source.give("table", made)
    elif where == "closure":
        name = source.close_over("table", made)
    elif where == "tuple":
        name = source.give("tables", (0, (made, 1))) + "[1][0]"
    elif where == "named tuple":
        name = source.close_over("point", Point(1, made)) + ".y"
    else:
        function, given = source.name("get"), source.give("table", made)
        source.module.append(f"@PlainDispatcher\ndef {function}(): return {given}")
        name = f"{function}()"
    source.results.append(name + use)


SHARING = ["aaa", "aab", "aba", "abb", "abc", "one array", "two arrays", "one tuple", "two tuples"]


@piece(st.sampled_from(SHARING))
def sharing(source: Source, kind: str) -> None:
    """Device functions of equal code under three names: which are one, and which have one array."""
    arrays = [source.give("array", source.array(("f8", (3,), "C"))) for _ in range(3)]
    maker = source.name("maker")
    source.module += [f"def {maker}(x):", "    def get(i): return x[i]", "    return PlainDispatcher(get)"]
    names = [source.name("get") for _ in range(3)]
    if kind.startswith("a"):
        source.module += [f"{names[which]} = {maker}({arrays[which]})" for which in range(3)]
        source.module += [f"{name} = {names['abc'.index(which)]}" for name, which in zip(names, kind, strict=True)]
    elif kind.endswith(("tuples", "tuple")):
        again = arrays[int(kind.startswith("two"))]
        source.module.append(f"pair = ({arrays[0]}, {again}); {names[0]} = lambda i: (pair[0][i], pair[1][i])")
        names = names[:1]
    else:
        again = arrays[int(kind.startswith("two"))]
        source.module.append(f"{names[0]}, {names[1]}, {names[2]} = {maker}({arrays[0]}), {maker}({again}), abs")
    source.results.append("(" + ", ".join(f"{name}(i)" for name in names) + ")")


@piece(st.sampled_from(["real", "imag", "numerator", "denominator", "bit_length()", "conjugate()"]))
def attribute(source: Source, name: str) -> None:
    source.results.append(f"i.{name}")


@piece(st.tuples(st.booleans(), st.booleans(), st.sampled_from(["array", "scalar"])))
def namespaces(source: Source, drawn: tuple[bool, bool, str]) -> None:
    """Functions of equal code in one namespace or in two, each with its own idea of a name."""
    one, rebound, kind = drawn

    def content() -> Any:
        return source.array(("f8", (3,), "C")) if kind == "array" else np.arange(3.0)[::-1].tolist()[source.count % 2]

    use = "table[i]" if kind == "array" else "table"
    spaces: list[dict[str, Any]] = [{"table": content()}, {"table": content()}]
    functions = []
    for number in (0, 1):
        space = spaces[0] if one else spaces[number]
        exec(f"def get_{number}(i): return {use}", space)
        functions.append(space[f"get_{number}"])
    if rebound:
        functions.reverse()
    source.results.append(f"({source.give('get', functions[0])}(i), {source.give('get', functions[1])}(i))")


FUNCTIONS = [
    math.sin,
    math.cos,
    math.exp,
    abs,
    float,
    int,
    np.sin,
    np.cos,
    np.float32,
    operator.neg,
    operator.pos,
    str,
    bool,
]


@piece(st.tuples(st.sampled_from(FUNCTIONS), st.sampled_from(["global", "closure", "tuple", "default"])))
def library(source: Source, drawn: tuple[Any, str]) -> None:
    function, where = drawn
    if where == "closure":
        name = source.close_over("f", function)
    elif where == "default":
        name = source.name("f")
        source.parameters.append(f"{name}={source.give('function', function)}")
    else:
        name = source.give("f", (function,) if where == "tuple" else function) + ("[0]" if where == "tuple" else "")
    source.results.append(f"{name}(i)")


@piece(
    st.tuples(
        st.sampled_from(
            ["math.sin", "math.cos", "np.sin", "np.float32", "np.pi", "math.pi", "np.e", "len", "str", "ord"]
        )
    )
)
def library_attribute(source: Source, drawn: tuple[str]) -> None:
    (text,) = drawn
    source.results.append(
        {"p": text, "e": text, "l": "len((1,))", "o": "ord('a')"}.get(text.rpartition(".")[2][0], f"{text}(i)")
    )


class Opaque:
    """A class that no key can see through."""

    def __init__(self, value: int) -> None:
        self.value = value


@piece(st.tuples(st.integers(0, 1), st.sampled_from(["list", "dict", "set", "object", "class"])))
def opaque(source: Source, drawn: tuple[int, str]) -> None:
    value, kind = drawn
    made: Any = {"list": [value], "dict": {1: value}, "set": {value}, "object": Opaque(value)}.get(kind)
    if kind == "class":
        made = type("Local", (), {"value": value})
    use = {"list": "[0]", "dict": "[1]", "set": ".copy().pop()"}.get(kind, ".value")
    source.results.append(source.give("opaque", made) + use)


@dataclass
class Program:
    """A program that was made."""

    text: str
    namespace: dict[str, Any]

    @property
    def kernel(self) -> Any:
        return self.namespace["kernel"]


def program(pieces: tuple[Piece, ...], salt: int = 0) -> Program:
    """Make a program; two of unequal salt differ in the contents of their arrays."""
    source = Source(salt=salt)
    for one in pieces:
        KINDS[one.kind][1](source, one.drawn)
    body = [f"        {line}" for line in source.body]
    text = "\n".join(
        [
            *source.module,
            f"def make({', '.join(source.cells)}):",
            f"    def kernel({', '.join(['i', *source.parameters])}):",
            *body,
            f"        return ({', '.join(source.results)},)",
            "    return kernel",
            f"kernel = make({', '.join(source.cells.values())})",
        ]
    )
    namespace = {"__name__": "program", "np": np, "math": math, "enum": enum, "PlainDispatcher": PlainDispatcher}
    namespace.update(source.names)
    exec(compile(text, "<program>", "exec"), namespace)
    return Program(text, namespace)


@st.composite
def pairs(draw: st.DrawFn, kinds: tuple[str, ...] = ()) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
    """Two programs that differ in what was drawn for one of their pieces."""
    chosen = st.sampled_from(kinds or tuple(KINDS))
    pieces = tuple(Piece(kind, draw(KINDS[kind][0])) for kind in draw(st.lists(chosen, min_size=1, max_size=3)))
    index = draw(st.integers(0, len(pieces) - 1))
    other = Piece(pieces[index].kind, draw(KINDS[pieces[index].kind][0]))
    return pieces, (*pieces[:index], other, *pieces[index + 1 :])


def bits(value: Any) -> Any:
    """A value such that only the very same is equal: types and bits."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, enum.Enum):
        return name, kind.__mro__[1].__name__, value.name, bits(value.value)
    if kind is float:
        return name, struct.pack("d", value)
    if kind is complex:
        return name, struct.pack("dd", value.real, value.imag)
    if isinstance(value, np.ndarray):
        return "ndarray", bits(value.dtype), value.shape, value.tobytes()
    if isinstance(value, np.generic):
        return name, bits(value.dtype), value.tobytes()
    if isinstance(value, np.dtype):
        described = value.descr if value.names and value.itemsize == 9 else value.str
        fields = {key: (bits(one[0]), one[1]) for key, one in (value.fields or {}).items()}
        return (
            name,
            repr(described),
            value.itemsize,
            value.isalignedstruct,
            value.shape,
            repr(value.names),
            repr(fields),
        )
    if isinstance(value, tuple):
        return name, getattr(kind, "_fields", None), tuple(map(bits, value))
    if isinstance(value, frozenset):
        return name, tuple(sorted(map(repr, map(bits, value))))
    if isinstance(value, slice):
        return name, bits((value.start, value.stop, value.step))
    if isinstance(value, type):
        members = tuple((key, bits(one.value)) for key, one in getattr(value, "__members__", {}).items())
        return "class", f"{value.__module__}.{value.__qualname__}", getattr(value, "_fields", None), members
    return name, repr(value)


def observed(kernel: Any) -> tuple[Any, ...]:
    """What a kernel does: results or errors for a few arguments."""
    found = []
    for i in range(3):
        try:
            found.append(bits(kernel(i)))
        except Exception as error:
            found.append((type(error).__name__, str(error)))
    return tuple(found)
