"""Page-locked memory between host arrays and a device, and copies through it at the speed of the bus.

A copy from ordinary memory runs at a sixth of what the bus can do (8 GB/s against 54 on an H200), and keeps the
caller until it is through.  Here the bytes are put into page-locked blocks by several threads, and each block goes
off on its own while the next is filled.  When :meth:`Staging.upload` returns, the host array may be edited: what the
device will get has been taken.

A block is used again once the event after its copy has come.  So as long as a stream is held up, 64 MiB of edits can
be enqueued behind; a launch with more waits for the stream.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from cuda_captures import driver
from cuda_captures.device import Context, Event
from cuda_captures.driver import DriverError
from cuda_captures.spans import Range

SMALL = 64 * 1024  # a block for the edit of a few elements
SMALL_SLAB = 16  # small blocks are allocated so many at a time: one call costs as much as another
LARGE = 4 * 1024 * 1024
SMALL_LIMIT = 256  # 16 MiB: so many small edits may be under way before one waits for the first
LARGE_LIMIT = 16  # 64 MiB
LEAST_PIECE = 512 * 1024  # shorter pieces cost more in calls than they win by being filled side by side
ALONE = 4 * 1024 * 1024  # bytes that are copied sooner than other threads have woken up
FILLERS = 8  # threads that fill blocks; one moves 10 to 15 GB/s
CLOSE = 16 << 10  # a clean gap of so many bytes between two edits costs less to copy than a second transfer
CLOSE_OF_MANY = 128 << 10  # the same when the gaps are copied by several threads
MANY = 64  # edits
ALIGNMENT = 64  # a block's bytes are laid out as on the device modulo this, which keeps transfers whole

Segment = tuple[int, int]  # offset and size in bytes
Part = tuple[int, int, int]  # offset, size, and where in the block
Note = Callable[[int, memoryview], object]


@dataclass(eq=False)
class Block:
    """Page-locked memory, and the event after the last copy from it.

    Owned by one copy at a time, between :meth:`_Blocks.take` and :meth:`_Blocks.give`.
    """

    address: int
    nbytes: int
    memory: memoryview
    event: Event | None = None

    def free(self) -> bool:
        """Whether the device is done with it."""
        return self.event is None or self.event.done()

    def wait(self) -> None:
        if self.event is not None:
            self.event.synchronize()
            self.event = None


class _Blocks:
    """Blocks of one size; any thread may take and give."""

    def __init__(self, nbytes: int, slab: int, limit: int) -> None:
        self._nbytes, self._slab, self._limit = nbytes, slab, limit
        self._made = 0
        self._idle: deque[Block] = deque()  # oldest copy first
        # May be taken again: a finalizer, or a signal handler, may launch a kernel while its thread is in here.
        self._given = threading.Condition(threading.RLock())

    def take(self, patient: bool = True) -> Block | None:
        """A block that the device is done with; ``None`` if there is none and the caller has no patience."""
        with self._given:
            while True:
                try:
                    if self._made >= self._limit or self._idle[0].free():
                        block = self._idle.popleft()
                        break
                except IndexError:
                    pass  # there is none, or none any more
                if self._made < self._limit:
                    try:
                        self._grow()
                    except DriverError:
                        if not self._made:
                            raise
                        self._limit = self._made  # no more page-locked memory: make do with what there is
                    continue
                if not patient:
                    return None
                self._given.wait()
        try:
            block.wait()
        except BaseException:
            self.give(block)
            raise
        return block

    def give(self, block: Block) -> None:
        with self._given:
            self._idle.append(block)
            self._given.notify()

    def lose(self) -> None:
        """Note that a block that was taken never comes back; another is made when one is needed."""
        with self._given:
            self._made -= 1
            self._given.notify()

    def _grow(self) -> None:
        address = driver.calls.host_alloc(self._nbytes * self._slab)
        for start in range(address, address + self._nbytes * self._slab, self._nbytes):
            raw = (ctypes.c_ubyte * self._nbytes).from_address(start)
            self._idle.appendleft(Block(start, self._nbytes, memoryview(raw).cast("B")))
        self._made += self._slab


class Staging:
    """The page-locked memory of one context; made by :func:`staging`.

    Any thread may copy.  The memory is kept for the life of the context and goes with it: it is at most 80 MiB, and
    only as much as was ever in use at once.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._small = _Blocks(SMALL, SMALL_SLAB, SMALL_LIMIT)
        self._large = _Blocks(LARGE, 1, LARGE_LIMIT)

    def upload(self, target: int, source: int, segments: Iterable[Segment], stream: int, sent: Note) -> Event | None:
        """Copy parts of host memory to the same parts of device memory.

        Parameters
        ----------
        target, source
            Device and host address that the offsets count from.
        segments
            Offset and size in bytes of each part, in ascending order.
        stream
            Where the copies are enqueued.
        sent
            Called with the offset and the bytes that were taken, once their copy is enqueued.

        Returns
        -------
        Event or None
            After the last copy; ``None`` if there was nothing to copy.

        Raises
        ------
        DriverError
            The parts that ``sent`` was not called for have not been copied.
        """
        segments = [segment for segment in segments if segment[1]]
        total = sum(size for _, size in segments)
        blocks, piece = self._sizes(total, len(segments))
        filled: deque[tuple[Block, list[Part], Future[None] | None]] = deque()
        event: Event | None = None
        try:
            for parts in _packed(segments, target, piece):
                block = blocks.take(patient=not filled)
                while block is None:
                    event = self._send(blocks, *filled.popleft(), target, stream, sent)
                    block = blocks.take(patient=not filled)
                try:
                    work = None if total <= ALONE else _submit(_fill, block, source, parts)
                    if work is None:
                        _fill(block, source, parts)
                except BaseException:
                    blocks.give(block)
                    raise
                filled.append((block, parts, work))
                while filled and (filled[0][2] is None or filled[0][2].done()):
                    event = self._send(blocks, *filled.popleft(), target, stream, sent)
            while filled:
                event = self._send(blocks, *filled.popleft(), target, stream, sent)
        finally:
            for block, _, work in filled:  # only after a failure; the host memory must not be read after we return
                if work is not None:
                    work.result()
                blocks.give(block)
        return event

    def _send(
        self,
        blocks: _Blocks,
        block: Block,
        parts: list[Part],
        work: Future[None] | None,
        target: int,
        stream: int,
        sent: Note,
    ) -> Event:
        if work is not None:
            work.result()
        try:
            for offset, size, position in parts:
                driver.calls.copy_to_device(target + offset, block.address + position, size, stream)
                sent(offset, block.memory[position : position + size])
        finally:
            event = self._given_after(blocks, block, stream)  # even after a failure: part of it may be on its way
        return event

    def _given_after(self, blocks: _Blocks, block: Block, stream: int) -> Event:
        """Give a block back, to be used again after what a stream holds now."""
        try:
            event = block.event = self._recorded(stream)
        except BaseException:
            blocks.lose()  # nobody knows when the device is done with it
            raise
        blocks.give(block)
        return event

    def _recorded(self, stream: int) -> Event:
        try:
            return self._context.record(stream)
        except DriverError:
            driver.calls.stream_synchronize(stream)
            return self._context.record(stream)  # of nothing that is still under way

    def write(self, pieces: Sequence[tuple[int, bytes]], stream: int) -> None:
        """Enqueue writing some bytes to device addresses, each piece far smaller than a block.

        The bytes have been taken when the call returns.
        """
        waiting = deque(pieces)
        while waiting:
            block = self._small.take()
            assert block is not None
            position = 0
            try:
                while waiting and position + len(waiting[0][1]) <= block.nbytes:
                    address, data = waiting.popleft()
                    block.memory[position : position + len(data)] = data
                    driver.calls.copy_to_device(address, block.address + position, len(data), stream)
                    position += -(-len(data) // ALIGNMENT) * ALIGNMENT
            finally:
                self._given_after(self._small, block, stream)

    def download(self, source: int, target: int, nbytes: int, stream: int, received: Note | None = None) -> None:
        """Copy device memory to host memory, after what the stream holds now; done when the call returns.

        Parameters
        ----------
        source, target
            Device and host address.
        nbytes
            How much.
        stream
            Where the copies are enqueued.
        received
            Called with the offset and the bytes that were put into the host memory.
        """
        blocks, piece = self._sizes(nbytes, 1)
        coming: deque[tuple[Block, Part]] = deque()
        landing: deque[tuple[Block, Part, Future[None] | None]] = deque()

        def land() -> None:
            block, part = coming[0]
            block.wait()
            work = None if nbytes <= ALONE else _submit(_empty, block, target, part)
            if work is None:
                _empty(block, target, part)
            coming.popleft()
            landing.append((block, part, work))

        def finish() -> None:
            block, (offset, size, position), work = landing[0]
            if work is not None:
                work.result()
            landing.popleft()
            try:
                if received is not None:
                    received(offset, block.memory[position : position + size])
            finally:
                blocks.give(block)

        try:
            for parts in _packed([(0, nbytes)] if nbytes else [], source, piece):
                block = blocks.take(patient=not (coming or landing))
                while block is None:
                    land() if coming else finish()
                    block = blocks.take(patient=not (coming or landing))
                (part,) = parts
                try:
                    driver.calls.copy_to_host(block.address + part[2], source + part[0], part[1], stream)
                except BaseException:
                    blocks.give(block)
                    raise
                try:
                    block.event = self._recorded(stream)
                except BaseException:
                    blocks.lose()
                    raise
                coming.append((block, part))
            while coming:
                land()
            while landing:
                finish()
        finally:
            for block, _ in coming:  # only after a failure; the event keeps a block from early use
                blocks.give(block)
            for block, _, work in landing:
                if work is not None:
                    work.result()
                blocks.give(block)

    def _sizes(self, total: int, count: int) -> tuple[_Blocks, int]:
        """Which blocks to use, and how many bytes of each."""
        if total + ALIGNMENT * count <= SMALL:
            return self._small, SMALL
        share = -(-total // FILLERS) + ALIGNMENT * count
        return self._large, min(LARGE, max(LEAST_PIECE, share))


def merged(ranges: Sequence[Range]) -> list[Range]:
    """Ascending ranges, with those taken together whose gap costs less to copy than a transfer of its own."""
    gap = CLOSE if len(ranges) <= MANY else CLOSE_OF_MANY
    out: list[Range] = []
    for start, stop in ranges:
        if out and start - out[-1][1] <= gap:
            out[-1] = out[-1][0], max(stop, out[-1][1])
        else:
            out.append((start, stop))
    return out


def _packed(segments: Iterable[Segment], target: int, piece: int) -> Iterator[list[Part]]:
    """Cut segments into what fits into one block each."""
    parts: list[Part] = []
    position = 0
    for offset, size in segments:
        while size:
            position += (target + offset - position) % ALIGNMENT
            room = piece - position
            if room <= 0 or (parts and size > room):
                yield parts
                parts, position = [], 0
                continue
            taken = min(size, room)
            parts.append((offset, taken, position))
            offset, size, position = offset + taken, size - taken, position + taken
    if parts:
        yield parts


def _fill(block: Block, source: int, parts: list[Part]) -> None:
    for offset, size, position in parts:
        ctypes.memmove(block.address + position, source + offset, size)  # lets other threads run


def _empty(block: Block, target: int, part: Part) -> None:
    offset, size, position = part
    ctypes.memmove(target + offset, block.address + position, size)


_stagings: dict[int, Staging] = {}
_fillers: ThreadPoolExecutor | None = None
_lock = threading.Lock()


def staging(context: Context) -> Staging:
    """The staging memory of a context."""
    found = _stagings.get(context.id)
    if found is None:
        found = _stagings.setdefault(context.id, Staging(context))
    return found


def _submit(work: Callable[..., None], *arguments: object) -> Future[None] | None:
    """Have a thread do something; ``None`` when the interpreter is ending and the caller must do it."""
    global _fillers
    with _lock:
        if _fillers is None:
            count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            _fillers = ThreadPoolExecutor(min(FILLERS, count), thread_name_prefix="cuda-captures-copy")
        try:
            return _fillers.submit(work, *arguments)
        except RuntimeError:
            return None


def _forget() -> None:
    global _fillers, _lock
    _stagings.clear()
    _fillers, _lock = None, threading.Lock()


driver.after_fork(_forget)
