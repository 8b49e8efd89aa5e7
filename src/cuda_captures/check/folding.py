"""Numbers that are written down: what shapes and dtypes are made of."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING

from cuda_captures.check import arrays
from cuda_captures.check.program import Variable
from cuda_captures.check.scopes import Scope

if TYPE_CHECKING:
    from cuda_captures.check.origins import Origins

DEPTH = 14  # steps from one expression to the next
OPERATORS: dict[type, Callable[..., object]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift, ast.BitOr: operator.or_, ast.BitAnd: operator.and_,
}  # fmt: skip


def fold(origins: Origins, node: ast.expr, scope: Scope, depth: int = 0) -> object:
    """The number, string, tuple of such, or name of a dtype, that an expression is; None if it cannot be told."""
    if depth > DEPTH:
        return None
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.Tuple, ast.List)):
        return tuple(fold(origins, one, scope, depth + 1) for one in node.elts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = fold(origins, node.operand, scope, depth + 1)
        return -number if isinstance(number, (int, float)) else None
    if isinstance(node, ast.BinOp):
        return _computed(
            node.op, fold(origins, node.left, scope, depth + 1), fold(origins, node.right, scope, depth + 1)
        )
    if isinstance(node, (ast.Name, ast.Attribute)):
        return _folded_name(origins, node, scope, depth + 1)
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        called = origins.program.dotted(node.func, scope)
        number = fold(origins, node.args[0], scope, depth + 1)
        if "builtins.int" in called and isinstance(number, (int, float)):
            return int(number)
        if "builtins.float" in called and isinstance(number, (int, float)):
            return float(number)
        if "numpy.dtype" in called:
            return number
    return None


def _folded_name(origins: Origins, node: ast.expr, scope: Scope, depth: int) -> object:
    for one in origins.program.dotted(node, scope):
        if arrays.dtype_of(one) is not None and "." in one:
            return one
    values = [one for one in origins.of(node, scope, depth) if one.kind != "none"]
    if len(values) != 1 or values[0].guessed:
        return None
    value = values[0]
    if any(
        one.how == "augment"
        for r in origins.program.follow(node, scope)
        if isinstance(r, Variable)
        for one in r.bindings
    ):
        return None
    if value.kind == "tuple" and value.items is not None:
        return tuple(item[0].number if len(item) == 1 else None for item in value.items)
    return value.number


def _computed(operation: ast.operator, left: object, right: object) -> object:
    if not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
        return None
    if isinstance(operation, (ast.Pow, ast.LShift)) and (abs(right) > 100 or abs(left) > 1e9):
        return None  # a number of any size
    try:
        return OPERATORS[type(operation)](left, right) if type(operation) in OPERATORS else None
    except (ArithmeticError, TypeError, ValueError):
        return None
