"""Signatures and compute capabilities as they are written on a command line."""

from __future__ import annotations

import importlib
import re
from typing import Any

from cuda_captures.inspecting.targets import InspectionError

TYPES = {"numba_cuda_mlir": "numba_cuda_mlir.types"}  # the module whose names a signature is made of
NUMBA_TYPES = "numba.cuda.types"


def compute_capability(text: str) -> tuple[int, int]:
    """``"9.0"`` as a pair.

    Raises
    ------
    InspectionError
        For anything else.
    """
    found = re.fullmatch(r"(\d+)\.(\d+)", text)
    if found is None:
        raise InspectionError(f"--cc {text}: a compute capability is written as two numbers, such as 9.0")
    return int(found[1]), int(found[2])


def check(signature: str, dispatcher: Any) -> None:
    """Refuse what is no signature, before anything is compiled.

    Raises
    ------
    InspectionError
        With what is wrong, and how a signature is written.
    """
    package = type(dispatcher).__module__.partition(".")[0]
    types = importlib.import_module(TYPES.get(package, NUMBA_TYPES))
    try:
        parsed = eval(signature, {}, dict(vars(types)))  # as the compilers do
    except Exception as error:
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise InspectionError(NO_SIGNATURE.format(signature=signature, reason=reason)) from error
    if not isinstance(parsed, tuple) and not hasattr(parsed, "return_type"):
        reason = f"it is the type {parsed}, not a list of argument types"
        raise InspectionError(NO_SIGNATURE.format(signature=signature, reason=reason))


NO_SIGNATURE = """\
--signature {signature!r} does not parse: {reason}
Write the types of the arguments as in a decorator: "void(float64[:], int32)"."""
