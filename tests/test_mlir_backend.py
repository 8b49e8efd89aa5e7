"""What is numba-cuda-mlir's own in its backend, without a GPU: device functions, dispatchers, disk cache."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cuda_captures
from backends_under_test import using
from captured_kernels import CapturedKernel, types_of
from cuda_captures import backends

if "numba-cuda-mlir" not in backends.present():
    pytest.skip("numba-cuda-mlir is not installed", allow_module_level=True)

from numba_cuda_mlir import cuda, tools
from numba_cuda_mlir import types as mlir_types
from numba_cuda_mlir.numba_cuda.misc.special import literal_unroll

SIGNATURE = "void(float64[::1])"


@pytest.fixture(autouse=True)
def captures(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Captures, and a compute capability to compile for where no device has one."""
    monkeypatch.setattr(tools, "_cached_cc", (9, 0))
    with cuda_captures.enabled():
        yield


def kernel_of(table: Any, **options: Any) -> Any:
    @cuda.jit(**options)
    def kernel(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = table[i]

    return kernel


def compiled(kernel: Any) -> Any:
    """What a kernel was compiled to."""
    from cuda_captures.backends.numba_cuda_mlir.dispatcher import kernel_in

    found = kernel_in(kernel.compile(SIGNATURE))
    assert found is not None
    return found


@pytest.mark.xfail(
    reason="upstream's dispatcher and its native launcher hold each other, and a launcher of ours corrupted the heap"
)
def test_a_kernel_and_its_arrays_go() -> None:
    table = np.arange(4.0)
    kernel = kernel_of(table)
    compiled(kernel)
    gone = weakref.ref(kernel), weakref.ref(table)
    del kernel, table
    gc.collect()
    assert [one() for one in gone] == [None, None]


def test_kernels_of_a_factory_share_code() -> None:
    first, second = compiled(kernel_of(np.arange(4.0))), compiled(kernel_of(np.ones(4)))
    assert first.code is second.code
    assert first.metadata["cubin"] is second.metadata["cubin"]


def test_closures_of_one_factory_have_symbols_and_slots_of_their_own() -> None:
    def make(table: Any) -> Any:
        @cuda.jit(device=True, inline="never")
        def look(i):
            return table[i]

        return look

    first, second = make(np.arange(4.0)), make(np.arange(4.0) * 10)

    @cuda.jit
    def kernel(out):
        out[0] = first(1) + second(2)

    code = compiled(kernel).code
    assert len(code.uses) == 2
    assert code.product.metadata["mlir_module_str"].count("func.func @") == 2


def test_a_device_function_is_compiled_again_for_another_meaning() -> None:
    names: dict[str, Any] = {"cuda": cuda, "table": np.arange(4.0), "scale": 2}
    exec(
        textwrap.dedent("""
            @cuda.jit(device=True, inline="never")
            def look(i): return table[i] * scale
            @cuda.jit
            def kernel(out): out[0] = look(1)
            @cuda.jit
            def other(out): out[1] = look(2)
        """),
        names,
    )
    assert "2" in compiled(names["kernel"]).code.key.text
    (use,) = compiled(names["kernel"]).code.uses
    assert use.signature.dtype == np.float64
    names["table"], names["scale"] = np.arange(6, dtype=np.float32), 3
    (use,) = compiled(names["other"]).code.uses
    assert use.signature.dtype == np.float32
    assert use.signature.shape == (6,)


def test_an_eager_device_function_may_capture_what_is_too_large_for_constant_memory() -> None:
    table = np.arange(100_000.0)

    @cuda.jit("float64(int64)", device=True)
    def look(i):
        return table[i]

    @cuda.jit
    def kernel(out):
        out[0] = look(1)

    assert len(compiled(kernel).code.uses) == 1


def test_cuda_compile_stays_as_it_was() -> None:
    table = np.arange(4.0)

    def kernel(out):
        out[0] = table[out.size]

    ptx, _ = cuda.compile_ptx(kernel, (mlir_types.float64[::1],))
    assert "cuda_capture" not in ptx
    assert "constant_array" in ptx


@pytest.mark.parametrize("policies", ["lively", {"table": 3}, 7])
def test_a_policy_that_does_not_exist(policies: Any) -> None:
    with pytest.raises(ValueError, match="captures="):
        cuda.jit(captures=policies)(lambda out: None)


def test_disabled_compiles_as_upstream_does() -> None:
    from cuda_captures.backends.numba_cuda_mlir.dispatcher import kernel_in

    kernel = kernel_of(np.arange(4.0))
    cuda_captures.disable()
    try:
        assert kernel_in(kernel.compile(SIGNATURE)) is None
    finally:
        cuda_captures.enable()


PROGRAM = """
    import sys
    import numpy as np
    from numba_cuda_mlir import cuda, tools
    import cuda_captures

    tools._cached_cc = (9, 0)
    cuda_captures.enable()
    table = np.arange(4, dtype=sys.argv[1]) * 2
    scale = int(sys.argv[2])

    @cuda.jit(cache=True)
    def kernel(out):
        out[0] = table[1] * scale

    result = kernel.compile("void(float64[::1])")
    hits = sum(kernel.stats.cache_hits.values())
    (use,) = result.cres.code.uses
    print(hits, use.name, use.recipe, b"cuda_capture" in result.metadata["cubin"])
"""


def test_the_disk_cache_of_another_process(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))

    def run(*arguments: str) -> list[str]:
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "NUMBA_CUDA_MLIR_CACHE_DIR": ""}
        ended = subprocess.run(
            [sys.executable, str(program), *arguments], capture_output=True, text=True, env=environment, check=True
        )
        return ended.stdout.split(maxsplit=1)

    assert run("f8", "3")[0] == "0"
    assert run("f8", "3")[0] == "1"
    assert run("f4", "3")[0] == "0"  # another type
    assert run("f8", "4")[0] == "0"  # another value
    assert run("f8", "3")[1] == run("f8", "4")[1] == "table (('global', 'table'),) True\n"
    for entry in (tmp_path / "cache").rglob("*.nbc"):
        entry.write_bytes(entry.read_bytes()[:100])
    assert run("f8", "3")[0] == "0"  # whatever is wrong with an entry is a miss
    assert run("f8", "3")[0] == "1"


def test_a_launch_that_the_compiler_makes_elsewhere_names_the_kernel(fake: Any) -> None:
    """The native launcher asks for the code, and has its slots filled where it is about to launch."""
    from cuda_captures.backends.numba_cuda_mlir.loading import BoundKernel
    from cuda_captures.code import Code

    class Product:
        cubin, entry, cooperative = b"", "_Z6mangled", False

    bound = BoundKernel(Code((), Product()), kernel_of(np.zeros(4)).py_func, False, None, None)
    assert bound.loader(None)[:3] == (b"", "_Z6mangled", False)
    fake.use(1)
    message = (
        r"kernel `kernel` was to be launched on device 0, and numba-cuda-mlir launches it on device 1\.\n"
        r"  .*test_mlir_backend\.py:\d+\nMake the device of its arguments current"
    )
    with pytest.raises(cuda_captures.CaptureError, match=message):
        bound.loader.fill(7)
    bound.loader.libraries.clear()  # nothing was loaded


def test_what_follows_a_launch_belongs_to_its_thread() -> None:
    configured = kernel_of(np.zeros(4))[1, 32]
    configured._callbacks.append(print)
    found = []
    thread = threading.Thread(target=lambda: found.append(list(configured._callbacks)))
    thread.start()
    thread.join()
    assert found == [[]]
    assert configured._callbacks == [print]
    cuda_captures.disable()
    assert configured._callbacks == []  # upstream's, which every instance has
    cuda_captures.enable()
    assert configured._callbacks == [print]


def test_lists_that_the_compiler_evaluates_itself_are_not_captured() -> None:
    from numba_cuda_mlir.cuda.experimental import consteval  # not in the module: it would be looked for in every kernel

    items = ((0, [1, 2]), (1, [3]))

    @cuda.jit
    def kernel(out):
        for index, values in consteval(items):
            out[index] = consteval(values[0])

    source = kernel.compile(SIGNATURE).metadata["transformed_source"]
    assert "out[0] = 1" in source
    assert "out[1] = 3" in source


def test_code_can_be_inspected_without_naming_an_architecture() -> None:
    kernel = kernel_of(np.arange(4.0))
    kernel.compile(SIGNATURE)
    (text,) = kernel.inspect_llvm().values()
    assert "define" in text


def test_layouts_of_arguments_are_not_relied_on() -> None:
    """The compiler launches what it compiled for arrays of one layout with arrays of another one."""
    table = np.arange(4.0)

    def function(out):
        i = cuda.grid(1)
        for j in range(out.shape[1]):
            out[i, j] = table[i]

    with using("numba-cuda-mlir"):
        kernel = CapturedKernel(function, types_of(np.zeros((4, 6))))
        memory = np.zeros((4, 12))
        kernel.launch(memory[:, ::2], block=4)
    assert np.array_equal(memory[:, ::2], np.broadcast_to(table[:, None], (4, 6)))
    assert not memory[:, 1::2].any()


def test_values_of_one_tuple_with_arrays_of_several_dimensions_are_unrolled() -> None:
    """Some passes of the compiler take only arrays that it knows to have no gaps."""
    both = np.array([1.0, 0.0]), np.array([[1.0, 2.0], [3.0, 4.0]])

    @cuda.jit
    def kernel(out):
        i = 0
        for one in literal_unroll(both):
            out[i] = np.all(one)
            i += 1  # noqa: SIM113 - unrolled by the compiler

    assert compiled(kernel).metadata["cubin"]
