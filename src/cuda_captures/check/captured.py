"""What functions for a GPU get from outside: names and attributes of modules, with all their uses."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from cuda_captures.check.kernels import CudaFunction
from cuda_captures.check.origins import Origins
from cuda_captures.check.program import Elsewhere, Module, Program, Referent, Variable
from cuda_captures.check.scopes import Scope
from cuda_captures.check.values import Value, Values

ATOMICS = ("add", "sub", "max", "min", "exch", "inc", "dec", "and_", "or_", "xor", "cas", "compare_and_swap")
SIZES = {"shape", "size", "ndim", "dtype", "itemsize", "nbytes", "strides"}


@dataclass(eq=False)
class Captured:
    """One name that a function gets from outside.

    Parameters
    ----------
    function
        Who names it.
    name
        As it is written: ``table``, ``tables.sigma``.
    here
        The variable that the function reads; None for what comes by ``import *``.
    variables
        The variables that this is, through imports.
    values
        What it may be.
    uses
        Where it is named.
    elsewhere
        Dotted names of modules that are not among the checked files, if it comes from there.
    """

    function: CudaFunction
    name: str
    here: Variable | None
    variables: list[Variable]
    values: Values
    elsewhere: list[str]
    uses: list[ast.expr] = field(default_factory=list)

    @property
    def of_kind(self) -> dict[str, list[Value]]:
        """What it may be, by kind; None as a value is left out where it may be something else."""
        found: dict[str, list[Value]] = {}
        for value in self.values:
            found.setdefault(value.kind, []).append(value)
        if len(found) > 1:
            found.pop("none", None)
        return found

    @property
    def is_attribute(self) -> bool:
        return "." in self.name

    @property
    def is_global(self) -> bool:
        return self.here is None or self.here.is_global

    def parents(self) -> Iterator[tuple[ast.expr, ast.AST]]:
        """Each use with the node above."""
        source = self.function.scope.source
        for use in self.uses:
            yield use, source.parents[use]

    @property
    def is_indexed(self) -> bool:
        """Whether some use takes it for an array or the like."""
        for use, above in self.parents():
            if isinstance(above, ast.Subscript) and above.value is use:
                return True
            if isinstance(above, ast.Attribute) and above.attr in SIZES:
                return True
        return False

    @property
    def is_called(self) -> bool:
        return any(isinstance(above, ast.Call) and above.func is use for use, above in self.parents())

    @property
    def only_measured(self) -> bool:
        """Whether only its shape, dtype and the like are used, no elements."""
        for _, above in self.parents():
            measured = isinstance(above, ast.Attribute) and above.attr in SIZES
            counted = isinstance(above, ast.Call) and isinstance(above.func, ast.Name) and above.func.id == "len"
            if not measured and not counted:
                return False
        return True

    def arguments_of(self, *names: str) -> list[ast.expr]:
        """Uses as the first argument of a call whose name ends in one of these."""
        found = []
        for use, above in self.parents():
            if isinstance(above, ast.Call) and above.args[:1] == [use]:
                called = ast.unparse(above.func)
                if any(called == name or called.endswith(f".{name}") for name in names):
                    found.append(use)
        return found

    @property
    def written(self) -> list[ast.expr]:
        """Uses that write elements."""
        found = []
        for use, _ in self.parents():
            node: ast.AST = use
            for above in self.function.scope.source.above(use):
                if not isinstance(above, (ast.Subscript, ast.Attribute)) or above.value is not node:
                    break
                node = above
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                found.append(use)
        return found + self.atomics

    @property
    def atomics(self) -> list[ast.expr]:
        """Uses that write elements by atomic operations."""
        return self.arguments_of(*(f"atomic.{name}" for name in ATOMICS))

    @property
    def only_atomic(self) -> bool:
        return len(self.written) == len(self.atomics)


def captured_by(function: CudaFunction, program: Program, origins: Origins) -> list[Captured]:
    """What a function gets from outside, in the order of first use."""
    found: dict[str, Captured] = {}
    for scope in function.scope.below():
        for read in scope.reads:
            home = scope.resolve(read.id)
            if home is not None and home.within(function.scope):
                continue
            node, referents = _chain(read, scope, program)
            name = ast.unparse(node)
            if name not in found:
                here = Variable(home, read.id) if home is not None and isinstance(node, ast.Name) else None
                found[name] = _captured(function, name, here, referents, origins)
            found[name].uses.append(node)
    for one in found.values():
        one.uses.sort(key=lambda node: (node.lineno, node.col_offset))
    return sorted(found.values(), key=lambda one: (one.uses[0].lineno, one.uses[0].col_offset))


def _chain(read: ast.Name, scope: Scope, program: Program) -> tuple[ast.expr, list[Referent]]:
    """The name with the attributes that are taken of modules, and what that leads to."""
    node: ast.expr = read
    referents = program.follow(read, scope)
    for above in scope.source.above(read):
        if not isinstance(above, ast.Attribute) or above.value is not node:
            break
        if not any(isinstance(one, (Module, Elsewhere)) for one in referents):
            break
        node, referents = above, [step for one in referents for step in program.attribute(one, above.attr)]
        if any(isinstance(one, Elsewhere) and one.dotted.rpartition(".")[2] in SIZES for one in referents):
            return above.value, program.follow(above.value, scope)
    return node, referents


def _captured(
    function: CudaFunction, name: str, here: Variable | None, referents: list[Referent], origins: Origins
) -> Captured:
    from cuda_captures.check.origins import of_library

    variables = [one for one in referents if isinstance(one, Variable)]
    values = [value for one in variables for value in origins.of_reaching(one, function.scope)]
    elsewhere = []
    for one in referents:
        if isinstance(one, Elsewhere):
            values.append(of_library(one))
            if values[-1].kind == "unknown":
                elsewhere.append(one.dotted)
        elif isinstance(one, Module):
            values.append(Value("code", "module"))
    return Captured(function, name, here, variables, tuple(dict.fromkeys(values)), elsewhere)
