"""Device copies under several threads, and in forked children."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from copies_in_memory import Kernel, kernels
from cuda_captures.errors import CaptureError
from cuda_captures.mirrors import LAUNCH_LOCK, acquire, memory
from memory_driver import MemoryDriver


@pytest.fixture
def kernel(fake: MemoryDriver) -> Iterator[Kernel]:
    yield from kernels(fake)


def test_an_edit_beside_an_array_that_another_thread_is_writing(fake: MemoryDriver, kernel: Kernel) -> None:
    root = np.zeros(1000)
    x, y = root[:500], root[500:]
    mirror = kernel.launch(x, 24)
    with LAUNCH_LOCK:
        mirror.refresh(8, writes=True)
        fake.launch(8, lambda: fake.write(mirror.address_of(x), np.full(500, 9.0).tobytes()))
        mirror.used(8, "owner", writes=(x,))
    y[0] = 1  # another thread edits what lies on the same page, and launches, before the first one is home
    fake.before["copy_to_device"] = lambda: fake.stream_synchronize(8)
    kernel.launch(y, 16, "other")
    mirror.copy_back(x, 8)
    assert (x == 9).all()
    assert y[0] == 1
    kernel.launch(root)


def test_no_lock_is_held_while_a_kernel_that_writes_is_waited_for(fake: MemoryDriver, kernel: Kernel) -> None:
    array = np.zeros(1000)
    got = []

    def look() -> None:
        for lock in (LAUNCH_LOCK, mirror._lock):
            got.append(lock.acquire(timeout=5))
            lock.release()

    def while_waiting() -> None:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    mirror = kernel.launch(array)
    fake.before["stream_synchronize"] = while_waiting
    kernel.launch(array, write=1)
    assert got == [True, True]


def test_threads_that_edit_and_launch(fake: MemoryDriver, kernel: Kernel) -> None:
    root = np.zeros(8 * 1000)

    def work(number: int) -> None:
        mine = root[number * 1000 : (number + 1) * 1000]
        for value in range(60):
            mine[value] = value
            kernel.launch(mine, 8 * (number + 1), "owner", write=value if value % 3 == 0 else None)
            if value % 3 == 0:
                assert (mine == value).all()
            fake.step()

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(work, number) for number in range(8)]:
            done.result()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is a Unix thing")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_is_told_so_instead_of_hanging(fake: MemoryDriver, kernel: Kernel) -> None:
    array = np.zeros(1000)
    mirror = kernel.launch(array)
    holding, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with LAUNCH_LOCK, mirror._lock:
            holding.set()
            go_on.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait()

    def child(answers: Any) -> None:
        nonlocal mirror
        mirror.refresh(0)
        try:
            acquire(array, 0)
        except CaptureError as error:
            answers.put(str(error))
        del mirror
        gc.collect()
        answers.put(len(memory()))

    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=child, args=(answers,))
    process.start()
    try:
        assert "forked" in answers.get(timeout=20)
        assert answers.get(timeout=20) == 0
    finally:
        process.join(20)
        go_on.set()
        thread.join()
    assert process.exitcode == 0
    assert fake.held() > 0
