"""One pass over a file: its scopes, their bindings, and the places where names are read, called and stored into."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from cuda_captures.check.scopes import COMPREHENSIONS, Binding, Function, How, Scope
from cuda_captures.check.sources import Source


@dataclass(eq=False)
class Reading:
    """What one pass over a file found.

    Parameters
    ----------
    module
        The file's outermost scope.
    scope_of
        The scope that each function, class or comprehension makes.
    calls, stores
        Calls, and stores into attributes, items and augmented names, each with its scope.
    functions
        Functions with decorators and all, each with the scope around it.
    returns
        Results of each function.
    """

    module: Scope
    scope_of: dict[ast.AST, Scope] = field(default_factory=dict)
    calls: list[tuple[ast.Call, Scope]] = field(default_factory=list)
    stores: list[tuple[ast.expr, Scope]] = field(default_factory=list)
    functions: list[tuple[ast.FunctionDef | ast.AsyncFunctionDef, Scope]] = field(default_factory=list)
    returns: dict[Scope, list[ast.expr]] = field(default_factory=dict)


def read(source: Source) -> Reading:
    """Make the scopes of a file that was parsed."""
    assert source.tree is not None
    module = Scope(source, source.tree, None)
    visitor = _Visitor(Reading(module, {source.tree: module}))
    for statement in source.tree.body:
        visitor.visit(statement)
    for scope in module.below():
        for name, declared in scope.declared.items():
            if declared == "global" and any(one.name == name for one in scope.made):
                module.bindings.setdefault(name, [])
        for binding in scope.made:
            if binding.name not in scope.declared:
                scope.bindings.setdefault(binding.name, [])
    for scope in module.below():
        for binding in scope.made:
            home = scope.resolve(binding.name) if binding.name in scope.declared else scope
            if home is not None:
                home.bindings[binding.name].append(binding)
    return visitor.found


class _Visitor(ast.NodeVisitor):
    """The pass."""

    def __init__(self, found: Reading) -> None:
        self.found = found
        self.scope = found.module

    def visit_all(self, *nodes: ast.AST | None) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def enter(self, node: ast.AST) -> Scope:
        """Make the scope of a node and stay there; returns the one around it."""
        around = self.scope
        self.scope = Scope(around.source, node, around)
        around.children.append(self.scope)
        self.found.scope_of[node] = self.scope
        return around

    def bind(self, name: str, node: ast.AST, how: How, value: ast.expr | None = None, **more: object) -> None:
        scope = self.scope
        if isinstance(node, ast.NamedExpr):  # binds around the comprehension
            while isinstance(scope.node, COMPREHENSIONS) and scope.parent is not None:
                scope = scope.parent
        scope.made.append(Binding(name, node, how, scope, value, **more))  # type: ignore[arg-type]

    def target(self, node: ast.expr, how: How, value: ast.expr | None, item: int | None = None) -> None:
        """Bind what a target names; items and attributes are stores."""
        if isinstance(node, ast.Name):
            self.bind(node.id, node, how, value, item=item)
        elif isinstance(node, ast.Starred):
            self.target(node.value, "other", None)
        elif isinstance(node, (ast.Tuple, ast.List)):
            items = value.elts if isinstance(value, (ast.Tuple, ast.List)) and how == "assign" else None
            starred = any(isinstance(one, ast.Starred) for one in (*node.elts, *(items or ())))
            for index, one in enumerate(node.elts):
                if items is not None and not starred and len(items) == len(node.elts):
                    self.target(one, how, items[index])
                elif starred or item is not None or how != "assign":
                    self.target(one, how if how == "for" else "other", None)
                else:
                    self.target(one, how, value, index)
        else:
            self.found.stores.append((node, self.scope))
            self.visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self.target(target, "assign", node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit_all(node.value, node.annotation)
        if isinstance(node.target, ast.Name):
            if node.value is not None or self.scope.is_function:  # makes it local, bound or not
                self.bind(node.target.id, node.target, "assign", node.value, annotation=node.annotation)
        elif node.value is not None:
            self.target(node.target, "assign", node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        if isinstance(node.target, ast.Name):
            self.scope.reads.append(node.target)
            self.found.stores.append((node.target, self.scope))
            self.bind(node.target.id, node.target, "augment", node.value)
        else:
            self.target(node.target, "assign", None)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self.bind(node.target.id, node, "assign", node.value)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        self.target(node.target, "for", node.iter)
        self.visit_all(*node.body, *node.orelse)

    visit_AsyncFor = visit_For

    def visit_withitem(self, node: ast.withitem) -> None:
        self.visit(node.context_expr)
        if node.optional_vars is not None:
            self.target(node.optional_vars, "other", None)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self.bind(node.name, node, "other")
        self.visit_all(node.type, *node.body)

    def visit_pattern(self, node: ast.MatchAs | ast.MatchStar | ast.MatchMapping) -> None:
        name = node.rest if isinstance(node, ast.MatchMapping) else node.name
        if name:
            self.bind(name, node, "other")
        self.generic_visit(node)

    visit_MatchAs = visit_MatchStar = visit_MatchMapping = visit_pattern

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self.target(target, "delete", None)

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        for name in node.names:
            self.scope.declared[name] = "global" if isinstance(node, ast.Global) else "nonlocal"

    visit_Nonlocal = visit_Global

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.asname:
                self.bind(alias.asname, node, "import", target=(alias.name, None, 0))
            else:
                first = alias.name.partition(".")[0]
                self.bind(first, node, "import", target=(first, None, 0))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            if alias.name == "*":
                self.scope.stars.append((node.module or "", node.level))
            else:
                self.bind(
                    alias.asname or alias.name, node, "import", target=(node.module or "", alias.name, node.level)
                )

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.visit_all(*node.decorator_list, node.returns)
        self.bind(node.name, node, "def")
        self.found.functions.append((node, self.scope))
        self.function(node, node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.function(node, [node.body])

    def function(self, node: Function, body: list[ast.stmt] | list[ast.expr]) -> None:
        given = node.args
        parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        every = [*parameters, *(one for one in (given.vararg, given.kwarg) if one is not None)]
        self.visit_all(*given.defaults, *given.kw_defaults, *(one.annotation for one in every))
        around = self.enter(node)
        positional = [*given.posonlyargs, *given.args]
        defaults: dict[ast.arg, ast.expr | None] = dict(zip(given.kwonlyargs, given.kw_defaults, strict=True))
        if given.defaults:
            defaults.update(zip(positional[-len(given.defaults) :], given.defaults, strict=True))
        for one in every:
            self.bind(one.arg, one, "parameter", defaults.get(one), annotation=one.annotation)
        for kind in getattr(node, "type_params", ()):
            self.bind(kind.name, kind, "other")
        if isinstance(node, ast.Lambda):
            self.found.returns[self.scope] = [node.body]
        self.visit_all(*body)
        self.scope = around

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None:
            self.found.returns.setdefault(self.scope, []).append(node.value)
            self.visit(node.value)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.visit_all(*node.decorator_list, *node.bases, *node.keywords)
        self.bind(node.name, node, "class")
        around = self.enter(node)
        for kind in getattr(node, "type_params", ()):
            self.bind(kind.name, kind, "other")
        self.visit_all(*node.body)
        self.scope = around

    def visit_comprehension_scope(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        self.visit(node.generators[0].iter)  # evaluated outside
        around = self.enter(node)
        for index, generator in enumerate(node.generators):
            if index:
                self.visit(generator.iter)
            self.target(generator.target, "for", generator.iter)
            self.visit_all(*generator.ifs)
        if isinstance(node, ast.DictComp):
            self.visit_all(node.key, node.value)
        else:
            self.visit(node.elt)
        self.scope = around

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_comprehension_scope

    def visit_TypeAlias(self, node: ast.AST) -> None:  # Python 3.12: evaluated when it is asked for
        self.bind(node.name.id, node, "other")  # type: ignore[attr-defined]

    def visit_Call(self, node: ast.Call) -> None:
        self.found.calls.append((node, self.scope))
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.scope.reads.append(node)
