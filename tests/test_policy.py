"""Markers are views that behave as arrays everywhere; the narrower rule decides on a policy."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cuda_captures.policy import (
    POLICIES,
    MarkedArray,
    check_policies,
    constant,
    live,
    mapped,
    policy_of,
    snapshot,
)

MARKERS = {"live": live, "snapshot": snapshot, "mapped": mapped, "constant": constant}
arrays = hnp.arrays(
    st.sampled_from([np.dtype("f8"), np.dtype("i4"), np.dtype("?"), np.dtype([("a", "i1"), ("b", "f8")])]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0),
)


@pytest.mark.parametrize(("policy", "marker"), MARKERS.items())
@given(array=arrays)
def test_a_marked_array_is_a_view_of_the_same_memory(policy: str, marker: Any, array: np.ndarray[Any, Any]) -> None:
    marked = marker(array)
    assert marked.capture_policy == policy
    assert isinstance(marked, np.ndarray)
    assert marked.base is array
    assert (marked.shape, marked.strides, marked.dtype) == (array.shape, array.strides, array.dtype)
    assert marked.__array_interface__["data"] == array.__array_interface__["data"]


def test_edits_go_both_ways() -> None:
    array = np.zeros(3)
    marked = snapshot(array)
    marked[0] = 1
    array[1] = 2
    assert marked.tolist() == array.tolist() == [1, 2, 0]


def test_a_marker_replaces_another_and_leaves_it_alone() -> None:
    first = snapshot(np.zeros(3))
    second = constant(first)
    assert (first.capture_policy, second.capture_policy) == ("snapshot", "constant")
    assert np.shares_memory(first, second)


VIEWS = {
    "slice": lambda a: a[1:],
    "reversed": lambda a: a[::-1],
    "column": lambda a: a[:, 0],
    "ellipsis": lambda a: a[...],
    "new axis": lambda a: a[None],
    "transpose": lambda a: a.T,
    "reshape": lambda a: a.reshape(-1),
    "ravel": lambda a: a.ravel(),
    "view": lambda a: a.view("u8"),
    "real": lambda a: a.real,
    "np.transpose": np.transpose,
    "np.reshape": lambda a: np.reshape(a, -1),
    "np.squeeze": np.squeeze,
    "np.flip": np.flip,
    "a view of a view": lambda a: a[1:].T[:1],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=list(VIEWS))
def test_views_keep_the_marker(view: Any) -> None:
    viewed = view(snapshot(np.arange(6.0).reshape(3, 2)))
    assert isinstance(viewed, MarkedArray)
    assert viewed.capture_policy == "snapshot"


COPIES = {
    "copy": lambda a: a.copy(),
    "copy in Fortran order": lambda a: a.copy(order="F"),
    "copy.copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "deepcopy in a list": lambda a: copy.deepcopy([a])[0],
    **{
        f"pickle {protocol}": lambda a, protocol=protocol: pickle.loads(pickle.dumps(a, protocol))
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    },
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=list(COPIES))
@pytest.mark.parametrize("array", [np.arange(6.0).reshape(3, 2), np.array(3.0), np.arange(8)[::2], np.zeros(0, "i1")])
def test_copies_keep_the_marker_and_the_data(copied: Any, array: np.ndarray[Any, Any]) -> None:
    found = copied(constant(array))
    assert isinstance(found, MarkedArray)
    assert found.capture_policy == "constant"
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)
    assert not np.shares_memory(found, array)


def test_pickles_leave_large_data_out_of_band() -> None:
    array = np.arange(100_000.0)
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(live(array), protocol=5, buffer_callback=buffers.append)
    assert len(data) < 1000
    assert sum(buffer.raw().nbytes for buffer in buffers) == array.nbytes
    found = pickle.loads(data, buffers=buffers)
    assert found.capture_policy == "live"
    assert np.shares_memory(found, array)


def test_cloudpickle_keeps_the_marker() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    table = mapped(np.arange(5.0))

    def kernel(i: int) -> Any:
        return table[i], table.capture_policy

    assert pickle.loads(cloudpickle.dumps(kernel))(2) == (2.0, "mapped")


COMPUTATIONS = {
    "sum of two": lambda a: a + a,
    "with a scalar": lambda a: 2 * a,
    "with a plain one": lambda a: np.ones((3, 2)) - a,
    "ufunc": np.sin,
    "two results": lambda a: np.modf(a)[0],
    "comparison": lambda a: a == a.T.T,
    "reduction": lambda a: np.add.reduce(a),
    "sum": lambda a: a.sum(axis=0),
    "mean": lambda a: a.mean(axis=1),
    "accumulate": lambda a: np.add.accumulate(a),
    "outer": lambda a: np.multiply.outer(a, a),
    "matmul": lambda a: a @ a.T,
    "where": lambda a: np.add(a, a, out=np.zeros_like(a), where=a > 2),
    "np.concatenate": lambda a: np.concatenate([a, a]),
    "np.dot": lambda a: np.dot(a, a.T),
    "np.sort": np.sort,
    "np.zeros_like": np.zeros_like,
    "np.where": lambda a: np.where(a > 2, a, 0),
    "np.einsum": lambda a: np.einsum("ij->ji", a) + 0,
    "np.asarray": np.asarray,
    "np.array": np.array,
}


@pytest.mark.parametrize("computed", COMPUTATIONS.values(), ids=list(COMPUTATIONS))
def test_what_is_computed_is_plain(computed: Any) -> None:
    array = np.arange(6.0).reshape(3, 2)
    found = computed(snapshot(array))
    assert type(found) is np.ndarray
    assert np.array_equal(found, computed(array))


METHODS = {
    "argmax": lambda a: a.argmax(axis=0),
    "dot": lambda a: a.dot(a.T),
    "astype": lambda a: a.astype("f4"),
    "take": lambda a: a.take([0, 1], axis=0),
    "fancy index": lambda a: a[[0, 2]],
    "mask": lambda a: a[a > 2],
    "flatten": lambda a: a.flatten(),
    "repeat": lambda a: a.repeat(2),
    "argsort": lambda a: a.argsort(axis=0),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))
def test_methods_that_make_new_memory_drop_the_policy(method: Any) -> None:
    array = np.arange(6.0).reshape(3, 2)
    found = method(snapshot(array))
    assert policy_of(found, "x", None, "live") == "live"
    assert np.array_equal(found, method(array))


def test_in_place_operations_keep_the_array() -> None:
    array = np.arange(6.0)
    marked = before = live(array)
    marked += 1
    marked *= marked
    np.add(marked, 1, out=marked)
    assert np.add(1, marked, out=marked) is marked
    assert marked is before
    assert marked.capture_policy == "live"
    assert array.tolist() == [(i + 1) ** 2 + 2 for i in range(6)]


def test_ufuncs_write_into_marked_outputs() -> None:
    whole = live(np.zeros(3))
    fraction, number = np.modf(np.array([1.5, 2.25, -0.5]), whole, None)
    assert fraction is whole
    assert type(number) is np.ndarray
    np.add.at(whole, [0, 0], 1)
    assert whole.tolist() == [2.5, 0.25, -0.5]


def test_other_array_types_still_get_their_say() -> None:
    class Other:
        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> str:
            return f"{ufunc.__name__} of {[type(one).__name__ for one in inputs]}"

    assert live(np.zeros(3)) + Other() == "add of ['ndarray', 'Other']"
    with pytest.raises(TypeError):
        live(np.zeros(3)) + object()


def test_a_marked_0d_array() -> None:
    marked = live(np.array(3.0))
    assert marked[()] == 3.0
    assert type(marked[()]) is np.float64
    assert marked[...].capture_policy == "live"
    assert float(marked) == 3.0
    marked[...] = 4
    assert marked.item() == 4.0


def test_elements_are_scalars_and_rows_are_marked() -> None:
    marked = constant(np.eye(2))
    assert type(marked[0, 0]) is np.float64
    assert [type(row) for row in marked] == [MarkedArray, MarkedArray]
    assert [row.capture_policy for row in marked] == ["constant", "constant"]


class DeviceArray:
    __cuda_array_interface__: dict[str, Any] = {}


@pytest.mark.parametrize(("policy", "marker"), MARKERS.items())
def test_what_cannot_be_marked_is_refused(policy: str, marker: Any) -> None:
    with pytest.raises(TypeError) as refused:
        marker(DeviceArray())
    assert str(refused.value) == (
        f"{policy}(...) marks NumPy arrays, and got a {__name__}.DeviceArray, which the device uses in place.\n"
        "Capture it as it is: device arrays need no policy."
    )
    with pytest.raises(TypeError) as refused:
        marker([1, 2])
    assert str(refused.value) == (
        f"{policy}(...) marks NumPy arrays, and got a builtins.list.\n"
        f"Make it an array first: `{policy}(np.array(...))`, and keep it: the marked array is a view of that memory."
    )
    with pytest.raises(TypeError, match=rf"^{policy}\(\.\.\.\) marks NumPy arrays, and got a numpy.float64.\n"):
        marker(np.float64(1))
    with pytest.raises(TypeError) as refused:
        marker(np.ma.zeros(3))
    assert str(refused.value) == (
        f"{policy}(...) marks NumPy arrays, and got a masked array, whose mask a kernel would not see.\n"
        f"Mark data and mask as two arrays: `{policy}(array.filled(0))` and `{policy}(np.ma.getmaskarray(array))`."
    )


@pytest.mark.parametrize(
    ("marker", "kernel", "process", "expected"),
    [
        (None, None, "live", "live"),
        (None, None, "snapshot", "snapshot"),
        (None, "mapped", "snapshot", "mapped"),
        (None, {"table": "constant"}, "snapshot", "constant"),
        (None, {"other": "constant"}, "snapshot", "snapshot"),
        (None, {}, "snapshot", "snapshot"),
        (live, "mapped", "snapshot", "live"),
        (live, {"table": "mapped"}, "snapshot", "live"),
        (constant, None, "live", "constant"),
    ],
)
def test_the_narrower_rule_wins(marker: Any, kernel: Any, process: str, expected: str) -> None:
    array: Any = np.zeros(3)
    assert policy_of(marker(array) if marker else array, "table", kernel, process) == expected


def test_an_item_of_a_tuple_goes_by_its_own_name_and_then_by_the_tuples() -> None:
    array = np.zeros(3)
    captures = {"tables": "mapped", "tables.sine": "snapshot", "other[1]": "constant"}
    assert policy_of(array, "tables[0]", captures, "live") == "mapped"
    assert policy_of(array, "tables.sine", captures, "live") == "snapshot"
    assert policy_of(array, "tables.sine[2]", captures, "live") == "snapshot"
    assert policy_of(array, "tables[0].sine", captures, "live") == "mapped"
    assert policy_of(array, "other[1]", captures, "live") == "constant"
    assert policy_of(array, "other[0]", captures, "live") == "live"


@pytest.mark.parametrize("captures", [None, *POLICIES, {}, {"table": "live", "tables[0]": "mapped"}])
def test_good_options_pass(captures: Any) -> None:
    check_policies(captures)


CHOICE = "'live', 'snapshot', 'mapped', 'constant'"


@pytest.mark.parametrize(
    ("captures", "text"),
    [
        ("lively", f"captures='lively': the policy must be one of {CHOICE}"),
        (3, f"captures=3: must be one of {CHOICE}, or a mapping from names to these"),
        (["live"], f"captures=['live']: must be one of {CHOICE}, or a mapping from names to these"),
        ({"table": "hot"}, f"captures={{'table': 'hot'}}: the policy of `table` must be one of {CHOICE}"),
        ({"table": None}, f"captures={{'table': None}}: the policy of `table` must be one of {CHOICE}"),
        ({3: "live"}, "captures={3: ...}: a name must be a str, the captured variable's"),
    ],
)
def test_bad_options_are_refused(captures: Any, text: str) -> None:
    with pytest.raises(ValueError) as refused:
        check_policies(captures)
    assert str(refused.value) == text
