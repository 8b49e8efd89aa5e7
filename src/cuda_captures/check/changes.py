"""What happens to captured values after a kernel may have been compiled: names bound anew, arrays edited."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from cuda_captures.check.captured import Captured
from cuda_captures.check.kernels import CudaFunction
from cuda_captures.check.order import exclusive, loop_without, loops, only_annotated, outermost, position
from cuda_captures.check.program import Module, Program, Variable
from cuda_captures.check.scopes import Binding, Scope

EDITING = {"fill", "sort", "put", "itemset", "partition", "resize", "setfield", "shuffle"}
FUNCTIONS = {f"numpy.{name}" for name in ("copyto", "put", "place", "putmask", "fill_diagonal", "random.shuffle")}
VIEWS = {"T", "flat", "real", "imag"}


@dataclass(frozen=True)
class Change:
    """One place that binds a name anew, or edits an array.

    Parameters
    ----------
    node, scope
        Where.
    sure
        Whether it is executed after the function has been defined; a function of the program may never be called.
    """

    node: ast.AST
    scope: Scope
    sure: bool


class Changes:
    """Changes of a program's variables.

    Parameters
    ----------
    program
        The files.
    functions
        The functions for a GPU: what they write is not an edit on the host.
    """

    def __init__(self, program: Program, functions: list[CudaFunction]) -> None:
        self.program = program
        self.on_device = {one.scope for one in functions}
        self.edits: dict[Variable, list[tuple[ast.AST, Scope]]] = {}
        self.stored: dict[Variable, list[tuple[ast.AST, Scope]]] = {}
        for reading in program.readings:
            for target, scope in reading.stores:
                self._store(target, scope)
        for call, scope in program.calls:
            for node in self._edited(call, scope):
                self._edit(node, scope, call)

    def _store(self, target: ast.expr, scope: Scope) -> None:
        if isinstance(target, ast.Attribute):
            for base in self.program.referents(target.value, scope):
                if isinstance(base, Module) and base.scope is not scope.module:
                    for one in self.program.attribute(base, target.attr):
                        if isinstance(one, Variable):
                            self.stored.setdefault(one, []).append((target, scope))
        else:
            self._edit(target, scope, target)

    def _edited(self, call: ast.Call, scope: Scope) -> Iterator[ast.expr]:
        """The expressions that a call edits."""
        if isinstance(call.func, ast.Attribute) and call.func.attr in EDITING:
            yield call.func.value
        if call.args and self.program.dotted(call.func, scope) & FUNCTIONS:
            yield call.args[0]
        yield from (one.value for one in call.keywords if one.arg == "out")

    def _edit(self, node: ast.expr, scope: Scope, at: ast.AST) -> None:
        while isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr in VIEWS):
            node = node.value
        if any(scope.within(one) for one in self.on_device):
            return
        for one in self.program.follow(node, scope):
            if isinstance(one, Variable):
                self.edits.setdefault(one, []).append((at, scope))

    def edits_of(self, captured: Captured) -> list[Change]:
        """Edits of a captured array on the host, after the function may have been compiled."""
        found = []
        for variable in captured.variables:
            for node, scope in self.edits.get(variable, ()):
                if (sure := self._after(node, scope, variable, captured.function.scope)) is not None:
                    found.append(Change(node, scope, sure))
        return found

    def rebindings_of(self, captured: Captured) -> list[Change]:
        """Places that bind a captured name anew, after the function may have been compiled."""
        found = []
        read = [captured.here] if captured.here is not None else captured.variables
        for variable in read:
            bindings = [one for one in variable.bindings if one.how != "delete" and not only_annotated(one)]
            if any(value.is_array for value in captured.values):
                bindings = [one for one in bindings if one.how != "augment"]  # edits it in place
            for binding in bindings:
                sure = self._rebinds(binding, bindings, variable, captured.function.scope)
                if sure is not None:
                    found.append(Change(binding.node, binding.scope, sure))
        for variable in dict.fromkeys(read):
            for node, scope in self.stored.get(variable, ()):
                found.append(Change(node, scope, False))
        return found

    def _rebinds(self, binding: Binding, every: list[Binding], variable: Variable, function: Scope) -> bool | None:
        """Whether a binding comes after another one and after the function; None if not."""
        after = self._after(binding.node, binding.scope, variable, function)
        if after is None or binding.how in ("parameter", "import", "def", "class"):
            return None
        others = [one for one in every if one is not binding]
        if binding.scope is not variable.scope:  # by `global` or `nonlocal`, in a function
            if not function.within(binding.scope):
                return False  # which is called at any time
            later = position(binding.node) > position(outermost(function, binding.scope))
            return True if later and self._used_after(function, binding.node) else None
        definition = outermost(function, variable.scope)
        again = loop_without(binding.node, definition, variable.scope) is not None
        before = [one for one in others if one.scope is variable.scope and not exclusive(one, binding)]
        if not self._used_after(function, binding.node):
            return None
        if again or any(position(one.node) < position(binding.node) for one in before):
            return after
        return None

    def _used_after(self, function: Scope, node: ast.AST) -> bool:
        """Whether a function may be launched after something else in the function that makes it.

        It is not if nothing names it from there on; a function of a module may be named anywhere.
        """
        home = function.parent
        if home is None or home.function is None:
            return True
        reads = [read for scope in home.below() for read in scope.reads if read.id == function.name]
        if isinstance(function.node, ast.Lambda) or not reads:
            return True
        around = loops(node, home)
        definition = loops(function.node, home)
        return any(
            position(read) > position(node)
            or any(loop in around and loop not in definition for loop in loops(read, home))
            for read in reads
        )

    def _after(self, node: ast.AST, scope: Scope, variable: Variable, function: Scope) -> bool | None:
        """Whether something is executed after the function was defined: surely, perhaps (False), or not (None)."""
        if scope.within(function):
            return None
        if scope.source is not function.source:
            # At the level of its own module it makes the array; elsewhere it comes later.
            return None if scope.function is None and scope.module is variable.scope.module else False
        home = scope.function or scope.module
        if home is not (variable.scope.function or variable.scope.module):
            return False
        return True if position(node) > position(outermost(function, home)) else None
