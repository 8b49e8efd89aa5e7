"""Where a device array's memory is now.

A numba device array keeps its memory for life.  Those of other libraries may get another one in place
(``tensor.resize_``, ``tensor.set_``, a CuPy array rebound to new data), so each launch looks again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def address_of(array: Any) -> int:
    """Device address of the first element of a device array; 0 if it is empty."""
    return int(array.__cuda_array_interface__["data"][0] or 0)


def device_dtype(array: Any) -> np.dtype[Any]:
    """Element type of a NumPy or device array."""
    if isinstance(array, np.ndarray):
        return np.dtype(array.dtype)
    interface = array.__cuda_array_interface__
    kind = interface["typestr"]
    dtype: np.dtype[Any] = np.dtype((interface.get("descr") if kind[1] == "V" else None) or kind)
    return dtype


def storage_check(value: object) -> Callable[[], bool] | None:
    """A function that tells whether a device array still has the memory, shape and strides that it has now.

    None for values whose memory cannot change: everything but other libraries' device arrays.
    """
    array: Any = value
    module = type(array).__module__.partition(".")[0]
    if module in ("numba", "numba_cuda", "numba_cuda_mlir") or isinstance(array, type):
        return None
    if getattr(array, "__cuda_array_interface__", None) is None:
        return None
    if module == "cupy":
        pointer, shape, strides = array.data.ptr, array.shape, array.strides
        return lambda: array.data.ptr == pointer and array.shape == shape and array.strides == strides
    if module == "torch":
        pointer, shape, strides = array.data_ptr(), array.shape, array.stride()
        return lambda: array.data_ptr() == pointer and array.shape == shape and array.stride() == strides
    now = _layout(array)
    return lambda: _layout(array) == now


def _layout(array: Any) -> tuple[Any, ...]:
    interface = array.__cuda_array_interface__
    return interface["data"], interface["shape"], interface.get("strides"), interface["typestr"]


def producer_stream(value: Any) -> int | None:
    """The stream that a device array's producer works on, as a handle; None if a launch need not wait for it.

    The meaning of the entry ``stream`` is CUDA Array Interface version 3's: None is no synchronisation, 1 the legacy
    and 2 the per-thread default stream.
    """
    stream = value.__cuda_array_interface__.get("stream")
    return None if stream is None else int(stream)
