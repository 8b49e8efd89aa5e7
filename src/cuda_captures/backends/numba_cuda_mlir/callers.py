"""Code with slots for a caller that loads it, compiled by numba-cuda-mlir."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numba_cuda_mlir import compiler
from numba_cuda_mlir.numba_cuda.core.compiler_lock import global_compiler_lock

from cuda_captures.backends.callers_code import CallersCode, Output
from cuda_captures.session import Session

from . import target
from .dispatcher import for_a_caller_with_slots
from .kernel import uses_of
from .recorded import KEY, Recorded


def compute_capability() -> tuple[int, int]:
    """Of the current device."""
    return target.current_cc()


@global_compiler_lock
def compile_with_slots(
    function: Any, session: Session, signature: Any, output: Output, device: bool, options: Mapping[str, Any]
) -> CallersCode:
    """Compile a function in a session."""
    options = dict(options)
    if device:
        options["abi_info"] = {"abi_name": function.__name__, **(options.get("abi_info") or {})}
    with target.compiling_for(session.cc), for_a_caller_with_slots(session) as results:
        try:
            code, return_type = compiler.compile(
                function,
                signature,
                device=device,
                cc=session.cc,
                abi="c" if device else "numba",
                output="ltoir" if output == "ltoir" else "ptx",
                **options,
            )
        finally:
            session.close()
    metadata = results[-1].metadata
    recorded: Recorded = metadata[KEY]
    if output == "cubin":
        code = bytes(metadata["cubin"])
    constants = sum(captured.nbytes for captured in recorded.constants.values())
    entry = options["abi_info"]["abi_name"] if device else str(metadata["func_name"])
    return CallersCode(code, entry, return_type, uses_of(recorded), constants)
