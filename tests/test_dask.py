"""Dask: a table that kernels capture goes to each worker once, however many tasks use it."""

from __future__ import annotations

import pickle
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cuda_captures
from conftest import module_of
from cuda_captures import arrivals, unpacking
from processes import run
from reading_kernels import reading

pytest.importorskip("distributed", reason="needs distributed, of the extra `dask`")

CLUSTER = """
import collections, os
import numpy as np
from distributed import Client, LocalCluster, get_worker, wait
from distributed.comm.tcp import TCP
import cuda_captures
import cuda_captures.dask
from numba import cuda

cuda_captures.enable()

table = np.linspace(0.0, 1.0, SIZE)  # 8 bytes each

@cuda.jit(device=True)
def value(i):
    return table[i % table.size]

@cuda.jit
def look_up(out, start):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = table[start + i]

@cuda.jit
def through(out, start):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = -value(start + i)

@cuda.jit
def twice(out, start):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 2 * table[start + i]

def held(kernel):
    return kernel.py_func.__globals__["table"]

def task(start):
    outs = np.zeros((3, 4))
    for kernel, out in zip((look_up, through, twice), outs):
        kernel[1, 4](out, start)
    assert held(look_up) is held(twice) and not held(twice).flags.writeable
    return os.getpid(), id(held(look_up)), outs

def expected(start):
    part = table[start : start + 4]
    return np.array([part, -part, 2 * part])

sent = []  # to whom, and how many bytes: messages of this process, which has the client and the scheduler

upstream_write = TCP.write

async def write(self, msg, *args, **kwargs):
    nbytes = await upstream_write(self, msg, *args, **kwargs)
    sent.append((self.peer_address, nbytes))
    return nbytes

def counted():
    total = sum(nbytes for _, nbytes in sent)
    sent.clear()
    return total

def cluster(workers=2):
    return LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None, protocol="tcp"
    )

def main():
BODY

if __name__ == "__main__":
    TCP.write = write
    main()
    print("well")
"""


def program(body: str, size: int) -> str:
    return CLUSTER.replace("BODY", textwrap.indent(textwrap.dedent(body), "    ")).replace("SIZE", str(size))


def test_a_hundred_tasks_send_a_table_once_to_each_worker(tmp_path: Path) -> None:
    body = """
        with cluster() as local, Client(local) as client:
            sent.clear()
            cuda_captures.dask.share(client, look_up, through, twice)
            large = [nbytes for _, nbytes in sent if nbytes > 1_000_000]
            assert len(large) == 3, large  # to the scheduler, and from there to two workers
            assert all(table.nbytes <= nbytes < table.nbytes + 10_000 for nbytes in large), large
            counted()
            found = client.gather(client.map(task, range(100)))
            assert counted() < 10_000_000
            assert len({pid for pid, _, _ in found}) == 2
            assert len({(pid, number) for pid, number, _ in found}) == 2
            for start, (_, _, outs) in enumerate(found):
                assert np.array_equal(outs, expected(start))
    """
    run(tmp_path, program(body, 10_000_000), NUMBA_ENABLE_CUDASIM="1")


def test_without_sharing_each_task_brings_the_table(tmp_path: Path) -> None:
    """What sharing is for; and results are right without it."""
    body = """
        with cluster() as local, Client(local) as client:
            sent.clear()
            found = client.gather(client.map(task, range(10)))
            assert counted() > 10 * table.nbytes
            assert len({(pid, number) for pid, number, _ in found}) <= 2
            assert all(np.array_equal(outs, expected(start)) for start, (_, _, outs) in enumerate(found))
    """
    run(tmp_path, program(body, 100_000), NUMBA_ENABLE_CUDASIM="1")


def test_workers_that_join_later_and_edits_and_other_kernels_and_unsharing(tmp_path: Path) -> None:
    body = """
        def ask(start, kernel):
            out = np.zeros(4)
            kernel[1, 4](out, start)
            return out

        with cluster(1) as local, Client(local) as client:
            cuda_captures.dask.share(client, table)
            assert np.array_equal(client.submit(ask, 5, look_up).result(), table[5:9])
            sent.clear()
            cuda_captures.dask.share(client, look_up, twice)
            assert counted() < table.nbytes, "what is there is not sent again"

            local.scale(2)
            client.wait_for_workers(2)
            found = client.run(lambda: __import__("cuda_captures").arrivals._kept and 1)
            assert list(found.values()) == [1, 1], found
            (first, second) = client.scheduler_info()["workers"]
            for worker in (first, second):
                future = client.submit(ask, 7, look_up, workers=[worker], pure=False)
                assert np.array_equal(future.result(), table[7:11])

            def another():
                held = table
                @cuda.jit
                def thrice(out, start):
                    i = cuda.grid(1)
                    if i < out.size:
                        out[i] = 3 * held[start + i]
                return thrice

            counted()
            assert np.array_equal(client.submit(ask, 5, another()).result(), 3 * table[5:9])
            assert counted() < table.nbytes

            table[5] = -1  # an edit goes along with the next task
            assert np.array_equal(client.submit(ask, 5, look_up, pure=False).result(), table[5:9])
            assert counted() > table.nbytes
            cuda_captures.dask.share(client, table)
            counted()
            assert np.array_equal(client.submit(ask, 5, look_up, pure=False).result(), table[5:9])
            assert counted() < table.nbytes

            cuda_captures.dask.unshare(client)
            assert list(client.run(lambda: len(__import__("cuda_captures").arrivals._kept)).values()) == [0, 0]
            assert np.array_equal(client.submit(ask, 5, look_up, pure=False).result(), table[5:9])
            assert counted() > table.nbytes
            cuda_captures.dask.share(client, table)
        import pickle
        assert len(pickle.dumps(another())) > table.nbytes, "the cluster is closed"
    """
    run(tmp_path, program(body, 100_000), NUMBA_ENABLE_CUDASIM="1")


def test_an_asynchronous_client_awaits_it(tmp_path: Path) -> None:
    body = """
        import asyncio
        records = np.rec.array([(1, 2.5), (3, 4.5)] * 1000, dtype=[("a", "i4"), ("b", "f8")])

        def ask(start):
            out = np.zeros(4)
            look_up[1, 4](out, start)
            return out

        async def work():
            async with LocalCluster(
                n_workers=1, threads_per_worker=1, dashboard_address=None, protocol="tcp", asynchronous=True
            ) as local, Client(local, asynchronous=True) as client:
                await cuda_captures.dask.share(client, look_up, records)
                counted()
                for start in range(5):
                    assert np.array_equal(await client.submit(ask, start), table[start : start + 4])
                assert counted() < table.nbytes
                from cuda_captures import arrivals
                found = await client.run(lambda: [type(one).__name__ for one, _ in arrivals._kept.values()])
                assert sorted(*found.values()) == ["ndarray", "recarray"], found
                await cuda_captures.dask.unshare(client)

        asyncio.run(work())
    """
    run(tmp_path, program(body, 100_000), NUMBA_ENABLE_CUDASIM="1")


def test_a_state_that_is_written_is_each_tasks_own(tmp_path: Path) -> None:
    body = """
        def make():
            state = cuda_captures.live(np.zeros(1000))

            @cuda.jit
            def add(out, start):
                i = cuda.grid(1)
                if i < out.size:
                    state[i] += table[start + i]
                    out[i] = state[i]

            return add

        def ask(start, kernel):
            out = np.zeros(4)
            kernel[1, 4](out, start)
            return out

        add = make()
        with cluster(1) as local, Client(local) as client:
            cuda_captures.dask.share(client, add)
            counted()
            for start in (0, 10, 20):
                assert np.array_equal(client.submit(ask, start, add).result(), table[start : start + 4])
            assert 3 * 8000 < counted() < table.nbytes
    """
    run(tmp_path, program(body, 100_000), NUMBA_ENABLE_CUDASIM="1")


COMPILING = """
import numpy as np
from distributed import Client, LocalCluster
import cuda_captures
import cuda_captures.dask
from {package} import cuda

cuda_captures.enable()
table = np.linspace(0.0, 1.0, 1_000_000)

@cuda.jit
def look_up(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = table[i]

def compiled(kernel, number):
    held = kernel.py_func.__globals__["table"]
    return id(held), float(held[number]), cuda_captures.explain(kernel, "void(float64[:])").key

if __name__ == "__main__":
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as local, Client(local) as client:
        cuda_captures.dask.share(client, look_up)
        found = client.gather(client.map(compiled, [look_up] * 5, range(5)))
    assert len({{number for number, _, _ in found}}) == 1
    assert [value for _, value, _ in found] == list(table[:5])
    (key,) = {{key for _, _, key in found}}
    assert "array f8 1d C readonly aligned host live shape (1000000,)" in key
    print("well")
"""


def test_workers_compile(tmp_path: Path, compiler: str) -> None:
    run(tmp_path, COMPILING.format(package=module_of(compiler).__name__.rpartition(".")[0]))


# pieces of it


class Scheduler:
    """What a client asks."""

    address = "tcp://there:8786"
    status = "running"

    def __init__(self) -> None:
        self.plugins: dict[str, bytes] = {}
        self.scheduler = self

    def sync(self, function: Any, *arguments: Any) -> Any:
        import asyncio

        return asyncio.run(function(*arguments))

    @property
    def worker_plugins(self) -> dict[str, bytes]:
        return self.plugins

    async def run_on_scheduler(self, function: Any) -> Any:
        return function(self)

    async def register_plugin(self, plugin: Any) -> None:
        self.plugins[plugin.name] = pickle.dumps(plugin)

    async def unregister_worker_plugin(self, name: str) -> None:
        del self.plugins[name]

    def start(self) -> list[Any]:
        """As a worker does with what it gets; returns the plugins."""
        found = [pickle.loads(data) for data in self.plugins.values()]
        for plugin in found:
            plugin.setup(self)
        return found


def test_a_large_table_goes_in_pieces(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda_captures import dask

    monkeypatch.setattr(dask, "PIECE", 1000)
    client = Scheduler()
    table = np.asfortranarray(np.arange(600.0).reshape(20, 30))
    kernel = reading(cuda, table)
    dask.share(client, kernel)
    assert len(client.plugins) == 5
    data = pickle.dumps(kernel)
    waiting = pickle.loads(data)
    assert isinstance(waiting, unpacking.Waiting)
    started = client.start()
    there = pickle.loads(data).py_func.__closure__[1].cell_contents
    assert np.array_equal(there, table)
    assert there.flags.f_contiguous
    assert isinstance(there.base, bytes)
    assert waiting.py_func.__closure__[1].cell_contents is there
    for plugin in started:
        plugin.teardown(client)
    dask.unshare(client, kernel)
    assert client.plugins == {}
    assert not isinstance(pickle.loads(pickle.dumps(kernel)), unpacking.Waiting)


def test_a_kernel_without_its_tables_is_passed_on_and_says_what_is_missing(cuda: Any) -> None:
    from cuda_captures import dask

    client = Scheduler()
    kernel = reading(cuda, np.arange(12_345.0))
    dask.share(client, kernel)
    waiting = pickle.loads(pickle.dumps(kernel))
    again = pickle.loads(pickle.dumps(waiting))
    for use in (lambda: again[1, 32], lambda: again.py_func, lambda: cuda_captures.explain(again.py_func, ())):
        with pytest.raises(cuda_captures.CaptureError) as refused:
            use()
        text = str(refused.value)
        assert "was pickled for the Dask cluster at tcp://there:8786" in text
        assert "f8 (12345,)" in text
        assert "cuda_captures.dask.unshare(client)" in text
    assert not hasattr(again, "__name__")
    dask.unshare(client)
    started = client.start()
    assert started == []


def test_what_can_be_shared(cuda: Any) -> None:
    from cuda_captures import dask

    client = Scheduler()
    for thing in (3, "table", [np.zeros(3)]):
        with pytest.raises(TypeError, match=r"share\(\) takes kernels and arrays, and got a"):
            dask.share(client, thing)
    state, table = np.zeros(3), np.ones(3)

    @cuda.jit(captures={"state": "live"})
    def kernel(out):
        state[0] += table[0]

    dask.share(client, kernel, cuda_captures.snapshot(table))
    if hasattr(kernel[1, 32], "dispatcher"):
        dask.share(client, kernel[1, 32])
    assert [name.split()[2:4] for name in client.plugins] == [["f8", "(3,)"]]
    assert arrivals.content_key(table) in next(iter(client.plugins))
    dask.unshare(client)


def test_without_dask_the_module_says_what_to_install() -> None:
    from interpreters import python

    program = """
        import sys
        sys.modules["distributed"] = None
        try:
            import cuda_captures.dask
        except ImportError as error:
            print(error)
    """
    assert 'pip install "cuda-captures[dask]"' in python(program)
