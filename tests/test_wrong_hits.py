"""The key is never equal where compiled code could not be shared.

Pairs of programs differ in one thing.  If their keys are equal, the first one's code must do for the second: it is
run with the second one's arrays, which are found by the first one's recipes and put into its places, as slots would
be.  If that gives another result than the second program, it is a wrong hit.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
from hypothesis import given, settings

from cuda_captures.discovery import (
    AttributePlace,
    CellPlace,
    Discovery,
    GlobalPlace,
    ItemPlace,
    Place,
    discover,
    follow,
)
from cuda_captures.key import Unkeyable, array_signature, key_of
from cuda_captures.policy import policy_of
from program_pairs import KINDS, Piece, Program, observed, pairs, program

EXAMPLES = int(os.environ.get("CUDA_CAPTURES_PAIRS", "3000"))
Pair = tuple[tuple[Piece, ...], tuple[Piece, ...]]
COUNTS: Counter[str] = Counter()


def key_text(discovery: Discovery, general: bool) -> str | None:
    """The key, or None if there is none."""
    forms = {}
    for capture in discovery.arrays:
        form = array_signature(capture.value, policy_of(capture.value, capture.place.name, None, "live"))
        forms[capture.place.key] = form.general() if general else form
    try:
        return key_of(discovery, signature="(int64)", options={}, target={"cc": "9.0"}, forms=forms).text
    except Unkeyable:
        return None


def put(place: Place, value: Any) -> None:
    """Bind what a place means to something else."""
    if isinstance(place, GlobalPlace):
        place.namespace[place.name] = value
    elif isinstance(place, CellPlace):
        place.cell.cell_contents = value
    elif isinstance(place, AttributePlace):
        setattr(place.module, place.name, value)
    elif isinstance(place, ItemPlace):
        items = place.parent.read()
        put(place.parent, tuple.__new__(type(items), (*items[: place.index], value, *items[place.index + 1 :])))
    else:
        raise TypeError(place)


def run_with_arrays_of(first: Program, discovery: Discovery, second: Program) -> Any:
    """What the first program's code does with the second one's arrays."""
    found = []
    for capture in discovery.arrays:
        if policy_of(capture.value, capture.place.name, None, "live") != "constant":
            found.append((capture.place, follow(second.kernel, capture.recipe).read()))
    for place, value in found:
        put(place, value)
    return observed(first.kernel)


def is_wrong_hit(pair: Pair, general: bool = False, spoil: Callable[[str], str] | None = None) -> bool:
    """Whether the key calls two programs equal that are not.

    Parameters
    ----------
    spoil
        What to do to the text of a key, to see whether it is caught.
    """
    first, second = program(pair[0], salt=0), program(pair[1], salt=7)
    discovery = discover(first.kernel)
    texts = [key_text(discovery, general), key_text(discover(second.kernel), general)]
    COUNTS["pairs"] += 1
    if None in texts:
        COUNTS["no key"] += 1
        return False
    if spoil is not None:
        texts = [spoil(str(text)) for text in texts]
    if texts[0] != texts[1]:
        COUNTS["misses"] += 1
        return False
    COUNTS["hits"] += 1
    return bool(run_with_arrays_of(first, discovery, second) != observed(second.kernel))


@pytest.mark.parametrize("general", [False, True], ids=["exact", "general"])
def test_no_wrong_hits(general: bool) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
    @given(pairs())
    def search(pair: Pair) -> None:
        assert not is_wrong_hit(pair, general)

    COUNTS.clear()
    search()
    assert COUNTS["misses"] > EXAMPLES // 10
    assert COUNTS["hits"] > EXAMPLES // 50


@pytest.mark.parametrize("general", [False, True], ids=["exact", "general"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_wrong_hits_of_one_kind(kind: str, general: bool) -> None:
    """Each kind of difference alone, so that none is drowned by the others."""

    @settings(max_examples=EXAMPLES // 20, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
    @given(pairs((kind,)))
    def search(pair: Pair) -> None:
        assert not is_wrong_hit(pair, general)

    search()


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"opaque"}))
def test_programs_made_twice_have_one_key(kind: str) -> None:
    """Addresses and contents are not in the key: a miss here would be a compilation for nothing."""

    @settings(max_examples=100, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
    @given(pairs((kind,)))
    def search(pair: Pair) -> None:
        if "'constant'" in repr(pair[0]):  # whose contents differ
            return
        texts = [key_text(discover(program(pair[0], salt).kernel), False) for salt in (0, 7)]
        assert texts[0] == texts[1]
        assert texts[0] is not None or kind in ("default", "device_value", "module_attribute", "tuples", "global_value")

    search()


# Lines of the key, and kinds of programs that get a wrong hit without them.
LINES = {
    r"function \d+ code = .*": ("bytecode",),
    r"function \d+ (constant \d+ )*constant \d+ = (?!code).*": ("literal",),
    r"function \d+ constant \d+ (constant \d+ )*(code|constant \d+) = .*": ("nested_lambda",),
    r"function \d+ (constant \d+ )*names = .*": ("attribute",),
    r"function \d+ parameters = .*": ("calling",),
    r"function \d+ variables = .*": ("calling",),
    r"function \d+ global .*": ("global_value",),
    r"function \d+ closure .*": ("closure_value",),
    r"function \d+ default .*": ("default",),
    r"function [1-9]\d* .*": ("device_chain",),
    r"function 0 global \w+ = function .*": ("sharing",),
    r"function \d+ \w+ \w+\.[\w.]* = .*": ("module_attribute",),
    r"function \d+ \w+ \w+\[.*": ("tuples",),
    r"function \d+ \w+ [\w.\[\]]+ = array .*": ("array",),
    r"function \d+ \w+ [\w.\[\]]+ = enum .*": ("enumeration",),
    r"function \d+ \w+ [\w.\[\]]+ = dtype .*": ("dtype",),
    r"function \d+ \w+ [\w.\[\]]+ = library .*": ("library",),
}


def without(lines: str) -> Callable[[str], str]:
    """Leave lines out of a key."""
    return lambda text: re.sub(rf"(?m)^{lines}$\n?", "", text)


def unshared(text: str) -> str:
    """Say of a place what it holds, even if it is a place that had its say before."""
    known: dict[str, str] = {}
    lines = []
    for line in text.splitlines():
        label, _, value = line.partition(" = ")
        known[label] = known.get(value.removeprefix("as "), value)
        lines.append(f"{label} = {known[label]}")
    return "\n".join(lines)


def renumbered(text: str) -> str:
    """Forget which function a name means."""
    return re.sub(r"= function \d+", "= function", text)


Spoil = Callable[[str], str]
SPOILS: dict[str, tuple[Spoil, tuple[str, ...]]] = {lines: (without(lines), kinds) for lines, kinds in LINES.items()}
SPOILS["places that are one"] = (unshared, ("namespaces", "sharing"))
SPOILS["which function"] = (renumbered, ("sharing",))
SPOILS["zeros"] = (lambda text: text.replace("-0.0", "0.0"), ("literal", "global_value"))
SPOILS["types"] = (lambda text: re.sub(r"(bool|int|float) (True|1\.0|1)\b", "1", text), ("literal", "global_value"))


GENERAL_SPOILS: dict[str, tuple[Spoil, tuple[str, ...]]] = {
    "shape of constants": (lambda text: re.sub(r" of array .*", "", text), ("array",)),
    "contents of constants": (lambda text: re.sub(r" contents \w+", "", text), ("array",)),
}
CASES = [(*case, False) for case in SPOILS.values()] + [(*case, True) for case in GENERAL_SPOILS.values()]


@pytest.mark.parametrize(("spoil", "kinds", "general"), CASES, ids=[*SPOILS, *GENERAL_SPOILS])
def test_the_search_catches_a_key_that_leaves_something_out(
    spoil: Spoil, kinds: tuple[str, ...], general: bool
) -> None:
    """The test of the test."""
    found = hypothesis.find(
        pairs(kinds),
        lambda pair: is_wrong_hit(pair, general, spoil),
        settings=settings(
            max_examples=20_000, deadline=None, derandomize=True, database=None, phases=[hypothesis.Phase.generate]
        ),
    )
    assert not is_wrong_hit(found, general)
