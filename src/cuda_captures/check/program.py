"""What names and attributes lead to, through the imports of the checked files.

Nothing is imported: a module of the checked files is found by its path, and what comes from elsewhere is known by its
dotted name alone.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from cuda_captures.check.reading import Reading, read
from cuda_captures.check.scopes import Binding, Scope
from cuda_captures.check.sources import Source

# Of modules of these there are only the names: their arrays, if any, are nobody's captures.
LIBRARIES = {"numpy", "math", "cmath", "operator", "numba", "numba_cuda", "numba_cuda_mlir", "cupy", "scipy", "torch"}
LIBRARIES |= {"jax", "functools", "itertools", "typing", "os", "sys", "enum", "collections", "time", "random"}


@dataclass(frozen=True)
class Variable:
    """A name in the scope that it lives in, which may be of another file than the one that reads it."""

    scope: Scope
    name: str

    @property
    def bindings(self) -> list[Binding]:
        return self.scope.bindings.get(self.name, [])

    @property
    def is_global(self) -> bool:
        return self.scope.parent is None


@dataclass(frozen=True)
class Elsewhere:
    """Something of a module that is not among the checked files, by its dotted name."""

    dotted: str


@dataclass(frozen=True)
class Module:
    """A module of the checked files."""

    scope: Scope


Referent = Variable | Elsewhere | Module


@dataclass(eq=False)
class Program:
    """All files that are checked.

    Parameters
    ----------
    sources
        The files, those that could not be parsed too.
    """

    sources: list[Source]
    readings: list[Reading] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.by_path: dict[str, Scope] = {}
        self._followed: dict[tuple[Scope, str], list[Referent]] = {}
        for source in self.sources:
            if source.tree is not None:
                reading = read(source)
                self.readings.append(reading)
                self.by_path[os.path.realpath(source.path)] = reading.module

    @cached_property
    def roots(self) -> list[Path]:
        """Directories that dotted names start from."""
        return list(dict.fromkeys(source.root for source in self.sources))

    @cached_property
    def scope_of(self) -> dict[ast.AST, Scope]:
        """The scope that each function, class or comprehension makes."""
        return {node: scope for reading in self.readings for node, scope in reading.scope_of.items()}

    @cached_property
    def calls(self) -> list[tuple[ast.Call, Scope]]:
        """Every call, with its scope."""
        return [call for reading in self.readings for call in reading.calls]

    @cached_property
    def calls_of(self) -> dict[Variable, list[tuple[ast.Call, Scope]]]:
        """Calls of what a variable holds."""
        found: dict[Variable, list[tuple[ast.Call, Scope]]] = {}
        for call, scope in self.calls:
            for referent in self.follow(call.func, scope):
                if isinstance(referent, Variable):
                    found.setdefault(referent, []).append((call, scope))
        return found

    def module(self, dotted: str, source: Source, dots: int = 0) -> Scope | None:
        """The module of the checked files that an import statement of a file means."""
        parts = [part for part in dotted.split(".") if part]
        if dots:
            base = Path(os.path.abspath(source.path)).parent
            for _ in range(dots - 1):
                base = base.parent
            return self._at(base, parts)
        if not parts or parts[0] in LIBRARIES:
            return None  # even if a directory of the tree has that name
        for base in dict.fromkeys((source.root, *self.roots, *source.root.parents)):
            if (found := self._at(base, parts)) is not None:
                return found
        return None

    def _at(self, base: Path, parts: list[str]) -> Scope | None:
        path = base.joinpath(*parts)
        for file in (path / "__init__.py", path.with_name(path.name + ".py") if parts else path):
            if (found := self.by_path.get(os.path.realpath(file))) is not None:
                return found
        return None

    def follow(self, node: ast.expr, scope: Scope) -> list[Referent]:
        """What a name, or an attribute of a module, leads to; through imports, not through assignments."""
        if isinstance(node, ast.Name):
            return self.follow_name(node.id, scope)
        if isinstance(node, ast.Attribute):
            found: list[Referent] = []
            for base in self.referents(node.value, scope):
                found += self.attribute(base, node.attr)
            return found
        return []

    def follow_name(self, name: str, scope: Scope) -> list[Referent]:
        """What a name read in a scope leads to."""
        home = scope.resolve(name)
        if home is not None:
            return self._variable(home, name)
        return self._starred(scope.module, name) or [Elsewhere(f"builtins.{name}")]

    def _starred(self, scope: Scope, name: str) -> list[Referent]:
        """What a name means that a module has by ``from module import *``."""
        key = (scope, f"* {name}")
        if key not in self._followed:
            self._followed[key] = []  # of imports in a circle
            for module, dots in scope.stars:
                self._followed[key] += self._of_module(module, name, dots, scope.source)
        return self._followed[key]

    def _variable(self, home: Scope, name: str) -> list[Referent]:
        """A name in the scope that it lives in: imports are followed."""
        key = (home, name)
        if key in self._followed:
            return self._followed[key]
        self._followed[key] = []  # of imports in a circle
        found: list[Referent] = []
        for binding in home.bindings.get(name, ()):
            if binding.how != "import":
                if Variable(home, name) not in found:
                    found.append(Variable(home, name))
                continue
            module, attribute, dots = binding.target
            if attribute is not None:
                found += self._of_module(module, attribute, dots, home.source)
            elif (inside := self.module(module, home.source)) is not None:
                found.append(Module(inside))
            else:
                found.append(Elsewhere(module))
        self._followed[key] = found
        return found

    def _of_module(self, module: str, name: str, dots: int, source: Source) -> list[Referent]:
        """What ``from module import name`` means."""
        inside = self.module(module, source, dots)
        if inside is not None:
            return self.attribute(Module(inside), name)
        submodule = self.module(f"{module}.{name}", source, dots)
        if submodule is not None:
            return [Module(submodule)]
        return [Elsewhere(f"{'.' * dots}{module}{'.' if module else ''}{name}")]

    def attribute(self, base: Referent, name: str) -> list[Referent]:
        """What an attribute of something leads to; nothing for attributes of variables."""
        if isinstance(base, Elsewhere):
            return [Elsewhere(f"{base.dotted}.{name}")]
        if isinstance(base, Module):
            scope = base.scope
            if name in scope.bindings:
                return self._variable(scope, name)
            if scope.source.is_package:
                submodule = self._at(Path(os.path.abspath(scope.source.path)).parent, [name])
                if submodule is not None:
                    return [Module(submodule)]
            return self._starred(scope, name)
        return []

    def referents(self, node: ast.expr, scope: Scope, depth: int = 0) -> list[Referent]:
        """What an expression leads to, through imports, plain assignments, conditions and ``partial``."""
        if depth > 12:
            return []
        if isinstance(node, ast.IfExp):
            return self._all((node.body, node.orelse), scope, depth)
        if isinstance(node, ast.BoolOp):
            return self._all(node.values, scope, depth)
        if isinstance(node, ast.Attribute):
            found: list[Referent] = []
            for base in self.referents(node.value, scope, depth + 1):
                for one in self.attribute(base, node.attr):
                    found += self._through(one, depth)
            return found
        if isinstance(node, ast.Name):
            return [one for referent in self.follow(node, scope) for one in self._through(referent, depth)]
        return []

    def _all(self, nodes: Iterable[ast.expr], scope: Scope, depth: int) -> list[Referent]:
        return [one for node in nodes for one in self.referents(node, scope, depth + 1)]

    def _through(self, referent: Referent, depth: int) -> list[Referent]:
        """A variable with what it was plainly assigned."""
        if not isinstance(referent, Variable):
            return [referent]
        found: list[Referent] = [referent]
        for binding in referent.bindings:
            plain = isinstance(binding.value, (ast.Name, ast.Attribute, ast.IfExp, ast.BoolOp))
            if binding.how == "assign" and plain and binding.item is None and binding.value is not None:
                found += self.referents(binding.value, binding.scope, depth + 1)
        return found

    def dotted(self, node: ast.expr, scope: Scope) -> set[str]:
        """Dotted names of what an expression may lead to outside of the checked files."""
        return {one.dotted for one in self.referents(node, scope) if isinstance(one, Elsewhere)}

    def definitions(self, node: ast.expr, scope: Scope) -> Iterator[tuple[Binding, Scope]]:
        """The functions and classes of the checked files that an expression may lead to, with their scopes."""
        if isinstance(node, ast.Lambda):
            yield Binding("lambda", node, "def", scope), self.scope_of[node]
        for referent in self.referents(node, scope):
            if isinstance(referent, Variable):
                for binding in referent.bindings:
                    if binding.how in ("def", "class"):
                        yield binding, self.scope_of[binding.node]
                    elif isinstance(binding.value, ast.Lambda) and binding.item is None:
                        yield binding, self.scope_of[binding.value]
