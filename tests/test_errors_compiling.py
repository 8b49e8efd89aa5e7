"""What a compiler refuses, or this process cannot do: said with the name, the line and the way out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuda_captures
from conftest import module_of
from cuda_captures import driver
from cuda_captures.errors import CaptureError, CaptureTypingError
from kernels_in_memory import written

SIGNATURE = "void(float64[::1])"


def where(name: str) -> str:
    """The place of a name in the kernels here, as a regular expression."""
    return rf"\n  <source \d+>:2, in kernel\n    out\[0\] = {name}\[1\]\n {{13}}\^{{{len(name)}}}\n"


def explain(cuda: Any, **names: Any) -> Any:
    (name,) = names
    return cuda_captures.explain(cuda.jit(written(f"def kernel(out):\n    out[0] = {name}[1]\n", **names)), SIGNATURE)


class Masked:
    """A device array with a mask."""

    __cuda_array_interface__ = {
        "shape": (4,),
        "typestr": "<f8",
        "data": (512, False),
        "version": 3,
        "mask": object(),
    }


def test_a_device_array_with_a_mask(cuda: Any) -> None:
    text = rf"`hidden` is a device array with a mask.*{where('hidden')}Capture data and mask as two arrays\."
    with pytest.raises(CaptureTypingError, match=text):
        explain(cuda, hidden=Masked())


def test_a_dtype_that_the_compiler_does_not_have(cuda: Any) -> None:
    text = rf"`wide` is captured, and the compiler cannot type it: (.|\n)*{where('wide')}Convert it to an array"
    with pytest.raises(CaptureTypingError, match=text):
        explain(cuda, wide=np.zeros(3, np.longdouble))


def test_strides_that_numba_cuda_mlir_does_not_have(cuda: Any, compiler: str) -> None:
    column = np.zeros(5, [("a", "u1"), ("b", "f8")])["b"]
    if compiler == "numba-cuda":
        assert explain(cuda, column=column).rows[0].strides == (9,)
        return
    text = r"does not find the elements of `column`: dtype float64, dimensions 1, strides \(9,\); strides must be"
    with pytest.raises(CaptureTypingError, match=rf"{text}.*{where('column')}Capture a copy that it does"):
        explain(cuda, column=column)


def test_records_that_numba_cuda_mlir_does_not_compile_in(cuda: Any, compiler: str) -> None:
    points = cuda_captures.constant(np.zeros(3, [("x", "f4"), ("n", "i8")]))
    kernel = cuda.jit(written("def kernel(out):\n    out[0] = points[1]['x']\n", points=points))
    if compiler == "numba-cuda":
        assert cuda_captures.explain(kernel, SIGNATURE).rows
        return
    text = r"contents of `points` in: .*\n  <source \d+>:2, in kernel\n    out.*\n {13}\^{6}\nLeave out `constant"
    with pytest.raises(CaptureTypingError, match=text):
        cuda_captures.explain(kernel, SIGNATURE)


def test_a_kernel_of_a_compiler_without_captures(compiler: str) -> None:
    kernel = module_of(compiler).jit(written("def kernel(out):\n    out[0] = 1\n"))
    cuda_captures.disable()
    for ask in (cuda_captures.report, lambda kernel: cuda_captures.explain(kernel, SIGNATURE), cuda_captures.bind):
        with pytest.raises(CaptureError, match=r"not enabled for the compiler.*Call `cuda_captures.enable\(\)` first"):
            ask(kernel)


def test_what_is_no_kernel() -> None:
    text = r"neither: \[1\], of type list\.\nGive what `@cuda.jit` made"
    with cuda_captures.enabled(), pytest.raises(TypeError, match=text):
        cuda_captures.report([1])


def test_a_forked_child() -> None:
    with pytest.raises(CaptureError, match=r"forked from one that had used CUDA.*\nStart worker processes with"):
        driver._Forked().mem_alloc(8)
