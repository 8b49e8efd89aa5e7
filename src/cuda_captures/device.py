"""What the package keeps on a device: contexts, memory, events.

Everything here works in the *current* context, as the compilers leave it at a launch.  Memory remembers the context
that it came from by an identifier that is never used twice, so that memory of a context that is gone is left alone
instead of being freed a second time.

No call here waits for other people's work, and none disturbs a graph capture that is under way in another thread.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cuda_captures import driver
from cuda_captures.driver import DriverError, OutOfDeviceMemory
from cuda_captures.errors import CaptureError

__all__ = [
    "Context",
    "DeviceBuffer",
    "DriverError",
    "Event",
    "OutOfDeviceMemory",
    "available",
    "current",
    "current_device",
    "enable_peer_access",
    "is_capturing",
    "on_device",
    "order",
    "ordinal_of",
    "page_locked",
    "pointer_device",
    "relaxed_capture",
    "release",
]

_MEMORY_DEVICE = 2  # CU_MEMORYTYPE_DEVICE


class Context:
    """A CUDA context that this package has met; one object for each, made by :func:`current`.

    Attributes
    ----------
    id
        Given by the driver, never used again for another context.
    handle
        The driver's, which may be used again once the context is gone.
    device
        Ordinal of its device.
    launch
        The launch that has just been made, while copies note it; under ``mirrors.LAUNCH_LOCK``.

    Kept for the life of the process, as it owns nothing but handles that go with the context.  Any thread may use it.
    """

    def __init__(self, identifier: int, device: int, handle: int) -> None:
        self.id = identifier
        self.handle = handle
        self.device = device
        self.launch: Launch | None = None
        self._events: list[int] = []  # append and pop are atomic: an event may come back from a finalizer
        self._stream: int | None = None
        self._lock = threading.RLock()  # a finalizer may launch a kernel meanwhile

    @property
    def stream(self) -> int:
        """A non-blocking stream of our own, for copies that must not wait for anybody's kernels."""
        with self._lock:
            if self._stream is None:
                made = driver.calls.stream_create()
                self._stream = self._stream or made
            return self._stream

    def record(self, stream: int) -> Event:
        """An event of what is enqueued on a stream so far."""
        try:
            handle = self._events.pop()
        except IndexError:
            handle = driver.calls.event_create()
        event = Event(self, handle)
        event.record(stream)
        return event


class Launch:
    """A launch that has just been made: asked about once, however many copies note it.

    Attributes
    ----------
    stream
        Handle.
    capturing
        Whether it went into a graph.
    identifier, event
        Of the stream, and after the launch; once somebody needs them.
    """

    __slots__ = ("capturing", "event", "identifier", "stream")

    def __init__(self, stream: int, capturing: bool) -> None:
        self.stream = stream
        self.capturing = capturing
        self.identifier = 0
        self.event: Event | None = None


class Event:
    """A point in a stream.  When the last reference goes, its handle is used again for the next one."""

    __slots__ = ("_context", "handle")

    def __init__(self, context: Context, handle: int) -> None:
        self._context = context
        self.handle = handle

    def record(self, stream: int) -> None:
        driver.calls.event_record(self.handle, stream)

    def done(self) -> bool:
        return bool(driver.calls.event_done(self.handle))

    def synchronize(self) -> None:
        """Wait on the host; other threads run meanwhile."""
        driver.calls.event_synchronize(self.handle)

    def hold(self, stream: int) -> None:
        """What is enqueued on a stream from now on waits for this event; the host does not."""
        driver.calls.stream_wait(stream, self.handle)

    def __del__(self) -> None:
        # May run in any thread and at interpreter exit: a list append and nothing else.
        self._context._events.append(self.handle)


_contexts: dict[int, Context] = {}
_thread = threading.local()


def _forget() -> None:
    _contexts.clear()


driver.after_fork(_forget)


def available() -> bool:
    """Whether there is a driver with a device.  Creates no context, but does initialise the driver."""
    try:
        return bool(driver.calls.device_count())
    except CaptureError:
        return False


def current() -> Context:
    """The current context.

    Raises
    ------
    DriverError
        If this thread has no current context.
    """
    identifier = driver.calls.context_id()
    found = _contexts.get(identifier)
    if found is None:
        # Two threads may both get here: one of the two objects is kept by both.
        made = Context(identifier, driver.calls.context_device(), driver.calls.context_handle())
        found = _contexts.setdefault(identifier, made)
    return found


def current_device() -> int:
    """Ordinal of the current context's device."""
    return current().device


@contextmanager
def relaxed_capture() -> Iterator[None]:
    """Let this thread allocate and wait while any stream captures a graph, without invalidating the capture."""
    if getattr(_thread, "relaxed", False):
        yield  # it is already, and telling the driver costs as much as an allocation
        return
    before = driver.calls.capture_mode(driver.CAPTURE_RELAXED)
    _thread.relaxed = True
    try:
        yield
    finally:
        _thread.relaxed = False
        driver.calls.capture_mode(before)


@contextmanager
def on_device(device: int) -> Iterator[Context]:
    """Make the primary context of a device current for a while, unless the current one is of that device."""
    try:
        here = current()
    except DriverError:
        here = None
    if here is not None and here.device == device:
        yield here
        return
    handle = driver.calls.primary_retain(device)
    try:
        driver.calls.context_push(handle)
        try:
            yield current()
        finally:
            driver.calls.context_pop()
    finally:
        driver.calls.primary_release(device)


class DeviceBuffer:
    """Memory of the current context's device.

    Parameters
    ----------
    nbytes
        Size in bytes, at least 1.

    Attributes
    ----------
    address
        Device address, a multiple of 256 at least.
    nbytes, device, context

    Raises
    ------
    OutOfDeviceMemory
        If there is no room; nothing is held then.

    Freed by :meth:`close` or when collected, in whatever thread that happens; the driver waits for kernels that may
    still use it.  Nothing is freed at interpreter exit (the driver does that), after ``fork`` in the child, or once
    the context is gone and the memory with it.
    """

    def __init__(self, nbytes: int) -> None:
        context = current()
        with relaxed_capture():
            self.address: int = driver.calls.mem_alloc(nbytes)
        self.nbytes = nbytes
        self.device = context.device
        self.context = context
        self._free: weakref.finalize[Any, DeviceBuffer] = weakref.finalize(
            self, release, "mem_free", self.address, context.id, context.device
        )
        self._free.atexit = False

    @property
    def closed(self) -> bool:
        """Whether the memory has been given back."""
        return not self._free.alive

    def close(self) -> None:
        """Give the memory back; a second call does nothing."""
        self._free()


def release(call: str, handle: int, context_id: int, device: int) -> None:
    """Give something back to the driver in the context that it came from; leave it when that context is gone.

    A leak is better than giving back a handle that by now is somebody else's, and a finalizer has nobody to raise to.

    Parameters
    ----------
    call
        Of the driver, which takes the handle.
    """
    if driver.forked():
        return
    try:
        with context_of(context_id, device) as alive:
            if alive:
                with relaxed_capture():
                    getattr(driver.calls, call)(handle)
    except CaptureError:
        pass  # the driver is shutting down, or the context is broken: what it holds goes with it


@contextmanager
def context_of(context_id: int, device: int) -> Iterator[bool]:
    """Make a context current by its identifier; says whether it is still there.

    Never brings a context to life: the primary context of the device is taken only while somebody else keeps it.
    """
    try:
        here = driver.calls.context_id()
    except DriverError:
        here = None
    if here == context_id:
        yield True
        return
    if not driver.calls.primary_active(device):
        yield False
        return
    handle = driver.calls.primary_retain(device)
    try:
        driver.calls.context_push(handle)
        try:
            yield driver.calls.context_id() == context_id
        finally:
            driver.calls.context_pop()
    finally:
        driver.calls.primary_release(device)


def order(before: int, after: int) -> None:
    """Make what is enqueued on one stream from now on wait for what another one holds now; the host does not wait."""
    current().record(before).hold(after)


def is_capturing(stream: int) -> bool:
    """Whether what is enqueued on a stream now goes into a graph instead of being executed."""
    return bool(driver.calls.stream_capturing(stream))


def ordinal_of(address: int) -> int | None:
    """Ordinal of the device that an address has to do with; None for memory that the driver does not know.

    By the context that the memory was allocated in: of the attribute DEVICE_ORDINAL, a driver was seen to say 0 for
    memory of either device (580.159.04, two H200s of one virtual machine, 2026).  Memory of a pool has no context.
    """
    handle = driver.calls.pointer_attribute("CONTEXT", address)
    if handle is None:
        return None
    if handle:
        here = current()
        if handle == here.handle:
            return here.device
        driver.calls.context_push(handle)
        try:
            return int(driver.calls.context_device())
        finally:
            driver.calls.context_pop()
    return driver.calls.pointer_attribute("DEVICE_ORDINAL", address)  # type: ignore[no-any-return]


def pointer_device(address: int) -> int | None:
    """Ordinal of the device whose memory an address is in.

    ``None`` for memory that is not of one device: the host's, managed memory, what the driver does not know.
    """
    if driver.calls.pointer_attribute("MEMORY_TYPE", address) != _MEMORY_DEVICE:
        return None
    if driver.calls.pointer_attribute("IS_MANAGED", address):
        return None
    return ordinal_of(address)


def page_locked(address: int) -> bool:
    """Whether a device may write host memory behind the back of the page tables: page-locked or managed memory."""
    return bool(driver.calls.pointer_attribute("MEMORY_TYPE", address))


def enable_peer_access(device: int, peer: int) -> bool:
    """Let kernels of one device use the memory of another one; says whether they can.

    Both devices' primary contexts are concerned.  Allowing it a second time is no error.
    """
    if device == peer:
        return True
    if not driver.calls.can_access_peer(device, peer):
        return False
    handle = driver.calls.primary_retain(peer)
    try:
        with on_device(device):
            driver.calls.enable_peer_access(handle)
    except DriverError as error:
        if error.code != "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED":
            raise
    finally:
        driver.calls.primary_release(peer)
    return True
