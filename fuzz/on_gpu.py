"""Programs on a GPU: as their authors would run them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import backends_under_test
import cuda_captures
from fuzz.program import Form, Program
from fuzz.worlds import Array, World

# After these a context is of no more use.
FATAL = ("ILLEGAL_ADDRESS", "ILLEGAL_INSTRUCTION", "MISALIGNED_ADDRESS", "LAUNCH_FAILED", "LAUNCH_TIMEOUT")


class GpuWorld(World):
    """A GPU, with the compiler under test.

    Parameters
    ----------
    form
        Of the programs.  In the argument form nothing is a device array and nothing is marked.
    """

    def __init__(self, form: Form = "captured") -> None:
        super().__init__()
        self.form = form
        self.kernels: dict[Any, Any] = {}

    @property
    def cuda(self) -> Any:
        return backends_under_test.cuda()

    def words(self) -> dict[str, Any]:
        words = super().words()
        return {**words, "cap": cuda_captures} if self.form == "captured" else words

    def on_device(self, array: Array) -> Any:
        if self.form == "argument":
            return super().on_device(array)
        contiguous = array.flags.c_contiguous or array.flags.f_contiguous
        made = self.cuda.to_device(array if contiguous else np.ascontiguousarray(array))
        self.arrays.append(lambda: made.copy_to_host().tobytes())
        return made

    def launch(self, kernel: Any, threads: int, out: Array, values: Sequence[Any], program: Program) -> None:
        compiled = self.kernels.get(kernel)
        if compiled is None:
            policies = dict(program.policies) if self.form == "captured" else {}
            compiled = self.kernels[kernel] = self.cuda.jit(**({"captures": policies} if policies else {}))(kernel)
        compiled[1, threads](*values, out)
        self.cuda.synchronize()  # what mapped arrays wait for


def is_fatal(detail: str) -> bool:
    """Whether an error leaves a context of no more use."""
    return any(word in detail.upper().replace(" ", "_") for word in FATAL)
