"""Kernel arguments for execution on the CPU, flattened as numba-cuda flattens them.

Each flat argument takes one cell of 8 bytes; the harness loads it as the type that the kernel's LLVM function has at
that position.  An array is ``meminfo, parent, nitems, itemsize, data, shape…, strides…``; a complex number is two
cells; a record is the address of its bytes; tuples are flattened in place.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba.cuda import types
from numba.cuda.np.numpy_support import as_dtype

CELL = 8  # bytes


@dataclass(frozen=True)
class Region:
    """Memory that a kernel may touch.

    Parameters
    ----------
    label
        What it is, for messages.
    start, stop
        Addresses, half open.
    writable
        Whether the kernel may write it.
    """

    label: str
    start: int
    stop: int
    writable: bool


def region_of(array: np.ndarray[Any, Any], label: str, writable: bool = True) -> Region:
    """The bytes between the lowest and the highest element of an array, whatever the signs of its strides."""
    start, stop = np.lib.array_utils.byte_bounds(array) if array.size else (array.ctypes.data, array.ctypes.data)
    return Region(label, start, stop, writable and array.flags.writeable)


class Marshalling:
    """The cells of the arguments of one launch, and the memory that they point to."""

    def __init__(self, argtypes: Sequence[Any], args: Sequence[Any]) -> None:
        if len(argtypes) != len(args):
            raise TypeError(f"the kernel takes {len(argtypes)} arguments (got {len(args)})")
        self.regions: list[Region] = []
        self._kept: list[Any] = []
        self.cells: list[bytes] = []
        for position, (typed, value) in enumerate(zip(argtypes, args, strict=True)):
            self.cells.extend(self._flatten(typed, value, f"argument {position}"))

    def _flatten(self, typed: Any, value: Any, label: str) -> Iterator[bytes]:
        if isinstance(typed, types.Array):
            yield from self._array(typed, value, label)
        elif isinstance(typed, types.BaseTuple):
            if len(typed) != len(value):
                raise TypeError(f"{label}: {typed} has {len(typed)} items (got {len(value)})")
            for index, (item_type, item) in enumerate(zip(typed, value, strict=True)):
                yield from self._flatten(item_type, item, f"{label}[{index}]")
        elif isinstance(typed, types.Record):
            yield self._record(typed, value, label)
        elif isinstance(typed, types.EnumMember):
            yield from self._flatten(typed.dtype, value.value if isinstance(value, enum.Enum) else value, label)
        else:
            yield from scalar_cells(typed, value, label)

    def _array(self, typed: Any, value: Any, label: str) -> Iterator[bytes]:
        if not isinstance(value, np.ndarray):
            raise TypeError(f"{label}: {typed} takes a NumPy array (got {type(value).__name__})")
        fits = value.ndim == typed.ndim and value.dtype == as_dtype(typed.dtype)
        if typed.layout in ("C", "F"):
            fits = fits and (value.flags.c_contiguous if typed.layout == "C" else value.flags.f_contiguous)
        if not fits:
            raise TypeError(f"{label}: {typed} does not fit {value.dtype}{list(value.shape)}, strides {value.strides}")
        self._kept.append(value)
        self.regions.append(region_of(value, label, writable=typed.mutable))
        fields = (0, 0, value.size, value.itemsize, value.ctypes.data, *value.shape, *value.strides)
        yield from map(integer_cell, fields)

    def _record(self, typed: Any, value: Any, label: str) -> bytes:
        address = value.__array_interface__["data"][0]
        self._kept.append(value)
        self.regions.append(Region(label, address, address + typed.size, True))
        return integer_cell(address)


def scalar_cells(typed: Any, value: Any, label: str) -> Iterator[bytes]:
    """The cells of one scalar."""
    typed = types.unliteral(typed)
    if isinstance(typed, (types.Integer, types.Boolean, types.CPointer)):
        yield integer_cell(int(value))
    elif typed == types.float16:
        yield struct.pack("<e6x", value)
    elif typed == types.float32:
        yield struct.pack("<f4x", value)
    elif typed == types.float64:
        yield struct.pack("<d", value)
    elif isinstance(typed, types.Complex):
        for part in (complex(value).real, complex(value).imag):
            yield from scalar_cells(typed.underlying_float, part, label)
    elif isinstance(typed, (types.NPDatetime, types.NPTimedelta)):
        yield integer_cell(int(value.astype(as_dtype(typed)).view(np.int64)))
    else:
        raise TypeError(f"{label}: values of the type {typed} cannot be passed to a kernel that runs on the CPU")


def integer_cell(value: int) -> bytes:
    """A cell with an integer, signed or unsigned, of any width up to 64 bits."""
    return (value & (1 << 64) - 1).to_bytes(CELL, "little")
