"""Binding on a driver in memory: which modules are loaded, for which devices, and what is refused before a launch."""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import cuda_captures
from cuda_captures import settings
from cuda_captures.binding import HELD_BYTES, INSTANCES
from cuda_captures.errors import CaptureError
from cuda_captures.instances import IN_GRAPHS
from cuda_captures.spares import KEPT
from kernels_in_memory import DeviceArray, Kernel, written
from memory_driver import MemoryDriver

TABLE = "def kernel():\n    table[0] = 1\n"
STREAM = 5


def loads(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    load, loaded = kernel.toolchain.load, []

    def counting(code: Any, context: Any) -> Any:
        loaded.append(code)
        return load(code, context)

    monkeypatch.setattr(kernel.toolchain, "load", counting)
    return loaded


@pytest.mark.parametrize("memory", ["device", "host"])
def test_new_arrays_on_the_default_stream_need_few_modules(
    fake: MemoryDriver, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = written(TABLE, table=None)
    kernel = Kernel(function)
    loaded = loads(kernel, monkeypatch)
    for _ in range(5 * INSTANCES):
        function.__globals__["table"] = DeviceArray(fake.mem_alloc(32)) if memory == "device" else np.zeros(4)
        kernel.launch()
    assert len(loaded) <= INSTANCES + KEPT


def test_new_arrays_on_another_stream_have_a_new_module_each(
    fake: MemoryDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = written(TABLE, table=None)
    kernel = Kernel(function)
    loaded = loads(kernel, monkeypatch)
    for number in range(INSTANCES + 5):
        function.__globals__["table"] = np.zeros(4)
        kernel.launch(stream=STREAM)
        assert len(loaded) == number + 1


def test_a_spare_module_is_not_taken_for_another_stream(fake: MemoryDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    function = written(TABLE, table=None)
    kernel = Kernel(function)
    for _ in range(INSTANCES + 3):
        function.__globals__["table"] = np.zeros(4)
        kernel.launch()
    loaded = loads(kernel, monkeypatch)
    function.__globals__["table"] = np.zeros(4)
    kernel.launch(stream=STREAM)
    assert len(loaded) == 1


def test_a_kernel_that_writes_an_array_is_refused_in_a_graph_before_it_is_launched(fake: MemoryDriver) -> None:
    table, started = np.zeros(4), []
    kernel = Kernel(written(TABLE, table=table), ["table"])
    kernel.launch(STREAM, lambda: started.append(1))
    fake.capturing.add(STREAM)
    message = r"launched while its stream captures.*\n  `table`, captured by kernel `kernel`:\n.*:2, in kernel\n"
    with pytest.raises(CaptureError, match=message):
        kernel.launch(STREAM, lambda: started.append(2))
    assert started == [1]
    assert not IN_GRAPHS  # where it would stay for the life of the process
    fake.capturing.clear()
    kernel.launch(STREAM, lambda: started.append(3))
    assert started == [1, 3]


def test_arrays_of_a_peer_are_used_where_that_is_asked_for(fake: MemoryDriver) -> None:
    fake.use(1)
    address = fake.mem_alloc(32)
    fake.use(0)
    function = written(TABLE, table=DeviceArray(address))
    with pytest.raises(
        CaptureError, match=r"or let devices use each other's memory: `cuda_captures.enable\(peer=True\)`"
    ):
        Kernel(function).launch()
    before = settings.install(settings.changed(peer=True))
    try:
        Kernel(function).launch()
        assert fake.calls["enable_peer_access"] == 1
        fake.peers = False
        with pytest.raises(
            CaptureError, match=r"Device 0 cannot use memory of device 1, as `enable\(peer=True\)` asks"
        ):
            Kernel(function).launch()
    finally:
        settings.install(before)


def while_compiling(kernel: Kernel, *changes: Callable[[], object]) -> None:
    """Have another thread do something in the middle of the next compilations."""
    upstream, left = kernel.toolchain.compile, list(changes)

    def compile_meanwhile(session: Any) -> Any:
        code = upstream(session)
        if left:
            left.pop(0)()
        return code

    kernel.toolchain.compile = compile_meanwhile  # type: ignore[method-assign]


@pytest.mark.parametrize("other", [2, 2.0, None])
def test_a_name_that_is_bound_anew_while_the_kernel_is_compiled(fake: MemoryDriver, other: Any) -> None:
    disk: dict[str, Any] = {}
    function = written("def kernel():\n    table[0] = n\n", table=np.zeros(4), n=1)
    kernel = Kernel(function, disk=disk)
    while_compiling(kernel, lambda: function.__globals__.update(n=other))
    kernel.launch()
    assert kernel.toolchain.compilations == 2
    (code,) = disk.values()  # none for a meaning that may not be the compiler's
    assert code.key is not None
    assert "global `n` = int 1" not in code.key.text
    function.__globals__["n"] = 1
    kernel.launch()
    assert kernel.toolchain.compilations == 3


@pytest.mark.parametrize("shared", [False, True])
def test_a_constant_that_is_edited_while_its_code_is_made(
    fake: MemoryDriver, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = cuda_captures.constant(np.zeros(4))
    kernels = [Kernel(written(TABLE, table=table))]
    if shared:
        kernels.append(Kernel(written(TABLE, table=cuda_captures.constant(np.ones(4)))))
        kernels[1].launch()
        find = kernels[0].follower.specialisations._key
        edits = [lambda: table.fill(1.0)]

        def edited_first(*arguments: Any) -> Any:
            if edits:
                edits.pop()()
            return find(*arguments)

        monkeypatch.setattr(kernels[0].follower.specialisations, "_key", edited_first)
    else:
        while_compiling(kernels[0], lambda: table.fill(1.0))
    kernels[0].launch()
    kernels[0].launch()  # the first may have been on trial
    (constant,) = kernels[0].instance.variant.constants
    assert constant.contents == np.ones(4).tobytes()
    code = kernels[0].instance.variant.code
    table.fill(0.0)
    kernels[0].launch()
    assert kernels[0].instance.variant.code is not code
    table.fill(1.0)
    kernels[0].launch()
    assert kernels[0].instance.variant.code is code


def test_a_name_that_is_bound_anew_after_the_kernel_was_compiled(
    fake: MemoryDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = written("def kernel():\n    table[0] = n\n", table=np.zeros(4), n=1)
    kernel = Kernel(function)
    specialisations = kernel.follower.specialisations
    add = specialisations._add

    def bound_meanwhile(*arguments: Any) -> Any:
        function.__globals__["n"] = 2
        return add(*arguments)

    monkeypatch.setattr(specialisations, "_add", bound_meanwhile)
    kernel.launch()
    first = kernel.instance.variant
    kernel.launch()
    assert kernel.instance.variant is not first


def test_a_name_that_never_stays_the_same_is_an_error(fake: MemoryDriver) -> None:
    function = written("def kernel():\n    table[0] = n\n", table=np.zeros(4), n=0)
    kernel = Kernel(function)
    names = function.__globals__
    while_compiling(kernel, *[lambda: names.update(n=names["n"] + 1)] * 100)
    text = r"`n` was bound to something else.*\n  .*:2, in kernel\n    table\[0\] = n\n.*\nBind the kernel before"
    with pytest.raises(CaptureError, match=text):
        kernel.launch()
    del kernel.toolchain.compile
    kernel.launch()


SAME_BYTES = {
    "dtype": np.zeros(4, np.int64),
    "shape": np.zeros((2, 2)),
    "dtype and shape": np.zeros(8, np.float32),
    "dtype of a record": np.zeros(4, [("a", np.float64)]),
}


@pytest.mark.parametrize("other", SAME_BYTES.values(), ids=SAME_BYTES)
def test_another_constant_of_the_same_bytes_is_another_constant(fake: MemoryDriver, other: Any) -> None:
    function = written(TABLE, table=cuda_captures.constant(np.zeros(4)))
    kernel = Kernel(function)
    kernel.launch()
    before = kernel.instance.variant
    function.__globals__["table"] = cuda_captures.constant(np.zeros(4))  # the same in all
    kernel.launch()
    assert kernel.instance.variant is before
    function.__globals__["table"] = cuda_captures.constant(other)
    kernel.launch()
    assert kernel.instance.variant is not before
    assert kernel.instance.variant.constants[0].form.dtype == other.dtype


@pytest.mark.parametrize("other", [np.zeros(1), np.float64(0)], ids=["live", "scalar"])
def test_what_has_the_bytes_of_a_constant_and_is_none(fake: MemoryDriver, other: Any) -> None:
    function = written(TABLE, table=cuda_captures.constant(np.zeros(1)))
    kernel = Kernel(function)
    kernel.launch()
    before = kernel.instance.variant
    function.__globals__["table"] = other
    kernel.launch()
    assert kernel.instance.variant is not before


@pytest.mark.filterwarnings("ignore:.*dtype:DeprecationWarning")
def test_the_dtype_of_a_constant_changed_in_place(fake: MemoryDriver) -> None:
    table = cuda_captures.constant(np.zeros(4))
    kernel = Kernel(written(TABLE, table=table))
    kernel.launch()
    table.dtype = np.dtype(np.int64)
    kernel.launch()
    assert kernel.instance.variant.constants[0].form.dtype == np.int64


@pytest.mark.parametrize("mark", [cuda_captures.live, cuda_captures.constant])
def test_fields_that_got_other_names_in_place(fake: MemoryDriver, mark: Any) -> None:
    table = mark(np.zeros(4, [("x", np.float64), ("y", np.float64)]))
    kernel = Kernel(written(TABLE, table=table))
    kernel.launch()
    before = kernel.instance.variant
    table.dtype.names = ("y", "x")
    kernel.launch()
    after = kernel.instance.variant
    assert after is not before
    table.dtype.names = ("x", "y")
    kernel.launch()
    assert kernel.instance.variant is before
    kernel.launch()
    assert kernel.instance.variant is before


def test_an_attribute_that_its_module_makes_needs_one_module(
    fake: MemoryDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    lazy, made = types.ModuleType("lazy"), {"table": np.zeros(4)}

    def make(name: str) -> Any:
        if name not in made:
            raise AttributeError(name)
        return made[name]

    lazy.__getattr__ = make  # type: ignore[method-assign]
    kernel = Kernel(written("def kernel():\n    lazy.table[0] = 1\n", lazy=lazy))
    loaded = loads(kernel, monkeypatch)
    for _ in range(3):
        kernel.launch(STREAM)
    assert len(loaded) == 1
    made["table"] = np.ones(4)
    kernel.launch(STREAM)
    (array,) = (reference() for reference in kernel.instance.arrays if reference)
    assert array is made["table"]
    lazy.table = np.full(4, 2.0)  # type: ignore[attr-defined]
    kernel.launch(STREAM)
    (array,) = (reference() for reference in kernel.instance.arrays if reference)
    assert array is lazy.table  # type: ignore[attr-defined]


@pytest.fixture
def unfollowed() -> Iterator[None]:
    before = settings.install(settings.Settings(follow=False))
    yield
    settings.install(before)


@pytest.mark.usefixtures("unfollowed")
def test_what_was_captured_first_stays_when_its_copy_is_replaced(fake: MemoryDriver) -> None:
    root = np.zeros(1 << 20)
    first = root[:100]
    function = written(TABLE, table=first)
    kernel = Kernel(function)
    kernel.launch()
    function.__globals__["table"] = np.ones(100)
    Kernel(written(TABLE, table=root)).launch()
    kernel.launch()
    (array,) = (reference() for reference in kernel.instance.arrays if reference)
    assert array is first
    fake.use(1)
    kernel.launch()  # nor on another device
    (array,) = (reference() for reference in kernel.instance.arrays if reference)
    assert array is first


@pytest.mark.usefixtures("unfollowed")
@pytest.mark.filterwarnings("ignore:.*shape:DeprecationWarning")
def test_an_array_that_is_not_followed_and_has_another_shape(fake: MemoryDriver) -> None:
    root = np.zeros(1 << 20)
    table = root[:100]
    kernel = Kernel(written(TABLE, table=table))
    kernel.launch()
    table.shape = (10, 10)
    Kernel(written(TABLE, table=root)).launch()  # its copy is replaced
    with pytest.raises(CaptureError, match=r"`table`, which kernel `kernel` captures, has got other memory, shape"):
        kernel.launch()
    table.shape = (100,)
    kernel.launch()


def test_peer_is_true_or_false() -> None:
    with pytest.raises(TypeError, match=r"enable\(peer='yes'\): peer must be True or False"):
        cuda_captures.enable(peer="yes")  # type: ignore[arg-type]


def test_a_kernel_that_is_not_bound_is_refused_in_a_graph_before_anything_is_done(fake: MemoryDriver) -> None:
    kernel = Kernel(written(TABLE, table=np.zeros(4)))
    fake.capturing.add(STREAM)
    message = (
        r"`kernel` is launched on a stream that is being captured.*not bound.\n.*:2, in kernel\n(.|\n)*bind\(kernel"
    )
    with pytest.raises(CaptureError, match=message):
        kernel.launch(STREAM)
    assert kernel.toolchain.compilations == 0
    assert fake.calls["mem_alloc"] == 0
    fake.capturing.clear()
    kernel.launch(STREAM)


def test_a_kernel_that_captures_no_arrays_needs_no_binding(fake: MemoryDriver) -> None:
    kernel = Kernel(written("def kernel():\n    pass\n"))
    fake.capturing.add(STREAM)
    kernel.launch(STREAM)


def test_large_device_arrays_that_no_name_is_bound_to_are_let_go_of(fake: MemoryDriver) -> None:
    class Large(DeviceArray):
        def __init__(self, nbytes: int) -> None:
            super().__init__(fake.mem_alloc(32))
            self.__cuda_array_interface__["shape"] = (nbytes // 8,)

    def alive(sizes: list[int]) -> list[bool]:
        function = written(TABLE, table=None)
        kernel = Kernel(function)
        references = []
        for size in sizes:
            array = function.__globals__["table"] = Large(size)
            references.append(weakref.ref(array))
            kernel.launch()
            del array
        gc.collect()
        return [reference() is not None for reference in references]

    assert alive([HELD_BYTES // 16] * 6) == [True] * 6
    assert alive([HELD_BYTES] * 6) == [False] * 4 + [True] * 2
    assert alive([8, *[HELD_BYTES // 2 - 8] * 4, 8]) == [False, False, False, True, True, True]
