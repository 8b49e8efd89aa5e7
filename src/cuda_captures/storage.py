"""Where a device array's memory is now.

A numba device array keeps its memory for life.  Those of other libraries may get another one in place
(``tensor.resize_``, ``tensor.set_``, a CuPy array rebound to new data), so each launch looks again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

NUMBAS = ("numba", "numba_cuda", "numba_cuda_mlir")


def of_numba(value: object) -> bool:
    """Whether a value is one of numba's own device arrays.  Does not ask it for its interface, which takes a while."""
    kind = type(value)
    return kind.__module__.partition(".")[0] in NUMBAS and hasattr(kind, "__cuda_array_interface__")


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
    if module in NUMBAS or isinstance(array, type):
        return None
    try:
        if getattr(array, "__cuda_array_interface__", None) is None:
            return None
    except Exception:  # what is not handed out is not captured as an array
        return None
    now = _layout(array)
    if module == "cupy":
        pointer, shape, strides, dtype = array.data.ptr, array.shape, array.strides, array.dtype
        return lambda: (
            array.data.ptr == pointer and array.shape == shape and array.strides == strides and array.dtype == dtype
        )
    if module == "torch":
        pointer, shape, strides, dtype = array.data_ptr(), array.shape, array.stride(), array.dtype
        return lambda: (
            array.data_ptr() == pointer
            and array.shape == shape
            and array.stride() == strides
            and array.dtype is dtype
            and not array.requires_grad
        )

    def same() -> bool:
        try:
            return _layout(array) == now
        except Exception:  # it has been deleted, or may not be exported now: who binds it again says so
            return False

    return same


def _layout(array: Any) -> tuple[Any, ...]:
    interface = array.__cuda_array_interface__
    form = interface["data"], interface["shape"], interface.get("strides"), interface["typestr"]
    return *form, interface.get("mask") is None


def may_have_producer(array: Any, interface: Mapping[str, Any]) -> bool:
    """Whether a device array may have a stream that launches have to wait for, now or later.

    A numba device array has the stream that it was made with; other libraries tell the one that is current when they
    are asked.
    """
    if type(array).__module__.partition(".")[0] in NUMBAS:
        return interface.get("stream") is not None
    return "stream" in interface


def producer_stream(value: Any) -> int | None:
    """The stream that a device array's producer works on, as a handle; None if a launch need not wait for it.

    The meaning of the entry ``stream`` is CUDA Array Interface version 3's: None is no synchronisation, 1 the legacy
    and 2 the per-thread default stream.
    """
    stream = value.__cuda_array_interface__.get("stream")
    return None if stream is None else int(stream)
