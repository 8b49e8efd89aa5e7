"""A CUDA driver that lives in memory, and executes what is enqueued as late and as out of order as it may.

Work that is put on a stream stays there until something has to wait for it, or until :meth:`MemoryDriver.step` picks
a stream at random.  Streams are ordered among themselves by nothing but events.  A copy reads its page-locked source
when it is executed, not when it is enqueued; memory that is not page-locked, or has been freed, is an error.  So code
that forgets an event, uses a staging block too early or frees what is in use gives wrong bytes or fails.
"""

from __future__ import annotations

import ctypes
import itertools
import random
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from cuda_captures.driver import Driver, DriverError, OutOfDeviceMemory

_context_ids = itertools.count(1 << 20)  # as the real one does, never the same twice in a process

HANDLE = 0x100  # of the first device's context

Point = tuple[int, int]  # a stream, and how many of its works


class Stream:
    def __init__(self) -> None:
        self.works: deque[Callable[[], None]] = deque()
        self.put = 0
        self.done = 0


class MemoryDriver:
    """Takes the place of :class:`cuda_captures.driver.Driver`.

    Parameters
    ----------
    devices
        How many.
    capacity
        Bytes of each.
    seed
        Of the order in which works are executed.

    Attributes
    ----------
    before
        By name of a call: what else happens just before it, on the device.
    """

    in_use = True

    def __init__(self, devices: int = 2, capacity: int = 1 << 30, seed: int = 0) -> None:
        self.lock = threading.RLock()
        self.devices = devices
        self.capacity = capacity
        self.random = random.Random(seed)
        self.calls: Counter[str] = Counter()
        self.failures: dict[str, list[int]] = {}
        self.before: dict[str, Callable[[], object]] = {}
        self.streams: dict[int, Stream] = {}
        self.capturing: set[int] = set()
        self.peers = True
        self.events: dict[int, Point] = {}
        self.memory: dict[int, tuple[int, bytearray]] = {}  # by address: context, bytes
        self.page_locked: dict[int, Any] = {}
        self.libraries: dict[int, int] = {}  # loaded machine code, with the context that it is for
        self.registered: dict[int, int] = {}
        self.foreign_registered: dict[int, int] = {}
        self.primary = {device: next(_context_ids) for device in range(devices)}
        self._next_handle = 0x1000
        self._next_address = 0x7000_0000_0000
        self._depth = 0
        self._doomed: list[int] = []
        self._local = threading.local()
        self._modes = threading.local()

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if name.startswith("_") or not callable(found) or name not in CALLS:
            return found

        def call(*arguments: Any) -> Any:
            with self.lock:
                self.calls[name] += 1
                if name in self.before:
                    self.before.pop(name)()
                for number in self.failures.get(name, ()):
                    if self.calls[name] == number:
                        kind = OutOfDeviceMemory if "alloc" in name else DriverError
                        raise kind(name, "CUDA_ERROR_OUT_OF_MEMORY" if "alloc" in name else "CUDA_ERROR_INJECTED")
                return found(*arguments)

        return call

    # what a test does

    def fail(self, name: str, *after: int) -> None:
        """Have calls of a kind fail: the next one is number 1."""
        self.failures[name] = [self.calls[name] + number for number in after]

    def reset(self, device: int) -> None:
        """As cuDevicePrimaryCtxReset: the context and everything in it are gone."""
        context = self.primary[device]
        self.memory = {address: kept for address, kept in self.memory.items() if kept[0] != context}
        self.primary[device] = next(_context_ids)

    def use(self, device: int) -> None:
        """Make a device's primary context current in this thread."""
        self._stack[:] = [device]

    def launch(self, stream: int, work: Callable[[], None]) -> None:
        """Enqueue a kernel."""
        with self.lock:
            self._enqueue(stream, work)

    def read(self, address: int, nbytes: int) -> bytes:
        """What the device holds now; what is enqueued does not count."""
        data, offset = self._at(address, nbytes)
        return bytes(data[offset : offset + nbytes])

    def write(self, address: int, content: bytes) -> None:
        data, offset = self._at(address, len(content))
        data[offset : offset + len(content)] = content

    def step(self) -> None:
        """Execute one enqueued work of a random stream that can go on."""
        with self.lock:
            busy = [stream for stream in self.streams.values() if stream.works]
            if busy:
                self._execute(self.random.choice(busy))

    def finish(self) -> None:
        """Execute everything, one random stream after the other."""
        with self.lock:
            keys = list(self.streams)
            self.random.shuffle(keys)
            for key in keys:
                self._reach((key, self._stream(key).put))

    def held(self, device: int = 0) -> int:
        """Bytes allocated."""
        return sum(len(data) for context, data in self.memory.values() if context == self.primary[device])

    # how it works

    @property
    def _stack(self) -> list[int]:
        if not hasattr(self._local, "stack"):
            self._local.stack = [0]
        return self._local.stack  # type: ignore[no-any-return]

    def _handle(self) -> int:
        self._next_handle += 16
        return self._next_handle

    def _at(self, address: int, nbytes: int) -> tuple[bytearray, int]:
        for start, (_, data) in self.memory.items():
            if start <= address and address + nbytes <= start + len(data):
                return data, address - start
        raise AssertionError(f"illegal device address {address:#x}, {nbytes} bytes")

    def _key(self, handle: int) -> int:
        """The default streams are others in every context."""
        return handle if handle > 2 else -3 * self.context_id() - handle

    def _stream(self, key: int) -> Stream:
        return self.streams.setdefault(key, Stream())

    def _enqueue(self, handle: int, work: Callable[[], None]) -> None:
        stream = self._stream(self._key(handle))
        stream.works.append(work)
        stream.put += 1

    def _execute(self, stream: Stream) -> None:
        work = stream.works[0]
        self._depth += 1
        work()
        self._depth -= 1
        stream.works.popleft()
        stream.done += 1
        del work  # now, as it may free what only it held
        while self._doomed and not self._depth:
            self.mem_free(self._doomed.pop())

    def _reach(self, point: Point) -> None:
        stream = self._stream(point[0])
        while stream.done < point[1]:
            self._execute(stream)

    def _refuse_if_capturing(self, stream: int, what: str) -> None:
        if stream in self.capturing:
            raise DriverError(what, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED")

    # devices and contexts

    def device_count(self) -> int:
        return self.devices

    def context_id(self) -> int:
        if not self._stack:
            raise DriverError("cuCtxGetId", "CUDA_ERROR_INVALID_CONTEXT")
        return self.primary[self._stack[-1]]

    def context_handle(self) -> int:
        return HANDLE + self._stack[-1]

    def context_device(self) -> int:
        return self._stack[-1]

    def context_synchronize(self) -> None:
        assert not self.capturing, "a context cannot be synchronised while a stream captures"
        self.finish()

    def primary_active(self, device: int) -> bool:
        return True

    def primary_retain(self, device: int) -> int:
        return HANDLE + device

    def primary_release(self, device: int) -> None:
        pass

    def context_push(self, context: int) -> None:
        self._stack.append(context - HANDLE)

    def context_pop(self) -> None:
        self._stack.pop()

    def can_access_peer(self, device: int, peer: int) -> bool:
        return self.peers

    def enable_peer_access(self, context: int) -> None:
        pass

    # memory

    def library_load(self, image: bytes) -> int:
        library = self._handle()
        self.libraries[library] = self._stack[-1]
        return library

    def library_kernel(self, library: int, name: str) -> int:
        assert self.libraries[library] == self._stack[-1]
        return library + 1

    def library_unload(self, library: int) -> None:
        assert self.libraries.pop(library) == self._stack[-1], "unloaded with another context current"

    def mem_alloc(self, nbytes: int) -> int:
        assert self.capture_mode_now == 2 or not self.capturing, "cuMemAlloc would invalidate a capture"
        if self.held(self._stack[-1]) + nbytes > self.capacity:
            raise OutOfDeviceMemory("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY", "out of memory")
        address = self._next_address
        self._next_address += nbytes + 512 - nbytes % 512
        self.memory[address] = self.context_id(), bytearray(b"\xa5" * nbytes)
        return address

    def mem_free(self, address: int) -> None:
        assert self.capture_mode_now == 2 or not self.capturing, "cuMemFree would invalidate a capture"
        if self._depth:  # the collector came by while a kernel is being executed
            self._doomed.append(address)
            return
        self.finish()  # as the real one does
        del self.memory[address]

    def host_alloc(self, nbytes: int) -> int:
        raw = (ctypes.c_ubyte * (nbytes + 4096))()
        address = (ctypes.addressof(raw) + 4095) // 4096 * 4096
        self.page_locked[address] = raw, nbytes
        return address

    def host_free(self, address: int) -> None:
        del self.page_locked[address]

    def host_register(self, address: int, nbytes: int) -> None:
        known = {**self.registered, **self.foreign_registered}
        if any(start < address + nbytes and address < start + size for start, size in known.items()):
            raise DriverError("cuMemHostRegister", "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED")
        self.registered[address] = nbytes

    def host_unregister(self, address: int) -> None:
        del self.registered[address]

    def host_device_pointer(self, address: int) -> int:
        return address

    def pointer_attribute(self, name: str, address: int) -> int | None:
        known = {**self.registered, **self.foreign_registered}
        if any(start <= address < start + size for start, size in known.items()):
            return {"MEMORY_TYPE": 1}.get(name, 0)
        for start, (context, data) in self.memory.items():
            if start <= address < start + len(data):
                device = next(device for device, known in self.primary.items() if known == context)
                return {"MEMORY_TYPE": 2, "IS_MANAGED": 0, "DEVICE_ORDINAL": 0, "CONTEXT": HANDLE + device}[name]
        return None

    # copies

    def _page_locked(self, address: int, nbytes: int) -> bool:
        known = ((start, size) for start, (_, size) in self.page_locked.items())
        return any(start <= address and address + nbytes <= start + size for start, size in known)

    def copy_to_device(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._refuse_if_capturing(stream, "cuMemcpyHtoDAsync")
        self._at(target, nbytes)
        if nbytes <= 4096 and not self._page_locked(source, nbytes):  # a few bytes are taken before the call returns
            taken = ctypes.string_at(source, nbytes)
            self._enqueue(stream, lambda: self.write(target, taken))
            return
        assert self._page_locked(source, nbytes), "an asynchronous copy from memory that is not page-locked"
        self._enqueue(stream, lambda: self.write(target, ctypes.string_at(source, nbytes)))

    def fill_word(self, target: int, word: int, stream: int) -> None:
        self._refuse_if_capturing(stream, "cuMemsetD32Async")
        self._at(target, 4)
        self._enqueue(stream, lambda: self.write(target, word.to_bytes(4, sys.byteorder)))

    def copy_to_host(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._refuse_if_capturing(stream, "cuMemcpyDtoHAsync")
        assert self._page_locked(target, nbytes), "an asynchronous copy to memory that is not page-locked"
        self._at(source, nbytes)
        self._enqueue(stream, lambda: (ctypes.memmove(target, self.read(source, nbytes), nbytes), None)[1])

    # events and streams

    def event_create(self) -> int:
        handle = self._handle()
        self.events[handle] = (0, 0)
        return handle

    def event_record(self, event: int, stream: int) -> None:
        self._refuse_if_capturing(stream, "cuEventRecord")
        key = self._key(stream)
        self.events[event] = key, self._stream(key).put

    def event_done(self, event: int) -> bool:
        stream, number = self.events[event]
        return self._stream(stream).done >= number

    def event_synchronize(self, event: int) -> None:
        self._reach(self.events[event])

    def stream_create(self) -> int:
        return self._handle()

    def stream_wait(self, stream: int, event: int) -> None:
        self._refuse_if_capturing(stream, "cuStreamWaitEvent")
        point = self.events[event]
        self._enqueue(stream, lambda: self._reach(point))

    def stream_synchronize(self, stream: int) -> None:
        self._refuse_if_capturing(stream, "cuStreamSynchronize")
        key = self._key(stream)
        self._reach((key, self._stream(key).put))

    def stream_id(self, stream: int) -> int:
        return self._key(stream) + 7

    def stream_capturing(self, stream: int) -> bool:
        return stream in self.capturing

    @property
    def capture_mode_now(self) -> int:
        return getattr(self._modes, "mode", 0)

    def capture_mode(self, mode: int) -> int:
        before = self.capture_mode_now
        self._modes.mode = mode
        return before


CALLS = frozenset(name for name in vars(Driver) if not name.startswith("_"))
