"""The contents of an array that may be compiled in, as bytes that are the same for the same contents."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

CONSTANT_LIMIT = 65_536  # bytes of constant memory per module (CUDA C++ Programming Guide, compute capabilities)


def may_be_compiled_in(array: object, policy: str, asked_for: bool) -> bool:
    """Whether code that names an array may hold its contents.

    Parameters
    ----------
    policy
        Of the array.
    asked_for
        Whether the code makes constant copies of arrays (``cuda.const.array_like``).
    """
    if not isinstance(array, np.ndarray) or array.nbytes > CONSTANT_LIMIT or array.dtype.hasobject:
        return False
    return asked_for or policy == "constant"


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
