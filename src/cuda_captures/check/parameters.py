"""What parameters may be given: by calls of the checked files, by default, or by what an annotation says."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from cuda_captures.check import arrays
from cuda_captures.check.program import Variable
from cuda_captures.check.scopes import Binding, Function, Scope
from cuda_captures.check.values import UNKNOWN, Value, Values, host, scalar

if TYPE_CHECKING:
    from cuda_captures.check.origins import Origins


def of_parameter(origins: Origins, binding: Binding, depth: int) -> Values:
    """What a parameter is given: by calls of the checked files, by default; or what its annotation says."""
    function = binding.scope.node
    found: list[Value] = []
    if isinstance(function, Function) and binding.node in (function.args.vararg, function.args.kwarg):
        many = Value("tuple", "tuple") if binding.node is function.args.vararg else Value("container", "dictionary")
        return (many.but(node=binding.node, scope=binding.scope),)
    if binding.value is not None and binding.scope.parent is not None:
        found += origins.of(binding.value, binding.scope.parent, depth)
    if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) and binding.scope.parent is not None:
        positional = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
        if binding.scope.parent.is_class and positional[:1] == [binding.name]:
            return (Value("object", "object", node=binding.node, scope=binding.scope),)
        where = positional.index(binding.name) if binding.name in positional else -1
        home = Variable(binding.scope.parent, function.name)
        for call, scope in origins.program.calls_of.get(home, ()):
            given = arrays.argument(call, where, binding.name)
            if given is not None:
                found += origins.of(given, scope, depth)
    if all(one.kind == "unknown" for one in found) and binding.annotation is not None:
        found = [*annotated(origins, binding.annotation, binding.scope)] or found
    if all(one.kind == "none" for one in found):
        found.append(UNKNOWN)  # or what others give
    made = tuple(one.but(node=binding.node, scope=binding.scope) if one.kind == "unknown" else one for one in found)
    # Callers elsewhere may give anything: what those here give is a guess.
    return tuple(one.but(guessed=True) for one in made) or (UNKNOWN.but(node=binding.node, scope=binding.scope),)


def annotated(origins: Origins, node: ast.expr, scope: Scope) -> Values:
    """What an annotation says."""
    if isinstance(node, ast.Subscript):
        node = node.value
    dotted = origins.program.dotted(node, scope)
    if dotted & {"numpy.ndarray", "numpy.typing.NDArray"}:
        return (host(),)
    if dotted & {"builtins.int", "builtins.float", "builtins.bool", "builtins.str", "builtins.complex"}:
        return (scalar(),)
    if dotted & {"builtins.tuple", "typing.Tuple"}:
        return (Value("tuple", "tuple"),)
    if dotted & {"builtins.list", "builtins.dict", "builtins.set", "typing.List", "typing.Dict", "typing.Set"}:
        name = next(iter(dotted)).rpartition(".")[2].lower()
        return (Value("container", {"dict": "dictionary"}.get(name, name)),)
    if dotted & {"cupy.ndarray"}:
        return (Value("device", "CuPy array"),)
    return ()
