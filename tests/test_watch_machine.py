"""Noticing edits, whatever happens in whatever order: Hypothesis looks for the order in which one is missed."""

from __future__ import annotations

import gc
import mmap
import random

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cuda_captures.page_trial import proven_writes
from cuda_captures.pages import CannotWatch
from cuda_captures.watch import Watch, watch
from edits import EDITS, PAGE, Bytes, address_of, advise, anonymous, map_anew

PAGES = 12
SIZE = PAGES * PAGE
OFFSETS = st.one_of(st.integers(0, SIZE), st.integers(0, PAGES).map(lambda page: page * PAGE))


class Copy:
    """A device's copy of part of the memory, and what it must hold once everything was sent."""

    def __init__(self, host: Bytes, start: int, stop: int, way: str, verify: bool) -> None:
        self.start, self.stop = start, stop
        self.host = host[start:stop]
        address = address_of(self.host)
        self.watch: Watch = watch(address, address + stop - start, self.host, way=way, verify=verify)
        self.memory = bytearray(stop - start)
        self.staged: list[tuple[int, Bytes]] = []

    def check(self) -> None:
        for start, stop in self.watch.poll():
            data = self.host[start:stop].copy()
            self.memory[start:stop] = data.data
            self.watch.sent(start, data)
        assert self.watch.poll() == []
        differs = np.flatnonzero(np.frombuffer(self.memory, np.uint8) != self.host)
        assert not len(differs), f"missed {differs[0]}"


class Noticing(RuleBasedStateMachine):
    """Memory that is edited, and any number of copies of parts of it."""

    way = "bytes"

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[Copy] = []

    @initialize(lead=st.sampled_from((0, 16, PAGE - 1)), touched=st.booleans(), shared=st.booleans())
    def begin(self, lead: int, touched: bool, shared: bool) -> None:
        kind = mmap.MAP_SHARED if shared and self.way != "pages" else mmap.MAP_PRIVATE
        self.pages = anonymous(SIZE + 2 * PAGE, kind | mmap.MAP_ANONYMOUS)
        self.host = self.pages[lead : lead + SIZE]
        if touched:
            self.pages[:] = 1
        self.make(0, SIZE, False)

    @rule(start=OFFSETS, stop=OFFSETS, verify=st.booleans())
    def make(self, start: int, stop: int, verify: bool) -> None:
        start, stop = min(start, stop), max(start, stop)
        if stop - start >= (2 * PAGE if self.way == "pages" else 1) and len(self.copies) < 5:
            self.copies.append(Copy(self.host, start, stop, self.way, verify))

    @rule(kind=st.sampled_from(EDITS), seed=st.integers(0, 1 << 30))
    def edit(self, kind: object, seed: int) -> None:
        assert callable(kind)
        kind(self.host, random.Random(seed))

    @rule(at=st.integers(0, SIZE - 1), value=st.integers(0, 255))
    def edit_one(self, at: int, value: int) -> None:
        self.host[at] = value

    @rule(first=st.integers(0, PAGES), count=st.integers(1, 3))
    def throw_away(self, first: int, count: int) -> None:
        advise(self.pages[first * PAGE : (first + count) * PAGE - 1], mmap.MADV_DONTNEED)

    @rule(first=st.integers(0, PAGES), count=st.integers(1, 2))
    def map_anew(self, first: int, count: int) -> None:
        low = address_of(self.pages) + first * PAGE
        kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        map_anew(low, low + min(count, PAGES + 2 - first) * PAGE, kind)

    @precondition(lambda self: self.copies)
    @rule(data=st.data())
    def poll_and_read(self, data: st.DataObject) -> None:
        """The bytes are read; that they were sent is said later, or never."""
        copy = data.draw(st.sampled_from(self.copies))
        copy.staged = [(start, copy.host[start:stop].copy()) for start, stop in copy.watch.poll()]

    @precondition(lambda self: any(copy.staged for copy in self.copies))
    @rule(data=st.data(), cut=st.integers(0, SIZE))
    def send(self, data: st.DataObject, cut: int) -> None:
        """Some of what was read arrives, in two pieces each and in any order."""
        copy = data.draw(st.sampled_from([copy for copy in self.copies if copy.staged]))
        for start, staged in data.draw(st.permutations(copy.staged)):
            if data.draw(st.booleans()):
                for at, piece in ((start + cut, staged[cut:]), (start, staged[:cut])):
                    if len(piece):
                        copy.memory[at : at + len(piece)] = piece.tobytes()
                        copy.watch.sent(at, piece)
        copy.staged = []

    @precondition(lambda self: self.copies)
    @rule(data=st.data(), at=st.integers(0, SIZE - 1), size=st.integers(1, 3 * PAGE), value=st.integers(0, 255))
    def kernel_writes(self, data: st.DataObject, at: int, size: int, value: int) -> None:
        copy = data.draw(st.sampled_from(self.copies))
        copy.staged = []  # an upload is through before a kernel runs, or it has failed
        at %= copy.stop - copy.start
        written = np.full(min(size, copy.stop - copy.start - at), value, np.uint8)
        copy.memory[at : at + len(written)] = written.tobytes()
        if data.draw(st.booleans()):
            copy.watch.receiving(at, len(written))
        copy.host[at : at + len(written)] = written
        if data.draw(st.booleans()):  # meanwhile
            copy.host[data.draw(st.integers(at, at + len(written) - 1))] ^= 1
        if data.draw(st.booleans()):
            other = data.draw(st.sampled_from(self.copies))
            other.staged = []  # what is sent has been read after the last poll
            other.watch.poll()
        copy.watch.received(at, written)

    @precondition(lambda self: self.copies)
    @rule(data=st.data())
    def check(self, data: st.DataObject) -> None:
        copy = data.draw(st.sampled_from(self.copies))
        copy.staged = []
        copy.check()

    @precondition(lambda self: len(self.copies) > 1)
    @rule(data=st.data(), closed=st.booleans())
    def let_go(self, data: st.DataObject, closed: bool) -> None:
        copy = self.copies.pop(data.draw(st.integers(0, len(self.copies) - 1)))
        if closed:
            copy.watch.close()
        del copy
        gc.collect()

    @invariant()
    def way_is_kept(self) -> None:
        assert all(copy.watch.way == self.way for copy in self.copies)

    def teardown(self) -> None:
        for copy in self.copies:
            copy.check()


class NoticingByDigest(Noticing):
    """The same."""

    way = "digest"


class NoticingByPages(Noticing):
    """The same."""

    way = "pages"


LIMITS = settings(max_examples=40, stateful_step_count=40, deadline=None)
Noticing.TestCase.settings = NoticingByDigest.TestCase.settings = NoticingByPages.TestCase.settings = LIMITS
TestByBytes = Noticing.TestCase
TestByDigest = NoticingByDigest.TestCase
TestByPages = NoticingByPages.TestCase

try:
    proven_writes().abandon()
except CannotWatch as reason:
    TestByPages = pytest.mark.skip(str(reason))(TestByPages)
