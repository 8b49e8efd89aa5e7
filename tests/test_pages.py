"""Noticing edits by pages: whatever can befall memory, and who must be told."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import re
import tempfile
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuda_captures import address_space, page_book
from cuda_captures.errors import CaptureError
from cuda_captures.page_trial import proven_writes
from cuda_captures.pages import WRITTEN_OR_ABSENT, PageWrites
from cuda_captures.watch import allow_pages, forbid_pages
from edits import LIBC, PAGE, Bytes, address_of, advise, anonymous, map_anew
from watching import NO_PAGES, holds, in_child, send, settled, watch_of


@pytest.fixture(params=["as found", "absent"])
def book(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[page_book.PageBook]:
    """A book of its own; also one for kernels that pass over memory without page tables."""
    if NO_PAGES:
        pytest.skip(NO_PAGES)

    def made() -> PageWrites:
        writes = proven_writes()
        if request.param == "absent":
            writes.masks = WRITTEN_OR_ABSENT
        return writes

    monkeypatch.setattr(page_book, "proven_writes", made)
    monkeypatch.setattr(page_book, "_book", None)
    book = page_book.page_book()
    yield book
    book.abandon()


def flags_at(address: int) -> set[str]:
    """VmFlags of the mapping at an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            low, high = (int(part, 16) for part in line.split()[0].split("-"))
            inside = low <= address < high
        elif inside and line.startswith("VmFlags:"):
            return set(line.split()[1:])
    raise LookupError(address)


class TestPages:
    def test_gives_pages(self, book: page_book.PageBook) -> None:
        array = anonymous(100 * PAGE)
        array[:] = 1
        watched = settled(array, "pages")
        array[[0, 3 * PAGE + 5, 50 * PAGE, 51 * PAGE, 100 * PAGE - 1]] = 2
        pages = [(0, 1), (3, 4), (50, 52), (99, 100)]
        assert watched.poll() == [(start * PAGE, stop * PAGE) for start, stop in pages]

    def test_reading_is_no_edit(self, book: page_book.PageBook) -> None:
        array = anonymous(100 * PAGE)
        watched = settled(array, "pages")
        assert int(array.sum()) == 0
        assert watched.poll() == []

    @pytest.mark.parametrize("touched", [True, False])
    @pytest.mark.parametrize("advice", [mmap.MADV_HUGEPAGE, mmap.MADV_NOHUGEPAGE])
    def test_huge_and_small_pages(self, book: page_book.PageBook, touched: bool, advice: int) -> None:
        array = anonymous(8 << 20, align=2 << 20)
        advise(array, advice)
        if touched:
            array[:] = 1
        watched = settled(array, "pages")
        for offset in (0, (2 << 20) - 1, (2 << 20) + 4097, (8 << 20) - 1):
            array[offset] += 1
            assert holds(send(watched, array), offset)
            assert watched.poll() == []
        array[:] = 3
        assert send(watched, array) == [(0, 8 << 20)]

    @pytest.mark.parametrize("advice", [mmap.MADV_HUGEPAGE, mmap.MADV_NOHUGEPAGE])
    @pytest.mark.parametrize("size", [PAGE, 2 << 20, 8 << 20])
    def test_memory_that_was_thrown_away(self, book: page_book.PageBook, advice: int, size: int) -> None:
        array = anonymous(8 << 20, align=2 << 20)
        advise(array, advice)
        array[:] = 1
        watched = settled(array, "pages")
        advise(array[:size], mmap.MADV_DONTNEED)
        assert not array[size - 1]
        assert holds(send(watched, array), 0, size // 2, size - 1)
        assert watched.poll() == []
        array[size // 2] = 4
        assert holds(watched.poll(), size // 2)

    def test_memory_that_was_thrown_away_and_not_looked_at(self, book: page_book.PageBook) -> None:
        array = anonymous(8 << 20, align=2 << 20)
        advise(array, mmap.MADV_HUGEPAGE)
        array[:] = 1
        watched = settled(array, "pages")
        advise(array, mmap.MADV_DONTNEED)
        assert watched.poll() == [(0, 8 << 20)]

    def test_memory_that_came_anew(self, book: page_book.PageBook) -> None:
        array = anonymous(64 * PAGE)
        array[:] = 1
        watched = settled(array, "pages")
        map_anew(address_of(array) + 8 * PAGE, address_of(array) + 16 * PAGE)
        assert holds(send(watched, array), *range(8 * PAGE, 16 * PAGE, PAGE))
        assert watched.poll() == []
        array[9 * PAGE] = 5
        assert holds(send(watched, array), 9 * PAGE)
        array[60 * PAGE] = 5
        assert holds(send(watched, array), 60 * PAGE)

    def test_memory_that_came_anew_is_told_to_everybody(self, book: page_book.PageBook) -> None:
        array = anonymous(64 * PAGE)
        array[:] = 1
        one, two = settled(array, "pages"), settled(array[9 * PAGE : 20 * PAGE], "pages")
        array[10 * PAGE] = 2
        map_anew(address_of(array) + 30 * PAGE, address_of(array) + 31 * PAGE)
        assert holds(send(one, array), 10 * PAGE, 30 * PAGE)
        assert holds(send(two, array[9 * PAGE : 20 * PAGE]), PAGE)

    def test_memory_that_came_anew_and_is_shared(self, book: page_book.PageBook) -> None:
        array = anonymous(64 * PAGE)
        watched = settled(array, "pages")
        map_anew(address_of(array), address_of(array) + PAGE, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
        assert send(watched, array) == [(0, len(array))]
        assert watched.way == "digest"
        assert "shared with other processes" in watched.why
        assert watched.poll() == []
        assert in_child(lambda: array.__setitem__(5, 5) is None)
        assert holds(watched.poll(), 5)

    def test_memory_that_moved_away(self, book: page_book.PageBook) -> None:
        """mremap with MREMAP_DONTUNMAP takes the pages and leaves the addresses."""
        array = anonymous(8 << 20, align=2 << 20)
        array[:] = 1
        watched = settled(array, "pages")
        LIBC.mremap.restype = ctypes.c_void_p
        size = ctypes.c_size_t(4 << 20)
        void = ctypes.c_void_p
        moved = LIBC.mremap(void(address_of(array)), size, size, 1 | 4, void(0))
        if moved in (None, void(-1).value):
            pytest.skip("no MREMAP_DONTUNMAP here")
        assert not array[0]
        assert holds(send(watched, array), 0, (4 << 20) - 1)
        assert watched.poll() == []
        LIBC.munmap(void(moved), size)

    def test_memory_that_is_gone(self, book: page_book.PageBook) -> None:
        array = anonymous(64 * PAGE)
        watched = settled(array, "pages")
        low = address_of(array)
        LIBC.munmap(ctypes.c_void_p(low + PAGE), ctypes.c_size_t(PAGE))
        map_anew(low, low + PAGE)
        with pytest.raises(CaptureError, match=r"memory of a captured NumPy array is gone: no memory is mapped at 0x"):
            watched.poll()
        map_anew(low + PAGE, low + 2 * PAGE)
        assert send(watched, array) == [(0, len(array))]

    def test_protection_of_the_memory_comes_and_goes(self, book: page_book.PageBook) -> None:
        array = anonymous(64 * PAGE)
        array[:] = 1
        watched = settled(array, "pages")
        for protection in (mmap.PROT_READ, 0, mmap.PROT_READ | mmap.PROT_WRITE):
            assert not LIBC.mprotect(ctypes.c_void_p(address_of(array)), ctypes.c_size_t(10 * PAGE), protection)
        send(watched, array)
        array[3] = 4
        assert holds(watched.poll(), 3)

    def test_neighbours_on_one_page(self, book: page_book.PageBook) -> None:
        array = anonymous(8 * PAGE)
        cut = 3 * PAGE + 100
        one, two = array[:cut], array[cut:]
        first, second = settled(one, "pages"), settled(two, "pages")
        two[:5] = 1
        assert send(first, one) == []
        assert send(second, two) == [(0, PAGE - 100)]
        one[-5:] = 1
        assert send(second, two) == []
        assert send(first, one) == [(3 * PAGE, cut)]
        assert "uw" not in flags_at(address_of(two))
        one[-5:] = 2
        written = np.full(50, 9, np.uint8)
        one[-50:] = written
        first.received(cut - 50, written)
        assert first.poll() == []

    def test_an_edit_that_somebody_else_found_first(self, book: page_book.PageBook) -> None:
        """It came between the reading of the bytes and the word that they were sent."""
        array = anonymous(8 * PAGE)
        one, two = settled(array, "pages"), settled(array, "pages")
        array[100] = 1
        staged = [(start, array[start:stop].copy()) for start, stop in one.poll()]
        array[101] = 2
        assert holds(two.poll(), 101)
        for start, data in staged:
            one.sent(start, data)
        assert holds(one.poll(), 101)

    def test_an_edit_that_somebody_else_found_during_a_copy_back(self, book: page_book.PageBook) -> None:
        array = anonymous(8 * PAGE)
        one, two = settled(array, "pages"), settled(array, "pages")
        written = np.full(len(array), 6, np.uint8)
        np.copyto(array, written)
        array[101] = 2
        assert holds(two.poll(), 101)
        one.received(0, written)
        assert holds(one.poll(), 101)

    def test_a_copy_back_is_an_edit_to_the_other_devices(self, book: page_book.PageBook) -> None:
        array = anonymous(8 * PAGE)
        one, two = settled(array, "pages"), settled(array, "pages")
        written = np.full(PAGE, 6, np.uint8)
        array[PAGE : 2 * PAGE] = written
        one.received(PAGE, written)
        assert one.poll() == []
        assert two.poll() == [(PAGE, 2 * PAGE)]

    def test_very_many_edits(self, book: page_book.PageBook) -> None:
        array = anonymous(16_000 * PAGE)
        array[:] = 1
        watched = settled(array, "pages")
        array[:: 2 * PAGE] = 2
        ranges = send(watched, array)
        assert holds(ranges, *range(0, len(array), 2 * PAGE))
        assert len(ranges) <= 1024
        assert watched.poll() == []
        array[5 * PAGE :: 3000 * PAGE] = 3
        assert len(watched.poll()) == 6

    def test_closing_leaves_ordinary_memory(self, book: page_book.PageBook) -> None:
        array = anonymous(64 * PAGE)
        array[:] = 1
        whole, part = settled(array, "pages"), settled(array[8 * PAGE : 9 * PAGE], "pages")
        assert "uw" in flags_at(address_of(array))
        whole.close()
        assert "uw" not in flags_at(address_of(array))
        assert "uw" in flags_at(address_of(array) + 8 * PAGE)
        array[8 * PAGE + 5] = 2
        assert holds(part.poll(), 5)
        del part
        gc.collect()
        assert "uw" not in flags_at(address_of(array) + 8 * PAGE)

    def test_closing_for_a_finalizer_waits_for_nobody(self, book: page_book.PageBook) -> None:
        array = anonymous(64 * PAGE)
        watched = settled(array, "pages")
        held, done = threading.Event(), threading.Event()

        def hold() -> None:
            with book.lock:
                held.set()
                done.wait(10)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(10)
        watched.close()
        done.set()
        thread.join()
        settled(anonymous(2 * PAGE), "pages")  # the next one tidies up
        assert "uw" not in flags_at(address_of(array))

    def test_nothing_is_kept_alive(self, book: page_book.PageBook) -> None:
        array = anonymous(64 * PAGE)
        watched = settled(array, "pages")
        gone = weakref.ref(watched)
        memory = weakref.ref(array)
        del watched
        gc.collect()
        assert gone() is None
        del array
        gc.collect()
        assert memory() is None

    def test_memory_that_went_and_came_back_is_watched_anew(self, book: page_book.PageBook) -> None:
        for _ in range(20):
            array = np.zeros(300_000, np.uint8)  # on the heap, where neighbours are busy
            watched = settled(array, "pages")
            array[1000] = 1
            assert holds(watched.poll(), 1000)
            del array

    def test_an_interrupted_poll_forgets_nothing(
        self, book: page_book.PageBook, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        array = anonymous(64 * PAGE)
        one, two = settled(array, "pages"), settled(array, "pages")
        array[5 * PAGE] = 1
        collect = book.collect

        def interrupted(*arguments: Any) -> list[tuple[int, int]]:
            collect(*arguments)
            raise KeyboardInterrupt

        monkeypatch.setattr(book, "collect", interrupted)
        with pytest.raises(KeyboardInterrupt):
            one.poll()
        monkeypatch.undo()
        assert holds(two.poll(), 5 * PAGE)
        assert holds(one.poll(), 5 * PAGE)

    def test_somebody_has_closed_the_descriptors(self, book: page_book.PageBook) -> None:
        array = anonymous(64 * PAGE)
        for names in (("_faults",), ("_pagemap",), ("_faults", "_pagemap")):
            watched = settled(array, "pages")
            for name in names:
                os.close(getattr(book._writes, name))
            array[99] += 1
            with tempfile.TemporaryFile(), tempfile.TemporaryFile():  # which take the numbers
                assert holds(send(watched, array), 99)
                array[98] += 1
                assert holds(send(watched, array), 98)
                assert watched.way == "pages"
                watched.close()

    def test_somebody_else_watches_already(self, book: page_book.PageBook) -> None:
        array = anonymous(64 * PAGE)
        other = PageWrites()
        other.register(address_of(array), address_of(array) + len(array))
        watched = watch_of(array)
        assert watched.way == "digest"
        assert "somebody else watches these pages" in watched.why
        other.abandon()
        assert watch_of(array).way == "pages"

    def test_pages_can_be_forbidden(self, book: page_book.PageBook) -> None:
        array = anonymous(64 * PAGE)
        watched, other = settled(array, "pages"), settled(anonymous(2 * PAGE), "pages")
        low = address_of(array) + 5 * PAGE
        forbid_pages(low, low + PAGE, "it is page-locked for device 0")
        try:
            assert send(watched, array) == [(0, len(array))]
            assert (watched.way, watched.why) == ("digest", "it is page-locked for device 0")
            assert watch_of(array).why == "it is page-locked for device 0"
            assert watch_of(array[: 5 * PAGE], "pages").way == "pages"
            assert other.poll() == []
            with pytest.raises(ValueError, match="its pages cannot be watched: it is page-locked for device 0"):
                watch_of(array, "pages")
        finally:
            allow_pages(low, low + PAGE)
        assert watch_of(array, "pages").way == "pages"

    def test_pages_forbidden_during_a_copy_back(self, book: page_book.PageBook) -> None:
        array = anonymous(64 * PAGE)
        watched = settled(array, "pages")
        low = address_of(array)
        forbid_pages(low, low + PAGE, "it is page-locked for device 0")
        try:
            watched.received(0, array.copy())
            assert watched.way == "digest"
            assert watched.poll() == [(0, len(array))]
        finally:
            allow_pages(low, low + PAGE)

    def test_pinned_memory(self, book: page_book.PageBook, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        array = anonymous(64 * PAGE)
        watched = settled(array, "pages")
        status = tmp_path / "status"
        status.write_text("Name:\tpython\nVmPeak:\t  100 kB\nVmPin:\t    2048 kB\nVmHWM:\t  9 kB\n")
        monkeypatch.setattr(address_space, "_status", address_space._OwnFile(str(status)))
        assert watched.poll() == []  # pinning writes a page, as Linux sees it
        array[3] = 1
        assert watched.poll() == [(0, len(array))]
        assert watched.way == "digest"
        assert "2,048 kB of this process are pinned (VmPin)" in watched.why
        assert watch_of(array).way == "digest"

    def test_pinned_memory_for_real(self, book: page_book.PageBook) -> None:
        """io_uring's registered buffers are pinned as a network card's are."""
        assert in_child(lambda: pinned_and_noticed(anonymous(64 * PAGE)))

    def test_many_watches_at_once(self, book: page_book.PageBook) -> None:
        array = anonymous(600 * PAGE)
        pieces = [array[start * PAGE - 10 : (start + 4) * PAGE + 1] for start in range(1, 590, 2)]
        watches = [settled(piece, "pages") for piece in pieces]
        for watched, piece in zip(watches, pieces, strict=True):
            send(watched, piece)
        array[300 * PAGE] = 1
        found = [number for number, watched in enumerate(watches) if watched.poll()]
        assert found == [148, 149]
        for watched in watches:
            watched.close()
        assert "uw" not in flags_at(address_of(array) + 300 * PAGE)

    def test_threads_that_poll_and_edit(self, book: page_book.PageBook) -> None:
        array = anonymous(64 * PAGE)
        watches = [settled(array, "pages") for _ in range(3)]
        seen = [np.zeros(64, np.int64) for _ in watches]
        over = threading.Event()

        def follow(number: int) -> None:
            last = False
            while True:
                for start, stop in watches[number].poll():
                    staged = array[start:stop].copy()
                    seen[number][start // PAGE : stop // PAGE] = staged.view(np.int64)[:: PAGE // 8]
                    watches[number].sent(start, staged)
                if last:
                    return
                last = over.is_set()

        threads = [threading.Thread(target=follow, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        counters = array.view(np.int64)[:: PAGE // 8]
        for step in range(20_000):
            counters[step * 7 % 64] += 1
        over.set()
        for thread in threads:
            thread.join()
        for copy in seen:
            np.testing.assert_array_equal(copy, counters)


def pinned_and_noticed(array: Bytes) -> bool:
    array[:] = 1
    watched = settled(array, "pages")
    ring = LIBC.syscall(425, 4, ctypes.create_string_buffer(120))
    buffer = (ctypes.c_size_t * 2)(address_of(array), 8 * PAGE)
    if ring < 0 or LIBC.syscall(427, ring, 0, ctypes.byref(buffer), 1):
        return True  # not allowed here
    return watched.poll() == [(0, len(array))] and watched.way == "digest"


class TestOwnFiles:
    """Descriptors that are kept, and what others may do to them."""

    def test_one_that_was_closed_or_replaced_is_opened_again(self, tmp_path: Path) -> None:
        path, other = tmp_path / "one", tmp_path / "other"
        path.write_text("mine")
        other.write_text("another's")
        file = address_space._OwnFile(str(path))
        assert file.use(address_space._read) == b"mine"
        os.close(file._descriptor)
        assert file.use(address_space._read) == b"mine"
        stranger = os.open(other, os.O_RDONLY)
        os.dup2(stranger, file._descriptor)
        assert file.use(address_space._read) == b"mine"

    def test_a_forked_child_asks_about_itself(self) -> None:
        file = address_space._OwnFile("/proc/self/stat")
        parents = file.use(address_space._read).split()[0]
        assert int(parents) == os.getpid()
        assert in_child(lambda: int(file.use(address_space._read).split()[0]) == os.getpid())
