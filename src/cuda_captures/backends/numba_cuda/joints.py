"""Where the layer is joined to numba-cuda: every private name that the backend reaches into, checked when enabling."""

from __future__ import annotations

from cuda_captures.backends.joining import Joint

JOINTS: tuple[Joint, ...] = (
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
    ("numba.cuda.dispatcher", "CUDADispatcher._reduce_states", ("self",)),
    ("numba.cuda.dispatcher", "CUDADispatcher._rebuild", ("py_func", "targetoptions")),
    ("numba.cuda.serialize", "NumbaPickler.reducer_override", ("self", "obj")),
    ("numba.cuda.dispatcher", "CUDACacheImpl.reduce", ("self", "kernel")),
    ("numba.cuda.dispatcher", "CUDACacheImpl.rebuild", ("self", "target_context", "payload")),
    ("numba.cuda.dispatcher", "CUDACache.load_overload", ("self", "sig", "target_context")),
    ("numba.cuda.dispatcher", "CUDACache.save_overload", ("self", "sig", "data")),
    ("numba.cuda.dispatcher", "get_current_device", ()),
    ("numba.cuda.typing.context", "BaseContext._lookup_global", ("self", "gv")),
    (
        "numba.cuda.compiler",
        "_compile_pyfunc_with_fixup",
        ("pyfunc", "sig", "device", "cc", "abi", "abi_info", "lto"),
    ),
    ("numba.cuda.typing.typeof", "typeof_impl.dispatch", ("cls",)),
    ("numba.cuda.cudadrv.driver", "CudaPythonModule", ("context", "object_code", "finalizer")),
    ("numba.cuda.core.caching", "Cache._index_key", ("self", "sig", "codegen")),
)
