"""What goes wrong is said with the variable, the line of source under a caret, the reason and what to write instead."""

from __future__ import annotations

import numpy as np
import pytest

import cuda_captures
from cuda_captures.errors import CaptureError, CaptureTypingError
from kernels_in_memory import DeviceArray, Kernel, written
from memory_driver import MemoryDriver

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
