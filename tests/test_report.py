"""Reports: what is captured, how edits are noticed, what was copied, and what was compiled and why."""

from __future__ import annotations

import gc
import json
import re
from typing import Any

import numpy as np
import pytest

import cuda_captures
from cuda_captures import device
from cuda_captures.report import Level
from cuda_captures.specialising import CODES
from interpreters import python
from kernels_in_memory import Kernel, kernel_of
from memory_driver import MemoryDriver

SIGNATURE = "void(float64[::1])"
COEFFICIENTS = np.arange(9.0)
TABLE = np.zeros((300, 4))[:, ::2]


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
    gc.collect()
    CODES._codes.clear()  # of other tests' kernels
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
    gc.collect()
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
