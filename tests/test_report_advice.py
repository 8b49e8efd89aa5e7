"""Reports: what they advise, and when they do not."""

from __future__ import annotations

import numpy as np
import pytest

import cuda_captures
from cuda_captures.advice import frozen_scalars
from cuda_captures.indexing import indexed_by_constants
from cuda_captures.report import Advice
from kernels_in_memory import Kernel, kernel_of
from memory_driver import MemoryDriver


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
