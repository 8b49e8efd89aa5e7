"""Whether pages can be watched in this process, found out by doing it."""

from __future__ import annotations

import mmap
import os
import threading

import numpy as np

from cuda_captures.pages import PAGE, WRITTEN_OR_ABSENT, CannotWatch, PageWrites
from cuda_captures.spans import Range

_TABLE = PAGE * (PAGE // 8)  # bytes that one page table of the lowest level describes


def proven_writes() -> PageWrites:
    """The calls that tell written pages, set up as this kernel needs it, after a trial of all that is relied on.

    Raises
    ------
    CannotWatch
        With what is missing.  A version is never looked at: features are ported back, and sandboxes take them away.
    """
    writes = PageWrites()
    try:
        with mmap.mmap(-1, 2 * _TABLE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            _try(writes, memory)
    except CannotWatch:
        writes.abandon()
        raise
    except (OSError, ValueError) as error:
        writes.abandon()
        raise CannotWatch(f"the trial of the page watch failed ({error})") from None
    return writes


def _try(writes: PageWrites, memory: mmap.mmap) -> None:
    base = int(np.frombuffer(memory, np.uint8).ctypes.data)
    low = -(-base // _TABLE) * _TABLE
    writes.register(low, low + _TABLE)

    # Memory without a page table: what a full table was thrown away for looks like this as well.
    if _scanned(writes, low, low + _TABLE) != [(low, low + _TABLE)]:
        writes.masks = WRITTEN_OR_ABSENT
        if _scanned(writes, low, low + _TABLE) != [(low, low + _TABLE)]:
            raise CannotWatch("the kernel does not tell of memory that was thrown away")

    end = low + 8 * PAGE

    def at(number: int) -> int:
        return low - base + number * PAGE

    def expect(what: str, *numbers: int) -> None:
        found = _scanned(writes, low, end)
        for page in (low + number * PAGE for number in numbers):
            if not any(start <= page < stop for start, stop in found):
                raise CannotWatch(f"the kernel does not tell of {what}")

    memory[at(0) : at(8)] = bytes(8 * PAGE)
    expect("a first write", *range(8))
    # More than was written may be told, when the page was moved or swapped out just now; but not always.
    if all(_scanned(writes, low, end) for _ in range(5)):
        raise CannotWatch("the kernel does not tell what was not written")
    memory[at(2) + 5] = 1
    expect("a write", 2)
    _read_into(memoryview(memory)[at(5) + 7 : at(5) + 8])
    expect("a write by a system call", 5)
    # A thread may run on a processor that still believes the page to be writable.
    thread = threading.Thread(target=memory.__setitem__, args=(at(4) + 9, 1))
    thread.start()
    thread.join()
    expect("a write by another thread", 4)
    memory.madvise(mmap.MADV_DONTNEED, at(6), PAGE)
    expect("memory that was thrown away", 6)
    writes.unregister(low + 4 * PAGE, end)
    if writes.scan(low, end).run() >= 0:
        raise CannotWatch("the kernel does not tell of memory that is no longer watched")


def _read_into(buffer: memoryview) -> None:
    source, sink = os.pipe()
    try:
        os.write(sink, b"x")
        os.readv(source, [buffer])
    finally:
        buffer.release()
        os.close(source)
        os.close(sink)


def _scanned(writes: PageWrites, low: int, high: int) -> list[Range]:
    scan = writes.scan(low, high)
    count = scan.run()
    if count < 0:
        raise CannotWatch("the kernel cannot scan for written pages (Linux 6.7 can)")
    return writes.found(scan, count)
