"""On the GPU: kernels in other processes; one copy of a table in each, on the GPU that its tasks launch on."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import COMPILERS, module_of
from processes import run

pytestmark = pytest.mark.gpu

KERNELS = """
import multiprocessing, os, warnings
import numpy as np
import cuda_captures
from {package} import cuda

warnings.simplefilter("ignore", cuda_captures.CapturePerformanceWarning)
cuda_captures.enable()
table = np.linspace(0.0, 1.0, 1_000_000)

@cuda.jit
def look_up(out, start):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = table[start + i]

@cuda.jit
def twice(out, start):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 2 * table[start + i]

def launched(kernels, start, device):
    cuda.select_device(device)
    outs = np.zeros((2, 64))
    for kernel, out in zip(kernels, outs):
        kernel[1, 64](out, start)
    copies = [(copy.device, copy.way) for copy in cuda_captures.memory() if copy.nbytes == table.nbytes]
    return os.getpid(), outs, copies

def check(found, devices):
    assert all(np.array_equal(outs, [table[start:start + 64], 2 * table[start:start + 64]])
               for start, (_, outs, _) in enumerate(found))
    for pid in {{pid for pid, _, _ in found}}:
        last = [copies for one, _, copies in found if one == pid][-1]
        assert sorted(set(last)) == sorted(last) and {{device for device, _ in last}} <= set(devices), last
        assert all(way == "unwritable" for _, way in last), last
"""

POOL = """
def task(given):
    kernels, start = given
    return launched(kernels, start, os.getpid() % count)

count = len(cuda.gpus)

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.map(task, [((look_up, twice), start) for start in range(20)], chunksize=1)
    check(found, range(count))
    print("well")
"""

DASK = """
from distributed import Client, LocalCluster, get_worker
import cuda_captures.dask

def task(start, count):
    return launched((look_up, twice), start, get_worker().name % count)

if __name__ == "__main__":
    count = len(cuda.gpus)
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        with Client(cluster) as client:
            cuda_captures.dask.share(client, look_up, twice)
            found = client.gather(client.map(task, range(100), count=count))
    assert len({pid for pid, _, _ in found}) == 2
    assert all(len(copies) == 1 for _, _, copies in found), "one copy in each worker, on its own device"
    check(found, range(count))
    print("well")
"""


def program(compiler: str, body: str) -> str:
    module_of(compiler)
    return KERNELS.format(package=COMPILERS[compiler].rpartition(".")[0]) + body


def test_processes_that_are_spawned(tmp_path: Path, compiler: str) -> None:
    run(tmp_path, program(compiler, POOL))


def test_workers_of_dask(tmp_path: Path, compiler: str) -> None:
    pytest.importorskip("distributed", reason="needs distributed, of the extra `dask`")
    run(tmp_path, program(compiler, DASK))
