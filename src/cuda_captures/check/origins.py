"""Where a captured value comes from: expressions are followed back to what makes them.

An expression gives one of several values, if it is bound in several places.  What cannot be told is unknown; nothing
is executed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from cuda_captures.check import arrays
from cuda_captures.check.folding import DEPTH, fold
from cuda_captures.check.order import reaching
from cuda_captures.check.parameters import of_parameter
from cuda_captures.check.program import LIBRARIES, Elsewhere, Module, Program, Variable
from cuda_captures.check.scopes import Binding, Scope
from cuda_captures.check.values import UNKNOWN, Value, Values, host, scalar

LISTS = {"list", "sorted", "collections.deque"}
DICTIONARIES = {"dict", "vars", "collections.OrderedDict", "collections.defaultdict", "collections.Counter"}
SETS = {"set", "frozenset"}
RANGES = {"range"}
NUMBERS = {"int", "float", "bool", "complex", "len", "round", "ord", "hash", "str", "id", "pow", "sum"}


class Origins:
    """What expressions of a program give; remembers what it has found.

    Parameters
    ----------
    program
        The files.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.known: dict[Variable, Values] = {}
        self.pending: set[object] = set()

    def of_variable(self, variable: Variable, depth: int = 0) -> Values:
        """What a variable may hold, from all its bindings."""
        if variable in self.known:
            return self.known[variable]
        if variable in self.pending or depth > DEPTH:
            return (UNKNOWN,)
        self.pending.add(variable)
        try:
            found: list[Value] = []
            for binding in variable.bindings:
                found += self.of_binding(binding, depth + 1)
        finally:
            self.pending.discard(variable)
        values = _distinct(found)
        if depth == 0 or UNKNOWN not in values:  # what was cut short is not remembered
            self.known[variable] = values
        return values

    def of_reaching(self, variable: Variable, function: Scope) -> Values:
        """What a variable may hold when a function may be launched: what was overwritten before is left out."""
        bindings = reaching(variable, function)
        if len(bindings) == len(variable.bindings):
            return self.of_variable(variable)
        return _distinct(value for one in bindings for value in self.of_binding(one, 1))

    def of_binding(self, binding: Binding, depth: int) -> Values:
        """What one binding gives a name."""
        if binding.how == "parameter":
            return of_parameter(self, binding, depth)
        if binding.how in ("def", "class"):
            return (
                Value("code", "function" if binding.how == "def" else "class", node=binding.node, scope=binding.scope),
            )
        if binding.how == "delete" or (
            binding.how == "assign" and binding.value is None and binding.annotation is not None
        ):
            return ()
        if binding.how == "augment":
            return ()  # of the kind that it was before
        if binding.how == "assign" and binding.value is not None:
            values = self.of(binding.value, binding.scope, depth)
            if binding.item is not None:
                values = tuple(one for value in values for one in self.item(value, binding.item))
            return tuple(one.but(node=binding.node, scope=binding.scope) for one in values)
        return (UNKNOWN.but(node=binding.node, scope=binding.scope),)

    def item(self, value: Value, index: int) -> Values:
        """An item of a tuple, or of the first axis of an array."""
        if value.kind == "tuple" and value.items is not None and -len(value.items) <= index < len(value.items):
            return value.items[index]
        if value.is_array and value.shape is not None:
            return (value.but(shape=value.shape[1:]) if len(value.shape) > 1 else scalar(),)
        return (UNKNOWN,)

    def of(self, node: ast.expr, scope: Scope, depth: int = 0) -> Values:
        """What an expression may give."""
        if depth > DEPTH:
            return (UNKNOWN,)
        method = getattr(self, f"of_{type(node).__name__}", None)
        if method is None:
            return (UNKNOWN,)
        values: Values = method(node, scope, depth + 1)
        return _distinct(one if one.node is not None else one.but(node=node, scope=scope) for one in values)

    def of_Constant(self, node: ast.Constant, scope: Scope, depth: int) -> Values:
        if node.value is None:
            return (Value("none", "None"),)
        return (scalar(node.value, literal=True),)  # type: ignore[arg-type]

    def of_List(self, node: ast.expr, scope: Scope, depth: int) -> Values:
        return (Value("container", "list"),)

    of_ListComp = of_List

    def of_Dict(self, node: ast.expr, scope: Scope, depth: int) -> Values:
        return (Value("container", "dictionary"),)

    of_DictComp = of_Dict

    def of_Set(self, node: ast.expr, scope: Scope, depth: int) -> Values:
        return (Value("container", "set"),)

    of_SetComp = of_Set

    def of_Tuple(self, node: ast.Tuple, scope: Scope, depth: int) -> Values:
        if any(isinstance(one, ast.Starred) for one in node.elts):
            return (Value("tuple", "tuple"),)
        return (self.tuple_of(node.elts, scope, depth),)

    def tuple_of(self, nodes: Iterable[ast.expr], scope: Scope, depth: int, what: str = "tuple") -> Value:
        items = tuple(self.of(one, scope, depth) for one in nodes)
        literal = all(one.literal for item in items for one in item)
        return Value("tuple", what, items=items, literal=literal)

    def of_Lambda(self, node: ast.Lambda, scope: Scope, depth: int) -> Values:
        return (Value("code", "function"),)

    def of_IfExp(self, node: ast.IfExp, scope: Scope, depth: int) -> Values:
        return (*self.of(node.body, scope, depth), *self.of(node.orelse, scope, depth))

    def of_BoolOp(self, node: ast.BoolOp, scope: Scope, depth: int) -> Values:
        return tuple(value for one in node.values for value in self.of(one, scope, depth))

    def of_NamedExpr(self, node: ast.NamedExpr, scope: Scope, depth: int) -> Values:
        return self.of(node.value, scope, depth)

    def of_Compare(self, node: ast.Compare, scope: Scope, depth: int) -> Values:
        return self.elementwise((node.left, *node.comparators), scope, depth)

    def of_UnaryOp(self, node: ast.UnaryOp, scope: Scope, depth: int) -> Values:
        number = self.fold(node, scope, depth)
        if isinstance(number, (int, float)):
            return (scalar(number, literal=all(one.literal for one in self.of(node.operand, scope, depth))),)
        return self.elementwise((node.operand,), scope, depth)

    def of_BinOp(self, node: ast.BinOp, scope: Scope, depth: int) -> Values:
        number = self.fold(node, scope, depth)
        sides = [one for side in (node.left, node.right) for one in self.of(side, scope, depth)]
        if isinstance(number, (int, float, str)):
            return (scalar(number, literal=all(one.literal for one in sides)),)
        for side in sides:  # [0] * n, list + list
            if side.kind in ("container", "tuple") and not any(one.is_array for one in sides):
                return (side.but(items=None, node=None),)
        return self.elementwise((node.left, node.right), scope, depth)

    def elementwise(self, nodes: Iterable[ast.expr], scope: Scope, depth: int) -> Values:
        """Of arrays an array, of scalars a scalar."""
        given = [self.of(node, scope, depth) for node in nodes]
        values = [one for values in given for one in values]
        found = [one for one in values if one.is_array]
        if found:
            largest = next((one for one in found if one.kind == "device"), found[0])
            alone = len([values for values in given if any(one.is_array for one in values)]) == 1
            only = alone and all(one.is_array or one.kind == "scalar" for one in values)
            shape = largest.shape if only else None
            return (Value(largest.kind, largest.what, shape, largest.dtype if only else None, guessed=largest.guessed),)
        return (scalar(),) if values and all(one.kind == "scalar" for one in values) else (UNKNOWN,)

    def of_Name(self, node: ast.Name, scope: Scope, depth: int) -> Values:
        return self.of_reference(node, scope, depth)

    def of_Attribute(self, node: ast.Attribute, scope: Scope, depth: int) -> Values:
        found = self.program.follow(node, scope)
        if found:
            return self.of_reference(node, scope, depth)
        values: list[Value] = []
        for base in self.of(node.value, scope, depth):
            if base.is_array and node.attr in ("T", "real", "imag", "flat"):
                values.append(base.but(shape=None, node=None))
            elif base.is_array and node.attr == "shape":
                items = None if base.shape is None else tuple((scalar(one),) for one in base.shape)
                values.append(Value("tuple", "tuple", items=items))
            elif base.is_array and node.attr in ("size", "ndim", "nbytes", "itemsize"):
                values.append(scalar())
            elif base.is_array and node.attr == "dtype":
                values.append(Value("dtype", "dtype"))
            else:
                values.append(UNKNOWN)
        return tuple(values)

    def of_reference(self, node: ast.expr, scope: Scope, depth: int) -> Values:
        """What a name, or an attribute of a module, may hold."""
        values: list[Value] = []
        for referent in self.program.follow(node, scope):
            if isinstance(referent, Variable):
                values += self.of_variable(referent, depth)
            elif isinstance(referent, Module):
                values.append(Value("code", "module"))
            else:
                values.append(of_library(referent))
        return tuple(values) or (UNKNOWN,)

    def of_Subscript(self, node: ast.Subscript, scope: Scope, depth: int) -> Values:
        dotted = self.program.dotted(node.value, scope)
        if any(f"numpy.{name}" in dotted for name in arrays.INDEXERS):
            return (host(),)
        index = self.fold(node.slice, scope, depth)
        values: list[Value] = []
        for base in self.of(node.value, scope, depth):
            if isinstance(index, int) and (base.kind == "tuple" or base.is_array):
                values += self.item(base, index)
            elif base.is_array and self._gives_array(node.slice, scope, depth):
                values.append(base.but(shape=None, node=None))
            else:
                values.append(UNKNOWN)
        return tuple(values)

    def _gives_array(self, index: ast.expr, scope: Scope, depth: int) -> bool:
        """Whether an index takes more than one element: a slice or an array is in it."""
        if isinstance(index, ast.Tuple):
            return any(self._gives_array(one, scope, depth) for one in index.elts)
        if isinstance(index, ast.Slice) or (isinstance(index, ast.Constant) and index.value in (None, ...)):
            return True
        if isinstance(index, ast.Call) and isinstance(index.func, ast.Attribute) and index.func.attr in arrays.SAME:
            return True
        return any(one.is_array or one.kind == "container" for one in self.of(index, scope, depth))

    def fold(self, node: ast.expr, scope: Scope, depth: int = 0) -> object:
        """The number, string, tuple of such, or name of a dtype, that an expression is; None if it cannot be told."""
        return fold(self, node, scope, depth)

    def of_Call(self, node: ast.Call, scope: Scope, depth: int) -> Values:
        from cuda_captures.check.calls import of_call

        return of_call(self, node, scope, depth)


def of_library(referent: Elsewhere) -> Value:
    """Something of a library by its dotted name: known libraries hold code and numbers only."""
    first = referent.dotted.partition(".")[0]
    if referent.dotted in ("builtins.True", "builtins.False", "numpy.pi", "numpy.e", "numpy.inf", "numpy.nan"):
        return scalar(literal=True)
    if first == "builtins" or first in LIBRARIES:
        return Value("code", "of a library")
    return UNKNOWN.but(what=referent.dotted)


def _distinct(values: Iterable[Value]) -> Values:
    """Values once each; many are too many to tell."""
    kept = tuple(dict.fromkeys(values))
    return kept if len(kept) <= 24 else (*kept[:24], UNKNOWN)
