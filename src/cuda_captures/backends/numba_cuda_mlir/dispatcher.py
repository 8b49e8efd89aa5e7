"""numba-cuda-mlir's dispatcher, with captures: what compiles kernels and device functions.

Kernels that were compiled before captures were enabled are compiled again at their next launch.  Device functions
keep one compilation per meaning of what they capture; those made for ``cuda.compile`` have no slots, because nobody
would fill them.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from numba_cuda_mlir import compiler, decorators, descriptor, types
from numba_cuda_mlir.descriptor import MLIRDispatcher
from numba_cuda_mlir.numba_cuda import typing
from numba_cuda_mlir.numba_cuda.core import sigutils
from numba_cuda_mlir.numba_cuda.core.compiler_lock import global_compiler_lock

from cuda_captures.backends.meanings import Meanings
from cuda_captures.binding import Follower
from cuda_captures.discovery import discover
from cuda_captures.policy import check_options
from cuda_captures.session import Session, compiling, current
from cuda_captures.settings import current as settings

from . import cache
from .kernel import CaptureKernel, MLIRToolchain, upstream_compiler_entry

upstream_compile = MLIRDispatcher.compile
upstream_compile_impl = MLIRDispatcher._compile_impl
upstream_compile_device_callee = MLIRDispatcher._compile_device_callee
upstream_get_call_template = MLIRDispatcher.get_call_template
upstream_compile_for_caller = compiler._compile
upstream_verify_target_options = decorators.verify_target_options

# Device functions with compilations of ours, so that disabling can take these out of use.
TOUCHED: weakref.WeakSet[Any] = weakref.WeakSet()

_threads = threading.local()


class Making:
    """What a dispatcher is about to compile in this thread: a kernel, with captures."""

    def __init__(self, dispatcher: Any) -> None:
        self.dispatcher = dispatcher

    def toolchain(self, argtypes: Sequence[Any], options: Mapping[str, Any], values: Any = None) -> MLIRToolchain:
        return MLIRToolchain(self.dispatcher, self.dispatcher.py_func, argtypes, options, values)

    @property
    def captures(self) -> Any:
        """The kernel's ``captures=`` option."""
        return self.dispatcher.targetoptions.get("captures")

    def kernel(self, argtypes: Sequence[Any], options: Mapping[str, Any], values: Any = None) -> CaptureKernel:
        """Compile it."""
        return CaptureKernel(self.toolchain(argtypes, options, values), self.captures)

    def from_cache(self, disk: Any, argtypes: tuple[Any, ...]) -> CaptureKernel | None:
        """Take it from its disk cache; None for a miss.

        Raises
        ------
        Unkeyable
            Where not all that the kernel sees can be identified.
        """
        toolchain = self.toolchain(argtypes, self.dispatcher.targetoptions)
        code = cache.fetch(disk, argtypes, Follower(toolchain.py_func, toolchain, self.captures).specialisations.key())
        return CaptureKernel(toolchain, self.captures, code) if code is not None else None


def at_work() -> Making | None:
    """What this thread makes, or None: nothing, or something for a caller who would not fill slots."""
    return getattr(_threads, "making", None)


@contextmanager
def making(dispatcher: Any) -> Iterator[None]:
    """Compile with captures meanwhile; without a dispatcher, as upstream does."""
    before = at_work()
    _threads.making = Making(dispatcher) if dispatcher is not None else None
    try:
        yield
    finally:
        _threads.making = before


@contextmanager
def for_a_caller() -> Iterator[None]:
    """Compile as upstream does meanwhile: the caller gets the code, and would not fill its slots."""
    before = getattr(_threads, "caller", False)
    _threads.caller = True
    try:
        yield
    finally:
        _threads.caller = before


# kernels


def compile_for_caller(*args: Any, **kwargs: Any) -> Any:
    """What is behind ``cuda.compile`` and its likes."""
    session, results = getattr(_threads, "slotted", (None, []))
    with for_a_caller(), compiling(session):
        result = upstream_compile_for_caller(*args, **kwargs)
    results.append(result)
    return result


@contextmanager
def for_a_caller_with_slots(session: Session) -> Iterator[list[Any]]:
    """Let what is compiled for a caller meanwhile have slots; the results are in the list that is given."""
    results: list[Any] = []
    _threads.slotted = session, results
    try:
        yield results
    finally:
        del _threads.slotted


def compile_impl(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Find or compile a kernel for a launch."""
    with making(self if is_kernel(self) else None):
        return upstream_compile_impl(self, *args, **kwargs)


def compiler_entry(
    pyfunc: Any,
    func_args: Any,
    targetoptions: Any,
    abi: str = "c",
    abi_info: Any = None,
    override_argtypes: Any = None,
) -> Any:
    """Compile a function for a launch; what a dispatcher launches gets captures."""
    work = at_work()
    if work is None or current() is not None or pyfunc is not work.dispatcher.py_func:
        return upstream_compiler_entry(pyfunc, func_args, targetoptions, abi, abi_info, override_argtypes)
    argtypes = override_argtypes or tuple(map(descriptor.typeof, func_args))
    return work.kernel(argtypes, targetoptions, func_args)


def compile_eagerly(self: Any, sig: Any, abi_info: Any = None, output: Any = None) -> Any:
    """Compile for a signature, ahead of any launch."""
    if getattr(_threads, "caller", False) or current() is not None or abi_info is not None or output is not None:
        return upstream_compile(self, sig, abi_info=abi_info, output=output)
    if not is_kernel(self):
        captures = self.targetoptions.get("captures")
        with compiling(Session(discover(self.py_func), captures, settings().host)):
            table = table_of(self)
            argtypes, _ = sigutils.normalize_signature(sig)
            if not table.select(self, argtypes):
                table.compiled(self, argtypes, lambda: upstream_compile(self, sig))
            return self.overloads[argtypes]
    argtypes, _ = sigutils.normalize_signature(sig)
    found = self.overloads.get(argtypes)
    return found if found is not None and kernel_in(found) is not None else compile_kernel(self, argtypes)


@global_compiler_lock
def compile_kernel(dispatcher: Any, argtypes: tuple[Any, ...]) -> Any:
    """Compile a kernel for argument types, or load it from the disk cache."""
    signature = typing.signature(types.none, *argtypes)
    descriptor.mlir_target.ensure_initialized()
    disk = dispatcher._cache
    with making(dispatcher):
        kernel = disk.load_overload(signature, descriptor.mlir_target.target_context)
        if kernel is not None:
            dispatcher._cache_hits[argtypes] += 1
        else:
            dispatcher._cache_misses[argtypes] += 1
            work = at_work()
            assert work is not None
            kernel = work.kernel(argtypes, dispatcher.targetoptions)
            disk.save_overload(signature, kernel)
    dispatcher._propagate_compile_callbacks(kernel.metadata)
    wrapped = compiler.CompileResult(kernel)
    dispatcher._apply_shared_memory_carveout(wrapped)
    dispatcher.overloads[argtypes] = wrapped
    return wrapped


def is_kernel(dispatcher: Any) -> bool:
    """Whether a dispatcher is of a kernel, as far as its options tell."""
    return not dispatcher.targetoptions.get("device", False)


def kernel_in(result: Any) -> CaptureKernel | None:
    """Our kernel in what upstream keeps as a compile result; None for upstream's own."""
    kernel = vars(result).get("cres") if result is not None else None
    return kernel if isinstance(kernel, CaptureKernel) else None


@global_compiler_lock
def recompile_plain(dispatcher: Any) -> None:
    """Compile anew what a dispatcher had compiled before captures were enabled."""
    if not is_kernel(dispatcher):
        return
    plain = [argtypes for argtypes, result in dispatcher.overloads.items() if kernel_in(result) is None]
    for argtypes in plain:
        compile_kernel(dispatcher, argtypes)


def verify_target_options(kws: dict[str, Any]) -> dict[str, Any]:
    """The options of ``cuda.jit``, of which one is ours."""
    captures = kws.get("captures")
    check_options(kws)
    options: dict[str, Any] = upstream_verify_target_options(
        {name: value for name, value in kws.items() if name != "captures"}
    )
    if captures is not None:
        options["captures"] = captures
    return options


# device functions


def compile_device_callee(self: Any, sig: Any, abi_name: Any = None) -> Any:
    """Compile a device function for its callers; the compilation that is there is used if it means the same."""
    table = table_of(self)
    argtypes, _ = sigutils.normalize_signature(sig)
    table.select(self, argtypes)
    return table.compiled(self, argtypes, lambda: upstream_compile_device_callee(self, sig, abi_name=abi_name))


def get_call_template(self: Any, args: Any, kws: Any) -> Any:
    """How a call of a device function is typed: by compilations that mean what its captures mean now."""
    if current() is not None and not is_kernel(self):
        table = table_of(self)
        for argtypes in list(self.overloads):
            if not table.select(self, argtypes):
                compile_device_callee(self, argtypes)
    return upstream_get_call_template(self, args, kws)


def end() -> None:
    """Leave device functions as upstream knows them."""
    for dispatcher in TOUCHED:
        table_of(dispatcher).forget_captures(dispatcher)
    TOUCHED.clear()


def table_of(dispatcher: Any) -> Meanings:
    """The compilations of a device function."""
    table: Meanings | None = vars(dispatcher).get("_captures_meanings")
    if table is None:
        table = dispatcher._captures_meanings = Meanings()
        TOUCHED.add(dispatcher)
    return table
