"""What the tests of noticing edits share."""

from __future__ import annotations

import os
from typing import Any

import pytest

from cuda_captures.page_trial import proven_writes
from cuda_captures.pages import CannotWatch
from cuda_captures.watch import Watch, watch
from edits import Bytes, address_of


def _pages_work() -> str:
    try:
        proven_writes().abandon()
    except CannotWatch as reason:
        return str(reason)
    return ""


NO_PAGES = _pages_work()
needs_pages = pytest.mark.skipif(bool(NO_PAGES), reason=NO_PAGES)


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


def in_child(check: Any) -> bool:
    child = os.fork()
    if not child:
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
