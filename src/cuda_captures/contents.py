"""The contents of an array, as bytes that are the same for the same contents."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np


def contents_of(array: np.ndarray[Any, Any]) -> bytes:
    """The elements of an array in C order; bytes of records that no field has are zero.

    ``tobytes`` alone leaves such bytes as it finds them where the array is not contiguous.
    """
    if not array.dtype.names or array.flags.c_contiguous or not is_padded(array.dtype):
        return array.tobytes()
    copy = np.zeros(array.shape, array.dtype)
    copy[...] = array
    return copy.tobytes()


@cache
def is_padded(dtype: np.dtype[Any]) -> bool:
    """Whether elements have bytes that no field has."""
    if dtype.subdtype is not None:
        return is_padded(dtype.subdtype[0])
    if not dtype.names:
        return False
    fields = [dtype[name] for name in dtype.names]
    return sum(field.itemsize for field in fields) < dtype.itemsize or any(map(is_padded, fields))
