"""On the GPU: at launch a captured name means what it means in Python."""

from __future__ import annotations

import warnings
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cuda_captures
from edits import on_own_pages
from reading_kernels import reading

pytestmark = pytest.mark.gpu


def kernel_of(cuda: Any, body: str, **names: Any) -> tuple[Any, dict[str, Any]]:
    """A kernel ``kernel(out)`` whose loop body is given, and the namespace of its globals."""
    namespace: dict[str, Any] = {"cuda": cuda, "np": np, **names}
    source = f"def kernel(out):\n    i = cuda.grid(1)\n    if i < out.size:\n        {body}\n"
    exec(compile(source, "<test>", "exec"), namespace)
    return cuda.jit(namespace["kernel"]), namespace


def run(kernel: Any, size: int = 4, dtype: Any = np.float64) -> np.ndarray:
    out = np.zeros(size, dtype)
    kernel[1, 64](out)
    return out


def compilations(kernel: Any) -> int:
    return len(cuda_captures.report(kernel).specialisations)


def test_edits_are_seen(cuda: Any) -> None:
    for nbytes in (64, 1 << 14, 1 << 20, 1 << 23):
        table = np.arange(nbytes // 8, dtype=np.float64)
        kernel, _ = kernel_of(cuda, "out[i] = T[T.size - 1 - i]", T=table)
        assert np.array_equal(run(kernel), table[:-5:-1])
        table[-2] = -7
        assert np.array_equal(run(kernel), table[:-5:-1])
        table *= 2
        assert np.array_equal(run(kernel), table[:-5:-1])
        assert np.array_equal(run(kernel), table[:-5:-1])


def test_writes_come_back_and_mix_with_edits(cuda: Any) -> None:
    state = np.zeros(4)
    kernel, _ = kernel_of(cuda, "S[i] += 1", S=state)
    for step in range(5):
        run(kernel)
        assert np.array_equal(state, [step * 11 + 1] * 4)
        state += 10


def test_rebinding_compiles_nothing(cuda: Any) -> None:
    kernel, names = kernel_of(cuda, "out[i] = T[i]", T=np.arange(4.0))
    run(kernel)
    for step in range(20):
        names["T"] = np.arange(4.0) + step
        assert np.array_equal(run(kernel), np.arange(4.0) + step)
    assert compilations(kernel) == 1
    names["T"] = cuda.to_device(np.full(4, 9.0))
    assert np.array_equal(run(kernel), np.full(4, 9.0))
    assert compilations(kernel) == 2


def test_a_hundred_lengths_compile_twice(cuda: Any) -> None:
    kernel, names = kernel_of(cuda, "out[i] = T[T.size - 1 - i] + T.size", T=np.arange(4.0))
    for length in range(4, 104):
        names["T"] = np.arange(float(length))
        assert np.array_equal(run(kernel), names["T"][:-5:-1] + length)
    assert compilations(kernel) == 2


def test_other_strides_are_followed(cuda: Any) -> None:
    whole = np.arange(64.0).reshape(8, 8)
    kernel, names = kernel_of(cuda, "out[i] = T[i, 1]", T=whole)
    for view in (whole, whole[:5], whole.T, whole[::-1, ::-2], np.asfortranarray(whole)):
        names["T"] = view
        assert np.array_equal(run(kernel), view[:4, 1])
    assert compilations(kernel) <= 3


def test_scalars_and_functions_are_followed(cuda: Any) -> None:
    @cuda.jit(device=True)
    def twice(x):
        return 2 * x

    @cuda.jit(device=True)
    def thrice(x):
        return 3 * x

    kernel, names = kernel_of(cuda, "out[i] = f(i) + SHIFT", f=twice, SHIFT=1)
    for f, factor in ((twice, 2), (thrice, 3), (twice, 2)):
        for shift in (1, 2, 2.5):
            names["f"], names["SHIFT"] = f, shift
            assert np.array_equal(run(kernel), np.arange(4) * factor + shift)
    assert compilations(kernel) == 6


def test_many_values_of_a_scalar_are_warned_about(cuda: Any) -> None:
    kernel, names = kernel_of(cuda, "out[i] = SHIFT", SHIFT=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", cuda_captures.CapturePerformanceWarning)
        for value in range(8):
            names["SHIFT"] = value
            run(kernel)
    names["SHIFT"] = 8
    with pytest.warns(cuda_captures.CapturePerformanceWarning, match=r"`SHIFT` has had 9 values(.|\n)*0-d array"):
        run(kernel)


def test_a_scalar_in_a_device_function_is_followed(cuda: Any) -> None:
    source = "def f(x):\n    return x * FACTOR + T[0]\n"
    inner: dict[str, Any] = {"FACTOR": 2, "T": np.array([0.5])}
    exec(source, inner)
    kernel, _ = kernel_of(cuda, "out[i] = f(i)", f=cuda.jit(device=True)(inner["f"]))
    for factor in (2, 5, 2, 7):
        inner["FACTOR"] = factor
        inner["T"] = np.array([factor * 1.0])
        assert np.array_equal(run(kernel), np.arange(4) * factor + factor)


def test_deleted_and_back(cuda: Any) -> None:
    kernel, names = kernel_of(cuda, "out[i] = T[i]", T=np.arange(4.0))
    run(kernel)
    table = names.pop("T")
    with pytest.raises(NameError, match="name 'T' is not defined"):
        run(kernel)
    names["T"] = table + 1
    assert np.array_equal(run(kernel), table + 1)


def test_an_emptied_cell(cuda: Any) -> None:
    def make():
        table = np.arange(4.0)

        @cuda.jit
        def kernel(out):
            i = cuda.grid(1)
            if i < out.size:
                out[i] = table[i]

        def empty():
            nonlocal table
            del table

        def fill(value):
            nonlocal table
            table = value

        return kernel, empty, fill

    kernel, empty, fill = make()
    run(kernel)
    empty()
    with pytest.raises(NameError, match="table"):
        run(kernel)
    fill(np.arange(4.0) * 5)
    assert np.array_equal(run(kernel), np.arange(4.0) * 5)


def test_without_following(cuda: Any) -> None:
    with cuda_captures.enabled(follow=False):
        kernel, names = kernel_of(cuda, "out[i] = T[i]", T=np.arange(4.0))
        first = names["T"]
        run(kernel)
        names["T"] = np.zeros(4)
        first += 1
        assert np.array_equal(run(kernel), first)


def test_snapshot(cuda: Any) -> None:
    table = cuda_captures.snapshot(np.arange(4.0))
    kernel, _ = kernel_of(cuda, "out[i] = T[i]", T=table)
    run(kernel)
    table += 1
    assert np.array_equal(run(kernel), np.arange(4.0))
    cuda_captures.refresh(table)
    assert np.array_equal(run(kernel), np.arange(4.0) + 1)


def test_snapshot_is_not_written(cuda: Any) -> None:
    kernel, _ = kernel_of(cuda, "T[i] = i", T=cuda_captures.snapshot(np.arange(4.0)))
    with pytest.raises(cuda_captures.CaptureTypingError, match=r"writes `T`(.|\n)*snapshot(.|\n)*live\(T\)"):
        run(kernel)


def test_a_marker_is_followed_as_well(cuda: Any) -> None:
    table = np.arange(4.0)
    kernel, names = kernel_of(cuda, "out[i] = T[i]", T=table)
    run(kernel)
    names["T"] = cuda_captures.snapshot(table)
    run(kernel)
    table += 1
    assert np.array_equal(run(kernel), np.arange(4.0))
    names["T"] = table
    assert np.array_equal(run(kernel), np.arange(4.0) + 1)


def test_mapped(cuda: Any) -> None:
    table = cuda_captures.mapped(on_own_pages(np.arange(4.0)))
    kernel, _ = kernel_of(cuda, "out[i] = T[i]; T[i] += 10", T=table)
    assert np.array_equal(run(kernel), np.arange(4.0))
    cuda.synchronize()
    assert np.array_equal(table, np.arange(4.0) + 10)
    table += 1
    assert np.array_equal(run(kernel), np.arange(4.0) + 11)


def test_views_of_one_buffer_stay_views_of_one_buffer(cuda: Any) -> None:
    buffer = np.zeros(1 << 20)
    kernel, _ = kernel_of(cuda, "A[i + 4] = i + 1; out[i] = B[i]", A=buffer[:100], B=buffer[200:300])
    run(kernel)
    kernel2, _ = kernel_of(cuda, "out[i] = A[i + 4]", A=buffer[50:5000])
    buffer[54:58] = [5, 6, 7, 8]
    assert np.array_equal(run(kernel2), [5, 6, 7, 8])
    run(kernel)
    assert np.array_equal(buffer[4:8], [1, 2, 3, 4])
    assert np.array_equal(buffer[54:58], [5, 6, 7, 8])


def test_verify(cuda: Any) -> None:
    with cuda_captures.enabled(verify=True):
        table = np.arange(1 << 18, dtype=np.float64)
        kernel, _ = kernel_of(cuda, "out[i] = T[i]", T=table)
        for step in range(3):
            table[step] = -1
            assert np.array_equal(run(kernel), table[:4])


def test_kernels_of_a_factory_share_code_and_leave_nothing(cuda: Any, compiler: str) -> None:
    import gc

    if compiler == "numba-cuda-mlir":
        pytest.skip(
            "numba-cuda-mlir 0.6 never lets go of a kernel: its native launcher and its dispatcher hold each other"
        )

    kernels = [reading(cuda, np.arange(4.0) + number) for number in range(20)]
    for number, kernel in enumerate(kernels):
        assert np.array_equal(run(kernel), np.arange(4.0) + number)
    sources = [cuda_captures.report(kernel).specialisations[0] for kernel in kernels]
    assert len({one.key for one in sources}) == 1
    assert sources[0].key is not None
    before = len(cuda_captures.memory())
    assert before >= 20
    del kernels, kernel
    gc.collect()
    assert len(cuda_captures.memory()) <= before - 19


@pytest.mark.parametrize("writeable", [True, False])
def test_a_read_only_array(cuda: Any, writeable: bool) -> None:
    table = np.arange(4.0)
    view = table.view()
    view.flags.writeable = writeable
    kernel, _ = kernel_of(cuda, "T[i] += 1", T=view)
    if writeable:
        run(kernel)
        assert np.array_equal(table, np.arange(4.0) + 1)
    else:
        with pytest.raises(cuda_captures.CaptureTypingError, match=r"writes `T`(.|\n)*not writeable(.|\n)*copy\(\)"):
            run(kernel)
        reading, _ = kernel_of(cuda, "out[i] = T[i]", T=view)
        table += 5
        assert np.array_equal(run(reading), table)


def test_atomics_on_a_read_only_array_are_refused(cuda: Any) -> None:
    table = np.arange(4.0)
    table.flags.writeable = False
    kernel, _ = kernel_of(cuda, "cuda.atomic.add(T, i, 1.0)", T=table)
    with pytest.raises(cuda_captures.CaptureTypingError, match="writes `T`"):
        run(kernel)


def device(cuda: Any, source: str, **names: Any) -> Any:
    """A device function called `dev`."""
    namespace: dict[str, Any] = {"cuda": cuda, "np": np, **names}
    exec(f"@cuda.jit(device=True)\n{source}", namespace)
    return namespace["dev"]


def test_constant_copies_follow_contents_and_shape(cuda: Any) -> None:
    table = np.arange(6.0)
    dev = device(cuda, "def dev(i):\n    return cuda.const.array_like(T)[i]", T=table)
    kernel, _ = kernel_of(cuda, "out[i] = dev(i)", dev=dev)
    assert np.array_equal(run(kernel), table[:4])
    table *= 3
    assert np.array_equal(run(kernel), table[:4])
    shaped, names = kernel_of(cuda, "out[i] = cuda.const.array_like(T).shape[0] + 10 * T[1, 0]", T=None)
    for shape in ((2, 3), (3, 2), (6, 1), (2, 3)):
        names["T"] = np.arange(6.0).reshape(shape).copy()
        assert np.array_equal(run(shaped), [shape[0] + 10 * names["T"][1, 0]] * 4)


def test_what_a_module_of_ones_own_has_from_a_library(cuda: Any) -> None:
    own = ModuleType("own")
    own.real = np.float32  # type: ignore[attr-defined]
    kernel, _ = kernel_of(cuda, "out[i] = own.real(out[i] + 0.1)", own=own)
    assert np.array_equal(run(kernel), [float(np.float32(0.1))] * 4)
    own.real = np.float64  # type: ignore[attr-defined]
    assert np.array_equal(run(kernel), [0.1] * 4)


def test_objects_that_device_functions_return(cuda: Any) -> None:
    held = SimpleNamespace(scale=1.5, table=np.arange(4.0))
    dev = device(cuda, "def dev():\n    return held", held=held)
    kernel, _ = kernel_of(cuda, "out[i] = dev().scale + dev().table[i]", dev=dev)
    assert np.array_equal(run(kernel), 1.5 + np.arange(4.0))
    held.scale = 2.5
    assert np.array_equal(run(kernel), 2.5 + np.arange(4.0))
    held.table = np.arange(9.0) * 2
    assert np.array_equal(run(kernel), 2.5 + np.arange(4.0) * 2)


def test_items_of_a_tuple_get_another_layout(cuda: Any) -> None:
    def tables(contiguous: bool) -> tuple[Any, ...]:
        arrays = [on_own_pages(np.arange(8.0) + number) for number in range(2)]
        first, second = (array[:4] if contiguous else array[::2] for array in arrays)
        return cuda_captures.mapped(first), second

    kernel, names = kernel_of(cuda, "out[i] = T[i % 2][i]", T=None)
    for contiguous in (False, True, False):
        names["T"] = tables(contiguous)
        assert np.array_equal(run(kernel), [names["T"][i % 2][i] for i in range(4)])
