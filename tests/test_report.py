"""Reports: what is captured, how edits are noticed, what was copied and compiled and why, and what would be better."""

from __future__ import annotations

import dataclasses
import html
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import cuda_captures
from copies_in_memory import in_memory
from cuda_captures import device
from cuda_captures.advice import frozen_scalars
from cuda_captures.indexing import indexed_by_constants
from cuda_captures.report import Advice, CaptureReport, Level, Row, Specialisation
from interpreters import python
from kernels_in_memory import Kernel
from memory_driver import MemoryDriver

SIGNATURE = "void(float64[::1])"
COEFFICIENTS = np.arange(9.0)
TABLE = np.zeros((300, 4))[:, ::2]


@pytest.fixture
def fake() -> Iterator[MemoryDriver]:
    yield from in_memory()


def kernel_of(body: str, **names: Any) -> Any:
    namespace: dict[str, Any] = dict(names)
    exec(f"def kernel(out):\n    {body}\n", namespace)
    return namespace["kernel"]


# what is captured


def test_a_kernel_that_was_never_launched(cuda: Any) -> None:
    sigma = np.zeros((3, 5), np.float32)

    @cuda.jit(device=True)
    def scatter(i):
        return sigma[i, 1]

    @cuda.jit(captures={"TABLE": "snapshot"})
    def kernel(out):
        out[0] = TABLE[1, 1] + scatter(1) * COEFFICIENTS[out.size]

    report = cuda_captures.report(kernel)
    rows = {row.name: row for row in report.rows}
    assert set(rows) == {"TABLE", "sigma", "COEFFICIENTS"}
    assert rows["sigma"].path == ("device function `scatter`", "closure `sigma`")
    assert re.fullmatch(r".*test_report\.py:\d+", rows["sigma"].where)
    assert (rows["sigma"].dtype, rows["sigma"].shape, rows["sigma"].strides) == ("float32", (3, 5), (20, 4))
    assert (rows["TABLE"].policy, rows["TABLE"].noticed, rows["TABLE"].strides) == ("snapshot", "not noticed", (32, 16))
    assert rows["COEFFICIENTS"].written is None
    assert report.specialisations == ()
    assert "not compiled with captures yet" in str(report)
    assert "strides 32, 16" in str(report)


def test_a_plain_function(cuda: Any) -> None:
    def kernel(out):
        out[0] = TABLE[0, 0]

    assert [row.name for row in cuda_captures.report(kernel).rows] == ["TABLE"]


def test_an_explanation_shows_what_was_compiled(cuda: Any) -> None:
    counts = np.zeros(4, np.int64)
    weights = cuda_captures.constant(np.arange(10.0))

    @cuda.jit
    def kernel(out):
        counts[0] += 1
        out[0] = TABLE[1, 1] + COEFFICIENTS[3] * COEFFICIENTS[4] + weights[out.size]

    explanation = cuda_captures.explain(kernel, SIGNATURE)
    rows = {row.name: row for row in explanation.rows}
    assert {name: row.written for name, row in rows.items()} == {
        "counts": True,
        "TABLE": False,
        "COEFFICIENTS": False,
        "weights": False,
    }
    assert rows["weights"].policy == "constant"
    assert explanation.constant_bytes == 80
    assert explanation.constant_memory == 80 + 3 * 8
    assert [advice.name for advice in explanation.advice] == ["COEFFICIENTS"]
    assert "72 bytes, read at fixed indices only" in explanation.advice[0].text
    text = str(explanation)
    assert "104 of 65,536 bytes (0.2%), 80 of them contents of arrays" in text
    assert "writes" in text
    assert "code looked for" not in text  # nothing was looked for: it was compiled to be looked at


def test_what_is_advised_to_be_folded_is_folded(cuda: Any) -> None:
    folded = cuda_captures.constant(COEFFICIENTS)

    @cuda.jit
    def kernel(out):
        out[0] = folded[3] * out[1] + folded[4] * out[2]

    ptx = cuda_captures.explain(kernel, SIGNATURE).ptx
    assert "0d4008000000000000" in ptx  # 3.0
    assert "0d4010000000000000" in ptx  # 4.0
    assert "ld.const" not in ptx


def test_an_array_that_the_code_does_not_read(cuda: Any) -> None:
    flag = False

    @cuda.jit
    def kernel(out):
        if flag:
            out[0] = TABLE[1, 1]

    (row,) = cuda_captures.explain(kernel, SIGNATURE).rows
    assert row.noticed == "not read"
    assert row.written is False


def test_in_the_simulator() -> None:
    program = """
import json, warnings
import numpy as np, cuda_captures
from numba import cuda
warnings.simplefilter("ignore")
cuda_captures.enable()
table = np.arange(6.0).reshape(2, 3)

@cuda.jit
def kernel(out):
    out[0] = table[1, 1]

report = cuda_captures.report(kernel)
print(report)
print(json.dumps(report.to_dict()["captures"]))
print("simulated" in report._repr_html_())
"""
    *shown, captures, in_html = python(program, NUMBA_ENABLE_CUDASIM="1").splitlines()
    assert "simulated (NUMBA_ENABLE_CUDASIM=1): nothing is compiled" in " ".join(shown)
    (row,) = json.loads(captures)
    assert (row["policy"], row["shape"], row["noticed"], row["copies"]) == ("simulated", [2, 3], "used in place", [])
    assert in_html == "True"


# what was copied


def test_copies_and_how_edits_are_noticed(fake: MemoryDriver) -> None:
    table, counts = np.zeros(5000), np.zeros(6)
    kernel = Kernel(kernel_of("table[0], counts[0]", table=table, counts=counts), written=["counts"])
    for _ in range(3):
        kernel.launch()
    table[7] = 1
    kernel.launch()
    other = Kernel(kernel_of("table[1]", table=table))
    other.launch()
    report = kernel.report()
    assert report.launches == 4
    rows = {row.name: row for row in report.rows}
    (copy,) = rows["table"].copies
    assert (copy.device, copy.nbytes, copy.way, rows["table"].noticed) == (0, 40_000, "bytes", "bytes compared")
    assert copy.uploads == 2
    assert 40_000 < copy.uploaded <= 80_000
    assert (copy.downloads, copy.instances) == (0, 2)
    (copy,) = rows["counts"].copies
    assert (copy.downloads, copy.downloaded) == (4, 4 * 48)
    text = str(report)
    assert "sent 2 times" in text
    assert "came back 4 times" in text
    assert "4 launches" in text
    assert re.search(r"bytes compared,\s+[\d.]+ us", text)


def test_copies_on_two_devices(fake: MemoryDriver) -> None:
    kernel = Kernel(kernel_of("table[0]", table=np.zeros(100)))
    for ordinal in (0, 1):
        fake.use(ordinal)
        kernel.launch()
    assert [copy.device for copy in kernel.report().rows[0].copies] == [0, 1]


@pytest.mark.parametrize(
    ("policy", "noticed"), [("snapshot", "not noticed"), ("mapped", "seen at once"), ("live", "bytes compared")]
)
def test_policies(fake: MemoryDriver, policy: str, noticed: str) -> None:
    kernel = Kernel(kernel_of("table[0]", table=np.zeros(100)), captures=policy)
    kernel.launch()
    (row,) = kernel.report().rows
    assert (row.policy, row.noticed, len(row.copies)) == (policy, noticed, 1)


def test_a_name_that_is_gone_or_means_something_else(fake: MemoryDriver) -> None:
    function = kernel_of("table[0]", table=np.zeros((2, 3), np.int16))
    kernel = Kernel(function)
    kernel.launch()
    for change in (lambda: function.__globals__.update(table=3), lambda: function.__globals__.pop("table")):
        change()
        (row,) = kernel.report().rows
        assert (row.name, row.dtype, row.shape, row.noticed) == ("table", "int16", (2, 3), "nothing")
        assert row.copies == ()
        assert "the name does not mean an array now" in kernel.report()._repr_html_()


def test_launches_are_counted_and_looking_is_no_launch(fake: MemoryDriver) -> None:
    kernel = Kernel(kernel_of("table[0]", table=np.zeros(100)))
    kernel.follower.rebind(device.current())
    assert kernel.report().launches == 0
    kernel.launch()
    kernel.report()
    assert kernel.report().launches == 1


# what was compiled, and why


def test_where_code_was_found(fake: MemoryDriver) -> None:
    disk: dict[str, Any] = {}
    function = kernel_of("table[0] + n", table=np.zeros(100), n=3)
    kernel = Kernel(function, disk=disk)
    kernel.launch()
    function.__globals__["n"] = 4
    kernel.launch()
    function.__globals__["n"] = 3
    kernel.launch()
    report = kernel.report()
    assert [one.source for one in report.specialisations] == ["compiled", "compiled"]
    assert report.specialisations[0].differs == ()
    assert report.specialisations[1].differs == ("global `n`: int 3 → int 4",)
    assert report.levels == (Level("kernel", 1, 2), Level("process", 0, 2), Level("disk", 0, 2))
    assert "this kernel: 1 hit, 2 misses" in str(report)

    twin = Kernel(kernel_of("table[0] + n", table=np.ones(100), n=4), disk=disk)
    twin.launch()
    assert twin.report().specialisations[0].source == "process"
    assert twin.report().levels[1:] == (Level("process", 1, 0), Level("disk", 0, 0))

    del kernel, twin, report
    later = Kernel(kernel_of("table[0] + n", table=np.ones(100), n=4), disk=disk)
    later.launch()
    assert later.report().specialisations[0].source == "disk"
    assert later.report().levels[1:] == (Level("process", 0, 1), Level("disk", 1, 0))
    changed = Kernel(kernel_of("table[0] + n", table=np.ones(100), n=5), disk=disk)
    changed.launch()
    assert changed.report().specialisations[0].differs in (
        ("global `n`: int 3 → int 5",),
        ("global `n`: int 4 → int 5",),
    )


def test_a_miss_is_told_by_shape_and_by_code(fake: MemoryDriver) -> None:
    first = Kernel(kernel_of("table[0]", table=np.zeros(100)))
    longer = Kernel(kernel_of("table[0]", table=np.zeros(101)))
    other = Kernel(kernel_of("table[0] * 2", table=np.zeros(101)))
    for kernel in (first, longer, other):
        kernel.launch()
    assert longer.report().specialisations[0].differs == ("global `table`: (100,) strides (8,) → (101,) strides (8,)",)
    assert other.report().specialisations[0].differs[0] == "the code of the kernel"


def test_code_that_cannot_be_shared_says_why(fake: MemoryDriver) -> None:
    kernel = Kernel(kernel_of("table[0], settings", table=np.zeros(100), settings=object()))
    kernel.launch()
    (one,) = kernel.report().specialisations
    assert one.key is None
    assert "`settings`" in one.why_private[0]
    assert "never shared or cached: `settings`" in str(kernel.report())
    assert kernel.report().levels[1] == Level("process", 0, 0, "not asked for 1, which cannot be identified")


def test_no_disk_cache(fake: MemoryDriver) -> None:
    kernel = Kernel(kernel_of("table[0]", table=np.zeros(100)))
    kernel.launch()
    assert "disk cache: not asked: the kernel has no cache=True" in " ".join(str(kernel.report()).split())


# advice


def test_a_scalar_that_recompiles(fake: MemoryDriver) -> None:
    function = kernel_of("table[0] + n + m", table=np.zeros(200), n=3, m=1.5)
    kernel = Kernel(function)
    for n in (3, 4, 5):
        function.__globals__["n"] = n
        kernel.launch()
    (advice,) = kernel.report().advice
    assert advice.name == "n"
    assert advice.text.startswith("has had 3 values, and each was compiled. Pass it as an argument, or put it in a 0-d")
    assert "`n = np.array(n)`, read as `n[()]`" in advice.text


def test_specialisations_that_differ_in_more_are_no_matter_of_a_scalar(fake: MemoryDriver) -> None:
    function = kernel_of("table[0] + n", table=np.zeros(200), n=3)
    kernel = Kernel(function)
    kernel.launch()
    function.__globals__.update(n=4, table=np.zeros(400, np.float32))
    kernel.launch()
    assert kernel.report().advice == ()
    assert frozen_scalars([]) == []


def test_a_large_array_that_is_digested(fake: MemoryDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda_captures import noticing, watch

    real = watch.watch
    monkeypatch.setattr(noticing, "watch", lambda start, stop, owner, **_: real(start, stop, owner, way="digest"))
    monkeypatch.setattr("cuda_captures.ways.digest_rate", lambda: 1e9)
    kernel = Kernel(kernel_of("table[0]", table=np.zeros(1 << 17)))
    with pytest.warns(cuda_captures.CapturePerformanceWarning):
        kernel.launch()
    report = kernel.report()
    (advice,) = report.advice
    assert advice.text.startswith("1,048,576 bytes are digested at each launch, which takes about 1 ms: as asked for.")
    assert "cuda_captures.snapshot(table)" in advice.text
    assert report.rows[0].noticed == "digest"
    assert "digest, 1 ms a launch" in " ".join(str(report).split())


def test_a_large_array_that_comes_back(fake: MemoryDriver) -> None:
    kernel = Kernel(kernel_of("table[0]", table=np.zeros(1 << 17)), written=["table"])
    kernel.launch()
    assert kernel.report().advice == ()
    kernel.launch()
    (advice,) = kernel.report().advice
    assert advice.text.startswith("1,048,576 bytes come back to the host after each launch.")


def test_constant_memory_nearly_full(fake: MemoryDriver) -> None:
    kernel = Kernel(kernel_of("table[0]", table=np.zeros(7500)), captures="constant")
    kernel.launch()
    (advice,) = kernel.report().advice
    assert advice == Advice("kernel", advice.text)
    assert advice.text.startswith("captures take 60,000 of 65,536 bytes of constant memory")


@pytest.mark.parametrize(
    ("body", "fixed"),
    [
        ("c[0]", True),
        ("c[0] + c[1]", True),
        ("c[0, 1]", True),
        ("c[0] + c[out]", False),
        ("c", False),
        ("f(c)", False),
        ("m.c[2]", True),
        ("m.c[out]", False),
        ("(lambda i: c[i])(1)", False),
        ("(lambda: c[1])()", True),
        ("'c'", False),
        ("c[0].real", True),
    ],
)
def test_indices_that_are_constants(body: str, fixed: bool) -> None:
    assert indexed_by_constants(kernel_of(f"return {body}").__code__, "c") is fixed


# how it looks


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
