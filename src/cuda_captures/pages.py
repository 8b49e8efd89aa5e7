"""The Linux calls that tell which pages of memory were written: userfaultfd(2) and the PAGEMAP_SCAN ioctl.

With asynchronous write-protection (Linux 6.7) the kernel lets the first write to a protected page through and takes
the protection off; a scan then lists the pages without protection and puts it back, each page in one atomic step.
No signal handler runs and no thread waits.  The kernel's own writes for the process, ``read(2)`` say, count as well.

Sources of the facts: ``Documentation/admin-guide/mm/pagemap.rst`` and ``userfaultfd.rst``, ``include/uapi/linux/fs.h``
and ``userfaultfd.h`` of Linux.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import sys

import numpy as np

from cuda_captures.spans import Range

PAGE = mmap.PAGESIZE

# userfaultfd(2) has no wrapper in the C library.
_SYSCALLS = {"x86_64": 323, "aarch64": 282, "riscv64": 282}
_USER_MODE_ONLY = 1  # allowed to every user, whatever vm.unprivileged_userfaultfd says

_API = 0xAA
_WP_UNPOPULATED = 1 << 13  # pages that were never touched can be protected, too
_WP_ASYNC = 1 << 15
_REGISTER_MODE_WP = 1 << 1

_IS_WRITTEN = 1 << 1
_IS_PRESENT = 1 << 3

# The last four words of a scan: category_inverted, category_mask, category_anyof_mask, return_mask.
WRITTEN = 0, _IS_WRITTEN, 0, _IS_WRITTEN
"""Lists what was written.  Some kernels pass over memory that has no page table, be it that somebody threw it away."""
WRITTEN_OR_ABSENT = _IS_PRESENT, 0, _IS_WRITTEN | _IS_PRESENT, _IS_WRITTEN
"""Lists what has no page, as well; three times slower where pages are small.  Pages swapped out count as absent."""

_WP_MATCHING = 1 << 0
_CHECK_WPASYNC = 1 << 1


def _request(direction: int, kind: int, number: int, size: int) -> int:
    return direction << 30 | size << 16 | kind << 8 | number


_UFFDIO_API = _request(3, 0xAA, 0x3F, 24)
_UFFDIO_REGISTER = _request(3, 0xAA, 0x00, 32)
_UFFDIO_UNREGISTER = _request(2, 0xAA, 0x01, 16)
_UFFDIO_WRITEPROTECT = _request(3, 0xAA, 0x06, 24)
_PAGEMAP_SCAN = _request(3, ord("f"), 16, 96)

# struct pm_scan_arg is an array of 64-bit words; where in it the kernel says how far it came.
_Words = ctypes.c_uint64 * 12
_WALK_END = 4

VECTOR = 1024  # ranges that one call returns; for a longer answer the call is repeated
FEW = 1024  # of more ranges than this, those that are close become one


class CannotWatch(Exception):
    """Pages cannot be watched here; the text is the reason, as a clause."""


class PageWrites:
    """The two descriptors of this process, and the calls on them.

    Raises
    ------
    CannotWatch
        If the system does not let us.

    Notes
    -----
    Not locked: :class:`cuda_captures.pagebook.PageBook` owns the one that there is and sees to that.  The
    descriptors speak of the process that opened them, for ever: a forked child must not use them, see
    :meth:`abandon`.
    """

    def __init__(self) -> None:
        self.masks = WRITTEN
        self._faults = self._pagemap = -1
        number = _SYSCALLS.get(platform.machine()) if sys.platform == "linux" else None
        if number is None or ctypes.sizeof(ctypes.c_void_p) != 8:
            raise CannotWatch(f"the page watch is not known for {platform.system()} on {platform.machine()}")
        # Holding the interpreter's lock: a scan takes microseconds, getting the lock back can take milliseconds.
        self._library = ctypes.PyDLL(None, use_errno=True)
        self.ioctl = self._library.ioctl
        self._number = number
        self._regions = np.zeros((VECTOR, 3), np.uint64)
        try:
            self._open_faults()
            self._open_pagemap()
        except BaseException:
            self.abandon()
            raise

    # descriptors

    def _open_faults(self) -> None:
        descriptor = self._library.syscall(self._number, os.O_CLOEXEC | _USER_MODE_ONLY)
        if descriptor < 0:
            raise CannotWatch(f"userfaultfd is refused here ({_strerror()})")
        self._faults = descriptor
        # Without the event features: a child starts unwatched, and memory that moves is no longer watched.
        argument = (ctypes.c_uint64 * 3)(_API, _WP_ASYNC | _WP_UNPOPULATED, 0)
        if self.ioctl(descriptor, ctypes.c_ulong(_UFFDIO_API), ctypes.byref(argument)):
            raise CannotWatch("this kernel cannot watch pages without a fault handler (Linux 6.7 can)")

    def _open_pagemap(self) -> None:
        try:
            self._pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise CannotWatch(f"/proc/self/pagemap cannot be opened ({error.strerror})") from None
        self.scan_on = ctypes.c_int(self._pagemap), ctypes.c_ulong(_PAGEMAP_SCAN)

    def mend(self) -> None:
        """Open again what somebody has closed, a daemon that closes every descriptor it finds for instance."""
        if not _leads_to(self._faults, "userfaultfd"):
            self._open_faults()
        if not _leads_to(self._pagemap, "/pagemap"):
            self._open_pagemap()

    def abandon(self) -> None:
        """Close both; in a forked child too, where they still speak of the parent."""
        for descriptor, target in ((self._faults, "userfaultfd"), (self._pagemap, "/pagemap")):
            if _leads_to(descriptor, target):
                os.close(descriptor)
        self._faults = self._pagemap = -1

    # calls

    def register(self, low: int, high: int) -> None:
        """Have pages watched; those that are already stay as they are, the others count as written.

        Raises
        ------
        CannotWatch
            If the kernel refuses, because somebody else watches them say.
        """
        argument = (ctypes.c_uint64 * 4)(low, high - low, _REGISTER_MODE_WP, 0)
        if self.ioctl(self._faults, ctypes.c_ulong(_UFFDIO_REGISTER), ctypes.byref(argument)):
            code = ctypes.get_errno()
            if code == errno.EBUSY:
                raise CannotWatch("somebody else watches these pages with userfaultfd")
            raise CannotWatch(f"the kernel refuses to watch these pages ({os.strerror(code)})")

    def unregister(self, low: int, high: int) -> None:
        """No longer watch pages.  That they are gone is no error."""
        argument = (ctypes.c_uint64 * 2)(low, high - low)
        self.ioctl(self._faults, ctypes.c_ulong(_UFFDIO_UNREGISTER), ctypes.byref(argument))

    def unprotect(self, low: int, high: int) -> None:
        """Have pages count as written.  They need not be watched."""
        argument = (ctypes.c_uint64 * 3)(low, high - low, 0)
        self.ioctl(self._faults, ctypes.c_ulong(_UFFDIO_WRITEPROTECT), ctypes.byref(argument))

    def scan(self, low: int, high: int) -> Scan:
        """A scan of the pages from ``low`` to ``high``; made once, run often."""
        argument = _Words()
        self._fill(argument, low, high)
        return Scan(self, argument, high)

    def found(self, scan: Scan, count: int) -> list[Range]:
        """The regions that a scan has just found, in ascending order; goes on with one that found too many.

        Raises
        ------
        OSError
            What was found is lost.
        """
        regions = self._regions
        reached, high = scan.argument[_WALK_END], scan.high
        if reached >= high:
            return [(start, stop) for start, stop, _ in regions[:count].tolist()]
        parts = [regions[:count, :2].astype(np.int64)]
        argument = _Words()
        while reached < high:
            self._fill(argument, reached, high)
            count = self.ioctl(*self.scan_on, ctypes.byref(argument))
            if count < 0:
                raise OSError(ctypes.get_errno(), _strerror())
            parts.append(regions[:count, :2].astype(np.int64))
            reached = argument[_WALK_END]
        return _closed_up(np.concatenate(parts))

    def _fill(self, argument: ctypes.Array[ctypes.c_uint64], low: int, high: int) -> None:
        flags = _WP_MATCHING | _CHECK_WPASYNC
        address = int(self._regions.ctypes.data)
        argument[:] = [ctypes.sizeof(_Words), flags, low, high, 0, address, VECTOR, 0, *self.masks]


class Scan:
    """The arguments of one scan, kept because filling them costs more than the scan.

    Attributes
    ----------
    run
        Lists the pages that were written and protects them again.  Returns how many regions it found, for
        :meth:`PageWrites.found`; after an error a negative number, and what was written may be forgotten.
    """

    __slots__ = ("argument", "high", "run")

    def __init__(self, writes: PageWrites, argument: ctypes.Array[ctypes.c_uint64], high: int) -> None:
        self.argument, self.high = argument, high
        ioctl, address = writes.ioctl, ctypes.byref(argument)

        def run() -> int:
            descriptor, request = writes.scan_on
            return ioctl(descriptor, request, address)  # type: ignore[no-any-return]

        self.run = run


def _closed_up(regions: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> list[Range]:
    """Regions as ranges; where there are many, those with a small gap between them are taken together."""
    gap = 0
    while True:
        starts, stops = regions[:, 0], regions[:, 1]
        apart = starts[1:] > stops[:-1] + gap
        if np.count_nonzero(apart) < FEW:
            break
        gap = 2 * gap + PAGE
    first = np.concatenate(([True], apart))
    last = np.concatenate((apart, [True]))
    return list(zip(starts[first].tolist(), stops[last].tolist(), strict=True))


def _strerror() -> str:
    return os.strerror(ctypes.get_errno())


def _leads_to(descriptor: int, target: str) -> bool:
    if descriptor < 0:
        return False
    try:
        return target in os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return False
