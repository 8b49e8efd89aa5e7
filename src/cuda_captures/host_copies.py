"""Copies in host memory of arrays that are in device memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuda_captures import driver
from cuda_captures.device import on_device, ordinal_of, relaxed_capture
from cuda_captures.signature import array_signature
from cuda_captures.staging import staging
from cuda_captures.storage import address_of, producer_stream


def host_copy(array: Any) -> np.ndarray[Any, Any]:
    """A NumPy array with the elements of a device array, after all that its device has been given to do.

    Parameters
    ----------
    array
        Anything with ``__cuda_array_interface__``, or an array of numba's simulator.

    Returns
    -------
    numpy.ndarray
        Writeable, contiguous (in Fortran's order if ``array`` is), and nobody else's.

    Raises
    ------
    DriverError
        If the memory cannot be read.
    """
    if not hasattr(type(array), "__cuda_array_interface__") and hasattr(array, "copy_to_host"):
        return np.array(array.copy_to_host())
    form = array_signature(array, "live")
    assert form.shape is not None
    assert form.strides is not None
    if 0 in form.shape:
        return np.empty(form.shape, form.dtype)
    order: Any = "F" if form.layout == "F" else "C"
    first = address_of(array)
    low = first + sum(min(0, (size - 1) * stride) for size, stride in zip(form.shape, form.strides, strict=True))
    last = first + sum(max(0, (size - 1) * stride) for size, stride in zip(form.shape, form.strides, strict=True))
    high = last + form.dtype.itemsize
    whole = np.empty(high - low, np.uint8)
    with on_device(ordinal_of(first) or 0) as context, relaxed_capture():
        driver.calls.context_synchronize()
        stream = producer_stream(array) or 0
        staging(context).download(low, int(whole.ctypes.data), high - low, stream)
    elements: np.ndarray[Any, Any] = np.ndarray(form.shape, form.dtype, whole, first - low, form.strides)
    return np.array(elements, order=order)
