"""Arrays that lie in memory in every way that an array can."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided

RECORD = np.dtype([("a", "i4"), ("b", "f8"), ("c", "u1")])
LAYOUTS = {
    "C": np.arange(60.0).reshape(5, 12),
    "Fortran": np.asfortranarray(np.arange(60.0).reshape(5, 12)),
    "negative": np.arange(60.0)[::-1],
    "negative, stepped": np.arange(60.0).reshape(5, 12)[::-2, ::-3],
    "gapped": np.arange(60)[::7],
    "zero": np.broadcast_to(np.arange(5.0), (4, 5)),
    "windows": as_strided(np.arange(12.0), (5, 4), (16, 8)),
    "transposed": np.arange(60.0).reshape(3, 4, 5).transpose(1, 2, 0),
    "0-d": np.array(3.5),
    "field": np.zeros(9, RECORD)["b"],
    "records": np.zeros(9, RECORD),
    "some fields": np.zeros(9, RECORD)[["a", "c"]],
    "empty": np.zeros((3, 0)),
    "unit": np.arange(6.0).reshape(1, 6, 1),
    "odd": np.arange(64, dtype=np.uint8)[3:20],
    "unaligned": np.arange(64, dtype=np.uint8)[3:51].view("f8"),
    "frozen": np.frombuffer(bytes(range(64)), np.uint8),
}
