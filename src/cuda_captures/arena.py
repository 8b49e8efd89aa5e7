"""Device memory for many small copies, cut from few allocations.

An allocation takes the driver from a tenth to half of a millisecond, which kernels that are made by the thousand, each
with a table of its own, would pay for every table.  So where there are small copies already, the next ones are cut
from one allocation that is as large as what they hold together: no more is held in reserve than is in use.

What was cut is never cut a second time.  The allocation is freed as a whole, when the last of its blocks is gone, and
the driver then waits for kernels that may still use it, as it does for any other memory.
"""

from __future__ import annotations

import threading
import weakref

from cuda_captures import driver
from cuda_captures.device import Context, DeviceBuffer, OutOfDeviceMemory

__all__ = ["LARGEST", "Block", "allocate"]

LARGEST = 32 << 20  # bytes of one allocation that blocks are cut from
PARTS = 4  # blocks that an allocation must have room for, or it is not worth it
ALIGNMENT = 512  # bytes; as the driver's own allocations have it


class Block:
    """A piece of device memory, as :class:`cuda_captures.device.DeviceBuffer` is one.

    Attributes
    ----------
    address
        A multiple of 512.
    nbytes, device, context

    Goes with :meth:`close` or when collected, in whatever thread that happens; takes no lock and never waits, unless
    it is the last of its allocation.
    """

    __slots__ = ("__weakref__", "_whole", "address", "context", "device", "nbytes")

    def __init__(self, whole: DeviceBuffer, offset: int, nbytes: int) -> None:
        self._whole: DeviceBuffer | None = whole
        self.address = whole.address + offset
        self.nbytes = nbytes
        self.device = whole.device
        self.context = whole.context

    @property
    def closed(self) -> bool:
        """Whether the memory has been given back."""
        return self._whole is None

    def close(self) -> None:
        """Give the memory back; a second call does nothing."""
        self._whole = None


class _Arena:
    """What small copies of one context are cut from; holds none of it.

    Touched under ``_lock``, which no finalizer takes.
    """

    def __init__(self) -> None:
        self.held: weakref.WeakSet[DeviceBuffer | Block] = weakref.WeakSet()  # what was given out
        self.open: weakref.ref[DeviceBuffer] | None = None  # what the next block is cut from
        self.used = 0  # bytes of it

    def allocate(self, nbytes: int) -> DeviceBuffer | Block:
        whole = self.open() if self.open is not None else None
        if whole is None or self.used + nbytes > whole.nbytes:
            whole = self._opened(nbytes)
        given: DeviceBuffer | Block
        if whole is None:
            given = DeviceBuffer(nbytes)
        else:
            given = Block(whole, self.used, nbytes)
            self.used += -(-nbytes // ALIGNMENT) * ALIGNMENT
        self.held.add(given)
        return given

    def _opened(self, nbytes: int) -> DeviceBuffer | None:
        """A new allocation to cut blocks from; None where it is not worth it, or there is no room."""
        size = min(sum(one.nbytes for one in self.held if not one.closed), LARGEST)
        if nbytes * PARTS > size:
            return None
        try:
            whole = DeviceBuffer(size)
        except OutOfDeviceMemory:  # there may still be room for what is wanted
            return None
        self.open, self.used = weakref.ref(whole), 0
        return whole


_arenas: dict[int, _Arena] = {}  # by context identifier, which is never used twice
_lock = threading.RLock()


def allocate(nbytes: int, context: Context) -> DeviceBuffer | Block:
    """Memory of the current context's device, for a copy.

    Parameters
    ----------
    nbytes
        At least 1.
    context
        The current context.

    Raises
    ------
    OutOfDeviceMemory
        If there is no room; nothing is held then.
    """
    if nbytes * PARTS > LARGEST:
        return DeviceBuffer(nbytes)
    with _lock:
        return _arenas.setdefault(context.id, _Arena()).allocate(nbytes)


def _forget() -> None:
    global _lock
    _arenas.clear()
    _lock = threading.RLock()  # another thread may have held it at the fork


driver.after_fork(_forget)
