"""On the GPU: kernels of one factory, whose first launch borrows a module, each see their own table."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

import cuda_captures

pytestmark = pytest.mark.gpu

THREADS = 32


def factory_of(cuda: Any) -> Any:
    """Makes kernels that add a table of their own to an argument, after some time if told so."""

    def make(table: Any) -> Any:
        @cuda.jit
        def kernel(out, turns):
            x = 1.0
            for _ in range(turns):
                x = x * 0.5 + 0.5
            i = cuda.grid(1)
            if i < out.size:
                out[i] += table[i] * x

        return kernel

    return make


@pytest.mark.parametrize("size", [THREADS, 4_000, 131_072, 400_000])
def test_each_sees_its_own_table_whatever_is_in_flight(cuda: Any, size: int) -> None:
    make = factory_of(cuda)
    tables = [np.full(size, float(number)) for number in range(60)]
    out = [cuda.to_device(np.zeros(THREADS)) for _ in tables]
    kernels = [make(table) for table in tables]
    for kernel, target in zip(kernels, out, strict=True):
        kernel[1, THREADS](target, 200_000)  # queued up behind each other
    for number, target in enumerate(out):
        assert np.array_equal(target.copy_to_host(), np.full(THREADS, float(number))), number
    for number, table in enumerate(tables):
        table[:THREADS] += 0.5
        if number % 3 == 0:
            table[:THREADS] += 0.25
    order = np.random.default_rng(3).permutation(len(kernels))
    for number in order:
        kernels[number][1, THREADS](out[number], 10_000)
    for number, (target, table) in enumerate(zip(out, tables, strict=True)):
        assert np.array_equal(target.copy_to_host(), table[:THREADS] + number), number


def test_device_arrays_and_mixtures(cuda: Any) -> None:
    make = factory_of(cuda)
    tables = [np.arange(THREADS) + 100.0 * number for number in range(40)]
    kernels = [make(cuda.to_device(table) if number % 2 else table) for number, table in enumerate(tables)]
    out = [cuda.to_device(np.zeros(THREADS)) for _ in tables]
    for _ in range(3):
        for kernel, target in zip(kernels, out, strict=True):
            kernel[1, THREADS](target, 20_000)
    for number, (target, table) in enumerate(zip(out, tables, strict=True)):
        assert np.array_equal(target.copy_to_host(), 3 * table), number


def test_another_stream_after_a_trial(cuda: Any) -> None:
    from cuda.bindings import driver

    cuda.current_context()
    code, handle = driver.cuStreamCreate(1)  # non-blocking: nothing but an event orders it after the default stream
    assert code == 0
    stream = cuda.external_stream(int(handle))
    make = factory_of(cuda)
    tables = [np.full(THREADS, float(number)) for number in range(30)]
    kernels = [make(table) for table in tables]
    first, second = ([cuda.to_device(np.zeros(THREADS)) for _ in tables] for _ in range(2))
    for kernel, one, other in zip(kernels, first, second, strict=True):
        kernel[1, THREADS](one, 300_000)
        kernel[1, THREADS, stream](other, 0)
    cuda.synchronize()
    for number, (one, other) in enumerate(zip(first, second, strict=True)):
        assert np.array_equal(one.copy_to_host(), np.full(THREADS, float(number))), number
        assert np.array_equal(other.copy_to_host(), np.full(THREADS, float(number))), number


def test_many_threads_make_and_launch(cuda: Any) -> None:
    make = factory_of(cuda)
    make(np.zeros(THREADS))[1, THREADS](cuda.to_device(np.zeros(THREADS)), 0)
    wrong: list[Any] = []
    barrier = threading.Barrier(8)

    def work(mine: int) -> None:
        try:
            cuda.current_context()
            barrier.wait(30)
            for number in range(40):
                table = np.full(THREADS, 1000.0 * mine + number)
                kernel, out = make(table), cuda.to_device(np.zeros(THREADS))
                for _ in range(1 + number % 3):
                    kernel[1, THREADS](out, 1000)
                    table += 1
                found = out.copy_to_host()
                wanted = sum(1000.0 * mine + number + count for count in range(1 + number % 3))
                if not np.array_equal(found, np.full(THREADS, wanted)):
                    wrong.append((mine, number, found, wanted))
        except BaseException as error:
            wrong.append((mine, error))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_nothing_is_left_of_a_thousand(cuda: Any, compiler: str) -> None:
    if compiler == "numba-cuda-mlir":
        pytest.skip("numba-cuda-mlir never lets go of a kernel, captures or not")
    make = factory_of(cuda)
    out = cuda.to_device(np.zeros(THREADS))
    gc.collect()  # what other tests have left
    before = len(cuda_captures.memory())
    kernels = []
    for number in range(1000):
        kernel = make(np.full(131_072, float(number)))
        kernel[1, THREADS](out, 0)
        kernels.append(kernel)
    assert np.array_equal(out.copy_to_host(), np.full(THREADS, 499_500.0))
    del kernels, kernel
    gc.collect()
    assert len(cuda_captures.memory()) <= before
