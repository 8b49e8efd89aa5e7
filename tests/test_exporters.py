"""Other libraries' arrays in device memory: asked at each launch where they are now; on a driver in memory."""

from __future__ import annotations

import struct
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import cuda_captures
from cuda_captures import device, mirrors, ordering, settings
from cuda_captures.device import DeviceBuffer
from kernels_in_memory import Kernel, Loaded
from memory_driver import MemoryDriver

STREAM, OTHER_STREAM = 0x50, 0x70


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch, fake: MemoryDriver) -> list[list[bytes]]:
    """What the slots of each module were filled with, in order; at each filling."""
    filled: list[list[bytes]] = []

    def fill(self: Loaded, symbols: Any, stream: int = 0) -> None:
        filled.append([data for _, data in symbols])

    monkeypatch.setattr(Loaded, "fill", fill)
    monkeypatch.setattr(Loaded, "refill", fill)
    return filled


class Exporter:
    """An array of some library, in device memory; what it exports can be changed in place."""

    def __init__(self, shape: Any = (4,), typestr: str = "<f8", **interface: Any) -> None:
        self.buffer = DeviceBuffer(4096)
        self.asked = 0
        self.interface = {
            "shape": shape,
            "typestr": typestr,
            "data": (self.buffer.address, False),
            "version": 3,
            **interface,
        }

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        self.asked += 1
        if "raises" in self.interface:
            raise self.interface["raises"]
        return dict(self.interface)

    def move(self) -> int:
        """Other memory, as `tensor.set_` gives."""
        self.buffer = DeviceBuffer(4096)
        self.interface["data"] = (self.buffer.address, False)
        return self.buffer.address


class Tensor(Exporter):
    """What is asked of a tensor of PyTorch."""

    __module__ = "torch"

    requires_grad = False

    @property
    def shape(self) -> Any:
        return self.interface["shape"]

    @property
    def dtype(self) -> Any:
        return self.interface["typestr"]

    def stride(self) -> Any:
        return self.interface.get("strides")

    def data_ptr(self) -> int:
        return int(self.interface["data"][0])


class CupyArray(Exporter):
    """What is asked of an array of CuPy."""

    __module__ = "cupy"

    @property
    def data(self) -> Any:
        return type("MemoryPointer", (), {"ptr": self.interface["data"][0]})

    @property
    def shape(self) -> Any:
        return self.interface["shape"]

    @property
    def strides(self) -> Any:
        return self.interface.get("strides")

    @property
    def dtype(self) -> Any:
        return np.dtype(self.interface["typestr"])


KINDS = pytest.mark.parametrize("kind", [Exporter, Tensor, CupyArray])


def kernel_of(table: Any, **options: Any) -> tuple[Kernel, dict[str, Any]]:
    """A kernel that names ``table``, and its globals."""
    namespace: dict[str, Any] = {"table": table}
    exec("def kernel():\n    table\n", namespace)
    return Kernel(namespace["kernel"], **options), namespace


def addresses(filled: list[list[bytes]]) -> list[int]:
    """The address in the first slot, at each filling."""
    return [struct.unpack_from("<Q", slots[0])[0] for slots in filled]


# where the memory is


@KINDS
def test_memory_that_is_replaced_in_place_is_noticed(kind: Any, slots: list[list[bytes]]) -> None:
    array = kind()
    first = array.buffer.address
    kernel, _ = kernel_of(array)
    kernel.launch()
    kernel.launch()
    assert addresses(slots) == [first]
    second = array.move()
    kernel.launch()
    kernel.launch()
    assert addresses(slots) == [first, second]
    assert kernel.toolchain.compilations == 1


@dataclass(frozen=True)
class Tables:
    """What holds an array for good."""

    low: Any


@KINDS
@pytest.mark.parametrize("inside", ["tuple", "dataclass"])
def test_so_it_is_inside_of_tuples_and_dataclasses(kind: Any, inside: str, slots: list[list[bytes]]) -> None:
    array = kind()
    first = array.buffer.address
    namespace: dict[str, Any] = {"tables": (array,) if inside == "tuple" else Tables(array)}
    exec(f"def kernel():\n    {'tables[0]' if inside == 'tuple' else 'tables.low'}\n", namespace)
    kernel = Kernel(namespace["kernel"])
    kernel.launch()
    kernel.launch()
    second = array.move()
    kernel.launch()
    kernel.launch()
    assert addresses(slots) == [first, second]


def test_a_numpy_array_inside_of_a_tuple_may_be_reshaped_in_place(slots: list[list[bytes]]) -> None:
    table = np.arange(12.0)
    namespace: dict[str, Any] = {"tables": (table,)}
    exec("def kernel():\n    tables[0]\n", namespace)
    kernel = Kernel(namespace["kernel"])
    kernel.launch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table.shape = (3, 4)
    kernel.launch()
    assert kernel.toolchain.compilations == 2
    kernel.launch()
    assert len(slots) == 2


@KINDS
def test_a_dtype_that_is_replaced_in_place_is_noticed(kind: Any, slots: list[list[bytes]]) -> None:
    array = kind()
    kernel, _ = kernel_of(array)
    kernel.launch()
    array.interface["typestr"] = "<i8"  # as `tensor.data = tensor.view(torch.int64)`: same memory, same shape
    kernel.launch()
    assert kernel.toolchain.compilations == 2


@KINDS
def test_a_shape_that_is_replaced_in_place_is_noticed(kind: Any, slots: list[list[bytes]]) -> None:
    array = kind()
    kernel, _ = kernel_of(array)
    kernel.launch()
    for length in (3, 5, 7):
        array.interface["shape"] = (length,)
        kernel.launch()
        assert struct.unpack_from("<QQ", slots[-1][0]) == (array.buffer.address, length)
    assert kernel.toolchain.compilations == 2


def test_strides_are_taken_as_they_are(slots: list[list[bytes]]) -> None:
    array = Exporter((3, 4), strides=(64, 8))
    kernel, names = kernel_of(array)
    kernel.launch()
    names["table"] = Exporter((3, 4), strides=None)
    kernel.launch()
    names["table"] = Exporter((3, 4), strides=(32, 8))
    kernel.launch()
    assert struct.unpack_from("<Qqqqq", slots[-1][0])[1:] == (3, 4, 32, 8)
    assert kernel.toolchain.compilations == 2


def test_an_empty_array_has_no_address(slots: list[list[bytes]]) -> None:
    array = Exporter((0, 3), data=(None, False))
    kernel, _ = kernel_of(array)
    kernel.launch()
    assert addresses(slots) == [0]


def test_the_read_only_flag_is_respected_and_followed(slots: list[list[bytes]]) -> None:
    array = Exporter()
    kernel, _ = kernel_of(array)
    kernel.launch()
    array.interface["data"] = (array.buffer.address, True)
    kernel.launch()
    assert ["mutable" in key.text for key in (code.key for code in kernel.follower.specialisations.codes) if key] == [
        True,
        False,
    ]


@KINDS
def test_where_names_are_not_followed_replaced_memory_is_refused(kind: Any, slots: list[list[bytes]]) -> None:
    before = settings.install(settings.Settings(follow=False))
    try:
        array = kind()
        kernel, names = kernel_of(array)
        kernel.launch()
        names["table"] = kind()
        kernel.launch()
        assert addresses(slots) == [array.buffer.address]
        array.move()
        with pytest.raises(cuda_captures.CaptureError) as refused:
            kernel.launch()
    finally:
        settings.install(before)
    text = str(refused.value)
    assert "`table`, which kernel `kernel` captures, has got other memory, shape or dtype in place" in text
    assert "follow=False" in text
    assert "cuda_captures.enable()" in text


def test_an_array_that_is_mapped_for_the_device_is_used_in_place(slots: list[list[bytes]]) -> None:
    """As numba's mapped and managed arrays are: NumPy arrays that are exporters as well."""

    class Mapped(np.ndarray):
        @property
        def __cuda_array_interface__(self) -> Any:
            return {"shape": self.shape, "typestr": self.dtype.str, "data": (buffer.address, False), "version": 3}

    buffer = DeviceBuffer(256)
    array = np.arange(8.0).view(Mapped)
    for policy in ("live", "snapshot", "mapped", "constant"):
        before = settings.install(settings.Settings(host=policy))
        try:
            kernel, _ = kernel_of(array, written=["table"])
            kernel.launch()
        finally:
            settings.install(before)
        assert addresses(slots)[-1] == buffer.address
        assert mirrors.memory() == []


# what is refused


class Lazy(Exporter):
    """As a tensor of PyTorch that `conj()` or `_neg_view()` gave."""

    def __init__(self, bit: str) -> None:
        super().__init__()
        setattr(self, bit, lambda: True)


class NotHandedOut:
    """As a tensor of PyTorch in host memory: its class has the interface, and it has not."""

    @property
    def __cuda_array_interface__(self) -> Any:
        raise AttributeError("it is in host memory")


REFUSED = {
    "conjugated": (lambda: Lazy("is_conj"), "Capture `table.resolve_conj()`"),
    "negated": (lambda: Lazy("is_neg"), "Capture `table.resolve_neg()`"),
    "host memory": (NotHandedOut, "whose memory its library does not hand out: it is in host memory"),
    "mask": (lambda: Exporter(mask=object()), "`table` is a device array with a mask"),
    "byte order": (lambda: Exporter(typestr=">f8"), "of the other byte order than the device's"),
    "gradient": (
        lambda: Exporter(raises=RuntimeError("it requires grad")),
        "`table` is a Exporter whose memory its library does not hand out: it requires grad",
    ),
    "masked": (lambda: np.ma.masked_array(np.zeros(4), [0, 1, 0, 0]), "`table` is a masked array"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("rebound", [False, True])
def test_what_no_kernel_can_read_is_refused_whenever_it_comes(name: str, rebound: bool, slots: Any) -> None:
    if name in ("gradient", "host memory") and not rebound:
        pytest.skip("it is compilers that meet it: below")
    make, text = REFUSED[name]
    first: Any = np.zeros(4) if name == "masked" else Exporter()
    kernel, names = kernel_of(first if rebound else make())
    if rebound:
        kernel.launch()
        names["table"] = make()
    for _ in range(2):
        with pytest.raises(cuda_captures.CaptureTypingError) as refused:
            kernel.launch()
        assert text in str(refused.value)
        assert "    table" in str(refused.value) or "in kernel" in str(refused.value)
    names["table"] = first
    kernel.launch()


@pytest.mark.parametrize("error", [RuntimeError, AttributeError])
def test_compilers_refuse_an_array_that_is_not_handed_out(cuda: Any, error: Any) -> None:
    table = Unexportable(error("it requires grad"))

    @cuda.jit
    def kernel(out):
        out[0] = table[0]

    with pytest.raises(cuda_captures.CaptureTypingError) as refused:
        cuda_captures.explain(kernel, "void(float64[:])")
    text = str(refused.value)
    assert "`table` is a Unexportable whose memory its library does not hand out: it requires grad" in text
    assert "out[0] = table[0]" in text
    assert "of PyTorch `table.detach()`" in text


class Unexportable:
    """As a tensor of PyTorch that requires a gradient is, or an array of JAX that is on several devices."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    @property
    def __cuda_array_interface__(self) -> Any:
        raise self.error


def test_an_array_that_is_deleted_is_refused_by_name(slots: list[list[bytes]]) -> None:
    """As JAX's are, when they are donated."""
    array = Exporter()
    kernel, _ = kernel_of(array)
    kernel.launch()
    array.interface["raises"] = RuntimeError("Array has been deleted with shape=float64[4].")
    with pytest.raises(cuda_captures.CaptureTypingError, match=r"`table` is a Exporter(.|\n)*Array has been deleted"):
        kernel.launch()
    del array.interface["raises"]
    kernel.launch()


# streams


def waits(fake: MemoryDriver) -> int:
    return fake.calls["stream_wait"]


def test_a_launch_waits_for_the_producers_stream(fake: MemoryDriver, slots: list[list[bytes]]) -> None:
    array = Exporter(stream=OTHER_STREAM)
    kernel, _ = kernel_of(array)
    for expected in (1, 2):
        kernel.launch(STREAM)
        assert waits(fake) == expected
    kernel.launch(OTHER_STREAM)
    assert waits(fake) == 2


def test_a_producer_may_come_to_have_a_stream(fake: MemoryDriver, slots: list[list[bytes]]) -> None:
    array = Exporter(stream=None)
    kernel, _ = kernel_of(array)
    kernel.launch(STREAM)
    assert waits(fake) == 0
    array.interface["stream"] = OTHER_STREAM
    kernel.launch(STREAM)
    assert waits(fake) == 1
    array.interface["stream"] = None
    kernel.launch(STREAM)
    assert waits(fake) == 1


def test_an_array_without_a_stream_is_not_waited_for(fake: MemoryDriver, slots: list[list[bytes]]) -> None:
    for interface in ({"version": 2}, {"version": 3, "stream": None}):
        kernel, _ = kernel_of(Exporter(**interface))
        kernel.launch(STREAM)
    assert waits(fake) == 0
    assert device.current().device == 0


def test_the_default_stream_has_two_names(fake: MemoryDriver, slots: list[list[bytes]]) -> None:
    kernel, _ = kernel_of(Exporter(stream=1))
    kernel.launch(0)
    kernel.launch(1)
    assert waits(fake) == 0
    kernel.launch(STREAM)
    assert waits(fake) == 1


def test_a_graph_waits_for_no_producer_outside_of_it(
    fake: MemoryDriver, slots: list[list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered: list[Any] = []
    monkeypatch.setattr(ordering, "order", lambda *streams: ordered.append(streams))
    for producer, inside in ((1, False), (OTHER_STREAM, False), (OTHER_STREAM, True)):
        kernel, _ = kernel_of(Exporter(stream=producer))
        kernel.launch(STREAM)
        assert ordered.pop() == (producer, STREAM)
        fake.capturing |= {STREAM, OTHER_STREAM} if inside else {STREAM}
        kernel.launch(STREAM)
        fake.capturing.clear()
        assert ordered == [(producer, STREAM)] * inside
        ordered.clear()


# graphs


def test_a_kernel_that_is_not_bound_is_refused_in_a_capture(fake: MemoryDriver, slots: list[list[bytes]]) -> None:
    array = Exporter()
    kernel, _ = kernel_of(array)
    fake.capturing.add(STREAM)
    with pytest.raises(cuda_captures.CaptureError, match=r"Bind it before the capture begins: `cuda_captures.bind"):
        kernel.launch(STREAM)
    fake.capturing.clear()
    kernel.launch(STREAM)
    fake.capturing.add(STREAM)
    kernel.launch(STREAM)
    array.move()
    with pytest.raises(cuda_captures.CaptureError, match="Bind it before the capture begins"):
        kernel.launch(STREAM)


# compiled


class Shared(np.ndarray):
    """As numba's mapped and managed arrays: NumPy's, in memory that the device uses in place."""

    @property
    def __cuda_array_interface__(self) -> Any:
        return {
            "shape": self.shape,
            "strides": self.strides,
            "typestr": self.dtype.str,
            "data": (1 << 20, False),
            "version": 3,
        }


def test_compilers_take_memory_that_host_and_device_share(cuda: Any) -> None:
    table = np.arange(8.0).view(Shared)

    @cuda.jit
    def kernel(out):
        table[cuda.grid(1)] += out[0]

    explained = cuda_captures.explain(kernel, "void(float64[:])")
    assert "array f8 1d C mutable aligned device live shape (8,) strides (8,)" in explained.key
    (row,) = explained.rows
    assert (row.policy, row.written) == ("device", True)
    assert len(explained.slots) == 1
