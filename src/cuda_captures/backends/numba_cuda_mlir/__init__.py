"""The backend for numba-cuda-mlir 0.6: ``from numba_cuda_mlir import cuda``."""

from __future__ import annotations

from typing import Any

from cuda_captures.backends import reducing
from cuda_captures.backends.joining import check_joints
from cuda_captures.backends.patching import Patches

from . import joints

NAME = "numba-cuda-mlir"
DISTRIBUTION = "numba-cuda-mlir"
MODULE = "numba_cuda_mlir"

_patches = Patches()


def enable() -> None:
    """Join captures to numba-cuda-mlir.

    Raises
    ------
    CaptureVersionError
        If this numba-cuda-mlir is not one that the backend was made for; nothing is changed then.
    """
    check_joints(DISTRIBUTION, joints.JOINTS)

    from numba_cuda_mlir import (
        caching,
        compiler,
        decorators,
        descriptor,
        mlir_compiler,
        mlir_lowering,
        mlir_optimization,
    )
    from numba_cuda_mlir.numba_cuda.core import interpreter, typeinfer

    from . import cache, dispatcher, front_end, lowering, marshalling, read_only_loads

    upstream = descriptor.MLIRDispatcher
    replacements: tuple[tuple[Any, str, Any], ...] = (
        (interpreter.Interpreter, "interpret", front_end.interpret),
        (typeinfer, "TypeInferer", front_end.CaptureTypeInferer),
        (descriptor.MLIRTypingContext, "resolve_module_constants", front_end.resolve_module_constants),
        (mlir_compiler, "apply_ast_transforms", front_end.apply_ast_transforms),
        (mlir_compiler, "mlir_compiler_entry", dispatcher.compiler_entry),
        (mlir_lowering, "MLIRLower", lowering.CaptureLower),
        (mlir_optimization, "run_pre_codegen_patterns", read_only_loads.run_pre_codegen_patterns),
        (compiler, "_compile", dispatcher.compile_for_caller),
        (decorators, "verify_target_options", dispatcher.verify_target_options),
        (upstream, "compile", dispatcher.compile_eagerly),
        (upstream, "_compile_impl", dispatcher.compile_impl),
        (upstream, "_compile_device_callee", dispatcher.compile_device_callee),
        (upstream, "get_call_template", dispatcher.get_call_template),
        (upstream, "__reduce__", reducing.reduce),
        (descriptor._ArgMarshaller, "_launch", marshalling.launch),
        (descriptor._ArgMarshaller, "_callbacks", marshalling.CALLBACKS),
        (caching.MLIRCache, "load_overload", cache.load_overload),
        (caching.MLIRCache, "save_overload", cache.save_overload),
    )
    marshalling.begin()
    for owner, name, new in replacements:
        _patches.replace(owner, name, new)


def disable() -> None:
    """Leave numba-cuda-mlir as it was; kernels that were compiled with captures keep them."""
    from . import dispatcher, marshalling

    _patches.undo()
    marshalling.end()
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
