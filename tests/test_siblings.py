"""Kernels that a factory makes: told by their siblings, launched on trial first; on a driver in memory."""

from __future__ import annotations

import gc
import weakref
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cuda_captures
from copies_in_memory import in_memory
from cuda_captures import arena, mirrors
from cuda_captures.device import OutOfDeviceMemory, current
from cuda_captures.errors import CaptureError
from cuda_captures.specialising import AS_A_SIBLING
from kernels_in_memory import Kernel
from memory_driver import MemoryDriver

SOURCE = """
def factory(a, b):
    def kernel(out):
        out[0] = a + b + G + len(H)
    return kernel

def with_default(a):
    def kernel(out, a=a):
        out[0] = a
    return kernel

def with_part(a):
    def kernel(out):
        out[0] = a.part
    return kernel
"""
STREAM = 5


def made() -> dict[str, Any]:
    """A module with factories."""
    namespace: dict[str, Any] = {"G": 1, "H": (1, 2)}
    exec(compile(SOURCE, "<siblings>", "exec"), namespace)
    return namespace


def told(kernel: Kernel) -> bool:
    """Whether a sibling said what the kernel is."""
    kernel.follower.variant()
    return AS_A_SIBLING in kernel.follower.specialisations._variants


def test_a_kernel_with_another_table_is_told_by_its_sibling(fake: MemoryDriver) -> None:
    module = made()
    kernels = [Kernel(module["factory"](np.full(8, float(number)), 3)) for number in range(4)]
    assert [told(kernel) for kernel in kernels] == [False, True, True, True]
    assert len({kernel.follower.variant().code for kernel in kernels}) == 1
    for number, kernel in enumerate(kernels):
        ((_, place),) = kernel.follower.variant().arrays
        assert place.read()[0] == number
    assert sum(kernel.toolchain.compilations for kernel in kernels) == 1


def test_siblings_keep_nothing(fake: MemoryDriver) -> None:
    module = made()
    table = np.zeros(8)
    kernel = Kernel(module["factory"](table, 3))
    kernel.launch()
    gone = weakref.ref(table), weakref.ref(kernel.function)
    del table, kernel
    gc.collect()
    assert [one() for one in gone] == [None, None]
    assert not told(Kernel(module["factory"](np.zeros(8), 3)))


@pytest.mark.parametrize(
    ("what", "second"),
    [
        ("another dtype", (np.zeros(8, np.float32), 3)),
        ("another shape", (np.zeros(9), 3)),
        ("read-only", (np.broadcast_to(1.0, 8), 3)),
        ("another value", (np.zeros(8), 4)),
        ("an equal value of another type", (np.zeros(8), 3.0)),
        ("no array", (7, 3)),
        ("a constant", (cuda_captures.constant(np.zeros(8)), 3)),
        ("a snapshot", (cuda_captures.snapshot(np.zeros(8)), 3)),
        ("an array where there was a value", (np.zeros(8), np.zeros(8))),
    ],
)
def test_what_differs_otherwise_is_looked_at(fake: MemoryDriver, what: str, second: Any) -> None:
    module = made()
    first = Kernel(module["factory"](np.zeros(8), 3))
    first.follower.variant()
    kernel = Kernel(module["factory"](*second))
    assert not told(kernel)
    assert kernel.follower.variant().code is not first.follower.variant().code


def test_code_that_is_for_one_kernel_alone_is_made_again(fake: MemoryDriver) -> None:
    """As the backends say it is where the compiler warned, or the launch configuration matters."""
    module = made()
    kernels = [Kernel(module["factory"](np.zeros(8), 3)) for _ in range(3)]
    for kernel in kernels:
        compile_it = kernel.toolchain.compile

        def alone(session: Any, compile_it: Any = compile_it) -> Any:
            code = compile_it(session)
            code.single = True
            return code

        kernel.toolchain.compile = alone  # type: ignore[method-assign]
        assert not told(kernel)
        assert kernel.toolchain.compilations == 1


def test_another_meaning_of_a_global_is_looked_at(fake: MemoryDriver) -> None:
    module = made()
    first = Kernel(module["factory"](np.zeros(8), 3))
    code = first.follower.variant().code
    module["G"] = 2
    second = Kernel(module["factory"](np.zeros(8), 3))
    assert not told(second)
    assert second.follower.variant().code is not code


def test_defaults_and_parts_are_looked_at(fake: MemoryDriver) -> None:
    import types

    module = made()
    kernels = [Kernel(module["with_default"](5)) for _ in range(2)]
    assert not any(map(told, kernels))
    owner = types.SimpleNamespace(part=np.zeros(8))
    kernels = [Kernel(module["with_part"](owner)) for _ in range(2)]
    assert not any(map(told, kernels))


# What a cell may hold; the same object comes up again and again.
CELLS = [
    *(1, 1.0, True, -0.0, 0.0, "text", None, np, len, (1, 2), (1, 2.0), np.float32(1), np.float64(1), 1j),
    *(np.zeros(4), np.ones(4), np.zeros(4, np.float32), np.zeros((2, 2)), np.zeros((2, 2), order="F"), np.zeros(0)),
    *(
        np.zeros(8)[::2],
        np.broadcast_to(1.0, 4),
        (np.zeros(4), 1),
        (np.ones(4), 1),
        np.zeros(4, np.int64),
    ),
    *(cuda_captures.constant(np.full(4, 2.0)), cuda_captures.snapshot(np.full(4, 2.0)), lambda x: x, lambda x: x + 1),
]


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_sibling_says_what_a_walk_would(data: st.DataObject) -> None:
    module = made()
    cell = st.sampled_from(range(len(CELLS)))
    functions = []
    kernels = []
    for _ in range(data.draw(st.integers(2, 4))):
        function = module["factory"](CELLS[data.draw(cell)], CELLS[data.draw(cell)])
        functions.append(function)
        if data.draw(st.booleans()):
            other = data.draw(st.sampled_from(functions))
            other.__closure__[data.draw(st.integers(0, 1))].cell_contents = CELLS[data.draw(cell)]
        if data.draw(st.integers(0, 4)) == 0:
            module["G"] = CELLS[data.draw(cell)]
        kernel = Kernel(function)
        try:
            variant = kernel.follower.variant()
        except CaptureError:
            continue
        kernels.append(kernel)
        if AS_A_SIBLING not in kernel.follower.specialisations._variants:
            continue
        alone = Kernel(function)
        alone.toolchain.likeness = lambda: None  # type: ignore[method-assign, assignment]
        walked = alone.follower.variant()
        assert variant.code.key == alone.follower.specialisations.key()
        assert [place.key for _, place in variant.arrays] == [place.key for _, place in walked.arrays]
        assert {place.key for place, _ in variant.frozen} == {place.key for place, _ in walked.frozen}
        assert all(value is place.peek() for place, value in variant.frozen)


def kernels_of(module: dict[str, Any], count: int, size: int = 64) -> list[tuple[Kernel, Any]]:
    tables = [np.full(size, float(number)) for number in range(count)]
    return [(Kernel(module["factory"](table, 3)), table) for table in tables]


def loads(kernels: list[tuple[Kernel, Any]], monkeypatch: pytest.MonkeyPatch) -> list[object]:
    loaded: list[object] = []
    for kernel, _ in kernels:
        load = kernel.toolchain.load
        monkeypatch.setattr(
            kernel.toolchain, "load", lambda code, context, load=load: (loaded.append(code), load(code, context))[1]
        )
    return loaded


def test_kernels_that_are_launched_once_share_a_module(fake: MemoryDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    made_ones = kernels_of(made(), 50)
    loaded = loads(made_ones, monkeypatch)
    for kernel, _ in made_ones:
        kernel.launch()
    assert len(loaded) == 2  # the first kernel's own, and the one that goes round
    for kernel, _ in made_ones[1:]:
        kernel.launch()
    assert len(loaded) == 50  # one of them got the one that went round
    for kernel, _ in made_ones:
        kernel.launch()
    assert len(loaded) == 50


def test_not_on_another_stream_and_not_where_it_is_bound_first(
    fake: MemoryDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_ones = kernels_of(made(), 7)
    loaded = loads(made_ones, monkeypatch)
    for kernel, _ in made_ones[:4]:
        kernel.launch(stream=STREAM)
    for kernel, _ in made_ones[4:]:
        kernel.bind()
        kernel.launch()
    assert len(loaded) == 7
    assert all(kernel.instance for kernel, _ in made_ones)


def test_the_copy_of_a_trial_stays_with_its_kernel(fake: MemoryDriver) -> None:
    made_ones = kernels_of(made(), 3, size=100_000)
    for kernel, _ in made_ones:
        kernel.launch()
    rows = mirrors.memory()
    assert len(rows) == 3
    assert {row.users for row in rows} == {("kernel",)}
    del kernel
    del made_ones[1:]
    gc.collect()
    assert len(mirrors.memory()) == 1


def test_a_copy_that_was_not_watched_is_sent_again_and_then_watched(fake: MemoryDriver) -> None:
    (first, _), (kernel, table) = kernels_of(made(), 2, size=100_000)
    first.launch()
    kernel.launch()
    (copy,) = mirrors.copies_of(table, "live")
    assert copy.way == "unwatched"
    assert copy.uploads == 1
    kernel.launch()
    assert copy.way != "unwatched"
    assert copy.uploads == 2
    kernel.launch()
    assert copy.uploads == 2
    table[7] = -1.0
    kernel.launch()
    assert copy.uploads == 3
    fake.finish()
    address = copy.address_of(table)
    assert np.frombuffer(fake.read(address, table.nbytes)).tolist() == table.tolist()


def test_large_tables_are_watched_from_the_beginning(fake: MemoryDriver) -> None:
    (first, _), (kernel, table) = kernels_of(made(), 2, size=mirrors.SENT_AGAIN // 8 + 1)
    first.launch()
    kernel.launch()
    (copy,) = mirrors.copies_of(table, "live")
    assert copy.way != "unwatched"


def test_an_edit_after_a_trial_is_seen(fake: MemoryDriver) -> None:
    for size in (10, 1000, 100_000):
        (first, _), (kernel, table) = kernels_of(made(), 2, size=size)
        first.launch()
        kernel.launch()
        table[:] = -5.0
        kernel.launch()
        (copy,) = mirrors.copies_of(table, "live")
        fake.finish()
        assert np.frombuffer(fake.read(copy.address_of(table), table.nbytes)).tolist() == table.tolist()


def test_what_a_trial_wrote_comes_home(fake: MemoryDriver) -> None:
    module = made()
    for _ in range(3):
        table = np.zeros(1000)
        kernel = Kernel(module["factory"](table, 3), written=("a",))

        def write(table: Any = table) -> None:
            (copy,) = mirrors.copies_of(table, "live")
            fake.launch(0, lambda: fake.write(copy.address_of(table) + 8, np.float64(2.5).tobytes()))

        for value in (1, 2):
            kernel.launch(run=write)
            assert table[1] == 2.5
            table[1] = value


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3_000_000), st.integers(0, 5)), min_size=1, max_size=60))
def test_blocks_never_overlap_and_reserve_no_more_than_is_held(wanted: list[tuple[int, int]]) -> None:
    with contextmanager(in_memory)() as fake:
        fake.use(0)
        held: list[Any] = []
        for nbytes, drop in wanted:
            held.append(arena.allocate(nbytes, current()))
            spans = sorted((block.address, block.address + block.nbytes) for block in held)
            assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))
            assert held[-1].nbytes == nbytes
            del held[len(held) // 2 : len(held) // 2 + drop - 3]
        for block in held:
            block.close()
            assert block.closed
        held.clear()
        gc.collect()
        assert not fake.memory


def test_many_small_allocations_become_few(fake: MemoryDriver) -> None:
    before = fake.calls["mem_alloc"]
    held = [arena.allocate(1 << 20, current()) for _ in range(1000)]
    assert fake.calls["mem_alloc"] - before < 50
    assert sum(len(data) for _, data in fake.memory.values()) < 1.1 * sum(block.nbytes for block in held)
    held.clear()
    gc.collect()
    assert not fake.memory


def test_without_room_for_many_there_may_be_room_for_one(fake: MemoryDriver) -> None:
    held = [arena.allocate(1 << 20, current()) for _ in range(8)]  # the next ones are cut from 8 MiB
    held += [arena.allocate(1 << 20, current()) for _ in range(8)]
    fake.capacity = sum(len(data) for _, data in fake.memory.values()) + (3 << 20)
    held += [arena.allocate(1 << 20, current()) for _ in range(3)]
    with pytest.raises(OutOfDeviceMemory):
        held.append(arena.allocate(1 << 20, current()))
    held.clear()
    gc.collect()
    assert not fake.memory
    assert arena.allocate(1 << 20, current())
