"""Digests of memory, by several threads where there is much of it.

XXH3 with 128 bits: two contents that differ by chance have equal digests once in 10^38 times.
"""

from __future__ import annotations

import functools
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import xxhash

MUCH = 4 << 20  # bytes from which on it pays to wake threads: one digests some 10 GB/s, waking takes 50 us
WORKERS = min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def digests(pieces: list[memoryview]) -> list[bytes]:
    """The digest of each piece of memory.

    Any thread may call it.  The threads that help are made at the first need, for this process, and idle until the
    interpreter exits.
    """
    if WORKERS > 1 and len(pieces) > 1 and sum(map(len, pieces)) >= MUCH:
        share = -(-len(pieces) // WORKERS)
        shares = [pieces[start : start + share] for start in range(0, len(pieces), share)]
        try:
            return [digest for part in _helpers(os.getpid()).map(_digested, shares) for digest in part]
        except RuntimeError:  # the interpreter is exiting and takes no more work for threads
            pass
    return _digested(pieces)


def _digested(pieces: list[memoryview]) -> list[bytes]:
    return [xxhash.xxh3_128_digest(piece) for piece in pieces]


@functools.lru_cache(1)
def _helpers(pid: int) -> ThreadPoolExecutor:
    """Threads do not survive a fork, hence one pool for each process."""
    return ThreadPoolExecutor(WORKERS, "cuda-captures-digest")


@functools.cache
def digest_rate() -> float:
    """Bytes of this machine's memory that can be digested a second."""
    data: Any = np.ones(16 << 20, np.uint8).data
    pieces = [data[start : start + (1 << 20)] for start in range(0, len(data), 1 << 20)]
    best = float("inf")
    for _ in range(3):
        begin = time.perf_counter()
        digests(pieces)
        best = min(best, time.perf_counter() - begin)
    return len(data) / best
