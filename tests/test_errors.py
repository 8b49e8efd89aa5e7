"""What goes wrong is said with the variable, the line of source under a caret, the reason and what to write instead."""

from __future__ import annotations

import gc
import linecache
import sys
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import cuda_captures
from copies_in_memory import in_memory
from cuda_captures import costs, noticing, watch
from cuda_captures.errors import CaptureError, CapturePerformanceWarning, CaptureTypingError, line_naming, pointer
from kernels_in_memory import Kernel
from memory_driver import MemoryDriver

WIDE = "表"


@pytest.fixture
def fake() -> Iterator[MemoryDriver]:
    yield from in_memory()


def written(source: str, **names: Any) -> Any:
    """The function ``kernel`` of some source that messages can show."""
    filename = f"<source {abs(hash(source))}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    namespace: dict[str, Any] = dict(names)
    exec(compile(source, filename, "exec"), namespace)
    return namespace["kernel"]


# excerpts


def lines(text: str) -> list[str]:
    return text.split("\n")


def test_the_caret_is_under_the_name() -> None:
    kernel = written("def kernel(out):\n    x = 1\n    out[x] = untabled[0] + table[x]\n")
    head, code, caret = lines(pointer(kernel, "table"))
    assert head.endswith(">:3, in kernel")
    assert code == "    out[x] = untabled[0] + table[x]"
    assert caret == "                           ^^^^^"
    assert line_naming(kernel.__code__, "table") == 3


@pytest.mark.parametrize(
    ("source", "name", "shown", "marked"),
    [
        ("def kernel(out):\n    out[0] = config.table[1]\n", "table", "out[0] = config.table[1]", "table"),
        ("def kernel(out):\n    out[0] = tables[1][0]\n", "tables[1]", "out[0] = tables[1][0]", "tables"),
        ("def kernel(out):\n    out[0] = cell.weight[0]\n", "cell.weight", "out[0] = cell.weight[0]", "cell"),
        (
            "def kernel(out):\n    f = lambda i: table[i]\n    out[0] = f(1)\n",
            "table",
            "f = lambda i: table[i]",
            "table",
        ),
        ("def kernel(out):\n    'table'\n    print('table', table)\n", "table", "print('table', table)", "table"),
        ("def kernel(out):\n    a, b = out, table\n", "table", "a, b = out, table", "table"),
        (f"def kernel(out):\n    {WIDE} = 1; out[{WIDE}] = t\n", "t", f"{WIDE} = 1; out[{WIDE}] = t", "t"),
        ("def kernel(out):\n    out[0] =\ttable[1]\n", "table", "out[0] =\ttable[1]", "table"),
    ],
)
def test_what_is_shown(source: str, name: str, shown: str, marked: str) -> None:
    _, code, caret = lines(pointer(written(source), name))
    assert code == f"    {shown}"
    columns = caret.expandtabs(8).index("^")
    wide = code.expandtabs(8)
    cells = "".join(one * (2 if one == WIDE else 1) for one in wide)
    assert cells[columns:].startswith(marked)
    assert not cells[:columns].endswith(marked)
    assert caret.strip() == "^" * len(marked)


def test_without_the_source_only_the_line_is_named() -> None:
    namespace: dict[str, Any] = {}
    exec("def kernel(out):\n    out[0] = table[1]\n", namespace)
    assert pointer(namespace["kernel"], "table") == "<string>:2, in kernel"


def test_a_line_that_does_not_hold_the_name_is_marked_whole() -> None:
    kernel = written("def kernel(out):\n    view = table[1:]\n    view[0] = 1\n")
    assert lines(pointer(kernel, "table", 3))[1:] == ["    view[0] = 1", "    ^^^^^^^^^^^"]


def test_a_file_that_was_edited_since_is_not_pointed_into_blindly() -> None:
    kernel = written("def kernel(out):\n    out[0] = table[1]\n")
    filename = kernel.__code__.co_filename
    linecache.cache[filename] = (9, None, ["def kernel(out):\n", "    table = 5  # moved\n"], filename)
    assert lines(pointer(kernel, "table"))[1:] == ["    table = 5  # moved", "    ^^^^^"]


# errors at a launch


TABLE = "def kernel():\n    table[0] = 1\n"
WHERE = r"\n  `table`, captured by kernel `kernel`:\n  .*:2, in kernel\n    table\[0\] = 1\n    \^{5}\n"


def test_an_array_made_read_only_while_a_kernel_writes_it(fake: MemoryDriver) -> None:
    table = np.zeros(8)
    kernel = Kernel(written(TABLE, table=table), written=["table"])

    def freeze() -> None:
        table.flags.writeable = False

    with pytest.raises(CaptureTypingError, match=rf"made read-only.*is lost\.{WHERE}Leave the array writeable"):
        kernel.launch(run=freeze)


def test_a_written_array_in_a_graph(fake: MemoryDriver) -> None:
    kernel = Kernel(written(TABLE, table=np.zeros(8)), written=["table"])
    kernel.launch()
    fake.capturing.add(8)
    with pytest.raises(CaptureError, match=rf"captures a graph.*\.{WHERE}Mark the array with cuda_captures"):
        kernel.launch(8)
    fake.capturing.clear()


def test_a_graph_whose_captures_are_not_bound(fake: MemoryDriver) -> None:
    kernel = Kernel(written(TABLE, table=np.zeros(8)))
    fake.capturing.add(8)
    with pytest.raises(CaptureError, match=r"not bound\.\n  .*:2, in kernel\n    table\[0\] = 1\n    \^{5}\nBind it"):
        kernel.launch(8)
    fake.capturing.clear()


def test_an_edit_while_another_stream_captures(fake: MemoryDriver) -> None:
    table = np.zeros(8)
    kernel = Kernel(written(TABLE, table=table))
    kernel.launch()

    class Owner:
        pass

    from cuda_captures.backends.launching import launch_with_copies

    instance = kernel.follower.rebind(cuda_captures.device.current())
    launch_with_copies(instance, 8, Owner(), lambda _: None, lambda: instance, kernel.function)
    fake.capturing.add(8)
    table[0] = 5
    with pytest.raises(CaptureError, match=rf"edited on the host, .*until the capture ends\.{WHERE}Edit the array"):
        kernel.launch(16)
    fake.capturing.clear()


def test_no_room_on_the_device(fake: MemoryDriver) -> None:
    fake.capacity = 1000
    kernel = Kernel(written(TABLE, table=np.zeros(1000)))
    with pytest.raises(CaptureError, match=rf"CUDA_ERROR_OUT_OF_MEMORY{WHERE}no room on device 0"):
        kernel.launch()


def test_an_edit_past_the_operating_system(fake: MemoryDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.zeros(8)
    kernel = Kernel(written(TABLE, table=table))
    with cuda_captures.enabled(verify=True):
        kernel = Kernel(written(TABLE, table=table))
        kernel.launch()
        table[0] = 7
        monkeypatch.setattr("cuda_captures.ways.ComparedBytes.poll", lambda self: [])
        with pytest.raises(CaptureError, match=rf"went unnoticed: bytes 6 to 8 .*say so\.{WHERE}Something writes"):
            kernel.launch()


def test_memory_that_moves_while_its_name_is_bound(fake: MemoryDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(written(TABLE, table=np.zeros(8)))
    monkeypatch.setattr("cuda_captures.copies.Mirror.covers", lambda self, bounds: False)
    with pytest.raises(CaptureError, match=rf"has moved or shrunk.*\.{WHERE}Nothing was launched"):
        kernel.launch()


class DeviceArray:
    """A device array as any library has one."""

    def __init__(self, address: int) -> None:
        self.__cuda_array_interface__ = {"shape": (4,), "typestr": "<f8", "data": (address, False), "version": 3}


def test_an_array_of_another_gpu(fake: MemoryDriver) -> None:
    fake.use(1)
    address = fake.mem_alloc(32)
    fake.use(0)
    kernel = Kernel(written(TABLE, table=DeviceArray(address)))
    text = (
        r"`table`, which kernel `kernel` captures, is on device 1, and the launch is on device 0\.\n  .*:2, in kernel\n"
    )
    with pytest.raises(
        CaptureError, match=text + r"    table\[0\] = 1\n    \^{5}\nLaunch there \(`with cuda.gpus\[1\]"
    ):
        kernel.launch()


def test_the_array_that_an_error_is_about_is_told_from_others(fake: MemoryDriver) -> None:
    first, second = np.zeros(5), np.zeros(7)
    kernel = Kernel(
        written("def kernel():\n    first[0] = second[0] = 1\n", first=first, second=second), ["first", "second"]
    )

    def freeze() -> None:
        second.flags.writeable = False

    with pytest.raises(CaptureTypingError, match=r"\n  `second`, captured(.|\n)*\n {4}first.*\n {15}\^{6}\n"):
        kernel.launch(run=freeze)


def test_an_error_is_located_once(fake: MemoryDriver) -> None:
    from cuda_captures.whereabouts import say_where

    kernel = Kernel(written(TABLE, table=np.zeros(8)))
    place = kernel.follower.variant().arrays[0][1]
    error = CaptureError("one\ntwo")
    say_where(error, kernel.function, place)
    text = str(error)
    assert text.startswith("one\n  `table`, captured")
    assert text.endswith("\ntwo")
    say_where(error, kernel.function, place)
    assert str(error) == text


# warnings


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
    with pytest.warns(CapturePerformanceWarning):
        Kernel(written(TABLE, table=np.zeros(1 << 17))).launch()


@pytest.mark.usefixtures("digests_only")
def test_cheap_digests_are_not_warned_of(fake: MemoryDriver) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Kernel(written(TABLE, table=np.zeros(1000))).launch()
        Kernel(written(TABLE, table=np.zeros(1 << 17)), captures="snapshot").launch()


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
    assert ("`t = t.copy()`" in costs.ways_out("t")) is watchable


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
