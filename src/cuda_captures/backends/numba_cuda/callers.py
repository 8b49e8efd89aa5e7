"""Code with slots for a caller that loads it, compiled by numba-cuda."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numba.cuda import compiler
from numba.cuda.core import sigutils
from numba.cuda.core.compiler_lock import global_compiler_lock
from numba.cuda.cudadrv import devices
from numba.cuda.descriptor import cuda_target

from cuda_captures.backends.callers_code import SEVERAL, CallersCode, Output
from cuda_captures.errors import CaptureError
from cuda_captures.session import Session, compiling

from .kernel import NumbaCudaToolchain, constant_bytes, uses_of


def compute_capability() -> tuple[int, int]:
    """Of the current device."""
    return tuple(devices.get_context().device.compute_capability)


@global_compiler_lock  # type: ignore[untyped-decorator]
def compile_with_slots(
    function: Any, session: Session, signature: Any, output: Output, device: bool, options: Mapping[str, Any]
) -> CallersCode:
    """Compile a function in a session."""
    cuda_target.target_context.refresh()
    if output == "cubin":
        return machine_code(function, session, signature, options)
    with compiling(session):
        try:
            library, return_type = compiler._compile_pyfunc_with_fixup(
                function,
                signature,
                device=device,
                cc=session.cc,
                abi="c" if device else "numba",
                lto=output == "ltoir",
                **options,
            )
            uses = uses_of(library)
            if output == "ltoir":
                code: str | bytes = bytes(library.get_ltoir(cc=session.cc))
            else:
                texts = library.get_asm_strs(cc=session.cc)
                if len(texts) > 1:
                    raise CaptureError(SEVERAL.format(name=function.__name__, count=len(texts)))
                code = texts[0]
        finally:
            session.close()
    entry = (options.get("abi_info") or {}).get("abi_name", function.__name__) if device else library._entry_name
    return CallersCode(code, entry, return_type, uses, constant_bytes(library))


def machine_code(function: Any, session: Session, signature: Any, options: Mapping[str, Any]) -> CallersCode:
    """A kernel's cubin, linked as it is for a launch."""
    argtypes, _ = sigutils.normalize_signature(signature)
    defaults = {"debug": False, "opt": True, "lto": not options.get("debug", False)}
    toolchain = NumbaCudaToolchain(function, argtypes, {**defaults, **options}, None)
    toolchain.cc = session.cc
    code = toolchain.compile(session)
    library = code.product._codelibrary
    image = bytes(library.get_cubin().code)
    return CallersCode(image, library._entry_name, code.product.signature.return_type, code.uses, code.constant_bytes)
