"""What compiled code may assume of an array."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cuda_captures.policy import POLICIES
from cuda_captures.signature import ArraySignature, array_signature

Array = np.ndarray[Any, Any]
DTYPES = [np.dtype(text) for text in ("f8", "i2", "?", "c16", "M8[ns]", ">i4")] + [np.dtype([("a", "i1"), ("b", "f8")])]


class Exported:
    """An array as a library on a device exports it."""

    def __init__(self, array: Array, strides: bool = True, dtype: bool = False) -> None:
        self.interface = {**array.__array_interface__, "version": 3}
        if not strides and array.flags.c_contiguous:
            self.interface["strides"] = None
        elif self.interface["strides"] is None:
            self.interface["strides"] = array.strides
        if dtype:
            self.dtype = array.dtype

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.interface


@st.composite
def layouts(draw: st.DrawFn) -> Array:
    """Arrays of any layout: slices, transposes, broadcasts, reversals, empty ones."""
    array: Array = np.zeros(
        draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)), draw(st.sampled_from(DTYPES))
    )
    for _ in range(draw(st.integers(0, 3))):
        change = draw(st.sampled_from(["slice", "transpose", "reverse", "broadcast", "axis", "readonly"]))
        if change == "transpose":
            array = array.transpose(draw(st.permutations(range(array.ndim))))
        elif change == "broadcast":
            array = np.broadcast_to(array, (draw(st.integers(0, 3)), *array.shape))
        elif change == "readonly":
            array = array[...]
            array.flags.writeable = False
        elif array.ndim and change in ("slice", "reverse"):
            step = -1 if change == "reverse" else draw(st.integers(1, 3))
            array = array[::step]
        elif change == "axis":
            array = array[..., None]
    return array


@given(layouts(), st.sampled_from(POLICIES))
def test_a_numpy_array_is_what_its_flags_say(array: Array, policy: Any) -> None:
    found = array_signature(array, policy)
    assert (found.dtype, found.ndim, found.shape, found.strides) == (
        array.dtype,
        array.ndim,
        array.shape,
        array.strides,
    )
    assert found.layout == ("C" if array.flags.c_contiguous else "F" if array.flags.f_contiguous else "A")
    assert found.readonly == (not array.flags.writeable or policy in ("snapshot", "constant"))
    assert found.aligned == array.flags.aligned
    assert (found.memory, found.policy, found.exact) == ("host", policy, True)


@given(layouts(), st.booleans(), st.booleans())
def test_a_device_array_is_told_as_numpy_tells_it(array: Array, strides: bool, dtype: bool) -> None:
    exported = Exported(array, strides, dtype)
    found = array_signature(exported, "live")
    expected = array_signature(array, "live")
    assert found.memory == "device"
    assert found.policy == "live"
    for name in ("ndim", "layout", "readonly", "shape"):
        assert getattr(found, name) == getattr(expected, name), name
    if exported.interface["strides"] is not None:
        assert found.strides == expected.strides
    assert found.dtype.itemsize == array.dtype.itemsize
    if dtype or array.dtype.names is None:
        assert found.dtype == array.dtype
        assert found.dtype_text == expected.dtype_text


def test_an_unaligned_device_array() -> None:
    raw = np.zeros(17, "u1")
    base = 1 if raw.ctypes.data % 8 == 0 else 0
    unaligned = raw[base : base + 16].view("f8")
    assert array_signature(Exported(unaligned), "live").aligned == unaligned.flags.aligned
    records = np.zeros(3, [("a", "i1"), ("b", "f8")])
    assert not array_signature(Exported(records["b"]), "live").aligned
    assert array_signature(Exported(np.zeros(3)), "live").aligned


def test_a_device_array_of_no_memory() -> None:
    exported = Exported(np.zeros(0))
    exported.interface["data"] = (None, False)
    found = array_signature(exported, "live")
    assert (found.shape, found.layout, found.aligned) == ((0,), "C", True)


def test_what_is_both_an_array_and_a_device_array_is_used_in_place() -> None:
    class Mapped(np.ndarray[Any, Any]):
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return {**self.__array_interface__, "version": 3}

    assert array_signature(np.zeros(3).view(Mapped), "mapped").memory == "device"
    assert array_signature(np.zeros(3).view(np.recarray), "live").memory == "host"


def test_memory_that_is_read_only_by_its_interface() -> None:
    exported = Exported(np.zeros(3))
    exported.interface["data"] = (256, True)
    assert array_signature(exported, "live").readonly


@given(layouts(), layouts())
def test_exact_code_takes_only_the_very_same(first: Array, second: Array) -> None:
    one, two = array_signature(first, "live"), array_signature(second, "live")
    assert one.accepts(one)
    assert one.accepts(two) == (one == two)


@given(layouts(), layouts(), st.sampled_from(["C", "F", "A"]))
def test_general_code_takes_every_shape_of_its_layout(first: Array, second: Array, layout: Any) -> None:
    one, two = array_signature(first, "live"), array_signature(second, "live")
    general = one.general(layout)
    assert (general.shape, general.strides, general.exact) == (None, None, False)
    same = (one.dtype, one.dtype_text, one.ndim, one.readonly, one.aligned) == (
        two.dtype,
        two.dtype_text,
        two.ndim,
        two.readonly,
        two.aligned,
    )
    assert one.same_kind(two) == two.same_kind(one) == same
    assert general.accepts(two) == (same and layout in ("A", two.layout))
    assert general.general() == general


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": np.dtype("i8"), "dtype_text": "i8"},
        {"ndim": 2},
        {"readonly": True},
        {"aligned": False},
        {"memory": "device"},
        {"policy": "mapped"},
        {"dtype_text": "other"},
    ],
)
def test_what_makes_another_kind(change: dict[str, Any]) -> None:
    one = array_signature(np.zeros(3), "live")
    other = one._replace(**change)
    assert not one.same_kind(other)
    assert not one.accepts(other)
    assert not one.general("A").accepts(other)
    assert one != other


def test_alignment_of_records_is_told_apart_though_numpy_calls_them_equal() -> None:
    packed, aligned = np.dtype([("a", "i4"), ("b", "f4")]), np.dtype([("a", "i4"), ("b", "f4")], align=True)
    assert packed == aligned
    one, two = array_signature(np.zeros(3, packed), "live"), array_signature(np.zeros(3, aligned), "live")
    assert one != two
    assert not one.accepts(two)


@given(layouts())
def test_signatures_are_values(array: Array) -> None:
    found = array_signature(array, "live")
    again: ArraySignature = pickle.loads(pickle.dumps(found))
    assert again == found
    assert hash(again) == hash(found)
    assert again.dtype.isalignedstruct == found.dtype.isalignedstruct
    assert str(again) == str(found)


def test_a_signature_as_text() -> None:
    found = array_signature(np.zeros((3, 4), "f4").T, "snapshot")
    assert str(found) == "array f4 2d F readonly aligned host snapshot shape (4, 3) strides (4, 16)"
    assert str(found.general()) == "array f4 2d F readonly aligned host snapshot any shape"
