"""Finding pieces of memory by address, against asking each of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cuda_captures.intervals import Intervals

intervals = st.tuples(st.integers(0, 2000), st.one_of(st.integers(1, 8), st.integers(1, 1500))).map(
    lambda pair: (pair[0], pair[0] + pair[1])
)


@given(st.lists(intervals, max_size=40), st.lists(st.integers(0, 39)), intervals)
def test_finds_what_asking_each_one_finds(
    pieces: list[tuple[int, int]], gone: list[int], wanted: tuple[int, int]
) -> None:
    known: Intervals[list[int]] = Intervals()
    items = [[number] for number in range(len(pieces))]
    for (start, stop), item in zip(pieces, items, strict=True):
        known.add(start, stop, item)
    left = set(range(len(pieces)))
    for number in gone:
        if number < len(pieces):
            known.remove(*pieces[number], items[number])
            left.discard(number)
    assert len(known) == len(left)
    assert {item[0] for item in known} == left
    found = [item[0] for item in known.overlapping(*wanted)]
    assert set(found) == {n for n in left if pieces[n][0] < wanted[1] and wanted[0] < pieces[n][1]}
    assert len(found) == len(set(found))
    assert [pieces[n][0] for n in found] == sorted(pieces[n][0] for n in found)


def test_many_neighbours_are_not_looked_at() -> None:
    class Counted(int):
        looked = 0

        def __gt__(self, other: object) -> bool:
            Counted.looked += 1
            return int(self) > int(other)  # type: ignore[call-overload]

    known: Intervals[int] = Intervals()
    known.add(0, 1 << 30, -1)  # one large one does not make all small ones before it candidates
    for number in range(1000):
        known.add(number << 20, Counted((number + 1) << 20), number)
    assert known.overlapping(500 << 20, (500 << 20) + 8) == [-1, 500]
    assert Counted.looked <= 8
