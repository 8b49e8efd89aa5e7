"""What numba-cuda's functions do to arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numba import cuda
from numba.cuda import types
from numba.cuda.dispatcher import CUDADispatcher

from cuda_captures.backends.dialects import dialect_of
from cuda_captures.writes import Effects

from .front_end import FRONT_END


def effects_of_device_function(dispatcher: Any, expr: Any) -> Iterable[Effects | None]:
    """What a device function does: recorded when it was compiled for these numbers of arguments."""
    if not isinstance(dispatcher, CUDADispatcher):
        return [None]
    return [
        getattr(result.library, "effects", None)
        for arguments, result in dispatcher.overloads.items()
        if len(arguments) == len(expr.args)
    ]


DIALECT = dialect_of(types, cuda, effects_of_device_function, FRONT_END.module_capture)
