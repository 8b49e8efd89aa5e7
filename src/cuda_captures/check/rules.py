"""Which captures break or go stale, and what is said of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from cuda_captures.check import texts
from cuda_captures.check.captured import Captured, captured_by
from cuda_captures.check.changes import Changes
from cuda_captures.check.findings import LIMIT, Finding, joined, place
from cuda_captures.check.judge import Judge
from cuda_captures.check.kernels import CudaFunction
from cuda_captures.check.origins import Origins
from cuda_captures.check.program import Program, Variable


def findings_of(program: Program, functions: list[CudaFunction]) -> Iterator[Finding]:
    """All findings, in the order of the functions."""
    origins = Origins(program)
    changes = Changes(program, functions)
    captures = {one: captured_by(one, program, origins) for one in functions}
    called = _called(program, functions, captures)
    typed = _typed_classes(program)
    cached = _cached(functions, called)
    for function in functions:
        judge = Judge(function, changes, cached.get(function, []), typed)
        for captured in captures[function]:
            yield from judge.findings(captured)
    yield from _too_much(functions, captures, called)


def _called(
    program: Program, functions: list[CudaFunction], captures: dict[CudaFunction, list[Captured]]
) -> dict[CudaFunction, list[CudaFunction]]:
    """The functions for a GPU that each names, and those that these name."""
    by_scope = {one.scope: one for one in functions}
    direct: dict[CudaFunction, list[CudaFunction]] = {}
    for function in functions:
        named = []
        for captured in captures[function]:
            for use in captured.uses[:1]:
                for _, made in program.definitions(use, function.scope):
                    if made in by_scope:
                        named.append(by_scope[made])
        direct[function] = named
    found = {}
    for function in functions:
        every: dict[CudaFunction, None] = {}
        queue = [*direct[function]]
        while queue:
            one = queue.pop(0)
            if one not in every and one is not function:
                every[one] = None
                queue += direct[one]
        found[function] = list(every)
    return found


def _cached(
    functions: list[CudaFunction], called: dict[CudaFunction, list[CudaFunction]]
) -> dict[CudaFunction, list[CudaFunction]]:
    """For each function, the cached kernels whose code holds it."""
    found: dict[CudaFunction, list[CudaFunction]] = {}
    for kernel in functions:
        if kernel.is_cached:
            for one in (kernel, *called[kernel]):
                found.setdefault(one, []).append(kernel)
    return found


def _typed_classes(program: Program) -> set[ast.AST]:
    """Classes of the program that it tells the compiler about."""
    found: set[ast.AST] = set()
    for call, scope in program.calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("register", "register_class") and call.args:
            for binding, _ in program.definitions(call.args[0], scope):
                found.add(binding.node)
    return found


def _too_much(
    functions: list[CudaFunction],
    captures: dict[CudaFunction, list[Captured]],
    called: dict[CudaFunction, list[CudaFunction]],
) -> Iterator[Finding]:
    """Kernels whose arrays are too much for constant memory together, though none is alone."""
    for function in functions:
        if function.kind != "kernel":
            continue
        sizes: dict[Variable, tuple[Captured, int]] = {}
        for one in (function, *called[function]):
            for captured in captures[one]:
                host = captured.of_kind.get("host", [])
                if len(captured.of_kind) != 1 or len(host) != 1 or len(captured.variables) != 1:
                    continue
                if host[0].nbytes and not captured.only_measured and not host[0].guessed:
                    sizes.setdefault(captured.variables[0], (captured, host[0].nbytes))
        total = sum(size for _, size in sizes.values())
        if total > LIMIT and all(size <= LIMIT for _, size in sizes.values()):
            names = joined([f"`{one.name}` ({size:,} bytes)" for one, size in sizes.values()])
            source = function.scope.source
            yield Finding(
                "constant-memory",
                "certain",
                place(source, function.scope.node),
                ", ".join(one.name for one, _ in sizes.values()),
                function.name,
                f"{function} captures {names}, together {total:,} bytes",
                (texts.TOGETHER,),
                texts.TOGETHER_FIX,
                related=tuple(
                    place(one.function.scope.source, one.uses[0], f"`{one.name}`") for one, _ in sizes.values()
                ),
            )
