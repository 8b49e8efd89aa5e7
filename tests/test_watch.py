"""Noticing edits of host memory: the choice of a way, and what each way promises."""

from __future__ import annotations

import itertools
import mmap
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuda_captures import page_book, ways
from cuda_captures.errors import CaptureError
from cuda_captures.page_trial import proven_writes
from cuda_captures.watch import SMALL, Watch, watch
from edits import EDITS, PAGE, Bytes, address_of, anonymous, map_anew
from watching import NO_PAGES, holds, in_child, needs_pages, send, settled, watch_of

WAYS = ["bytes", "digest", pytest.param("pages", marks=needs_pages)]


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


def changed_and_seen(watched: Watch, array: Bytes) -> bool:
    send(watched, array)
    if watched.poll():
        return False
    array[12_345] += 1
    return holds(watched.poll(), 12_345)


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
