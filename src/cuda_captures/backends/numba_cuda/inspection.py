"""Binding ahead of a launch, explaining without a GPU, and reporting, for kernels of numba-cuda."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from numba.cuda.core import sigutils
from numba.cuda.descriptor import cuda_target

from cuda_captures.backends.asked_for import argument_types, check_count
from cuda_captures.backends.cached_keys import keys_in
from cuda_captures.backends.inspection import Kernel, explanation_of, report_of
from cuda_captures.backends.launching import make_ready
from cuda_captures.binding import Follower
from cuda_captures.report import CaptureReport, Explanation

from .kernel import CaptureKernel, NumbaCudaToolchain, dispatching
from .target import stream_handle


def bind(kernel: Any, args: tuple[Any, ...]) -> None:
    """Compile, upload, load and fill a kernel for arguments."""
    dispatcher = getattr(kernel, "dispatcher", kernel)
    check_count(dispatcher.py_func, args, "bind(...) was given")
    with dispatching(dispatcher):
        compiled = dispatcher.compile(tuple(dispatcher.typeof_pyval(arg) for arg in args))
    if isinstance(compiled, CaptureKernel):
        stream = stream_handle(getattr(kernel, "stream", 0))
        make_ready(compiled.bound(), stream, compiled.bound, dispatcher.py_func)


def explain(kernel: Any, signature: Any, cc: tuple[int, int]) -> Explanation:
    """Compile a kernel for a compute capability and say what it captures."""
    kernel = getattr(kernel, "dispatcher", kernel)  # of a configured kernel
    function = getattr(kernel, "py_func", kernel)
    options = dict(getattr(kernel, "targetoptions", {}) or DEFAULTS)
    captures = options.pop("captures", None)
    cuda_target.target_context.refresh()
    argtypes = argument_types(sigutils.normalize_signature, signature, function)
    toolchain = NumbaCudaToolchain(function, argtypes, options, None)
    toolchain.cc = cc
    follower = Follower(function, toolchain, captures)
    code = follower.variant().code
    library = code.product._codelibrary
    ptx = library.get_asm_str(cc=library._ensure_cc(None))
    explained = Kernel(function, captures, [(text_of(argtypes), follower)])
    return explanation_of(explained, code, ptx, bytes(library.get_cubin().code))


DEFAULTS: dict[str, Any] = {"debug": False, "opt": True, "lto": True}


def report(kernel: Any) -> CaptureReport:
    """What a kernel captures, and what became of that so far."""
    dispatcher = getattr(kernel, "dispatcher", kernel)
    if isinstance(dispatcher, FunctionType):
        return report_of(Kernel(dispatcher, None, []))
    kernels = [one for one in dispatcher.overloads.values() if isinstance(one, CaptureKernel)]
    followers = [(text_of(one.argument_types), one.follower) for one in kernels]
    captures = dispatcher.targetoptions.get("captures")
    return report_of(Kernel(dispatcher.py_func, captures, followers, keys_in(dispatcher._cache)))


def text_of(argtypes: Any) -> str:
    """Argument types as numba writes them."""
    return ", ".join(map(str, argtypes))
