"""Hypothesis strategies for arrays of every layout and of every element type that numba-cuda takes.

Elements are random bits (a bool is 0 or 1): a NaN keeps its payload only if nothing but loads and stores touch it, so
tests compare bit for bit (:func:`same`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

Array = np.ndarray[Any, Any]

SCALARS = tuple(
    np.dtype(name)
    for name in (
        *("bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"),
        *("M8[ns]", "M8[D]", "m8[s]", "m8[us]"),
    )
)
POINT = np.dtype([("x", "f4"), ("y", "f4")], align=True)
PARTICLE = np.dtype(
    [("alive", "bool"), ("mass", "f8"), ("at", POINT), ("tensor", "i2", (2, 3)), ("charge", "i1")], align=True
)
RECORDS = (POINT, PARTICLE)

dtypes = st.sampled_from(SCALARS)
record_dtypes = st.sampled_from(RECORDS)


def random_elements(dtype: np.dtype[Any], count: int, seed: int) -> Array:
    """A contiguous array of random bits."""
    rng = np.random.default_rng(seed)
    made = np.zeros(count, dtype)
    if dtype.names is not None:
        for name in dtype.names:
            field = made[name]
            field[...] = random_elements(field.dtype, field.size, seed + 1).reshape(field.shape)
    elif dtype == np.bool_:
        made[:] = rng.integers(0, 2, count)
    else:
        made[:] = np.frombuffer(rng.bytes(count * dtype.itemsize), dtype)
    return made


@st.composite
def arrays(
    draw: st.DrawFn,
    dtype: np.dtype[Any] | st.SearchStrategy[np.dtype[Any]] = dtypes,
    min_dims: int = 0,
    max_dims: int = 3,
    min_side: int = 0,
    writable: bool = False,
    unaligned: bool = False,
) -> Array:
    """An array with axes in any order, gaps, reversed axes, repeated ones (stride 0), or a field of records.

    With ``writable``, no two elements share memory.  With ``unaligned``, the records may be packed, so that elements
    are at odd addresses.
    """
    kind = dtype if isinstance(dtype, np.dtype) else draw(dtype)
    sides_drawn = st.sampled_from([side for side in (2, 3, 1, 4, 0) if side >= min_side])
    ndim = draw(st.sampled_from([n for n in (1, 2, 3, 0, 4) if min_dims <= n <= max_dims]))
    shape = tuple(draw(sides_drawn) for _ in range(ndim))
    steps = [draw(st.sampled_from([1, 1, 1, -1, 2, -2, 3])) for _ in shape]
    repeated = [not writable and draw(st.sampled_from([False] * 5 + [True])) for _ in shape]
    order = draw(st.permutations(range(len(shape))))
    in_records = kind.names is None and draw(st.booleans())
    seed = draw(st.integers(0, 2**32 - 1))

    sides = [1 if repeat else extent * abs(step) for extent, step, repeat in zip(shape, steps, repeated, strict=True)]
    sides_in_memory = [sides[axis] for axis in order]
    count = int(np.prod(sides_in_memory, dtype=np.int64))
    elements = random_elements(kind, count, seed)
    if in_records:
        aligned = not (unaligned and draw(st.booleans()))
        records = np.zeros(count, np.dtype([("before", "i1"), ("here", kind), ("after", "i4")], align=aligned))
        records["here"] = elements
        elements = records["here"]
    laid = elements.reshape(sides_in_memory).transpose(np.argsort(order))
    slices = [slice(None, None, 1 if repeat else step) for step, repeat in zip(steps, repeated, strict=True)]
    index: tuple[Any, ...] = (*slices, ...)  # the ellipsis keeps an array where there are no axes
    made: Array = laid[index]
    if any(repeated):
        made = np.broadcast_to(made, shape)
        made.flags.writeable = False
    assert made.shape == shape
    return made


def same(left: Array, right: Array) -> bool:
    """Whether two arrays are equal bit for bit; the padding of records does not count."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype.names is not None:
        return all(same(left[name], right[name]) for name in left.dtype.names)
    return left.tobytes() == right.tobytes()


def element_source(ndim: int, array: str, index: str = "i") -> str:
    """Source text of the element at a linear index in C order, for any layout."""
    if ndim == 0:
        return f"{array}[()]"
    parts = []
    for axis in range(ndim):
        inner = "".join(f" // {array}.shape[{later}]" for later in range(ndim - 1, axis, -1))
        parts.append(f"{index}{inner} % {array}.shape[{axis}]")
    return f"{array}[{', '.join(parts)}]"
