"""The functions that a CUDA compiler is given: kernels, device functions, and what they call.

They are known by what they are decorated with or passed to, however that was imported, named, configured or wrapped.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from cuda_captures.check.program import Program, Variable
from cuda_captures.check.scopes import Binding, Scope

COMPILERS = ("numba.cuda", "numba_cuda_mlir.cuda", "numba_cuda_mlir.numba_cuda", "numba_cuda.numba.cuda")
JIT = {f"{module}.{name}" for module in COMPILERS for name in ("jit", "decorators.jit")} | {
    "numba_cuda_mlir.decorators.jit"
}
REDUCTION = {f"{module}.{name}" for module in COMPILERS for name in ("reduce", "Reduce", "kernels.reduction.Reduce")}
COMPILE = {
    f"{module}.{prefix}{name}"
    for module in COMPILERS
    for prefix in ("", "compiler.")
    for name in (
        "compile",
        "compile_ptx",
        "compile_for_current_device",
        "compile_ptx_for_current_device",
        "compile_all",
    )
}
VECTORIZE = {f"{name}" for name in ("numba.vectorize", "numba.guvectorize")} | {
    f"numba.np.ufunc.decorators.{name}" for name in ("vectorize", "guvectorize")
}
# What numba.cuda compiles for the GPU if a kernel calls it.
CPU = {f"numba.{name}" for name in ("jit", "njit", "extending.register_jitable")} | {
    f"{module}.extending.register_jitable" for module in COMPILERS
}
PARTIAL = {"functools.partial"}


@dataclass
class Application:
    """What is applied to a function to have it compiled: ``cuda.jit``, or the like with options.

    Parameters
    ----------
    kind
        What it makes of a function.
    options
        Keyword arguments, with the scope that they are evaluated in.
    position
        Position of the function among the arguments.
    unknown
        Whether there are options that cannot be read (``**options``).
    """

    kind: str
    options: dict[str, tuple[ast.expr, Scope]] = field(default_factory=dict)
    position: int = 0
    unknown: bool = False

    def with_options(self, call: ast.Call, scope: Scope) -> Application:
        """The same with the keyword arguments of a call."""
        given = {one.arg: (one.value, scope) for one in call.keywords if one.arg is not None}
        unknown = self.unknown or any(one.arg is None for one in call.keywords)
        return Application(self.kind, {**self.options, **given}, self.position, unknown)

    def is_true(self, option: str) -> bool:
        """Whether an option is written as True."""
        value, _ = self.options.get(option, (None, None))
        return isinstance(value, ast.Constant) and value.value is True


@dataclass(eq=False)
class CudaFunction:
    """A function that is compiled for a GPU.

    Parameters
    ----------
    name
        Its name; ``lambda`` for one.
    scope
        The scope that it makes.
    kind
        ``"kernel"``, ``"device function"``, ``"ufunc"``, ``"reduction"``, ``"function"``: one for the CPU that
        another calls, or ``"compiled function"``: one that is given to ``cuda.compile`` or its like.
    application
        What compiles it.
    """

    name: str
    scope: Scope
    kind: str
    application: Application

    @property
    def is_cached(self) -> bool:
        return self.application.is_true("cache")

    def __str__(self) -> str:
        return f"{self.kind} `{self.name}`" if self.name != "lambda" else f"{self.kind} (a lambda)"


def find(program: Program) -> list[CudaFunction]:
    """All functions that are compiled for a GPU, by file and line."""
    search = _Search(program)
    search.run()
    order = {source.path: number for number, source in enumerate(program.sources)}
    return sorted(
        search.found.values(), key=lambda one: (order[one.scope.source.path], getattr(one.scope.node, "lineno", 0))
    )


class _Search:
    """One search in progress."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.found: dict[Scope, CudaFunction] = {}
        # Functions of the program that compile one of their parameters.
        self.wrappers: dict[Scope, Application] = {}

    def run(self) -> None:
        wrappers = -1
        while wrappers < len(self.wrappers):  # a wrapper makes others wrappers
            wrappers = len(self.wrappers)
            self.decorated()
            self.passed()
        self.reached()

    def decorated(self) -> None:
        for reading in self.program.readings:
            for node, scope in reading.functions:
                for decorator in node.decorator_list:
                    for application in self.applications(decorator, scope):
                        self.add(node.name, reading.scope_of[node], application)

    def passed(self) -> None:
        for call, scope in self.program.calls:
            for application in self.applications(call.func, scope):
                if application.position < len(call.args):
                    self.apply(application.with_options(call, scope), call.args[application.position], scope)

    def apply(self, application: Application, given: ast.expr, scope: Scope) -> None:
        """Something that compiles is called with an expression."""
        for binding, made in self.program.definitions(given, scope):
            if made.is_function:
                self.add(binding.name, made, application)
        if isinstance(given, ast.Attribute):
            self.keeper(application, given, scope)
        if not isinstance(given, ast.Name):
            return
        home = scope.resolve(given.id)
        if home is None or not isinstance(home.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return
        positional = [*home.node.args.posonlyargs, *home.node.args.args]
        if home.parent is not None and home.parent.is_class:
            positional = positional[1:]  # a method is called without `self`
        for position, one in enumerate(positional):
            if one.arg == given.id and home not in self.wrappers:
                options = application.options
                self.wrappers[home] = Application(application.kind, options, position, application.unknown)

    def keeper(self, application: Application, given: ast.Attribute, scope: Scope) -> None:
        """What compiles is called with ``self.function``: a class whose objects stand for kernels."""
        method = scope.function
        made = method.parent if method is not None else None
        if made is None or not made.is_class or made in self.wrappers or not isinstance(given.value, ast.Name):
            return
        for binding in made.bindings.get("__init__", ()):
            if not isinstance(binding.node, ast.FunctionDef):
                continue
            names = [one.arg for one in binding.node.args.args]
            for statement in ast.walk(binding.node):
                if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name):
                    stored = [one.attr for one in statement.targets if isinstance(one, ast.Attribute)]
                    if given.attr in stored and statement.value.id in names[1:]:
                        position = names.index(statement.value.id) - 1
                        self.wrappers[made] = Application(application.kind, application.options, position)

    def add(self, name: str, scope: Scope, application: Application) -> None:
        kind = application.kind
        if kind == "kernel" and application.is_true("device"):
            kind = "device function"
        if kind == "vectorize":
            target, _ = application.options.get("target", (None, None))
            if not (isinstance(target, ast.Constant) and target.value == "cuda"):
                return
            kind = "ufunc"
        self.found.setdefault(scope, CudaFunction(name, scope, kind, application))

    def applications(self, node: ast.expr, scope: Scope, depth: int = 0) -> Iterator[Application]:
        """What an expression applies to a function, if it compiles for a GPU."""
        if depth > 6:
            return
        if isinstance(node, ast.Call):
            yield from self.configured(node, scope, depth)
            return
        dotted = self.program.dotted(node, scope)
        kind = "kernel" if dotted & JIT else "reduction" if dotted & REDUCTION else ""
        kind = kind or ("compiled function" if dotted & COMPILE else "")
        if kind:
            yield Application(kind)
            return
        if dotted & VECTORIZE:
            yield Application("vectorize")  # for a GPU only with an option
            return
        for binding in self.bindings(node, scope):
            if (
                binding.how in ("def", "class")
                and (wrapper := self.wrappers.get(self.program.scope_of[binding.node])) is not None
            ):
                yield wrapper
            elif isinstance(binding.value, ast.Call) and binding.item is None:
                yield from self.applications(binding.value, binding.scope, depth + 1)

    def configured(self, call: ast.Call, scope: Scope, depth: int) -> Iterator[Application]:
        """What a call gives that is to be applied to a function: ``cuda.jit(device=True)``, ``partial(...)``."""
        if self.program.dotted(call.func, scope) & PARTIAL:
            for application in self.applications(call.args[0], scope, depth + 1) if call.args else ():
                yield application.with_options(call, scope)
            return
        for application in self.applications(call.func, scope, depth + 1):
            if self.takes_function(application, call, scope):
                return
            yield application.with_options(call, scope)
        for binding, function in self.program.definitions(call.func, scope):
            if binding.how == "def":
                yield from self.returned(function, depth)

    def takes_function(self, application: Application, call: ast.Call, scope: Scope) -> bool:
        """Whether a call already passes the function, so that its result is what was compiled."""
        if application.position >= len(call.args):
            return False
        given = call.args[application.position]
        if isinstance(given, ast.Lambda):
            return True
        for binding, made in self.program.definitions(given, scope):
            if binding.how == "def" and made.is_function:
                return True
        return False

    def returned(self, function: Scope, depth: int) -> Iterator[Application]:
        """What a function of the program returns, if that compiles another function."""
        for reading in self.program.readings:
            for result in reading.returns.get(function, ()):
                yield from self.applications(result, function, depth + 1)

    def bindings(self, node: ast.expr, scope: Scope) -> Iterator[Binding]:
        for referent in self.program.referents(node, scope):
            if isinstance(referent, Variable):
                yield from referent.bindings

    def reached(self) -> None:
        """Functions for the CPU that a function for the GPU names are compiled for the GPU too."""
        queue = list(self.found.values())
        while queue:
            function = queue.pop()
            for inside in function.scope.below():
                for name in inside.reads:
                    for binding, made in self.program.definitions(name, inside):
                        if made in self.found or not isinstance(binding.node, ast.FunctionDef):
                            continue
                        around = binding.scope
                        if any(self.for_cpu(one, around) for one in binding.node.decorator_list):
                            self.add(binding.name, made, Application("function"))
                            queue.append(self.found[made])

    def for_cpu(self, decorator: ast.expr, scope: Scope) -> bool:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        return bool(self.program.dotted(called, scope) & CPU)
