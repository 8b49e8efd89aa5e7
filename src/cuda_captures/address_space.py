"""What pieces of this process's address space are made of, as Linux tells it."""

from __future__ import annotations

import os
from pathlib import Path

MAPS = Path("/proc/self/maps")
STATUS = "/proc/self/status"


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
    reached = start
    with MAPS.open() as lines:
        for line in lines:
            fields = line.split(maxsplit=5)
            low, high = (int(address, 16) for address in fields[0].split("-"))
            if high <= reached:
                continue
            if low > reached:
                break
            reason = _reason(fields)
            if reason is not None:
                return reason
            reached = high
            if reached >= stop:
                return None
    raise NotMapped(f"no memory is mapped at {reached:#x}")


def _reason(fields: list[str]) -> str | None:
    _, permissions, _, device, inode, *rest = fields
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
        file = os.open(STATUS, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        text = os.read(file, 8192)
    finally:
        os.close(file)
    _, found, rest = text.partition(b"\nVmPin:")
    return int(rest.split(None, 1)[0]) if found else 0
