"""Scopes and what binds names in them, as Python does it.

``symtable`` says nothing of the nodes that bind a name, and since Python 3.12 nothing of comprehensions: that is why
there are scopes here; the tests hold them against it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from cuda_captures.check.sources import Source

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
How = Literal["assign", "augment", "parameter", "import", "for", "def", "class", "other", "delete"]
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
LOOPS = (ast.For, ast.AsyncFor, ast.While)


@dataclass(eq=False)
class Binding:
    """One place that binds a name.

    Parameters
    ----------
    name
        The name.
    node
        The node that binds it, to point at.
    how
        In which way; ``"other"`` for ``with``, ``except``, patterns and type parameters.
    scope
        Where it is executed: not where the name lives, if it is declared ``global`` or ``nonlocal`` there.
    value
        The expression that it is bound to, where there is one.
    item
        Position in ``value``, if that is taken apart.
    annotation
        The annotation, if there is one.
    target
        For imports: module and name, ``("numpy", None)`` or ``("numpy", "pi")``, and how many dots were before.
    """

    name: str
    node: ast.AST
    how: How
    scope: Scope
    value: ast.expr | None = None
    item: int | None = None
    annotation: ast.expr | None = None
    target: tuple[str, str | None, int] = ("", None, 0)


@dataclass(eq=False)
class Scope:
    """A module, class, function, lambda or comprehension.

    Parameters
    ----------
    source
        The file.
    node
        What makes the scope.
    parent
        The scope around it; None for a module.
    made
        Bindings that are executed here.
    bindings
        Bindings of the names that live here, wherever they are executed; filled when the file has been read.
    declared
        Names declared here, and how.
    reads
        Names read here.
    stars
        Modules of ``from module import *``, with the dots before.
    """

    source: Source
    node: ast.AST
    parent: Scope | None
    made: list[Binding] = field(default_factory=list)
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    declared: dict[str, Literal["global", "nonlocal"]] = field(default_factory=dict)
    reads: list[ast.Name] = field(default_factory=list)
    children: list[Scope] = field(default_factory=list)
    stars: list[tuple[str, int]] = field(default_factory=list)

    @property
    def is_function(self) -> bool:
        return isinstance(self.node, Function)

    @property
    def is_class(self) -> bool:
        return isinstance(self.node, ast.ClassDef)

    @property
    def name(self) -> str:
        return getattr(self.node, "name", "lambda" if isinstance(self.node, ast.Lambda) else "module")

    @property
    def module(self) -> Scope:
        return self if self.parent is None else self.parent.module

    @property
    def function(self) -> Scope | None:
        """The function that it is in or is; None at the level of the module or of a class."""
        scope: Scope | None = self
        while scope is not None and not scope.is_function:
            scope = scope.parent if isinstance(scope.node, COMPREHENSIONS) else None
        return scope

    def resolve(self, name: str) -> Scope | None:
        """The scope that a name read here lives in; None for what no scope of the file binds."""
        scope: Scope | None = self
        first = True
        while scope is not None:
            declared = scope.declared.get(name)
            if declared == "global":
                scope = scope.module
                return scope if name in scope.bindings else None
            if name in scope.bindings and declared is None and (first or not scope.is_class):
                return scope
            if name == "__class__" and scope.is_class and not first:
                return scope  # the compiler's own cell
            first = False
            scope = scope.parent
        return None

    def within(self, other: Scope) -> bool:
        """Whether it is another scope, or inside of it."""
        scope: Scope | None = self
        while scope is not None and scope is not other:
            scope = scope.parent
        return scope is other

    def below(self) -> Iterator[Scope]:
        """It and the scopes inside of it."""
        yield self
        for child in self.children:
            yield from child.below()
