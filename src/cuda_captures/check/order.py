"""What is executed before what: positions, loops and branches around bindings of names."""

from __future__ import annotations

import ast

from cuda_captures.check.program import Variable
from cuda_captures.check.scopes import LOOPS, Binding, Scope


def reaching(variable: Variable, function: Scope) -> list[Binding]:
    """The bindings that a function may see: not those that are overwritten for certain before it is made.

    For a function of another file, those before the last certain one of the variable's own scope.
    """
    here = function.source is variable.scope.source and function.within(variable.scope)
    limit = position(outermost(function, variable.scope)) if here else (10**9, 0)
    certain = [
        position(one.node)
        for one in variable.bindings
        if one.scope is variable.scope
        and one.how in ("assign", "import", "def", "class")
        and not only_annotated(one)
        and is_certain(one)
        and position(one.node) < limit
    ]
    if not certain:
        return variable.bindings
    last = max(certain)
    return [one for one in variable.bindings if one.scope is not variable.scope or position(one.node) >= last]


def is_certain(binding: Binding) -> bool:
    """Whether a binding is executed whenever its scope is: it is in no branch, loop or handler."""
    for above in binding.scope.source.above(binding.node):
        if above is binding.scope.node:
            return True
        if isinstance(above, ast.stmt) and hasattr(above, "body") and not isinstance(above, (ast.With, ast.AsyncWith)):
            return False
        if isinstance(above, (ast.ExceptHandler, ast.IfExp, ast.BoolOp)):
            return False
    return True


def only_annotated(binding: Binding) -> bool:
    """Whether it is an annotation without a value, which binds nothing."""
    return binding.how == "assign" and binding.value is None and binding.annotation is not None


def position(node: ast.AST) -> tuple[int, int]:
    """Line and column, to compare with others of a file."""
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def outermost(function: Scope, home: Scope) -> ast.AST:
    """The definition that is executed in a scope and holds the function."""
    scope = function
    while scope.parent is not None and scope.parent is not home:
        scope = scope.parent
    return scope.node


def loops(node: ast.AST, scope: Scope) -> list[ast.AST]:
    """Loops of a scope around a node, the innermost first."""
    found: list[ast.AST] = []
    for above in scope.source.above(node):
        if above is scope.node:
            break
        if isinstance(above, LOOPS):
            found.append(above)
    return found


def loop_without(node: ast.AST, definition: ast.AST, scope: Scope) -> ast.AST | None:
    """A loop that executes a node again and again, but not the definition."""
    around = loops(definition, scope)
    return next((loop for loop in loops(node, scope) if loop not in around), None)


def exclusive(one: Binding, other: Binding) -> bool:
    """Whether at most one of two bindings of a scope is executed: they are in branches of one statement."""
    here, there = branches(one), branches(other)
    return any(there.get(statement, branch) != branch for statement, branch in here.items())


def branches(binding: Binding) -> dict[ast.AST, str]:
    """The branching statements around a binding, and which branch it is in."""
    found: dict[ast.AST, str] = {}
    node: ast.AST = binding.node
    for above in binding.scope.source.above(binding.node):
        if isinstance(above, (ast.If, ast.Try, ast.Match)) or type(above).__name__ == "TryStar":
            for name, block in ast.iter_fields(above):
                if isinstance(block, list) and node in block:
                    part = f"{name} {block.index(node)}" if name in ("handlers", "cases") else name
                    found[above] = "body" if isinstance(above, ast.Try) and name == "orelse" else part
        node = above
    return found
