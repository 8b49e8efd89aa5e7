"""Sets of bytes against sets of numbers."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cuda_captures.spans import Spans

STEPS = st.lists(st.tuples(st.sampled_from(("add", "remove")), st.integers(0, 40), st.integers(0, 40)), max_size=30)


@given(STEPS)
def test_behaves_like_a_set_of_numbers(steps: list[tuple[str, int, int]]) -> None:
    spans, numbers = Spans(), set[int]()
    for verb, start, stop in steps:
        if verb == "add":
            spans.add(start, stop)
            numbers |= set(range(start, stop))
        else:
            spans.remove(start, stop)
            numbers -= set(range(start, stop))
        ranges = spans.ranges()
        assert {number for low, high in ranges for number in range(low, high)} == numbers
        assert all(low < high for low, high in ranges)
        assert all(one[1] < two[0] for one, two in pairwise(ranges))
        assert bool(spans) == bool(numbers)
        assert len(spans) == len(ranges)


def test_takes_several_at_once_and_forgets_all() -> None:
    spans = Spans([(5, 6), (1, 2)])
    spans.update([(2, 5)])
    assert spans.ranges() == [(1, 6)]
    spans.clear()
    assert not spans
