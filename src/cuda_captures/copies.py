"""The device copy of a piece of host memory: brought up to date before a launch, brought home after one.

The order of things at a launch, all under :data:`cuda_captures.mirrors.LAUNCH_LOCK`::

    mirror.refresh(stream, writes=...)       # edits of the host go to the device
    the launch
    mirror.used(stream, owner, writes=...)   # so that a later edit's upload waits for it
    mirror.copy_back(array, stream)          # outside of the lock: what a kernel wrote comes home
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from cuda_captures import arena, driver
from cuda_captures.device import Context, current, is_capturing, relaxed_capture
from cuda_captures.driver import DriverError
from cuda_captures.errors import CaptureError, CaptureTypingError, about
from cuda_captures.extents import MOVED, Array, Extent, Root, address_of, covered, extent, is_dense
from cuda_captures.noticing import Noticing, Once, Unwatched, locked_since, noticing
from cuda_captures.ordering import LEGACY, Ordering
from cuda_captures.spans import Range
from cuda_captures.staging import merged, staging
from cuda_captures.users import Users

GRAIN = 512  # a copy lies on the device as the host's bytes lie, modulo this: what is aligned there is aligned here

WRITTEN_IN_GRAPH = (
    "a kernel that writes a captured NumPy array was launched while its stream captures a graph: a replay has no "
    "moment at which the array could be copied back.\n"
    "Mark the array with cuda_captures.mapped(...), or capture a device array."
)
READ_ONLY = (
    "a kernel wrote a captured NumPy array that has been made read-only since it was launched "
    "(flags.writeable is False), so what it wrote is lost.\n"
    "Leave the array writeable until launches that write it are over."
)
ELSEWHERE = (
    "the device copy is on device {device}, and the current context is of device {now}.\n"
    "Make the device of the launch current: `with cuda.gpus[{device}]: ...`."
)


class Mirror:
    """Device copy of the host bytes from ``start`` to ``stop``, shared by everybody who captures an array there.

    Made by :func:`cuda_captures.mirrors.acquire`.

    Parameters
    ----------
    bounds
        Addresses of the first host byte and of the one after the last.
    roots
        The arrays that keep this memory alive; held weakly.
    context
        The current context.
    policy
        ``"live"`` or ``"snapshot"``.
    verify
        Whether every "unchanged" is checked.
    watched
        Whether edits are noticed from the beginning; otherwise from the second :meth:`refresh` on, which sends
        everything once more.

    Attributes
    ----------
    nbytes, device, context, policy
    way, why
        How edits are noticed, and why in that way.
    uploads, uploaded, downloads, downloaded
        How often bytes were copied so far, and how many.
    cost
        About how long it takes to see that there are none, in seconds.
    superseded
        A larger copy took the place of this one, or its memory is gone: holders must acquire again.

    Raises
    ------
    OutOfDeviceMemory
        Nothing is held then.

    Notes
    -----
    Held strongly by those who use it and weakly by everything else.  When the last of them goes, or the arrays do,
    the device memory and the watch go too.  Memory that a captured graph may still read stays until the holders go.
    Any thread may call any method; a launch does so under ``LAUNCH_LOCK``.
    """

    def __init__(
        self,
        bounds: Extent,
        roots: Sequence[Array],
        context: Context,
        *,
        policy: str = "live",
        verify: bool = False,
        watched: bool = True,
    ) -> None:
        self.start, self.stop = bounds
        self.nbytes = self.stop - self.start
        self.context = context
        self.device = context.device
        self.policy = policy
        self.verify = verify
        self.superseded = False
        self.uploads = self.uploaded = self.downloads = self.downloaded = 0  # times and bytes, for reports
        self.users = Users()
        self._lock = threading.RLock()
        self._ordering = Ordering(context, self.start)
        self._launching = False
        self._unreturned: dict[int, tuple[Array, int]] = {}
        self._roots = tuple([Root(root, self) for root in roots])
        lead = self.start % GRAIN
        self._buffer = arena.allocate(lead + max(self.nbytes, 1), context)
        self._base = self._buffer.address + lead
        self._watch: Noticing
        self._close_watch: weakref.finalize[Any, Mirror] | None = None
        try:
            self._watch = self._watched(roots) if watched else Unwatched(self.nbytes)
        except BaseException:
            self._buffer.close()
            raise

    def _watched(self, roots: Sequence[Array]) -> Noticing:
        if self.policy == "snapshot" or not self.nbytes:
            return Once(self.nbytes)
        found = noticing((self.start, self.stop), roots[0], verify=self.verify)
        self._close_watch = weakref.finalize(self, found.close)
        self._close_watch.atexit = False
        return found

    def watch(self) -> None:
        """Notice edits from now on, if that was left to the second launch; everything is sent once more."""
        roots = self.roots
        with self._lock:
            if isinstance(self._watch, Unwatched) and roots and not self.superseded:
                self._watch = self._watched(roots)

    def _unwatch(self) -> None:
        if self._close_watch is not None:
            self._close_watch()

    @property
    def way(self) -> str:
        return self._watch.way

    @property
    def why(self) -> str:
        return self._watch.why

    @property
    def cost(self) -> float:
        return self._watch.cost

    @property
    def roots(self) -> list[Array]:
        """The living arrays that keep the memory."""
        return [array for root in self._roots if (array := root.alive()) is not None]

    def covers(self, bounds: Extent) -> bool:
        """Whether some host bytes are all in this copy."""
        return self.start <= bounds[0] and bounds[1] <= self.stop

    def address_of(self, array: Array) -> int:
        """Device address of an array's first element; with negative strides that is not its lowest byte."""
        if not self.covers(extent(array)):
            self.superseded = True
            raise about(self.start, CaptureError(MOVED))
        return self._base + address_of(array) - self.start

    # before a launch

    def refresh(self, stream: int, capturing: bool | None = None, writes: bool = False) -> None:
        """Send what was edited on the host, and make the next launch on a stream come after it.

        Parameters
        ----------
        stream
            Handle of the launch's stream, in the copy's context.
        capturing
            Whether the stream is capturing a graph; ``None`` to ask the driver where it matters.
        writes
            Whether the kernel writes here.  Then it also waits for launches that read, as an upload would.

        Notes
        -----
        Cheap when nothing was edited.  Finding its memory gone or moved, it sets ``superseded`` and does no more.

        Raises
        ------
        CaptureError
            What could not be sent is sent the next time.
        """
        if self.superseded:
            return
        held = []  # none of them can go while its memory is read
        for root in self._roots:
            held.append(root.alive())
            if held[-1] is None:
                self.lost()
                return
        with self._lock:
            ranges = self._watch.poll()
            if ranges:
                self._update(ranges, stream, capturing)
            else:
                self._ordering.before_launch(stream, capturing)
            if writes and not self._inside(stream, capturing):
                self._ordering.before_upload(stream)
            self._launching = not self.superseded
            self.context.launch = None

    def _update(self, ranges: list[Range], stream: int, capturing: bool | None) -> None:
        if not self._reachable():
            return
        with relaxed_capture():
            inside = self._inside(stream, capturing)
            if inside:  # the graph must not hold the upload, nor wait for what is outside of it
                stream = self.context.stream
            if self._unreturned:
                # A kernel of another thread has written here and that is not home yet: the bytes around an edit
                # would be sent from before it.
                self._return_all(stream)
                ranges = self._watch.poll()
            again = isinstance(self._watch, Unwatched) and self._watch.was_sent
            if again or locked_since(self._watch, self.start, ranges):
                self._unwatch()
                self._watch = self._watched(self.roots)
                ranges = self._watch.poll()
            self._send(ranges, stream)
            if inside:
                driver.calls.stream_synchronize(stream)
                self._ordering.settled()

    @staticmethod
    def _inside(stream: int, capturing: bool | None) -> bool:
        """Whether a launch on a stream goes into a graph."""
        return stream not in LEGACY and (is_capturing(stream) if capturing is None else capturing)

    def _reachable(self) -> bool:
        """Whether the copy's context is the current one; if it was closed, the memory went with it."""
        now = current()
        if now is self.context:
            return True
        if now.device != self.device:
            raise about(self.start, CaptureError(ELSEWHERE.format(device=self.device, now=now.device)))
        self.superseded = True
        return False

    def _send(self, ranges: list[Range], stream: int) -> None:
        self._ordering.before_upload(stream)
        segments = [(start, stop - start) for start, stop in merged(ranges)]
        self.uploads += 1
        self.uploaded += sum(length for _, length in segments)
        try:
            event = staging(self.context).upload(self._base, self.start, segments, stream, self._watch.sent)
        except BaseException:
            # Part may be under way; the rest is still pending.
            self._noted(stream)
            raise
        if event is not None:
            self._ordering.uploaded(event)

    def _noted(self, stream: int) -> None:
        """Note that everything in a stream so far comes before whatever uses the copy next."""
        try:
            self._ordering.uploaded(self.context.record(stream))
        except DriverError:
            driver.calls.stream_synchronize(stream)  # what is over needs no event
            self._ordering.settled()

    # after a launch

    def used(self, stream: int, owner: Any, capturing: bool | None = None, writes: Iterable[Array] = ()) -> None:
        """Note the launch that has just been made.

        Parameters
        ----------
        stream
            Its stream's handle.
        owner
            What keeps the handle valid, held until the next upload; ``None`` for the default streams, and for
            handles that somebody else may destroy.
        capturing
            Whether the launch went into a graph; ``None`` to ask the driver where it matters.
        writes
            Arrays that the kernel writes; each is then due a :meth:`copy_back`.
        """
        with self._lock:
            self._launching = False
            writes = tuple(writes)
            if writes and not self._inside(stream, capturing):
                self._noted(stream)  # refresh has put it after all others
            else:
                try:
                    self._ordering.used(stream, owner, capturing)
                except DriverError:
                    driver.calls.stream_synchronize(stream)  # nothing needs to wait for what is over
            for array in writes:
                _, count = self._unreturned.get(id(array), (array, 0))
                self._unreturned[id(array)] = array, count + 1
        if self.superseded:
            self.lost()

    def unused(self) -> None:
        """Note that the launch that :meth:`refresh` was for is not made."""
        self._launching = False
        if self.superseded:
            self.lost()

    def copy_back(self, array: Array, stream: int, owner: Any = None) -> None:
        """Wait for a stream, then put what its kernels wrote into an array's elements.

        Bytes between the elements are not touched.

        Raises
        ------
        CaptureTypingError
            If the array is read-only by now.
        CaptureError
            If the kernel failed.  The array's elements may have been written in part; the next launch gets them as
            they are.
        """
        try:
            if stream not in LEGACY and is_capturing(stream):
                raise about(extent(array)[0], CaptureError(WRITTEN_IN_GRAPH))
            driver.calls.stream_synchronize(stream)  # holding no lock
            with self._lock, relaxed_capture():
                self._return(array, stream)
                self._not_due(array)
        except BaseException:
            self.forsake(array)
            raise

    def _not_due(self, array: Array) -> None:
        _, count = self._unreturned.pop(id(array), (array, 0))
        if count > 1:
            self._unreturned[id(array)] = array, count - 1

    def forsake(self, array: Array) -> None:
        """Give up what a launch may have written to an array: what the host has is what counts, and is sent again."""
        with self._lock:
            self._not_due(array)
            roots = self.roots
            if self.superseded or not roots:
                return
            self.superseded = True  # unless it can be watched anew
            self._unwatch()
            self._watch = self._watched(roots)
            self.superseded = False

    def _return_all(self, stream: int) -> None:
        """Bring home what kernels of other threads wrote; they will find it done."""
        self._ordering.before_upload(stream)
        for array, _ in self._unreturned.values():
            if array.flags.writeable:  # else the other thread's copy_back says so
                self._return(array, stream)
        self._unreturned.clear()

    def _return(self, array: Array, stream: int) -> None:
        low, high = extent(array)
        if not array.size or not self.covers((low, high)) or self._buffer.closed:
            return  # resized while the kernel ran: there is no place for it any more
        if not array.flags.writeable:
            raise about(low, CaptureTypingError(READ_ONLY))
        offset = low - self.start
        source = self._base + offset
        self.downloads += 1
        self.downloaded += high - low

        def received(at: int, data: memoryview) -> None:
            if not self.superseded:
                self._watch.received(offset + at, data)

        pages = staging(self.context)
        if is_dense(array):
            pages.download(source, low, high - low, stream, received)
            return
        whole = np.empty(high - low, np.uint8)
        pages.download(source, int(whole.ctypes.data), high - low, stream)
        first = int(array.__array_interface__["data"][0]) - low
        written: Array = np.ndarray(array.shape, array.dtype, whole, first, array.strides)
        np.copyto(array.view(np.ndarray), written)
        received(0, whole.data)  # the bytes between the elements too: edited ones differ, and are pending then

    # when it goes

    def lost(self) -> None:
        """Look whether the memory is still there; runs in whatever thread an array goes."""
        living = [root for root in self._roots if root.alive() is not None]
        if covered((self.start, self.stop), [(root.start, root.stop) for root in living]) and living:
            return
        self.superseded = True
        if not living and not self._launching and not self._ordering.in_graphs:
            # Nobody can be polling or copying back: both need a living array.
            self._unwatch()
            self._buffer.close()

    def again(self) -> None:
        """Copy a snapshot again, in place; done when the call returns.  In the copy's context."""
        held = [root.alive() for root in self._roots]
        if self.superseded or any(array is None for array in held):
            return
        with self._lock:
            assert isinstance(self._watch, Once)
            self._watch.again()
            if not self._reachable():
                return
            with relaxed_capture():
                self._send(self._watch.poll(), self.context.stream)
                driver.calls.stream_synchronize(self.context.stream)
                self._ordering.settled()
