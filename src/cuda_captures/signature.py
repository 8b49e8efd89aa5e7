"""What compiled code may assume of a captured array."""

from __future__ import annotations

import copy
import functools
from typing import Any, Literal, NamedTuple

import numpy as np

from cuda_captures.policy import Policy
from cuda_captures.values import dtype_text

Layout = Literal["C", "F", "A"]


class ArraySignature(NamedTuple):
    """What compiled code may assume of a captured array; equal, hashable, and the same in every process.

    Parameters
    ----------
    dtype
        Element type.
    dtype_text
        The same as text, with what NumPy's equality leaves out (alignment).
    ndim
        Dimensions.
    layout
        ``"C"`` or ``"F"`` contiguous, or ``"A"``: any.
    readonly
        Whether kernels may not write it: by its flags, or by its policy.
    aligned
        Whether every element is at an address that its type allows.
    memory
        ``"host"``: kernels get a copy or a mapping; ``"device"``: used in place.
    policy
        ``"live"`` for device arrays.
    shape, strides
        Items, and bytes; None in the general form, whose code reads them from the slot.
    """

    dtype: np.dtype[Any]
    dtype_text: str
    ndim: int
    layout: Layout
    readonly: bool
    aligned: bool
    memory: Literal["host", "device"]
    policy: Policy
    shape: tuple[int, ...] | None
    strides: tuple[int, ...] | None

    @property
    def exact(self) -> bool:
        """Whether shape and strides are compiled in."""
        return self.shape is not None

    def general(self, layout: Layout | None = None) -> ArraySignature:
        """The form that takes every shape, of this layout or a looser one."""
        return self._replace(shape=None, strides=None, layout=layout or self.layout)

    def same_kind(self, other: ArraySignature) -> bool:
        """Whether both differ in layout, shape and strides at most: then one general form can serve both."""
        return self._replace(layout="A", shape=None, strides=None) == other._replace(
            layout="A", shape=None, strides=None
        )

    def accepts(self, other: ArraySignature) -> bool:
        """Whether code that was compiled for this can take an array of the (exact) signature ``other``."""
        if self.shape is not None:
            return self == other
        return self.same_kind(other) and self.layout in ("A", other.layout)

    def __str__(self) -> str:
        shape = "any shape" if self.shape is None else f"shape {self.shape} strides {self.strides}"
        return (
            f"array {self.dtype_text} {self.ndim}d {self.layout} {'readonly' if self.readonly else 'mutable'}"
            f" {'aligned' if self.aligned else 'unaligned'} {self.memory} {self.policy} {shape}"
        )


def array_signature(array: Any, policy: Policy) -> ArraySignature:
    """The signature of an array as it is now, with shape and strides.

    Parameters
    ----------
    array
        A NumPy array, or an object with ``__cuda_array_interface__``.  What is both (mapped and managed arrays) is in
        memory that a device uses in place.
    policy
        For a NumPy array; device arrays are always used in place.
    """
    kind = type(array)
    if kind is np.ndarray or (issubclass(kind, np.ndarray) and not hasattr(array, "__cuda_array_interface__")):
        dtype, flags = _of_its_own(array.dtype), array.flags
        layout: Layout = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
        return ArraySignature(
            dtype,
            dtype_text(dtype),
            array.ndim,
            layout,
            policy in _READONLY or not flags.writeable,
            flags.aligned,
            "host",
            policy,
            array.shape,
            array.strides,
        )
    return _device_signature(array)


def _of_its_own(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """A dtype that nobody changes: the fields of a record's can be given other names in place."""
    return dtype if dtype.names is None else copy.copy(dtype)


_READONLY = ("snapshot", "constant")


def _device_signature(array: Any) -> ArraySignature:
    """By the CUDA Array Interface, version 3."""
    interface = array.__cuda_array_interface__
    dtype = getattr(array, "dtype", None)
    if not isinstance(dtype, np.dtype):  # other libraries have dtypes of their own
        typestr = interface["typestr"]
        dtype = np.dtype(interface.get("descr") or typestr) if typestr[1] == "V" else np.dtype(typestr)
    dtype = _of_its_own(dtype)
    strides = interface.get("strides")
    pointer, readonly = interface["data"]
    # Types of records may be equal and aligned otherwise.
    made = _in_device_memory if dtype.names is None else _in_device_memory.__wrapped__
    return made(
        dtype,
        tuple(map(int, interface["shape"])),
        None if strides is None else tuple(map(int, strides)),
        bool(readonly),
        (pointer or 0) % dtype.alignment,
    )


@functools.lru_cache(maxsize=1024)
def _in_device_memory(
    dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...] | None, readonly: bool, misaligned: int
) -> ArraySignature:
    if strides is None:
        strides = _packed(shape, dtype.itemsize)
    alignment = dtype.alignment
    aligned = not misaligned and all(stride % alignment == 0 for stride in strides)
    return ArraySignature(
        dtype,
        dtype_text(dtype),
        len(shape),
        _layout(shape, strides, dtype.itemsize),
        readonly,
        aligned,
        "device",
        "live",
        shape,
        strides,
    )


def _packed(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides = []
    for extent in reversed(shape):
        strides.append(itemsize)
        itemsize *= extent
    return tuple(reversed(strides))


def _layout(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> Layout:
    """As NumPy's flags say it: strides of dimensions of length one do not count, an empty array is contiguous."""
    if 0 in shape or _contiguous(shape[::-1], strides[::-1], itemsize):
        return "C"
    return "F" if _contiguous(shape, strides, itemsize) else "A"


def _contiguous(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    for extent, stride in zip(shape, strides, strict=True):
        if extent != 1 and stride != itemsize:
            return False
        itemsize *= extent
    return True
