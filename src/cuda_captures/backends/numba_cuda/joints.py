"""Where the layer is joined to numba-cuda: every private name that the backend reaches into, checked when enabling.

If a name is missing or takes other parameters than expected, enabling refuses with the list instead of half-working.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect

from cuda_captures.errors import CaptureVersionError

# (module, attribute, parameters that it must take; None for what is not called)
JOINTS: tuple[tuple[str, str, tuple[str, ...] | None], ...] = (
    ("numba.cuda.core.interpreter", "Interpreter.interpret", ("self", "bytecode")),
    ("numba.cuda.core.typeinfer", "TypeInferer.typeof_global", ("self", "inst", "target", "gvar")),
    ("numba.cuda.core.typeinfer", "TypeInferer.propagate", ("self", "raise_errors")),
    ("numba.cuda.target", "CUDATypingContext.resolve_module_constants", ("self", "typ", "attr")),
    ("numba.cuda.target", "CUDATargetContext.get_getattr", ("self", "typ", "attr")),
    ("numba.cuda.target", "CUDATargetContext.make_constant_array", ("self", "builder", "aryty", "arr")),
    ("numba.cuda.target", "CUDATargetContext.codegen", ("self",)),
    ("numba.cuda.lowering", "CUDALower.lower", ("self",)),
    ("numba.cuda.lowering", "CUDALower.lower_expr", ("self", "resty", "expr")),
    ("numba.cuda.codegen", "JITCUDACodegen._library_class", None),
    ("numba.cuda.codegen", "CUDACodeLibrary.add_linking_library", ("self", "library")),
    ("numba.cuda.codegen", "CUDACodeLibrary._link_all", ("self", "linker", "cc", "ignore_nonlto")),
    ("numba.cuda.codegen", "CUDACodeLibrary._ensure_cc", ("self", "cc")),
    ("numba.cuda.codegen", "CUDACodeLibrary.get_cufunc", ("self",)),
    ("numba.cuda.codegen", "CUDACodeLibrary._reduce_states", ("self",)),
    ("numba.cuda.dispatcher", "_Kernel", ("py_func", "argtypes")),
    ("numba.cuda.dispatcher", "_Kernel.launch", ("self", "args", "griddim", "blockdim", "stream", "sharedmem")),
    ("numba.cuda.dispatcher", "_Kernel.bind", ("self",)),
    ("numba.cuda.dispatcher", "_Kernel._reduce_states", ("self",)),
    ("numba.cuda.dispatcher", "CUDADispatcher.compile", ("self", "sig")),
    ("numba.cuda.dispatcher", "CUDADispatcher.compile_device", ("self", "args", "return_type")),
    ("numba.cuda.dispatcher", "CUDADispatcher.get_call_template", ("self", "args", "kws")),
    ("numba.cuda.dispatcher", "CUDADispatcher.call", ("self", "args", "launch_config")),
    ("numba.cuda.dispatcher", "CUDADispatcher.configure.__wrapped__", ("self", "griddim", "blockdim")),
    ("numba.cuda.dispatcher", "CUDACacheImpl.reduce", ("self", "kernel")),
    ("numba.cuda.dispatcher", "CUDACacheImpl.rebuild", ("self", "target_context", "payload")),
    ("numba.cuda.dispatcher", "CUDACache.load_overload", ("self", "sig", "target_context")),
    ("numba.cuda.dispatcher", "CUDACache.save_overload", ("self", "sig", "data")),
    ("numba.cuda.dispatcher", "get_current_device", ()),
    ("numba.cuda.typing.context", "BaseContext._lookup_global", ("self", "gv")),
    ("numba.cuda.cudadrv.driver", "load_module_image", ("context", "object_code")),
    ("numba.cuda.core.caching", "Cache._index_key", ("self", "sig", "codegen")),
)


def check() -> None:
    """Refuse a numba-cuda that this backend was not made for.

    Raises
    ------
    CaptureVersionError
        Naming the joints that are missing or of another shape.
    """
    faults = [fault for joint in JOINTS if (fault := fault_of(*joint)) is not None]
    if faults:
        raise CaptureVersionError(
            SHAPE.format(
                version=importlib.metadata.version("numba-cuda"), faults="\n".join(f"  {fault}" for fault in faults)
            )
        )


def fault_of(module: str, attribute: str, parameters: tuple[str, ...] | None) -> str | None:
    """What is wrong with one joint, or None."""
    found: object = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part, None)
        if found is None:
            return f"{module}.{attribute} is missing"
    if parameters is None:
        return None
    if not callable(found):
        return f"{module}.{attribute} is not callable"
    signature = inspect.signature(found)
    missing = [name for name in parameters if name not in signature.parameters]
    if missing:
        return f"{module}.{attribute}{signature} has no parameter {', '.join(missing)}"
    return None


SHAPE = """\
numba-cuda {version} is not built as cuda-captures expects, so captures were not enabled:
{faults}
Install a version that it was tested with, or report this with the lines above."""
