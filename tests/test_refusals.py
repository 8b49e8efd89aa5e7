"""What is refused, and how that is said: the variable, the place, the reason, what to write instead."""

from __future__ import annotations

import linecache
import re
from typing import Any

import numpy as np
import pytest

import cuda_captures

SIGNATURE = "void(float64[::1])"


def explain(cuda: Any, statement: str, option: Any = None, **names: Any) -> Any:
    """Compile a kernel whose body is one statement."""
    source = f"def kernel(out):\n    {statement}\n"
    filename = f"<kernel {abs(hash(source))}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    namespace: dict[str, Any] = {"cuda": cuda, **names}
    exec(compile(source, filename, "exec"), namespace)
    options = {} if option is None else {"captures": option}
    return cuda_captures.explain(cuda.jit(**options)(namespace["kernel"]), SIGNATURE)


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


VALUES = {
    "masked": np.ma.masked_array([1.0, 2.0]),
    "objects": np.array([object(), object()]),
    "swapped": np.arange(3.0).astype(np.dtype(float).newbyteorder("S")),
    "frozen": read_only(np.arange(3.0)),
    "taken": cuda_captures.snapshot(np.arange(3.0)),
    "fixed": cuda_captures.constant(np.arange(3.0)),
    "large": np.zeros(9000),
    "half": np.zeros(5000),
    "other": np.zeros(5000),
    "listed": [1.0, 2.0],
    "table": np.arange(3.0),
}

REFUSALS = {
    "out[0] = masked[1]": r"`masked` is a masked array(.|\n)*masked\[1\]\n +\^{6}(.|\n)*masked.filled\(0\)",
    "out[0] = objects[1]": r"`objects` is an array of Python objects \(dtype object\)(.|\n)*astype\(np.float64\)",
    "out[0] = swapped[1]": r"`swapped` has the dtype .*other byte order(.|\n)*newbyteorder",
    "out[0] = listed[1]": r"`listed` is a list(.|\n)*\^{6}(.|\n)*`listed = np.array\(listed\)`",
    "frozen[0] = 1": r"writes `frozen`, which is not writeable(.|\n)*:2, in kernel\n +frozen\[0\] = 1\n +\^{6}\n",
    "frozen[0] += 1": r"writes `frozen`, which is not writeable(.|\n)*frozen = frozen.copy\(\)",
    "cuda.atomic.add(frozen, 0, 1.0)": r"writes `frozen`, which is not writeable",
    "view = frozen[1:]; view[0] = 1": r"writes `frozen`, which is not writeable",
    "taken[1] = 2": r"writes `taken`, .*policy `snapshot`(.|\n)*cuda_captures.live\(taken\)",
    "fixed[1] = 2": r"writes `fixed`, .*policy `constant`(.|\n)*cuda_captures.live\(fixed\)",
    "cuda.const.array_like(table)[0] = 1": r"writes `table`, .*policy `constant`",
    "out[0] = cuda.const.array_like(large)[1]": (
        r"`large` \(72,000 bytes\); together 72,000 bytes, and a kernel has 65,536"
    ),
    "out[0] = cuda.const.array_like(half)[1] + cuda.const.array_like(other)[1]": (
        r"`half` \(40,000 bytes\), `other` \(40,000 bytes\); together 80,000 bytes(.|\n)*Leave out"
    ),
}


@pytest.mark.parametrize("statement", REFUSALS)
def test_refusal(cuda: Any, statement: str) -> None:
    names = {name: value for name, value in VALUES.items() if re.search(rf"\b{name}\b", statement)}
    with pytest.raises(cuda_captures.CaptureTypingError, match=REFUSALS[statement]):
        explain(cuda, statement, **names)


def test_a_refused_kernel_works_once_mended(cuda: Any) -> None:
    table = read_only(np.arange(3.0))
    with pytest.raises(cuda_captures.CaptureTypingError):
        explain(cuda, "table[0] = 1", table=table)
    explanation = explain(cuda, "table[0] = 1", table=table.copy())
    assert [row.written for row in explanation.rows] == [True]


@pytest.mark.parametrize("option", ["lively", {"table": "lively"}, 3])
def test_a_policy_that_does_not_exist(cuda: Any, option: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="captures"):
        explain(cuda, "out[0] = table[0]", option, table=np.arange(3.0))


def test_policies_by_kernel(cuda: Any) -> None:
    table = np.arange(3.0)
    for option, policy in ((None, "live"), ("snapshot", "snapshot"), ({"table": "mapped"}, "mapped"), ({}, "live")):
        assert [row.policy for row in explain(cuda, "out[0] = table[0]", option, table=table).rows] == [policy]
    marked = cuda_captures.live(table)
    assert [row.policy for row in explain(cuda, "out[0] = table[0]", "snapshot", table=marked).rows] == ["live"]
    assert explain(cuda, "out[0] = table[0]", "constant", table=table).constant_bytes == 24


WRITES = {
    "out[0] = table[0]": False,
    "out[0] = table[0:2][1] + len(table) + table.size": False,
    "out[0] = table.sum()": False,
    "table[0] = out[0]": True,
    "table[0] += 1": True,
    "cuda.atomic.max(table, 0, out[0])": True,
    "view = table[::-1]; view[1] = 2": True,
    "for item in table: out[0] += item": False,
}


@pytest.mark.parametrize("statement", WRITES)
def test_what_is_written(cuda: Any, statement: str) -> None:
    explanation = explain(cuda, statement, table=np.arange(3.0))
    assert [row.written for row in explanation.rows] == [WRITES[statement]]


def test_writes_are_followed_into_device_functions(cuda: Any) -> None:
    @cuda.jit(device=True)
    def store(array, value):
        array[0] = value

    @cuda.jit(device=True)
    def load(array):
        return array[0]

    table = np.arange(3.0)
    assert [row.written for row in explain(cuda, "store(table, out[0])", store=store, table=table).rows] == [True]
    assert [row.written for row in explain(cuda, "out[0] = load(table)", load=load, table=table).rows] == [False]
