"""Compilers without the part that executing on the CPU has no use for, and without asking the same thing twice.

The LLVM IR that is executed is complete before NVVM makes PTX of it and the linker machine code, which takes a third
of the time that a program needs.  For some programs all of it is done, and for some more the code for the CPU is
optimised, which takes what the IR promises at its word.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

WHOLE = 16  # one program in so many goes through the whole toolchain
OPTIMISED = 4  # one program in so many is optimised before it is executed

# By compiler: what makes PTX, LTO-IR or machine code, and what stands in for it.
STEPS: dict[str, tuple[tuple[str, str, Any], ...]] = {
    "numba-cuda": (
        ("numba.cuda.codegen", "CUDACodeLibrary.get_asm_str", ""),
        ("numba.cuda.codegen", "CUDACodeLibrary.get_cubin", SimpleNamespace(code=b"")),
    ),
    "numba-cuda-mlir": (
        ("numba_cuda_mlir.mlir_optimization", "_call_llvm70_capi", b""),
        ("numba_cuda_mlir.linker", "Linker.add_ptx", None),
        ("numba_cuda_mlir.linker", "Linker.complete", SimpleNamespace(code=b"")),
    ),
}


def is_whole(number: int) -> bool:
    """Whether a program goes through the whole toolchain."""
    return number % WHOLE == 0


def is_optimised(number: int) -> bool:
    """Whether the code of a program is optimised for the CPU."""
    return number % OPTIMISED == 0


@contextmanager
def without_machine_code(compiler: str) -> Iterator[None]:
    """Make no code for a GPU meanwhile.  Captures must be enabled already, as they look at what is replaced here."""
    with ExitStack() as undo:
        for module, path, instead in STEPS[compiler]:
            owner, _, name = path.rpartition(".")
            holder = attribute(module, owner)
            undo.enter_context(replaced(holder, name, lambda *args, _instead=instead, **options: _instead))
        yield


def attribute(module: str, path: str) -> Any:
    """What a path leads to in a module."""
    found: Any = importlib.import_module(module)
    return functools.reduce(getattr, filter(None, path.split(".")), found)


@contextmanager
def replaced(holder: Any, name: str, by: Any) -> Iterator[None]:
    """Have an attribute be another meanwhile."""
    own, before = name in vars(holder), vars(holder).get(name)
    setattr(holder, name, by)
    try:
        yield
    finally:
        if own:
            setattr(holder, name, before)
        else:  # it was inherited
            delattr(holder, name)


def one_thread(compiler: str) -> None:
    """Let a compiler make do with one thread: one process for each processor is busy with programs."""
    if compiler == "numba-cuda-mlir":
        attribute("numba_cuda_mlir.lowering_utilities.context", "get_context")().enable_multithreading(False)


@contextmanager
def remembering(compiler: str) -> Iterator[None]:
    """Let numba-cuda remember what it works out time and again, the same for every program.

    That is the signature of each arithmetic operator for some types of numbers, and the values of an object of options.
    (numba-cuda-mlir cannot: it gives some signatures a meaning of their own.)
    """
    if compiler != "numba-cuda":
        yield
        return
    context = attribute("numba.cuda.typing.context", "BaseContext")
    options = attribute("numba.cuda.core.targetconfig", "TargetConfig")
    numbers: Any = attribute("numba.cuda.types", "Number"), attribute("numba.cuda.types", "Boolean")
    function = attribute("numba.cuda.types", "Function")
    resolve, known = context._resolve_user_function_type, {}

    def resolved(self: Any, func: Any, args: Any, kws: Any, literals: Any = None) -> Any:
        arithmetic = type(func) is function and getattr(func.typing_key, "__module__", "") == "_operator"
        if not arithmetic or kws or literals or not all(isinstance(one, numbers) for one in args):
            return resolve(self, func, args, kws, literals)
        key = id(self), func, tuple(args)
        if key not in known:
            known[key] = resolve(self, func, args, kws, literals), self  # held, so that its identity stays its own
        return known[key][0]

    @functools.cache
    def defaults(kind: type) -> dict[str, Any]:
        return {name: option.default for name, option in kind.options.items()}  # type: ignore[attr-defined]

    with (
        replaced(context, "_resolve_user_function_type", resolved),
        replaced(options, "values", lambda self: {**defaults(type(self)), **self._values}),
    ):
        yield
