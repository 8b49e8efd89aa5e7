"""Binding ahead of a launch, explaining without a GPU, and reporting, for kernels of numba-cuda-mlir."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from numba_cuda_mlir import decorators
from numba_cuda_mlir.descriptor import _ArgMarshaller
from numba_cuda_mlir.mlir_optimization import get_ptx
from numba_cuda_mlir.numba_cuda.core import sigutils

from cuda_captures.backends.asked_for import argument_types, check_count
from cuda_captures.backends.cached_keys import keys_in
from cuda_captures.backends.inspection import Kernel, explanation_of, report_of
from cuda_captures.binding import Follower
from cuda_captures.report import CaptureReport, Explanation

from . import target
from .dispatcher import kernel_in
from .kernel import MLIRToolchain
from .marshalling import binding


def bind(kernel: Any, args: tuple[Any, ...]) -> None:
    """Compile, upload, load and fill a kernel for arguments."""
    check_count(getattr(kernel, "_dispatcher", kernel).py_func, args, "bind(...) was given")
    configured = kernel if isinstance(kernel, _ArgMarshaller) else kernel[1, 1]
    with binding():
        configured(*args)


def explain(kernel: Any, signature: Any, cc: tuple[int, int]) -> Explanation:
    """Compile a kernel for a compute capability and say what it captures."""
    kernel = getattr(kernel, "_dispatcher", kernel)  # of a configured kernel
    function = getattr(kernel, "py_func", kernel)
    options = dict(getattr(kernel, "targetoptions", None) or decorators.verify_target_options({}))
    captures = options.pop("captures", None)
    argtypes = argument_types(sigutils.normalize_signature, signature, function)
    toolchain = MLIRToolchain(None, function, argtypes, options, cc=cc)
    with target.compiling_for(cc):
        follower = Follower(function, toolchain, captures)
        code = follower.variant().code
        product = code.product
        ptx = product.metadata.get("ptx") or get_ptx(product, {**options, "chip": toolchain.chip})
    return explanation_of(Kernel(function, captures, [(text_of(argtypes), follower)]), code, ptx, product.cubin)


def report(kernel: Any) -> CaptureReport:
    """What a kernel captures, and what became of that so far."""
    dispatcher = getattr(kernel, "_dispatcher", kernel)  # of a configured kernel
    if isinstance(dispatcher, FunctionType):
        return report_of(Kernel(dispatcher, None, []))
    kernels = [kernel_in(result) for result in dispatcher._inspectable_overloads().values()]
    followers = [(text_of(one.toolchain.argtypes), one.follower) for one in kernels if one is not None]
    captures = dispatcher.targetoptions.get("captures")
    return report_of(Kernel(dispatcher.py_func, captures, followers, keys_in(dispatcher._cache)))


def text_of(argtypes: Any) -> str:
    """Argument types as numba writes them."""
    return ", ".join(map(str, argtypes))
