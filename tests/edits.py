"""Ways to edit host memory, as programs do, for tests of noticing them."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import struct
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

PAGE = mmap.PAGESIZE
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Edit = Callable[[Bytes, random.Random], int]

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
MAP_FIXED = 0x10
NOISE = random.Random(1).randbytes(1 << 16)


def anonymous(nbytes: int, flags: int = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, align: int = PAGE) -> Bytes:
    """Memory of its own, straight from the system."""
    memory = mmap.mmap(-1, nbytes + align, flags)
    whole = np.frombuffer(memory, np.uint8)
    lead = -whole.ctypes.data % align
    return whole[lead : lead + nbytes]


def address_of(array: Bytes) -> int:
    return int(array.ctypes.data)


def advise(array: Bytes, advice: int) -> None:
    """madvise(2) on all pages of an array."""
    low, high = address_of(array) // PAGE * PAGE, -(-(address_of(array) + array.nbytes) // PAGE) * PAGE
    if LIBC.madvise(ctypes.c_void_p(low), ctypes.c_size_t(high - low), advice):
        raise OSError(ctypes.get_errno(), "madvise")


def on_own_pages(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy with no other memory on its pages: the driver copies no memory of which a part is registered with it."""
    made: np.ndarray[Any, Any] = anonymous(array.nbytes).view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


def map_anew(low: int, high: int, flags: int = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) -> None:
    """Replace pages by fresh ones at the same address."""
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    size = ctypes.c_size_t(high - low)
    found = LIBC.mmap(ctypes.c_void_p(low), size, protection, flags | MAP_FIXED, -1, ctypes.c_long(0))
    if found != low:
        raise OSError(ctypes.get_errno(), "mmap")


def _place(host: Bytes, chance: random.Random, longest: int) -> tuple[int, int]:
    size = chance.randint(1, min(longest, len(host)))
    start = chance.randint(0, len(host) - size)
    return start, start + size


def one_element(host: Bytes, chance: random.Random) -> int:
    host[chance.randrange(len(host))] = chance.randrange(256)
    return 1


def slices(host: Bytes, chance: random.Random) -> int:
    start, stop = _place(host, chance, 9000)
    host[start:stop] = chance.randrange(256)
    return 1


def wide_elements(host: Bytes, chance: random.Random) -> int:
    words = host[: len(host) // 8 * 8].view(np.uint64)
    words[chance.randrange(len(words))] = chance.getrandbits(64)
    return 1


def through_memoryview(host: Bytes, chance: random.Random) -> int:
    start, stop = _place(host, chance, 300)
    host.data[start:stop] = NOISE[start % 1000 : start % 1000 + stop - start]
    return 1


def packed(host: Bytes, chance: random.Random) -> int:
    struct.pack_into("<q", host.data, chance.randrange(len(host) - 8), chance.getrandbits(60))
    return 1


def copied(host: Bytes, chance: random.Random) -> int:
    start, stop = _place(host, chance, 40000)
    np.copyto(host[start:stop], np.frombuffer(NOISE, np.uint8)[: stop - start])
    return 1


def in_place(host: Bytes, chance: random.Random) -> int:
    start, stop = _place(host, chance, 20000)
    np.add(host[start:stop], 1, out=host[start:stop])
    return 1


def operators(host: Bytes, chance: random.Random) -> int:
    start, stop = _place(host, chance, 5000)
    host[start:stop:7] ^= 0x55
    return 1


def scattered(host: Bytes, chance: random.Random) -> int:
    host[np.frombuffer(chance.randbytes(32), np.uint32) % len(host)] += 1
    return 8


def moved(host: Bytes, chance: random.Random) -> int:
    start, stop = _place(host, chance, 2000)
    ctypes.memmove(address_of(host) + start, NOISE[: stop - start][::-1], stop - start)
    return 1


def sorted_in_place(host: Bytes, chance: random.Random) -> int:
    start, stop = _place(host, chance, 500)
    host[start:stop].sort()
    return 1


def _file() -> Any:
    file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - open for as long as there are edits
    file.write(NOISE)
    return file


_SOURCE = _file()


def read_into(host: Bytes, chance: random.Random) -> int:
    start, stop = _place(host, chance, 20000)
    os.preadv(_SOURCE.fileno(), [host.data[start:stop]], chance.randrange(40000))
    return 1


def received_from_pipe(host: Bytes, chance: random.Random) -> int:
    start, stop = _place(host, chance, 4000)
    source, sink = os.pipe()
    with open(source, "rb", buffering=0) as reading, open(sink, "wb", buffering=0) as writing:
        writing.write(NOISE[-(stop - start) :])
        reading.readinto(host.data[start:stop])
    return 1


EDITS: tuple[Edit, ...] = (
    one_element,
    slices,
    wide_elements,
    through_memoryview,
    packed,
    copied,
    in_place,
    operators,
    scattered,
    moved,
    sorted_in_place,
    read_into,
    received_from_pipe,
)


def _whole_pages(host: Bytes, chance: random.Random) -> tuple[int, int]:
    low, high = -(-address_of(host) // PAGE), (address_of(host) + len(host)) // PAGE
    if low >= high:
        return 0, 0
    first = chance.randrange(low, high)
    return first * PAGE, min(high, first + chance.choice((1, 1, 2, 5, 700))) * PAGE


def thrown_away(host: Bytes, chance: random.Random) -> int:
    """Pages given back to the system: they read as zeros afterwards."""
    low, high = _whole_pages(host, chance)
    if low < high:
        LIBC.madvise(ctypes.c_void_p(low), ctypes.c_size_t(high - low), mmap.MADV_DONTNEED)
    return 1


def mapped_anew(host: Bytes, chance: random.Random) -> int:
    """Pages replaced by new ones, as when memory comes back to an allocator and is given out again."""
    low, high = _whole_pages(host, chance)
    if low < high:
        map_anew(low, high)
    return 1


def compiled_edits() -> Callable[[Bytes, int, int], None] | None:
    """Random writes in machine code that holds no interpreter lock, so that they fall in between anything."""
    try:
        import numba
    except ImportError:
        return None

    @numba.njit(nogil=True)  # type: ignore[untyped-decorator,unused-ignore]
    def run(host, count, seed):  # type: ignore[no-untyped-def]
        state = np.uint64(seed) | np.uint64(1)
        for _ in range(count):
            state ^= state << np.uint64(13)
            state ^= state >> np.uint64(7)
            state ^= state << np.uint64(17)
            host[np.int64((state >> np.uint64(11)) % np.uint64(len(host)))] = np.uint8(state >> np.uint64(3))
            pause = 0
            for i in range(np.int64(state & np.uint64(127))):
                pause += i
            if pause < 0:
                host[0] = 0

    return run  # type: ignore[no-any-return,unused-ignore]
