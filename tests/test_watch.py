"""Noticing edits of host memory: the choice of a way, and what each way promises."""

from __future__ import annotations

import ctypes
import gc
import itertools
import mmap
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuda_captures import address_space, page_book, ways
from cuda_captures.errors import CaptureError
from cuda_captures.page_trial import proven_writes
from cuda_captures.pages import WRITTEN_OR_ABSENT, CannotWatch, PageWrites
from cuda_captures.watch import SMALL, Watch, allow_pages, forbid_pages, watch
from edits import EDITS, LIBC, PAGE, Bytes, address_of, advise, anonymous, map_anew


def _pages_work() -> str:
    try:
        proven_writes().abandon()
    except CannotWatch as reason:
        return str(reason)
    return ""


NO_PAGES = _pages_work()
needs_pages = pytest.mark.skipif(bool(NO_PAGES), reason=NO_PAGES)
WAYS = ["bytes", "digest", pytest.param("pages", marks=needs_pages)]


def watch_of(array: Bytes, way: str | None = None, **options: Any) -> Watch:
    return watch(address_of(array), address_of(array) + array.nbytes, array, way=way, **options)


def send(watched: Watch, array: Bytes) -> list[tuple[int, int]]:
    """Poll and send everything; what was sent."""
    ranges = watched.poll()
    for start, stop in ranges:
        watched.sent(start, array[start:stop].copy())
    return ranges


def settled(array: Bytes, way: str | None = None, **options: Any) -> Watch:
    """A watch whose everything is sent."""
    watched = watch_of(array, way, **options)
    send(watched, array)
    assert watched.poll() == []
    return watched


def holds(ranges: list[tuple[int, int]], *offsets: int) -> bool:
    return all(any(start <= offset < stop for start, stop in ranges) for offset in offsets)


@pytest.fixture(params=[0, 48])
def array(request: pytest.FixtureRequest) -> Bytes:
    """On pages of its own, and not quite."""
    lead: int = request.param
    return anonymous(65 * PAGE)[lead : lead + 64 * PAGE]


# what a way promises


@pytest.mark.parametrize("way", WAYS)
class TestEveryWay:
    def test_gives_everything_first(self, array: Bytes, way: str) -> None:
        watched = watch_of(array, way)
        assert watched.way == way
        assert watched.poll() == [(0, len(array))]

    def test_gives_nothing_when_nothing_changed(self, array: Bytes, way: str) -> None:
        watched = settled(array, way)
        assert [watched.poll() for _ in range(3)] == [[]] * 3

    @pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
    def test_gives_every_edit(self, array: Bytes, way: str, edit: Any) -> None:
        array[:] = np.arange(len(array)) % 251
        watched = settled(array, way)
        chance = random.Random(3)
        for _ in range(20):
            before = array.copy()
            edit(array, chance)
            ranges = send(watched, array)
            assert holds(ranges, *np.flatnonzero(before != array).tolist()[:1])
            assert holds(ranges, *np.flatnonzero(before != array).tolist()[-1:])
            assert watched.poll() == []

    @pytest.mark.parametrize("offset", [0, 1, PAGE - 1, PAGE, 64 * PAGE - 1])
    def test_gives_the_first_and_the_last_byte(self, array: Bytes, way: str, offset: int) -> None:
        watched = settled(array, way)
        array[offset] += 1
        assert holds(watched.poll(), offset)

    def test_gives_what_was_not_sent_again(self, array: Bytes, way: str) -> None:
        watched = watch_of(array, way)
        assert watched.poll() == [(0, len(array))]
        assert watched.poll() == [(0, len(array))]
        watched.sent(0, array[:1000].copy())
        assert holds(watched.poll(), 1000, len(array) - 1)
        watched.sent(1000, array[1000:-1].copy())
        assert holds(watched.poll(), len(array) - 1)
        watched.sent(len(array) - 1, array[-1:].copy())
        assert watched.poll() == []

    def test_gives_an_edit_until_it_was_sent(self, array: Bytes, way: str) -> None:
        watched = settled(array, way)
        array[5000:30000] = 9
        first = watched.poll()
        assert watched.poll() == first
        send(watched, array)
        assert watched.poll() == []

    def test_takes_pieces_in_any_order(self, array: Bytes, way: str) -> None:
        watched = watch_of(array, way)
        watched.poll()
        cuts = [0, 10, 4096, 70_001, 70_002, 200_000, len(array)]
        for start, stop in reversed(list(itertools.pairwise(cuts))):
            watched.sent(start, array[start:stop].copy())
        assert watched.poll() == []
        array[70_001] = 3
        assert holds(send(watched, array), 70_001)
        assert watched.poll() == []

    def test_gives_an_edit_made_while_the_bytes_were_read(self, array: Bytes, way: str) -> None:
        watched = settled(array, way)
        array[100] = 1
        ranges = watched.poll()
        staged = [(start, array[start:stop].copy()) for start, stop in ranges]
        array[101] = 2
        for start, data in staged:
            watched.sent(start, data)
        assert holds(watched.poll(), 101)

    def test_remembers_what_was_sent_and_not_what_is_there(self, array: Bytes, way: str) -> None:
        """An edit is staged, and taken back before anybody hears that it was sent."""
        watched = settled(array, way)
        array[100] = 1
        staged = [(start, array[start:stop].copy()) for start, stop in watched.poll()]
        array[100] = 0
        for start, data in staged:
            watched.sent(start, data)
        assert holds(watched.poll(), 100)

    def test_a_copy_back_is_no_edit(self, array: Bytes, way: str) -> None:
        watched = settled(array, way)
        for start, stop in ((0, len(array)), (5000, 90_000), (17, 18), (PAGE, 2 * PAGE)):
            written = np.full(stop - start, start % 200 + 1, np.uint8)
            np.copyto(array[start:stop], written)
            watched.received(start, written)
            for low, high in watched.poll():
                assert not (start < high and low < stop), "only what shares a page or a block may be sent again"
            send(watched, array)

    def test_makes_ready_for_a_copy_back(self, array: Bytes, way: str) -> None:
        one, two = settled(array, way), settled(array, way)
        array[20_000] = 1
        for value, (start, stop) in enumerate(((0, len(array)), (5000, 90_000), (17, 18)), 2):
            one.receiving(start, stop - start)
            written = np.full(stop - start, value, np.uint8)
            np.copyto(array[start:stop], written)
            one.received(start, written)
            assert holds(send(two, array), start, stop - 1)
            send(one, array)
            assert one.poll() == []
        one.receiving(10, 0)
        one.receiving(30_000, 10_000)
        array[35_000] = 1
        assert holds(one.poll(), 35_000)
        assert holds(two.poll(), 35_000)

    def test_an_edit_over_a_copy_back_is_one(self, array: Bytes, way: str) -> None:
        watched = settled(array, way)
        written = np.full(len(array), 7, np.uint8)
        np.copyto(array, written)
        array[40_000] = 8
        watched.received(0, written)
        assert holds(watched.poll(), 40_000)
        send(watched, array)
        assert watched.poll() == []

    def test_an_edit_before_a_copy_back_elsewhere_stays_one(self, array: Bytes, way: str) -> None:
        watched = settled(array, way)
        array[10] = 1
        written = np.full(1000, 7, np.uint8)
        array[50_000:51_000] = written
        watched.received(50_000, written)
        assert holds(watched.poll(), 10)

    def test_an_edit_beside_a_copy_back_on_its_page_is_one(self, array: Bytes, way: str) -> None:
        watched = settled(array, way)
        written = np.full(100, 7, np.uint8)
        array[500:600] = written
        array[499] = 1
        array[600] = 1
        watched.received(500, written)
        assert holds(watched.poll(), 499, 600)

    def test_a_copy_back_may_come_before_everything(self, array: Bytes, way: str) -> None:
        watched = watch_of(array, way)
        array[:] = 5
        watched.received(0, array.copy())
        assert watched.poll() == []

    def test_any_buffer_does(self, array: Bytes, way: str) -> None:
        watched = watch_of(array, way)
        watched.poll()
        watched.sent(0, bytes(array[:16]))
        watched.sent(16, array[16:32].copy().view(np.float64).data)
        watched.sent(32, bytearray(array[32:]))
        watched.sent(0, b"")
        watched.received(0, np.empty((0, 3)))
        assert watched.poll() == []

    @pytest.mark.parametrize("size", [1, 7, PAGE - 1, 2 * PAGE + 1])
    def test_odd_sizes_at_odd_places(self, array: Bytes, way: str, size: int) -> None:
        if way == "pages" and size < 2 * PAGE:
            with pytest.raises(ValueError, match="its pages cannot be watched: there is no whole page in it"):
                watch_of(array[13 : 13 + size], way)
            return
        piece = array[13 : 13 + size]
        watched = settled(piece, way)
        array[12] += 1
        array[13 + size] += 1
        for start, stop in send(watched, piece):
            assert 0 <= start < stop <= size
        piece[-1] += 1
        assert holds(watched.poll(), size - 1)

    def test_two_watches_of_the_same_bytes(self, array: Bytes, way: str) -> None:
        one, two = settled(array, way), settled(array, way)
        array[3000] = 1
        assert holds(send(one, array), 3000)
        assert holds(send(two, array), 3000)
        assert one.poll() == two.poll() == []

    def test_closes_more_than_once(self, array: Bytes, way: str) -> None:
        watched = settled(array, way)
        watched.close()
        watched.close()
        watched.sent(0, array)  # what is still under way
        watched.received(0, array)
        with pytest.raises(ValueError, match="closed"):
            watched.poll()

    def test_a_child_begins_anew(self, array: Bytes, way: str) -> None:
        watched = settled(array, way)
        array[77] = 1
        assert in_child(lambda: watched.poll() == [(0, len(array))] and send(watched, array) and not watched.poll())
        assert in_child(lambda: changed_and_seen(watched, array))
        assert holds(send(watched, array), 77), "what the child did must not take the parent's edit away"
        assert watched.poll() == []

    def test_a_child_can_make_watches(self, array: Bytes, way: str) -> None:
        watched = settled(array, way)
        array[5] = 1
        assert in_child(lambda: changed_and_seen(watch_of(array, way), array))
        assert holds(watched.poll(), 5)

    def test_verified(self, array: Bytes, way: str) -> None:
        watched = settled(array, way, verify=True)
        array[9] = 1
        assert holds(send(watched, array), 9)
        written = np.full(9, 9, np.uint8)
        array[90:99] = written
        watched.received(90, written)
        send(watched, array)
        assert watched.poll() == []

    def test_says_why_and_what_it_costs(self, array: Bytes, way: str) -> None:
        watched = watch_of(array, way)
        assert watched.why
        assert way in repr(watched)
        assert 0 < watched.cost < 1


def in_child(check: Any) -> bool:
    child = os.fork()
    if not child:
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def changed_and_seen(watched: Watch, array: Bytes) -> bool:
    send(watched, array)
    if watched.poll():
        return False
    array[12_345] += 1
    return holds(watched.poll(), 12_345)


def pinned_and_noticed(array: Bytes) -> bool:
    array[:] = 1
    watched = settled(array, "pages")
    ring = LIBC.syscall(425, 4, ctypes.create_string_buffer(120))
    buffer = (ctypes.c_size_t * 2)(address_of(array), 8 * PAGE)
    if ring < 0 or LIBC.syscall(427, ring, 0, ctypes.byref(buffer), 1):
        return True  # not allowed here
    return watched.poll() == [(0, len(array))] and watched.way == "digest"


# the choice


def test_small_arrays_are_compared() -> None:
    assert watch_of(np.zeros(SMALL, np.uint8)).way == "bytes"
    assert watch_of(np.zeros(1, np.uint8)).way == "bytes"


@needs_pages
def test_larger_arrays_are_watched_by_pages() -> None:
    assert watch_of(np.zeros(SMALL + 1, np.uint8)).way == "pages"
    assert watch_of(np.zeros(64 << 20, np.uint8)).way == "pages"


def test_an_empty_interval_needs_nothing() -> None:
    watched = watch(4096, 4096, None)
    assert watched.poll() == []
    assert watched.why == "there is nothing in it"


def test_bytes_objects_are_unwritable() -> None:
    for base in (bytes(100_000), memoryview(bytes(100_000)), memoryview(bytes(200_000))[8:100_008]):
        array = np.frombuffer(base, np.uint8)
        for piece in (array, array[100:], array[5:9]):
            watched = watch_of(piece)
            assert watched.way == "unwritable", watched.why
            assert send(watched, piece) == [(0, len(piece))]
            assert watched.poll() == []


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: np.broadcast_to(np.zeros(1, np.uint8), 9), id="broadcast"),
        pytest.param(lambda: _read_only(np.zeros(9, np.uint8)), id="owner that was made read-only"),
        pytest.param(lambda: _read_only(np.zeros(9, np.uint8)[:]), id="read-only view"),
        pytest.param(lambda: np.frombuffer(bytearray(9), np.uint8), id="bytearray"),
        pytest.param(lambda: np.frombuffer(memoryview(bytearray(9)).toreadonly(), np.uint8), id="read-only memoryview"),
    ],
)
def test_what_somebody_may_write_is_not_unwritable(make: Any) -> None:
    array = make()
    watched = watch(address_of(array), address_of(array) + 1, array)
    assert watched.way == "bytes"
    with pytest.raises(ValueError, match="only memory of bytes objects is known to be unwritable"):
        watch(address_of(array), address_of(array) + 1, array, way="unwritable")


def _read_only(array: Bytes) -> Bytes:
    array.flags.writeable = False
    return array


def test_memory_beside_a_bytes_object_is_not_unwritable() -> None:
    array = np.frombuffer(bytes(100), np.uint8)
    assert watch(address_of(array), address_of(array) + 101, array).way == "bytes"
    assert watch(address_of(array) - 1, address_of(array) + 100, array).way == "bytes"


@pytest.mark.parametrize("kind", ["shared", "file", "copy-on-write", "partly shared"])
def test_memory_that_others_have_too_is_digested(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "table"
    path.write_bytes(bytes(1 << 20))
    array: Any
    if kind == "shared":
        array, why = anonymous(1 << 20, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS), "shared with other processes"
    elif kind == "file":
        array, why = np.memmap(path, np.uint8, "r+"), "shared with other processes"
    elif kind == "copy-on-write":
        array, why = np.memmap(path, np.uint8, "c"), "mapped from a file"
    else:
        array, why = anonymous(1 << 20), "shared with other processes"
        map_anew(address_of(array) + (1 << 19), address_of(array) + (1 << 20), mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    watched = watch_of(array)
    assert watched.way == "digest"
    if not NO_PAGES:
        assert why in watched.why
        with pytest.raises(ValueError, match=f"its pages cannot be watched: the memory is {why}"):
            watch_of(array, "pages")
    send(watched, array)
    array[777_777] = 1
    assert holds(watched.poll(), 777_777)
    watched.close()


def test_edits_of_another_process_in_shared_memory() -> None:
    array = anonymous(1 << 20, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    watched = settled(array)
    assert in_child(lambda: array.__setitem__(999_999, 5) is None)
    assert holds(watched.poll(), 999_999)


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(ValueError, match=r"way must be unwritable, bytes, pages or digest \(got 'magic'\)"):
        watch(0, 0, None, way="magic")


def test_verification_raises_when_an_edit_was_missed(array: Bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = settled(array, "bytes", verify=True)
    array[70_000] = 1
    monkeypatch.setattr(ways.ComparedBytes, "poll", lambda self: [])
    with pytest.raises(CaptureError) as raised:
        watched.poll()
    text = str(raised.value)
    assert "an edit of a captured NumPy array went unnoticed: bytes 70,000 to 70,001" in text
    assert "(bytes: compared with what was sent" in text
    assert "cuda_captures.mapped(...)" in text
    monkeypatch.undo()
    assert watched.poll() == [(0, len(array))]


def test_digests_are_of_pieces() -> None:
    array = anonymous(8 << 20)
    watched = settled(array, "digest")
    array[3 << 20] = 1
    assert watched.poll() == [(3 << 20, 4 << 20)]


def test_digests_know_nothing_of_half_a_piece() -> None:
    array = anonymous(3 << 20)
    watched = settled(array, "digest")
    written = np.full(100, 3, np.uint8)
    array[1_500_000:1_500_100] = written
    watched.received(1_500_000, written)
    assert watched.poll() == [(1 << 20, 1_500_000), (1_500_100, 2 << 20)]
    send(watched, array)
    assert watched.poll() == []


# pages


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
        monkeypatch.setattr(address_space, "STATUS", str(status))
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


@needs_pages
def test_hugetlbfs_memory_is_digested() -> None:
    try:
        array = anonymous(4 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000, align=2 << 20)
    except OSError:
        pytest.skip("no huge pages are reserved here")
    watched = watch_of(array)
    assert watched.way == "digest"
    assert "mapped from a file" in watched.why


SANDBOXED = """
import ctypes, struct, sys
import numpy as np
libc = ctypes.CDLL(None, use_errno=True)
number = int(sys.argv[1])
program = b"".join(struct.pack("HBBI", *line) for line in (
    (0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | 1), (0x06, 0, 0, 0x7FFF0000)))
buffer = ctypes.create_string_buffer(program)
filter = struct.pack("HxxxxxxQ", 4, ctypes.addressof(buffer))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, filter) == 0
from cuda_captures.watch import watch
array = np.zeros(1 << 20, np.uint8)
watched = watch(array.ctypes.data, array.ctypes.data + array.nbytes, array)
print(watched.way, "|", watched.why)
"""


@pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="numbers of Linux on x86-64")
def test_a_sandbox_that_refuses() -> None:
    done = subprocess.run([sys.executable, "-c", SANDBOXED, "323"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "digest | userfaultfd is refused here (Operation not permitted)"


def test_a_machine_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_book, "_book", None)
    monkeypatch.setattr("platform.machine", lambda: "vax")
    watched = watch_of(anonymous(1 << 20))
    assert watched.way == "digest"
    assert "the page watch is not known for" in watched.why
    monkeypatch.undo()


def test_descriptors_do_not_leak() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        if not NO_PAGES:
            proven_writes().abandon()
    assert len(os.listdir("/proc/self/fd")) == before
