"""What numba-cuda-mlir's functions do to arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numba_cuda_mlir import cuda
from numba_cuda_mlir.descriptor import MLIRDispatcher
from numba_cuda_mlir.numba_cuda import types

from cuda_captures.backends.dialects import dialect_of
from cuda_captures.writes import Effects

from .front_end import FRONT_END
from .recorded import recorded_in


def effects_of_device_function(dispatcher: Any, expr: Any) -> Iterable[Effects | None]:
    """What a device function does: recorded when it was compiled for these numbers of arguments."""
    if not isinstance(dispatcher, MLIRDispatcher):
        return [None]
    found = []
    for arguments, result in dispatcher.overloads.items():
        if len(arguments) == len(expr.args):
            recorded = recorded_in(result.metadata)
            found.append(recorded.effects if recorded is not None else None)
    return found


DIALECT = dialect_of(types, cuda, effects_of_device_function, FRONT_END.module_capture)
