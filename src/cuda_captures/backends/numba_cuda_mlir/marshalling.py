"""numba-cuda-mlir's configured kernels, with captures: each launch asks what the names mean now.

Upstream's native launcher keeps one loaded kernel per kind of arguments, and knows neither devices nor captures.  So
what a configured kernel launches is decided here, after upstream has prepared the arguments.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any

from numba_cuda_mlir import descriptor
from numba_cuda_mlir._launch_config import _normalize_available_launch_config
from numba_cuda_mlir.descriptor import MLIRDispatcher, _ArgMarshaller
from numba_cuda_mlir.errors import UserFacingInternalCompilerError
from numba_cuda_mlir.numba_cuda.core.compiler_lock import global_compiler_lock

from cuda_captures.binding import refuse_in_graph
from cuda_captures.ordering import LEGACY

from .dispatcher import kernel_in, recompile_plain
from .kernel import CaptureKernel
from .target import stream_handle

upstream_launch = _ArgMarshaller._launch

# Replaced at each enabling: kernels compiled while captures were disabled are then looked at again.
_enabling: list[object | None] = [None]

_threads = threading.local()


def begin() -> None:
    """Look again at every kernel that is launched from now on."""
    _enabling[0] = object()


def end() -> None:
    """Compile nothing with captures any more; kernels that have them keep them."""
    _enabling[0] = None


def launch(self: Any, argtypes: Any, launch_args: Any, launch_values: Any = None) -> Any:
    """Launch a configured kernel with arguments that are prepared.

    Parameters
    ----------
    argtypes
        Types of the arguments.
    launch_args
        Scalars and device arrays, tuples spread out.
    launch_values
        The same with tuples as they are; None if there are none.
    """
    kernel = launched_last(self, argtypes)
    if kernel is None:
        kernel = resolve(self, argtypes, launch_args, launch_args if launch_values is None else launch_values)
        if kernel is None:
            return upstream_launch(self, argtypes, launch_args, launch_values)
    if getattr(_threads, "binding", False):
        kernel.load(self, launch_args)
        return None
    try:
        kernel.launch(self, launch_args)
    except RuntimeError as error:
        descriptor._raise_as_cuda_error(error)
    return None


def _callbacks_of_thread(self: Any) -> list[Any]:
    return vars(self).setdefault("_captures_callbacks", {}).setdefault(threading.get_ident(), [])  # type: ignore[no-any-return]


def _note_callbacks(self: Any, callbacks: list[Any]) -> None:
    vars(self)["_callbacks"] = callbacks


CALLBACKS = property(_callbacks_of_thread, _note_callbacks)
"""What is done after a launch, such as copying a NumPy argument back: for each thread its own.

Upstream has one list for all that launch a configured kernel, so that a thread may copy another one's arguments back
before that one's launch, and strike them off (0.6.0, seen with two threads on two devices).
"""


class CaptureMarshaller(_ArgMarshaller):  # type: ignore[misc]
    """A configured kernel that has launched something with captures, and so launches here even once disabled."""

    _launch = launch
    _callbacks = CALLBACKS


@contextmanager
def binding() -> Iterator[None]:
    """Do all that launches do, but launch nothing, in this thread meanwhile."""
    _threads.binding = True
    try:
        yield
    finally:
        _threads.binding = False


def launched_last(marshaller: Any, argtypes: Any) -> CaptureKernel | None:
    """The kernel that was launched last, if these are the types that it was launched with.

    The same list means the same types: upstream keeps the lists of types that it has met.
    """
    last = vars(marshaller).get("_captures_last")
    if last is None:
        return None
    seen, native, enabling, kernel = last
    same = seen is argtypes and native is marshaller._dispatcher._c and enabling is _enabling[0]
    return kernel if same else None


def resolve(marshaller: Any, argtypes: Any, args: Sequence[Any], values: Sequence[Any]) -> CaptureKernel | None:
    """The kernel for argument types, compiled if there is none; None for a kernel without captures."""
    dispatcher = marshaller._dispatcher
    if not isinstance(dispatcher, descriptor.MLIRDispatcher) or marshaller._available_launch_config is None:
        return None
    if _enabling[0] is not None and vars(dispatcher).get("_captures_seen") is not _enabling[0]:
        recompile_plain(dispatcher)
        dispatcher._captures_seen = _enabling[0]
    try:
        with global_compiler_lock, arguments_of(marshaller, argtypes, values):
            result = compiled(dispatcher, marshaller, tuple(argtypes), args, values)
    except UserFacingInternalCompilerError as error:
        if os.environ.get("NUMBA_CUDA_MLIR_ICE_FULL_TB", "0").strip() == "1":
            raise
        raise error.with_traceback(None) from None
    kernel = kernel_in(result)
    if kernel is None:
        return None
    keep(dispatcher, marshaller)
    if not dispatcher._requires_launch_config and marshaller._launch_config is None:
        literal = bool(dispatcher._literal_arg_positions)
        marshaller._captures_last = None if literal else (argtypes, dispatcher._c, _enabling[0], kernel)
    return kernel


def compiled(
    dispatcher: Any, marshaller: Any, argtypes: tuple[Any, ...], args: Sequence[Any], values: Sequence[Any]
) -> Any:
    """Upstream's compile result for a launch; with upstream's rules of which may be used for which types."""
    result = found(dispatcher, marshaller, argtypes, args, values)
    if result is None:
        stream = stream_handle(marshaller._launch_stream, args)
        if stream not in LEGACY:
            refuse_in_graph(dispatcher.py_func, stream)
        cubin, *_ = dispatcher._compile_impl(list(args))
        result = found(dispatcher, marshaller, argtypes, args, values)
        if result is None:  # arguments are converted
            every = dispatcher._inspectable_overloads().values()
            result = next((one for one in every if one.metadata.get("cubin") is cubin), None)
    return result


def found(
    dispatcher: Any, marshaller: Any, argtypes: tuple[Any, ...], args: Sequence[Any], values: Sequence[Any]
) -> Any:
    """The compile result that is there for a launch, or None."""
    config = marshaller._launch_config
    if dispatcher._requires_launch_config:
        config = _normalize_available_launch_config(marshaller._available_launch_config)
    literal = dispatcher._literalize_argtypes(argtypes, tuple(values), abi_arg_count=len(args))
    return dispatcher._compile_result_for(literal, config)


@contextmanager
def arguments_of(marshaller: Any, argtypes: Any, values: Sequence[Any]) -> Iterator[None]:
    """Let upstream's compiler know the arguments of a launch, where it looks for them."""
    state = vars(descriptor._compile_arg_types)
    before = dict(state)
    state.clear()
    state.update(types=argtypes, values=tuple(values), available_launch_config=marshaller._available_launch_config)
    if marshaller._launch_config is not None:
        state["launch_config"] = marshaller._launch_config
    state["extensions"] = (
        marshaller._extensions if marshaller._has_extension_snapshot else marshaller._dispatcher.extensions
    )
    try:
        yield
    finally:
        state.clear()
        state.update(before)


def keep(dispatcher: Any, marshaller: Any) -> None:
    """Let a kernel with captures be launched here even once captures are disabled."""
    if type(marshaller) is _ArgMarshaller:
        marshaller.__class__ = CaptureMarshaller
    if "_configure_cached" not in vars(dispatcher):
        dispatcher._configure_cached = MethodType(configure_cached, dispatcher)


def configure_cached(self: Any, *configuration: Any) -> Any:
    """Configure a kernel that has captures."""
    marshaller = MLIRDispatcher._configure_cached(self, *configuration)
    if type(marshaller) is _ArgMarshaller:
        marshaller.__class__ = CaptureMarshaller
    return marshaller
