"""Reports: how they look in a terminal and in a notebook, and what programs get."""

from __future__ import annotations

import dataclasses
import html
import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import cuda_captures
from cuda_captures.report import Advice, CaptureReport, Row, Specialisation
from kernels_in_memory import Kernel, kernel_of
from memory_driver import MemoryDriver

SIGNATURE = "void(float64[::1])"
TABLE = np.zeros((300, 4))[:, ::2]


def row(**changes: Any) -> Row:
    made = Row("t", ("global `t`",), "/a/b.py:3", "int8", (2,), (1,), 2, "live", "digest", "because", True, True)
    return dataclasses.replace(made, **changes)


HOSTILE = "<script>alert('x')</script>&\"[bold]"


def hostile() -> CaptureReport:
    one = Specialisation(HOSTILE, "compiled", None, (HOSTILE,), (HOSTILE,), 0, 0)
    rows = (row(name=HOSTILE, path=(HOSTILE,), where=HOSTILE, dtype=HOSTILE, why=HOSTILE, noticed=HOSTILE),)
    return CaptureReport(HOSTILE, HOSTILE, rows, (one,), advice=(Advice(HOSTILE, HOSTILE),), note=HOSTILE)


class Tags(HTMLParser):
    VOID = ("br",)

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_is_escaped_and_well_formed() -> None:
    tags = Tags()
    shown = hostile()._repr_html_()
    tags.feed(shown)
    assert tags.open == []
    assert tags.seen <= {"style", "div", "p", "b", "span", "table", "thead", "tbody", "tr", "th", "td", "code", "br"}
    assert HOSTILE in tags.text
    assert html.escape(HOSTILE) in shown


def test_html_has_no_colour_of_text_or_page_of_its_own() -> None:
    style = hostile()._repr_html_().partition("</style>")[0]
    assert set(re.findall(r"[{;]\s*color:\s*([^;]+);", style)) == {"inherit"}
    backgrounds = re.findall(r"background:\s*([^;]+);", style)
    assert backgrounds
    for one in backgrounds:  # translucent, or none
        assert one in ("none", "transparent") or re.fullmatch(r"rgba\(\d+, \d+, \d+, \.\d+\)", one)


def test_markup_in_names_is_shown_and_not_obeyed() -> None:
    assert "[bold]" in "".join(str(hostile()).split())


@pytest.mark.parametrize("width", [40, 80, 200])
def test_it_fits_the_terminal(width: int, fake: MemoryDriver) -> None:
    kernel = Kernel(kernel_of("table[0]", table=np.zeros(100)))
    kernel.launch()
    console = Console(width=width, force_terminal=True, color_system="truecolor")
    with console.capture() as capture:
        console.print(kernel.report())
    plain = re.sub(r"\x1b\[[\d;]*m", "", capture.get())
    assert plain != capture.get()
    assert max(map(len, plain.splitlines())) <= width
    assert "table" in plain


def test_text_has_no_colours_and_repr_is_the_same(fake: MemoryDriver) -> None:
    report = Kernel(kernel_of("table[0]", table=np.zeros(100))).report()
    assert "\x1b" not in str(report)
    assert repr(report) == str(report).rstrip()


def test_no_captures() -> None:
    assert "It captures no arrays." in str(CaptureReport("k", "", ()))
    assert "It captures no arrays." in CaptureReport("k", "", ())._repr_html_()


def test_programs_get_plain_values(fake: MemoryDriver) -> None:
    kernel = Kernel(kernel_of("table[0], np.int32(3)", table=np.zeros((4, 5)), np=np))
    kernel.launch()
    found = kernel.report().to_dict()
    assert json.loads(json.dumps(found)) == found
    (captured,) = found["captures"]
    assert captured["shape"] == [4, 5]
    assert captured["strides"] == [40, 8]
    assert captured["copies"][0]["uploads"] == 1
    assert found["constant_memory"] == 8
    assert found["constant_memory_limit"] == 65_536
    assert found["specialisations"][0]["source"] == "compiled"


def test_an_explanation_as_a_dictionary(cuda: Any) -> None:
    @cuda.jit
    def kernel(out):
        out[0] = TABLE[0, 0]

    found = cuda_captures.explain(kernel, SIGNATURE).to_dict()
    assert json.loads(json.dumps(found)) == found
    assert len(found["slots"]) == 1
    assert found["key"].startswith("cuda-captures key")
    assert "ptx" not in found
    assert found["why_private"] == []


@pytest.mark.parametrize(
    ("contents", "slots", "text"),
    [
        (0, 0, "0 of 65,536 bytes"),
        (0, 8, "8 of 65,536 bytes (less than 0.1%), no contents of arrays"),
        (0, 6554, "6,554 of 65,536 bytes (10.0%), no contents of arrays"),
        (72, 8, "80 of 65,536 bytes (0.1%), 72 of them contents of arrays"),
    ],
)
def test_constant_memory_in_words(contents: int, slots: int, text: str) -> None:
    one = Specialisation("", "compiled", "0", (), (), contents, slots)
    assert f"constant memory: {text}\n" in str(CaptureReport("k", "", (row(),), (one,)))
