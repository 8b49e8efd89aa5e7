"""The backend for numba-cuda 0.30: ``from numba import cuda``."""

from __future__ import annotations

from typing import Any

from cuda_captures.backends import reducing
from cuda_captures.backends.joining import check_joints
from cuda_captures.backends.patching import Patches

from . import joints

_patches = Patches()


def enable() -> None:
    """Join captures to numba-cuda.

    Raises
    ------
    CaptureVersionError
        If this numba-cuda is not one that the backend was made for; nothing is changed then.
    """
    check_joints("numba-cuda", joints.JOINTS)

    from numba.cuda import codegen, lowering
    from numba.cuda import dispatcher as upstream_dispatcher
    from numba.cuda.core import caching, interpreter, typeinfer
    from numba.cuda.target import CUDATargetContext, CUDATypingContext

    from . import cache, dispatcher, front_end, kernel, library
    from . import lowering as our_lowering

    replacements: tuple[tuple[Any, str, Any], ...] = (
        (interpreter.Interpreter, "interpret", front_end.interpret),
        (typeinfer, "TypeInferer", front_end.CaptureTypeInferer),
        (CUDATypingContext, "resolve_module_constants", front_end.resolve_module_constants),
        (CUDATargetContext, "get_getattr", our_lowering.get_getattr),
        (CUDATargetContext, "make_constant_array", our_lowering.make_constant_array),
        (lowering, "CUDALower", our_lowering.CaptureLower),
        (codegen.JITCUDACodegen, "_library_class", library.CaptureLibrary),
        (upstream_dispatcher, "_Kernel", kernel.CaptureKernel),
        (upstream_dispatcher, "get_current_device", kernel.get_current_device),
        (upstream_dispatcher.CUDADispatcher, "__init__", dispatcher.initialise),
        (upstream_dispatcher.CUDADispatcher, "compile", dispatcher.compile_kernel),
        (upstream_dispatcher.CUDADispatcher, "compile_device", dispatcher.compile_device),
        (upstream_dispatcher.CUDADispatcher, "get_call_template", dispatcher.get_call_template),
        (upstream_dispatcher.CUDADispatcher, "call", dispatcher.call),
        (upstream_dispatcher.CUDADispatcher, "configure", dispatcher.configure),
        (upstream_dispatcher.CUDADispatcher, "__reduce__", reducing.reduce),
        (upstream_dispatcher.CUDACacheImpl, "reduce", cache.reduce_kernel),
        (upstream_dispatcher.CUDACacheImpl, "rebuild", cache.rebuild_kernel),
        (upstream_dispatcher.CUDACache, "load_overload", cache.load_overload),
        (upstream_dispatcher.CUDACache, "save_overload", cache.save_overload),
        (caching.Cache, "_index_key", cache.index_key),
    )
    dispatcher.begin()
    for owner, name, new in replacements:
        _patches.replace(owner, name, new)


def disable() -> None:
    """Leave numba-cuda as it was; kernels that were compiled with captures keep them."""
    from . import dispatcher

    _patches.undo()
    dispatcher.end()


def bind(kernel: Any, args: tuple[Any, ...]) -> None:
    """Compile, upload, load and fill a kernel for arguments."""
    from . import inspection

    inspection.bind(kernel, args)


def explain(kernel: Any, signature: Any, cc: tuple[int, int]) -> Any:
    """What a kernel captures, from a compilation for a compute capability."""
    from . import inspection

    return inspection.explain(kernel, signature, cc)


def report(kernel: Any) -> Any:
    """What a kernel has captured so far."""
    from . import inspection

    return inspection.report(kernel)


def compile_with_slots(
    function: Any, session: Any, signature: Any, output: Any, device: bool, options: dict[str, Any]
) -> Any:
    """Code for a caller that loads it and fills its slots."""
    from . import callers

    if session.cc is None:
        session.cc = callers.compute_capability()
    return callers.compile_with_slots(function, session, signature, output, device, options)
