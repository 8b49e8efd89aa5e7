"""Which arrays need a general slot, and of what layout, once something about them has changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

from cuda_captures.code import Use
from cuda_captures.discovery import discover
from cuda_captures.layouts import general_layouts
from cuda_captures.signature import array_signature
from cuda_captures.slots import Slot

C, F, A = np.ones((4, 4)), np.asfortranarray(np.ones((4, 4))), np.ones((8, 8))[::2, ::2]
OTHER = np.ones((5, 5))
EMPTY = np.asfortranarray(np.ones((0, 4)))  # and so C-contiguous too


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass(frozen=True)
class Frozen:
    first: Any
    second: Any


@dataclass
class Open:
    first: Any
    second: Any


TABLES: Any = None
BODIES = {
    "arrays": lambda: TABLES[0][0] + TABLES[1][0],
    "three arrays": lambda: TABLES[0][0] + TABLES[1][0] + TABLES[2][0],
    "fields": lambda: TABLES.first[0] + TABLES.second[0],
    "fields of items": lambda: TABLES[0].first[0] + TABLES[1].first[0] + TABLES[0].second[0] + TABLES[1].second[0],
    "tuples in fields": lambda: TABLES.first[0][0] + TABLES.first[1][0] + TABLES.second[0][0] + TABLES.second[1][0],
}


def layouts(monkeypatch: pytest.MonkeyPatch, body: str, *meanings: Any) -> str:
    """The layouts of all arrays that a lambda reads, in order, after some meanings of its table: "-" is exact."""
    known: list[list[tuple[Use, Any]]] = []
    for tables in meanings:
        monkeypatch.setitem(globals(), "TABLES", tables)
        captures = discover(BODIES[body]).arrays
        forms = [(one.place, array_signature(one.value, "live")) for one in captures]
        general = general_layouts(known, forms)
        code = []
        for place, form in forms:
            layout = general.get(place.key)
            if layout is not None:
                form = form.general(layout)
            code.append((Use(Slot("s", form.ndim, layout is not None), place, form), place))
        known.append(code)
    return "".join(general.get(one.place.key, "-") for one in sorted(captures, key=lambda one: one.place.name))


@pytest.mark.parametrize(
    ("body", "meanings", "expected"),
    [
        ("arrays", [(C, C)], "--"),
        ("arrays", [(C, C), (OTHER, C)], "C-"),
        ("arrays", [(C, C), (A, A)], "AA"),
        ("arrays", [(A, C), (C, C)], "AA"),
        ("arrays", [Pair(A, C), Pair(C, C)], "AA"),
        ("arrays", [(A, C), (F, C)], "A-"),
        ("arrays", [(C, OTHER.astype("f4")), (A, OTHER.astype("f4"))], "A-"),
        ("arrays", [(F, F), (EMPTY, F)], "AA"),
        ("arrays", [(F, F), (F, F), (EMPTY, F)], "AA"),
        ("arrays", [(A, A), (EMPTY, F), (C, F)], "AA"),
        ("arrays", [(F, F), (EMPTY, F.astype("f4"))], "A-"),
        ("arrays", [(F, F), (F.astype("f4"), OTHER.T), (EMPTY, F)], "AA"),
        ("three arrays", [(F, F, C), (EMPTY, F, C)], "AAA"),  # as the first and the last are now
        ("three arrays", [(F, F, C), (C, C, F), (EMPTY, F, F)], "AAA"),
        ("fields", [Frozen(A, C), Frozen(C, C)], "A-"),
        ("fields", [Open(A, C), Open(C, C)], "A-"),
        ("fields of items", [(Open(A, C), Open(C, C)), (Open(C, C), Open(C, C))], "A-A-"),
        ("fields of items", [(Frozen(A, C), Frozen(C, C)), (Frozen(C, C), Frozen(C, C))], "A-A-"),
        ("tuples in fields", [Frozen((A, C), (C, C)), Frozen((C, C), (C, C))], "AA--"),
    ],
)
def test_layouts(monkeypatch: pytest.MonkeyPatch, body: str, meanings: list[Any], expected: str) -> None:
    assert layouts(monkeypatch, body, *meanings) == expected
