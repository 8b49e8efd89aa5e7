"""Which bytes of the host's memory an array is made of, and whose memory that is."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable
from typing import Any, Protocol, TypeAlias

import numpy as np

try:
    from numpy.lib.array_utils import byte_bounds
except ImportError:  # NumPy 1
    from numpy import byte_bounds  # type: ignore[attr-defined,no-redef]

Array: TypeAlias = np.ndarray[Any, Any]
Extent = tuple[int, int]  # address of the first byte, and of the one after the last

NEAR = 4  # a root of up to so many times the view's size is mirrored whole
ALWAYS_WHOLE = 1 << 20  # bytes: and so is any root of up to this size

MOVED = (
    "a captured NumPy array's memory has moved or shrunk since its name was looked up (ndarray.resize?).\n"
    "Nothing was launched; launch again, and resize between launches only."
)

# PyArrayObject starts with the object header, then the data pointer (numpy/ndarraytypes.h, stable since NumPy 1.7).
_DATA_POINTER = object.__basicsize__


def extent(array: Array) -> Extent:
    """From the lowest to the highest byte of an array's elements; of no length for an empty array."""
    if array.flags.forc or not array.size:
        address = address_of(array)
        return address, address + array.nbytes
    low, high = byte_bounds(array)
    return int(low), int(high)


def address_of(array: Array) -> int:
    """Address of an array's first element."""
    if _POINTER_IS_THERE:
        return ctypes.c_size_t.from_address(id(array) + _DATA_POINTER).value
    return int(array.__array_interface__["data"][0])


def _pointer_is_there() -> bool:
    """Whether arrays hold the pointer where NumPy has always had it."""
    array = np.zeros(3)[1:]
    found = ctypes.c_size_t.from_address(id(array) + _DATA_POINTER).value
    return bool(found == array.__array_interface__["data"][0])


# Reading the pointer where it lies takes a tenth of the time of asking NumPy for it.
_POINTER_IS_THERE = _pointer_is_there()


def root_of(array: Array) -> Array:
    """The last array in the chain of bases: while it lives, so does the memory."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def wanted_extent(array: Array, root: Array) -> Extent:
    """What to mirror for an array: its own bytes, or all of its root's where that is not much more.

    Views of one buffer then find each other's copy instead of replacing it one after the other.
    """
    start, stop = extent(array)
    if root is array:
        return start, stop
    root_start, root_stop = extent(root)
    if root_start <= start and stop <= root_stop:
        size = root_stop - root_start
        if size <= ALWAYS_WHOLE or size <= NEAR * (stop - start):
            return root_start, root_stop
    return start, stop


def covered(bounds: Extent, pieces: Iterable[Extent]) -> bool:
    """Whether pieces together cover an interval."""
    reached = bounds[0]
    for start, stop in sorted(pieces):
        if start > reached:
            break
        reached = max(reached, stop)
    return reached >= bounds[1]


def is_dense(array: Array) -> bool:
    """Whether every byte of an array's extent belongs to one of its elements, in memory order."""
    return bool(array.flags.forc) and _packed(array.dtype)


def _packed(dtype: np.dtype[Any]) -> bool:
    """Whether a type has no bytes between its fields, which may be another array's fields."""
    if dtype.subdtype is not None:
        return _packed(dtype.subdtype[0])
    if dtype.fields is None:
        return True
    parts = [dtype.fields[name][0] for name in dtype.names or ()]
    return sum(part.itemsize for part in parts) == dtype.itemsize and all(map(_packed, parts))


class Holder(Protocol):
    """Who holds a root."""

    def lost(self) -> None:
        """Told when the array goes, before its memory does, in whatever thread that happens."""


class Root(weakref.ref[Array]):
    """An array that keeps memory alive, held weakly.

    Parameters
    ----------
    array
        The root.
    holder
        Told when the array goes; held weakly.

    Notes
    -----
    Immutable; any thread may use it.
    """

    __slots__ = ("_address", "_data", "_holder", "_nbytes", "start", "stop")

    def __new__(cls, array: Array, holder: Holder) -> Root:
        return super().__new__(cls, array, _gone)

    def __init__(self, array: Array, holder: Holder) -> None:
        self._holder = weakref.ref(holder)
        self.start, self.stop = extent(array)
        self._nbytes = array.nbytes
        self._address = address_of(array)
        # Reading the pointer where it lies takes 40 ns; asking NumPy for it more than 1 us.
        data = ctypes.c_size_t.from_address(id(array) + _DATA_POINTER)
        self._data = data if data.value == self._address else None

    __eq__ = object.__eq__  # a reference's compare what they refer to, which arrays do one element at a time
    __hash__ = object.__hash__

    def alive(self) -> Array | None:
        """The array, if it is still there and its memory is where it was (``ndarray.resize`` may move it)."""
        array = self()
        if array is None or array.nbytes != self._nbytes:
            return None
        address = self._data.value if self._data is not None else array.__array_interface__["data"][0]
        return array if address == self._address else None


def _gone(root: Any) -> None:
    holder = root._holder()
    if holder is not None:
        holder.lost()
