"""The backend for numba's simulator (``NUMBA_ENABLE_CUDASIM=1``).

The simulator runs kernels as Python, so arrays are captured by reference there by nature, and names are looked up at
each launch.  ``@cuda.jit(captures=...)`` is checked as elsewhere and has no effect.  What the simulator cannot show:
copies (there are none), policies other than ``live`` (a ``snapshot`` sees edits there), and refused writes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from cuda_captures.backends import reducing
from cuda_captures.backends.patching import Patches
from cuda_captures.backends.rows import defined_at, simulated_rows
from cuda_captures.discovery import discover
from cuda_captures.errors import CaptureError
from cuda_captures.policy import check_options
from cuda_captures.report import CaptureReport

_patches = Patches()


def enable() -> None:
    """Let ``cuda.jit`` take ``captures=``; nothing else needs to be joined."""
    from numba import cuda
    from numba.cuda.simulator import api
    from numba.cuda.simulator.kernel import FakeCUDAKernel

    jit = accepting_captures(api.jit)
    for owner in (cuda, api):
        _patches.replace(owner, "jit", jit)
    _patches.replace(FakeCUDAKernel, "__reduce__", reducing.reduce)


def disable() -> None:
    """Leave the simulator as it was."""
    _patches.undo()


def accepting_captures(jit: Callable[..., Any]) -> Callable[..., Any]:
    """The simulator's decorator, with the option that a compiler's has."""

    @functools.wraps(jit)
    def accepting(*arguments: Any, captures: Any = None, **options: Any) -> Any:
        check_options({"captures": captures, **options})
        return jit(*arguments, **options)

    return accepting


def bind(kernel: Any, args: tuple[Any, ...]) -> None:
    """Nothing needs to be bound."""


def explain(kernel: Any, signature: Any, cc: tuple[int, int]) -> Any:
    """Nothing is compiled in the simulator.

    Raises
    ------
    CaptureError
        Always.
    """
    raise CaptureError(NOTHING_COMPILED)


def report(kernel: Any) -> CaptureReport:
    """What a kernel captures, as its names mean now; the policy of every array is called ``simulated``."""
    function = getattr(kernel, "fn", kernel)
    return CaptureReport(
        getattr(function, "__name__", "kernel"),
        defined_at(function),
        simulated_rows(discover(function)),
        note=SIMULATED,
    )


SIMULATED = "simulated (NUMBA_ENABLE_CUDASIM=1): nothing is compiled, and arrays are used in place"


NOTHING_COMPILED = """\
nothing is compiled under the simulator (NUMBA_ENABLE_CUDASIM=1), so there is no code to explain.
Unset the variable: `explain` needs no GPU."""
