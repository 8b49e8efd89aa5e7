"""On the GPU: what reports say after launches, and what launches warn of and refuse."""

from __future__ import annotations

import json
import re
import warnings
from typing import Any

import numpy as np
import pytest

import cuda_captures
from cuda_captures import costs

pytestmark = pytest.mark.gpu


def test_after_launches(cuda: Any) -> None:
    table, counts = np.arange(50_000.0), np.zeros(4, np.int64)
    fixed = cuda.to_device(np.arange(4.0))

    @cuda.jit(device=True)
    def look(i):
        return table[i] + fixed[i]

    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = look(i)
            cuda.atomic.add(counts, i, 1)

    out = np.zeros(4)
    for _ in range(3):
        kernel[1, 32](out)
    table[0] = 5
    kernel[1, 32](out)
    assert out[0] == 5
    report = cuda_captures.report(kernel)
    assert report.launches == 4
    rows = {row.name: row for row in report.rows}
    assert {name: row.policy for name, row in rows.items()} == {"table": "live", "counts": "live", "fixed": "device"}
    assert {name: row.written for name, row in rows.items()} == {"table": False, "counts": True, "fixed": False}
    assert rows["table"].path == ("device function `look`", "closure `table`")
    assert rows["fixed"].copies == ()
    (copy,) = rows["table"].copies
    assert (copy.device, copy.kernels, copy.downloads) == (0, ("kernel",), 0)
    assert copy.uploads == 2
    assert copy.uploaded >= table.nbytes
    (copy,) = rows["counts"].copies
    assert (copy.downloads, copy.downloaded) == (4, 4 * counts.nbytes)
    assert [one.source for one in report.specialisations] == ["compiled"]
    assert report.constant_memory == 24
    json.dumps(report.to_dict())
    assert "came back 4 times" in report._repr_html_()


def test_a_copy_is_shared(cuda: Any) -> None:
    table = np.arange(50_000.0)

    def make(factor):
        @cuda.jit
        def kernel(out):
            out[0] = table[1] * factor

        return kernel

    kernels = [make(2.0), make(3.0)]
    out = np.zeros(1)
    for kernel in kernels:
        kernel[1, 1](out)
    (copy,) = cuda_captures.report(kernels[0]).rows[0].copies
    assert (copy.uploads, copy.instances) == (1, 2)
    (one,) = cuda_captures.report(kernels[1]).specialisations
    assert one.differs == ("closure `factor`: float 2.0 → float 3.0",)


def test_a_kernel_made_anew_is_shared_in_the_process(cuda: Any) -> None:
    def make(table):
        @cuda.jit
        def shared_kernel(out):
            out[0] = table[3]

        return shared_kernel

    kernels = [make(np.zeros(9)), make(np.ones(9))]
    out = np.zeros(1)
    for kernel in kernels:
        kernel[1, 1](out)
    assert out[0] == 1
    sources = [cuda_captures.report(kernel).specialisations[0].source for kernel in kernels]
    assert sources == ["compiled", "process"]
    assert [level.hits for level in cuda_captures.report(kernels[1]).levels] == [0, 1, 0]


def test_a_scalar_that_recompiles_is_named(cuda: Any) -> None:
    namespace: dict[str, Any] = {"N": 1, "T": np.zeros(500)}
    exec("def kernel(out):\n    out[0] = T[0] + N\n", namespace)
    kernel = cuda.jit(namespace["kernel"])
    out = np.zeros(1)
    for value in (1, 2, 3, 2):
        namespace["N"] = value
        kernel[1, 1](out)
        assert out[0] == value
    report = cuda_captures.report(kernel)
    assert len(report.specialisations) == 3
    assert report.levels[0].hits == 1
    assert [advice.name for advice in report.advice] == ["N"]


def test_costly_digests_are_warned_of(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda_captures import noticing, watch

    real = watch.watch
    monkeypatch.setattr(noticing, "watch", lambda start, stop, owner, **_: real(start, stop, owner, way="digest"))
    monkeypatch.setattr(costs, "MUCH", 0.0)
    table = np.zeros(30_000)

    @cuda.jit
    def kernel(out):
        out[0] = table[1]

    out = np.zeros(1)
    with pytest.warns(
        cuda_captures.CapturePerformanceWarning, match=r"`table` \(240,000 bytes\)(.|\n)*\^{5}"
    ) as caught:
        kernel[1, 1](out)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", cuda_captures.CapturePerformanceWarning)
        kernel[1, 1](out)


def test_an_error_after_a_launch_names_the_array(cuda: Any) -> None:
    table = np.zeros(4)

    @cuda.jit
    def kernel(out):
        table[0] = out[0]

    out = np.ones(1)
    kernel[1, 1](out)
    assert table[0] == 1
    stream = cuda.stream()
    with pytest.raises(cuda_captures.CaptureError) as raised:
        launch_in_graph(kernel, stream, cuda.to_device(out))
    assert re.search(
        r"`table`, captured by kernel `kernel`:\n.*\n +table\[0\] = out\[0\]\n +\^{5}\n", str(raised.value)
    )


def launch_in_graph(kernel: Any, stream: Any, out: Any) -> None:
    from cuda.bindings import driver

    kernel[1, 1, stream](out)
    handle = driver.CUstream(int(stream.handle))
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    assert driver.cuStreamBeginCapture(handle, mode)[0] == 0
    try:
        kernel[1, 1, stream](out)
    finally:
        driver.cuStreamEndCapture(handle)


def test_the_disk_cache_is_told(cuda: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "cached_report.py"
    source.write_text("TABLE = None\nN = 0\n\ndef cached_kernel(out):\n    out[0] = TABLE[1] + N\n")
    kernels = []
    for number in (1, 2):
        namespace: dict[str, Any] = {"__name__": "cached_report", "__file__": str(source)}
        exec(compile(source.read_text(), str(source), "exec"), namespace)
        namespace.update(TABLE=np.zeros(9), N=number)
        kernels.append(cuda.jit(cache=True)(namespace["cached_kernel"]))
        kernels[-1][1, 1](np.zeros(1))
    report = cuda_captures.report(kernels[1])
    assert report.levels[2].misses == 1
    assert report.specialisations[0].differs == ("global `N`: int 1 → int 2",)
