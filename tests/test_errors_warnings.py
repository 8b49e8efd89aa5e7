"""What works, but not as well as it could, is warned of: for the line that names it."""

from __future__ import annotations

import gc
import sys
import warnings
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import cuda_captures
from cuda_captures import costs, noticing, watch
from cuda_captures.errors import CaptureError, CapturePerformanceWarning, CaptureWarning
from kernels_in_memory import Kernel, written
from memory_driver import MemoryDriver

TABLE = "def kernel():\n    table[0] = 1\n"


@pytest.fixture
def digests_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where pages cannot be watched."""
    real = watch.watch
    monkeypatch.setattr(
        noticing, "watch", lambda start, stop, owner, way=None, verify=False: real(start, stop, owner, way="digest")
    )
    monkeypatch.setattr("cuda_captures.ways.digest_rate", lambda: 1e9)


@pytest.mark.usefixtures("digests_only")
def test_costly_digests_are_warned_of_once_for_each_array(fake: MemoryDriver) -> None:
    table = np.zeros(1 << 17)
    function = written(TABLE, table=table)
    with pytest.warns(CapturePerformanceWarning) as caught:
        Kernel(function).launch()
    (warning,) = caught
    text = str(warning.message)
    assert text.startswith("`table` (1,048,576 bytes), captured by kernel `kernel`, is digested at each launch")
    assert "That takes about 1 ms. Why so: as asked for.\n" in text
    assert "    table[0] = 1\n    ^^^^^\n" in text
    assert "`table = cuda_captures.snapshot(table)`" in text
    assert (warning.filename, warning.lineno) == (function.__code__.co_filename, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = Kernel(written(TABLE, table=table))
        again.launch()
        again.launch()
    another = Kernel(written(TABLE, table=np.zeros(1 << 17)))
    another.launch()  # on trial: nothing is digested yet
    with pytest.warns(CapturePerformanceWarning):
        another.launch()


@pytest.mark.usefixtures("digests_only")
def test_cheap_digests_are_not_warned_of(fake: MemoryDriver) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Kernel(written(TABLE, table=np.zeros(1000))).launch()
        Kernel(written(TABLE, table=np.zeros(1 << 17)), captures="snapshot").launch()
        with cuda_captures.enabled(verify=True):
            Kernel(written(TABLE, table=np.zeros(1 << 17))).launch()


@pytest.mark.usefixtures("digests_only")
def test_arrays_that_were_warned_of_are_not_kept(fake: MemoryDriver) -> None:
    before = len(costs._warned)
    with pytest.warns(CapturePerformanceWarning):
        Kernel(written(TABLE, table=np.zeros(1 << 17))).launch()
    gc.collect()
    assert len(costs._warned) == before


@pytest.mark.parametrize("watchable", [True, False])
def test_memory_of_its_own_is_advised_where_it_helps(monkeypatch: pytest.MonkeyPatch, watchable: bool) -> None:
    def book() -> None:
        if not watchable:
            raise costs.CannotWatch("no")

    monkeypatch.setattr(costs, "page_book", book)
    for written_too in (True, False):
        advised = costs.ways_out("t", written_too)
        assert ("`t = t.copy()`" in advised) is watchable
        assert ("cuda_captures.snapshot(t)" in advised) is not written_too
        assert "cuda.to_device(t)" in advised


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (3.21, "3.2 s"),
        (0.0412, "41 ms"),
        (0.000123, "123 us"),
        (4.2e-7, "420 ns"),
        (2.2e-6, "2.2 us"),
        (100e-6, "100 us"),
    ],
)
def test_times_are_written_as_people_write_them(seconds: float, text: str) -> None:
    assert costs.duration(seconds) == text


def test_a_kernel_that_cannot_be_cached() -> None:
    from cuda_captures.backends.uncached import warn_uncacheable, warn_unwritable
    from cuda_captures.code import Code

    kernel = written("def kernel(out):\n    out[0] = settings.x\n", settings=object())
    code = Code((), None, why_private=("`settings` (global `settings`): it is an object", "another reason"))
    with pytest.warns(cuda_captures.CaptureWarning) as caught:
        warn_uncacheable("kernel", kernel, code)
    with pytest.warns(cuda_captures.CaptureWarning) as unwritable:
        warn_unwritable("kernel", kernel, "/nowhere", OSError("read-only"))
    texts = [str(one.message) for one in (*caught, *unwritable)]
    assert texts[0].startswith("kernel `kernel` has cache=True and is compiled in each process")
    assert "it is an object\n  " in texts[0]
    assert (
        ":2, in kernel\n    out[0] = settings.x\n             ^^^^^^^^\n  another reason\nMake it an array" in texts[0]
    )
    assert "/nowhere cannot be written: read-only.\nSet NUMBA_CACHE_DIR" in texts[1]
    assert {one.filename for one in caught} == {kernel.__code__.co_filename}


def test_no_driver_and_no_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda_captures.driver import Driver

    class Binding(ModuleType):
        def cuInit(self, flags: int) -> Any:
            raise RuntimeError("libcuda.so.1 is not there")

    bindings = ModuleType("cuda.bindings")
    bindings.driver = Binding("cuda.bindings.driver")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    with pytest.raises(CaptureError, match=r"no CUDA driver on this machine: libcuda(.|\n)*cuda_captures.explain\("):
        Driver()
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(CaptureError, match=r"cuda-bindings is missing\.\nInstall cuda-captures with the extra"):
        Driver()


def test_many_values_of_a_scalar(fake: MemoryDriver) -> None:
    function = written("def kernel():\n    table[0] = count\n", table=np.zeros(8), count=0)
    kernel = Kernel(function)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for count in range(8):
            function.__globals__["count"] = count
            kernel.launch()
    function.__globals__["count"] = 8
    text = r"`count` has had 9 values, and kernel `kernel`(.|\n)*    table\[0\] = count\n {15}\^{5}\nPass it as"
    with pytest.warns(CapturePerformanceWarning, match=text) as caught:
        kernel.launch()
    assert (caught[0].filename, caught[0].lineno) == (function.__code__.co_filename, 2)


def test_a_kernel_that_must_be_compiled_anew_while_captures_are_disabled(compiler: str) -> None:
    if compiler != "numba-cuda-mlir":
        pytest.skip("numba-cuda compiles anew, as its kernel class stays")
    from conftest import module_of
    from cuda_captures.backends.numba_cuda_mlir.kernel import MLIRToolchain
    from cuda_captures.discovery import discover
    from cuda_captures.session import Session

    module_of(compiler)
    kernel = written("def kernel(out):\n    out[0] = table[1]\n", table=np.zeros(4))
    toolchain = MLIRToolchain(None, kernel, (), {}, cc=(9, 0))
    with pytest.raises(
        CaptureError, match=r"captures are disabled\.\n.*:2, in kernel\n.*\n {13}\^{5}\nCall `cuda_captures"
    ):
        toolchain.compile(Session(discover(kernel)))


def test_an_array_as_a_default_value(fake: MemoryDriver) -> None:
    table = np.arange(4.0)
    names = {"out": np.zeros(4), "table": table}
    source = "def look_up(i, table=table):\n    return table[i]\n\ndef kernel():\n    out[0] = look_up(1)\n"
    kernel = Kernel(written(source, **names))
    message = (
        r"`table` is an array as a default value of `look_up`: its contents.*\n.*:1, in look_up\n(.|\n)*"
        r"Name the array in the body"
    )
    with pytest.warns(CaptureWarning, match=message):
        kernel.launch()
    table.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Kernel(written(source, **names)).launch()
