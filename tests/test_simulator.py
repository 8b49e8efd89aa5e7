"""The simulator of numba: everything imports and runs there, and arrays are by reference by nature."""

from __future__ import annotations

import pytest

from cuda_captures import backends
from interpreters import python

pytestmark = pytest.mark.skipif("numba-cuda" not in backends.present(), reason="the simulator is a part of numba-cuda")

BEGIN = """\
import warnings
import numpy as np
import cuda_captures
from numba import cuda
warnings.simplefilter("ignore")
cuda_captures.enable()
"""


def simulated(program: str) -> list[str]:
    """The lines that a program prints in the simulator."""
    return python(BEGIN + program, NUMBA_ENABLE_CUDASIM="1").splitlines()


def test_edits_writes_and_rebinding() -> None:
    program = """
table = np.arange(5.0)
counts = np.zeros(5, np.int64)

@cuda.jit(device=True)
def look_up(i):
    return table[i]

@cuda.jit
def kernel(out):
    i = cuda.grid(1)
    out[i] = look_up(i)
    cuda.atomic.add(counts, i, i)

out = np.zeros(5)
kernel[1, 5](out)
print(out.tolist())
table *= 2
kernel[1, 5](out)
print(out.tolist())
table = np.ones(5)
kernel[1, 5](out)
print(out.tolist(), counts.tolist())
"""
    assert simulated(program) == [
        "[0.0, 1.0, 2.0, 3.0, 4.0]",
        "[0.0, 2.0, 4.0, 6.0, 8.0]",
        "[1.0, 1.0, 1.0, 1.0, 1.0] [0, 3, 6, 9, 12]",
    ]


def test_attributes_of_objects() -> None:
    program = """
import dataclasses
from types import SimpleNamespace

@dataclasses.dataclass(frozen=True)
class Config:
    table: np.ndarray
    scale: int = 2

config, state = Config(np.arange(3.0)), SimpleNamespace(counts=np.zeros(3, np.int64))

@cuda.jit
def kernel(out):
    i = cuda.grid(1)
    out[i] = config.table[i] * config.scale
    cuda.atomic.add(state.counts, i, i)

out = np.zeros(3)
kernel[1, 3](out)
config.table[:] += 1
state.counts, before = np.zeros(3, np.int64), state.counts
kernel[1, 3](out)
print(out.tolist(), before.tolist(), state.counts.tolist())
print([row.name for row in cuda_captures.report(kernel).rows])
"""
    assert simulated(program) == [
        "[2.0, 4.0, 6.0] [0, 1, 2] [0, 1, 2]",
        "['config.table', 'state.counts']",
    ]


@pytest.mark.parametrize("marker", ["live", "snapshot", "mapped", "constant"])
def test_markers(marker: str) -> None:
    program = f"""
table = cuda_captures.{marker}(np.arange(3.0))

@cuda.jit
def kernel(out):
    i = cuda.grid(1)
    out[i] = table[i] + table.sum()

out = np.zeros(3)
kernel[1, 3](out)
print(out.tolist())
"""
    assert simulated(program) == ["[3.0, 4.0, 5.0]"]


@pytest.mark.parametrize(
    "decorator",
    [
        "cuda.jit(captures='snapshot')",
        "cuda.jit(captures={'table': 'mapped'})",
        "cuda.jit('void(float64[:])', captures='live', cache=True)",
        "cuda.jit(captures=None)",
    ],
)
def test_policies_of_a_kernel_are_accepted(decorator: str) -> None:
    program = f"""
table = np.arange(3.0)

@{decorator}
def kernel(out):
    out[0] = table[2]

out = np.zeros(1)
kernel[1, 1](out)
print(out[0])
"""
    assert simulated(program) == ["2.0"]


def test_policies_that_do_not_exist_are_refused_here_too() -> None:
    program = """
for captures in ("snapshots", {"table": "snapshots"}, 3):
    try:
        cuda.jit(captures=captures)(lambda: None)
    except ValueError as error:
        print(str(error).partition(":")[0])
"""
    assert simulated(program) == ["captures='snapshots'", "captures={'table'", "captures=3"]


def test_the_rest_of_the_interface() -> None:
    program = """
table = np.arange(3.0)

@cuda.jit
def kernel(out):
    out[0] = cuda.const.array_like(table)[1]

out = np.zeros(1)
cuda_captures.bind(kernel, out)
kernel[1, 1](out)
report = cuda_captures.report(kernel)
print(out[0], report.rows[0].name, report.rows[0].policy, report.rows[0].nbytes, cuda_captures.memory())
try:
    cuda_captures.explain(kernel, "void(float64[:])")
except cuda_captures.CaptureError as error:
    print(error)
"""
    first, *explained = simulated(program)
    assert first == "1.0 table simulated 24 []"
    assert explained[0].startswith("nothing is compiled under the simulator (NUMBA_ENABLE_CUDASIM=1)")


def test_disabling_restores_the_decorator() -> None:
    program = """
from numba.cuda.simulator import api
print(cuda.jit is api.jit, cuda.jit.__wrapped__.__module__)
before = cuda.jit.__wrapped__
cuda_captures.disable()
print(cuda.jit is api.jit is before)
with cuda_captures.enabled():
    print(cuda.jit is before)
print(cuda.jit is before)
"""
    assert simulated(program) == ["True numba.cuda.simulator.api", "True", "False", "True"]


def test_captures_by_the_environment() -> None:
    program = """
        import numpy as np
        from numba import cuda

        @cuda.jit(captures="live")
        def kernel(out):
            out[0] = 1

        out = np.zeros(1)
        kernel[1, 1](out)
        print(out[0])
    """
    assert python(program, "-W", "ignore", CUDA_CAPTURES="1", NUMBA_ENABLE_CUDASIM="1") == "1.0"
