"""In which order the launches that read a device copy and the uploads that change it happen on the device.

Two rules, kept by events and never by waiting on the host:

- an upload comes after every launch already made that uses the copy, on whatever stream;
- a launch comes after the last upload.

Every stream handle counts as a stream of its own; nothing is assumed about how the legacy default stream, blocking
and non-blocking streams wait for each other.
"""

from __future__ import annotations

import os
from typing import Any

from cuda_captures import driver
from cuda_captures.device import Context, Event, Launch, is_capturing, order, relaxed_capture
from cuda_captures.errors import CaptureError, about

# The handles of the legacy default stream.  The per-thread default stream is another stream in each thread, so its
# handle (2, or 0 where the binding was told so) says too little and is treated like somebody else's.
LEGACY: frozenset[int] = frozenset(
    {1} if os.environ.get("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM") == "1" else {0, 1}
)
MANY = 32  # streams that are remembered before those that are through are forgotten

EDITED_WHILE_CAPTURING = (
    "a captured NumPy array was edited on the host, and its device copy is in use on a stream that is now capturing "
    "a graph: the copy cannot be updated until the capture ends.\n"
    "Edit the array before bind(kernel, ...) and the capture, or after the capture."
)


def wait_for_producer(producer: int, stream: int) -> None:
    """Make a launch on a stream wait for what a device array's producer has on its own; the host does not wait.

    A graph cannot wait for what is outside of it: while a stream captures, only producers that capture too are waited
    for.  Binding the kernel, ahead of the capture, has waited for the others.
    """
    if producer == stream or (producer in LEGACY and stream in LEGACY):
        return
    if stream not in LEGACY and is_capturing(stream) and (producer in LEGACY or not is_capturing(producer)):
        return
    order(producer, stream)


class Ordering:
    """Who uses one device copy.

    Touched only by a thread that holds the copy's lock.  Holds the streams' owners (so that their handles stay
    valid) until the next upload; gone with the copy.

    Attributes
    ----------
    in_graphs
        Whether a launch that uses the copy has been captured into a graph, which may be replayed at any time.
    """

    def __init__(self, context: Context, start: int) -> None:
        self._context = context
        self._start = start  # of the host memory, to say in an error
        self._owned: dict[int, Any] = {}  # by handle: streams that are kept alive, or the legacy one
        self._foreign: dict[int, Event] = {}  # by stream identifier: after the last launch there
        self._upload: Event | None = None
        self.in_graphs = False

    def used(self, stream: int, owner: Any, capturing: bool | None) -> None:
        """Note a launch that has just been made.

        Parameters
        ----------
        stream
            Its handle.
        owner
            What keeps the handle valid; ``None`` where nobody does, then an event is recorded at once.
        capturing
            Whether the stream is capturing; ``None`` to ask the driver.
        """
        if stream in LEGACY:
            self._owned[stream] = None
            return
        launch = self._context.launch
        if launch is None or launch.stream != stream:
            launch = self._context.launch = Launch(stream, is_capturing(stream) if capturing is None else capturing)
        if launch.capturing:
            self.in_graphs = True
            return
        if owner is not None and self._owned.setdefault(stream, owner) is owner:
            if len(self._owned) > MANY:
                self._forget_finished()
            return
        # The same stream's later event covers its earlier one; a new stream with an old handle has a new identifier.
        if launch.event is None:
            launch.identifier = driver.calls.stream_id(stream)
            launch.event = self._context.record(stream)
        self._foreign[launch.identifier] = launch.event
        if len(self._foreign) > MANY:
            self._forget_finished()

    def _forget_finished(self) -> None:
        with relaxed_capture():
            for stream in [stream for stream in self._owned if stream not in LEGACY and not is_capturing(stream)]:
                self._foreign[driver.calls.stream_id(stream)] = self._context.record(stream)
                del self._owned[stream]
            self._foreign = {key: event for key, event in self._foreign.items() if not event.done()}

    def before_launch(self, stream: int, capturing: bool | None) -> None:
        """Make what is enqueued next on a stream wait for the last upload."""
        upload = self._upload
        if upload is None or stream in self._owned:  # launched there since the upload, so it has waited already
            return
        with relaxed_capture():
            if upload.done():
                self._upload = None
            elif stream not in LEGACY and (is_capturing(stream) if capturing is None else capturing):
                upload.synchronize()  # a graph cannot wait for what is outside of it
                self._upload = None
            else:
                upload.hold(stream)

    def before_upload(self, stream: int) -> None:
        """Make what is enqueued next on a stream wait for every launch and upload so far."""
        busy = [handle for handle in self._owned if handle not in LEGACY and handle != stream and is_capturing(handle)]
        if busy:
            raise about(self._start, CaptureError(EDITED_WHILE_CAPTURING))
        if self.in_graphs:
            # A replay may be under way on any stream, and leaves no trace.
            driver.calls.context_synchronize()
        for handle in self._owned:
            if handle != stream:
                self._context.record(handle).hold(stream)
        for event in self._foreign.values():
            event.hold(stream)
        if self._upload is not None:
            self._upload.hold(stream)

    def uploaded(self, event: Event) -> None:
        """Note an upload that was ordered by :meth:`before_upload`."""
        self._upload = event
        self._owned.clear()
        self._foreign.clear()

    def settled(self) -> None:
        """Note that everything so far is done."""
        self._upload = None
        self._owned.clear()
        self._foreign.clear()
