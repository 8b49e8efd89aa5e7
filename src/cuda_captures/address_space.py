"""What pieces of this process's address space are made of, as Linux tells it."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
import struct
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

MAPS = Path("/proc/self/maps")
STATUS = "/proc/self/status"

T = TypeVar("T")


class _OwnFile:
    """A file that the kernel makes for a process, kept open: opening it costs more than asking it.

    A forked child opens its own; so does whoever finds it closed, or another file in its place.  Two threads may both
    open it the first time: then one descriptor stays open.  The kernel closes them at exit.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._pid = self._descriptor = -1
        self._is: tuple[int, int] | None = None

    def use(self, work: Callable[[int], T]) -> T:
        """What some work on the descriptor gives; raises OSError."""
        descriptor = self._descriptor
        if self._pid != os.getpid() or not self._still_there(descriptor):
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            self._is = _identity(descriptor)
            self._descriptor, self._pid = descriptor, os.getpid()
        return work(descriptor)

    def _still_there(self, descriptor: int) -> bool:
        try:
            return _identity(descriptor) == self._is
        except OSError:
            return False


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _read(descriptor: int) -> bytes:
    return os.pread(descriptor, 8192, 0)


class NotMapped(Exception):
    """There is no memory at an address."""


def why_not_private(start: int, stop: int) -> str | None:
    """Why writes to some memory need not go through this process's page tables for it.

    Parameters
    ----------
    start, stop
        Addresses of the first byte and of the one after the last.

    Returns
    -------
    str or None
        A clause; ``None`` if all of it is private anonymous memory, which nobody else has mapped.

    Raises
    ------
    NotMapped
        If part of it is not there.

    Notes
    -----
    The format is in proc_pid_maps(5).  Memory that is gone and came back may be of another sort: ask again.
    """
    pieces = _asked(start, stop)
    if pieces is None:  # a kernel before 6.11 has to be read from the beginning
        return _why_not_private_of_lines(start, stop)
    for line in pieces:
        reason = _reason(line)
        if reason is not None:
            return reason
    return None


def _asked(start: int, stop: int) -> list[str] | None:
    """The lines of the table for some memory, asked for one by one; None if the kernel cannot be asked.

    A process with a GPU has thousands of mappings, and reading the whole table takes milliseconds.  The request is
    PROCMAP_QUERY of linux/fs.h.
    """
    lines = []
    name = ctypes.create_string_buffer(256)
    while start < stop:
        query = bytearray(_QUERY.pack(_QUERY.size, 0, start, *[0] * 8, len(name), 0, ctypes.addressof(name), 0))
        try:
            _maps.use(functools.partial(_ask, query))
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise NotMapped(f"no memory is mapped at {start:#x}") from None
            return None
        _, _, _, low, high, flags, _, offset, inode, major, minor, length, _, _, _ = _QUERY.unpack(query)
        access = "".join(letter if flags & bit else "-" for letter, bit in (("r", 1), ("w", 2), ("x", 4)))
        sharing = "s" if flags & 8 else "p"
        called = name.raw[: max(length - 1, 0)].decode(errors="replace")
        lines.append(f"{low:x}-{high:x} {access}{sharing} {offset:08x} {major:02x}:{minor:02x} {inode} {called}")
        start = high
    return lines


_maps = _OwnFile(str(MAPS))
_status = _OwnFile(STATUS)


def _ask(query: bytearray, descriptor: int) -> Any:
    return fcntl.ioctl(descriptor, _PROCMAP_QUERY, query)


_QUERY = struct.Struct("=9Q4I2Q")
_PROCMAP_QUERY = 3 << 30 | _QUERY.size << 16 | ord("f") << 8 | 17


def _why_not_private_of_lines(start: int, stop: int) -> str | None:
    # There can be tens of thousands of lines; they are in order.
    lines = MAPS.read_bytes().splitlines()
    reached = start
    for number in range(bisect_right(lines, start, key=_end_of), len(lines)):
        low, high = (int(address, 16) for address in lines[number].split(None, 1)[0].split(b"-"))
        if low > reached:
            break
        reason = _reason(lines[number].decode(errors="replace"))
        if reason is not None:
            return reason
        reached = high
        if reached >= stop:
            return None
    raise NotMapped(f"no memory is mapped at {reached:#x}")


def _end_of(line: bytes) -> int:
    return int(line[line.index(b"-") + 1 : line.index(b" ")], 16)


def _reason(line: str) -> str | None:
    _, permissions, _, device, inode, *rest = line.split(maxsplit=5)
    name = rest[0].strip() if rest else ""
    if permissions[3] != "p":
        return f"the memory is shared with other processes ({name or 'anonymous'})"
    # Huge pages of hugetlbfs have an inode as well.
    if inode != "0" or device.replace("0", "") != ":":
        return f"the memory is mapped from a file ({name})"
    if name and name != "[heap]" and not name.startswith("[anon:"):
        return f"the memory is {name}"
    return None


def pinned_kilobytes() -> int:
    """How much memory of this process is pinned for devices by those who account for it, in kB.

    RDMA and io_uring's registered buffers do.  Of what CUDA has page-locked, only CUDA itself knows for sure.
    """
    try:
        text = _status.use(_read)
    except OSError:
        return 0
    _, found, rest = text.partition(b"\nVmPin:")
    return int(rest.split(None, 1)[0]) if found else 0
