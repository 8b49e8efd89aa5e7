"""Which captured arrays does a function write, decided on the compiler's typed intermediate representation.

Both compilers of the family keep numba's front end, so one analysis serves them: it goes over the statements of a
function until nothing changes, and follows which captured arrays (and which arguments) each variable may refer to,
through assignments, views, tuples, iterators and calls.  A store, an atomic or a call that cannot be seen through
writes what it is given.  When in doubt, "writes": a copy back too many costs time, one too few loses data.

Pure functions over objects that the caller owns; no state.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from cuda_captures.session import Captured

# An origin is a captured array or the index of an argument.
Origin = Captured | int


@dataclass
class Effects:
    """What a function does to the arrays that it can reach.

    Parameters
    ----------
    written
        Captured arrays and arguments that it may write.
    certainly
        Those of them that it writes for certain: by a store or an atomic of its own.
    returned
        What its return value may refer to.
    refers
        For each variable, what it may refer to.
    unknown
        Variables that may refer to something else besides.
    """

    written: set[Origin] = field(default_factory=set)
    certainly: dict[Origin, Any] = field(default_factory=dict)
    returned: set[Origin] = field(default_factory=set)
    refers: dict[str, set[Origin]] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)

    def only_captured(self, variable: str) -> set[Captured]:
        """The captured arrays that a variable refers to, or nothing if it may refer to anything else."""
        origins = self.refers.get(variable, set())
        if variable in self.unknown or not all(isinstance(origin, Captured) for origin in origins):
            return set()
        return {origin for origin in origins if isinstance(origin, Captured)}


@dataclass(frozen=True)
class Dialect:
    """How a compiler spells what the analysis asks about.

    Parameters
    ----------
    refers
        Whether a value of a type may refer to an array's memory (arrays, records, tuples and iterators of them,
        pointers); types that are not known (None) may.
    effects_of_call
        For a call expression and the type of what is called: the callee's :class:`Effects`, ``"reads"`` if it
        writes nothing it is given, ``"atomic"`` if it writes its first argument, None if nobody knows.
    module_capture
        The captured array or tuple that an attribute of a module stands for, or None.
    """

    refers: Callable[[Any], bool]
    effects_of_call: Callable[[Any, Any], Effects | str | None]
    module_capture: Callable[[Any, str], Any]


PASSES_ON = frozenset(
    {"getitem", "static_getitem", "typed_getitem", "getiter", "iternext", "pair_first", "pair_second"}
    | {"exhaust_iter", "cast", "phi", "build_tuple", "build_list", "build_set"}
)
COMPUTES = frozenset({"binop", "unary", "null", "undef", "build_map", "make_function", "dummy"})


def effects_of(blocks: Iterable[Any], typemap: dict[str, Any] | None, dialect: Dialect) -> Effects:
    """What a function does to captured arrays and to its arguments.

    Parameters
    ----------
    blocks
        The function's blocks, each with a ``body`` of statements.
    typemap
        Type of each variable, or None before type inference.
    dialect
        The compiler's way to say things.
    """
    analysis = _Analysis(typemap, dialect)
    statements = [statement for block in blocks for statement in block.body]
    while True:
        analysis.grown = False
        for statement in statements:
            analysis.visit(statement)
        if not analysis.grown:
            return analysis.effects


class _Analysis:
    """One fixed-point iteration; lives as long as the call of :func:`effects_of`."""

    def __init__(self, typemap: dict[str, Any] | None, dialect: Dialect) -> None:
        self.typemap = typemap
        self.dialect = dialect
        self.effects = Effects()
        self.grown = False
        self.modules: dict[str, Any] = {}
        self.tuples: dict[str, tuple[Any, ...]] = {}  # variables that are a captured tuple, whose items are told apart

    def visit(self, statement: Any) -> None:
        kind = type(statement).__name__
        if kind == "Assign":
            self.assign(statement.target.name, statement.value, statement)
        elif kind in ("SetItem", "StaticSetItem", "SetAttr", "DelItem", "StoreMap"):
            target = getattr(statement, "target", None) or getattr(statement, "dct", None)
            self.write(self.origins(target), statement)
        elif kind in ("Return", "Yield"):
            self.returns(self.origins(statement.value))

    def assign(self, target: str, value: Any, statement: Any) -> None:
        kind = type(value).__name__
        if kind in ("Global", "FreeVar", "Const"):
            if captured_in(value.value):
                self.refer(target, captured_in(value.value))
                self.is_tuple(target, value.value)
            elif type(value.value).__name__ == "module":
                self.modules[target] = value.value
        elif kind == "Arg":
            self.refer(target, {value.index})
        elif kind == "Var":
            self.copy(target, [value])
            if value.name in self.modules:
                self.modules[target] = self.modules[value.name]
            self.is_tuple(target, self.tuples.get(value.name))
        elif kind == "Yield":
            self.returns(self.origins(value.value))
        elif kind == "Expr":
            self.expression(target, value, statement)

    def expression(self, target: str, expr: Any, statement: Any) -> None:
        if expr.op == "call":
            self.call(target, expr, statement)
        elif expr.op == "getattr":
            self.getattr(target, expr)
        elif expr.op == "inplace_binop":
            self.write(self.origins(expr.lhs), statement)
            self.copy(target, [expr.lhs])
        elif expr.op in PASSES_ON:
            if expr.op in ("static_getitem", "exhaust_iter", "cast") and self.item(target, expr):
                return
            self.copy(target, expr.list_vars())
        elif expr.op not in COMPUTES:  # an operation that nobody has told us about
            self.write({origin for variable in expr.list_vars() for origin in self.origins(variable)}, statement)
            self.mark_unknown(target)

    def is_tuple(self, target: str, value: Any) -> None:
        if isinstance(value, tuple):
            self.tuples[target] = value

    def item(self, target: str, expr: Any) -> bool:
        """Follow one known item of a captured tuple; whether the expression was that."""
        whole = self.tuples.get(expr.value.name)
        if whole is None:
            return False
        if expr.op != "static_getitem":
            self.refer(target, captured_in(whole))
            self.is_tuple(target, whole)
            return True
        if not isinstance(expr.index, int) or not -len(whole) <= expr.index < len(whole):
            return False
        self.refer(target, captured_in(whole[expr.index]))
        self.is_tuple(target, whole[expr.index])
        return True

    def getattr(self, target: str, expr: Any) -> None:
        whole = self.tuples.get(expr.value.name)
        if whole is not None and expr.attr in getattr(whole, "_fields", ()):
            item = getattr(whole, expr.attr)
            self.refer(target, captured_in(item))
            self.is_tuple(target, item)
            return
        module = self.modules.get(expr.value.name)
        if module is not None:
            value = self.dialect.module_capture(module, expr.attr)
            captured = captured_in(value)
            if captured:
                self.refer(target, captured)
                self.is_tuple(target, value)
            else:
                inner = getattr(module, expr.attr, None)
                if type(inner).__name__ == "module":
                    self.modules[target] = inner
            return
        self.copy(target, [expr.value])

    def call(self, target: str, expr: Any, statement: Any) -> None:
        arguments = [*expr.args, *(variable for _, variable in expr.kws)]
        if expr.vararg is not None:
            arguments.append(expr.vararg)
        function_type = self.typemap.get(expr.func.name) if self.typemap is not None else None
        effects = self.dialect.effects_of_call(expr, function_type)
        bound = self.origins(expr.func)  # a method of a captured array refers to it
        if isinstance(effects, Effects):
            for index, variable in enumerate(expr.args):
                if index in effects.certainly:
                    self.write(self.origins(variable), statement)
                elif index in effects.written:
                    self.write(self.origins(variable))
            given = {index: self.origins(variable) for index, variable in enumerate(expr.args)}
            for origin in effects.returned:
                self.refer(target, {origin} if isinstance(origin, Captured) else given.get(origin, set()))
        elif effects == "reads":
            self.refer(target, bound)
            self.copy(target, arguments)
        elif effects == "atomic":
            self.write(self.origins(arguments[0]) if arguments else set(), statement)
        else:
            for variable in arguments:
                self.write(self.origins(variable))
            self.write(bound)
            self.refer(target, bound)
            self.copy(target, arguments)
            if self.may_refer(target):
                self.mark_unknown(target)

    def may_refer(self, variable: str) -> bool:
        return self.typemap is None or self.dialect.refers(self.typemap.get(variable))

    def origins(self, variable: Any) -> set[Origin]:
        return self.effects.refers.get(variable.name, set())

    def copy(self, target: str, sources: Iterable[Any]) -> None:
        for source in sources:
            self.refer(target, self.origins(source))
            if source.name in self.effects.unknown:
                self.mark_unknown(target)

    def refer(self, target: str, origins: set[Origin] | set[Captured]) -> None:
        if origins and self.may_refer(target):
            known = self.effects.refers.setdefault(target, set())
            if not origins <= known:
                known |= origins
                self.grown = True

    def mark_unknown(self, target: str) -> None:
        if target not in self.effects.unknown:
            self.effects.unknown.add(target)
            self.grown = True

    def write(self, origins: set[Origin], statement: Any = None) -> None:
        if not origins <= self.effects.written:
            self.effects.written |= origins
            self.grown = True
        if statement is not None:
            for origin in origins:
                self.effects.certainly.setdefault(origin, statement)

    def returns(self, origins: set[Origin]) -> None:
        if not origins <= self.effects.returned:
            self.effects.returned |= origins
            self.grown = True


def captured_in(value: Any) -> set[Captured]:
    """The captured arrays that a stand-in is or holds."""
    if isinstance(value, Captured):
        return {value}
    if isinstance(value, tuple):
        return {captured for item in value for captured in captured_in(item)}
    return set()


def keys_of(origins: Iterable[Origin]) -> set[Hashable]:
    """Keys of the places of the captured arrays among some origins."""
    return {origin.place.key for origin in origins if isinstance(origin, Captured)}
