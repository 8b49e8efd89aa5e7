"""Capture slots: the small symbols in constant memory through which compiled code finds captured arrays.

A slot is declared ``external`` in the compiled code and *defined* in a small PTX text that is added to the link.
A definition inside the compiled module would not survive link-time optimisation: it is folded to zero or made
local (measured with NVVM and nvJitLink of CUDA 13.0).

Two forms:

- *exact*: 8 bytes, the device address of the first element; shape and strides are compile-time constants;
- *general*: the address, then the shape, then the strides in bytes, 8 bytes each; one compilation serves every
  shape.

Nothing here holds an array or touches a device; a :class:`Slot` is immutable and may be used from any thread.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SYMBOL_PREFIX = "cuda_capture_"

_numbers = itertools.count()  # next() on it is atomic, so two threads never get one number


@dataclass(frozen=True)
class Slot:
    """One symbol in constant memory.

    Parameters
    ----------
    symbol
        Its name in the module, unique within the process and so within every link.
    ndim
        Dimensions of the array.
    general
        Whether shape and strides are in the slot too.
    """

    symbol: str
    ndim: int
    general: bool

    @property
    def words(self) -> int:
        """Size in 8-byte words."""
        return 1 + 2 * self.ndim if self.general else 1

    def pack(self, address: int, shape: Sequence[int], strides: Sequence[int]) -> bytes:
        """The bytes that the slot holds for one array.

        Parameters
        ----------
        address
            Device address of the first element.
        shape, strides
            Of the array; strides in bytes, may be negative or zero.
        """
        if not self.general:
            return struct.pack("<Q", address)
        return struct.pack(f"<Q{2 * self.ndim}q", address, *shape, *strides)


def new_symbol(name: str, where: str | None = None) -> str:
    """A symbol for a captured name that no other slot of this process has.

    Parameters
    ----------
    name
        The captured name.
    where
        What tells it from other slots instead of a number that the process gives out.
    """
    readable = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
    return f"{SYMBOL_PREFIX}{next(_numbers) if where is None else where}_{readable}"


def definitions(slots: Iterable[Slot]) -> str:
    """PTX that defines the slots; linked with every module that declares them.

    The oldest PTX version that has what is used, so that any linker and any architecture takes it.
    """
    lines = [".version 8.0", ".target sm_50", ".address_size 64"]
    for slot in sorted(slots, key=lambda slot: slot.symbol):
        lines.append(f".visible .const .align 8 .u64 {slot.symbol}[{slot.words}];")
    return "\n".join(lines) + "\n"
