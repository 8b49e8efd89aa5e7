"""First launch in a process with a warm disk cache: captured, and upstream with the table as an argument."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks.factory import module_of
from benchmarks.timing import Figure, compared, interleaved

PROGRAM = """
import sys, time
import numpy as np
captured = sys.argv[1] == "captured"
if captured:
    import cuda_captures
    cuda_captures.enable()
from importlib import import_module
cuda = import_module(sys.argv[2])
table = np.arange(1000.0)
if captured:
    @cuda.jit(cache=True)
    def kernel(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = table[i]
    arguments = ()
else:
    @cuda.jit(cache=True)
    def kernel(out, table):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = table[i]
    arguments = (cuda.to_device(table),)
out = cuda.to_device(np.zeros(1000))
cuda.synchronize()
begin = time.perf_counter()
kernel[8, 128](out, *arguments)
cuda.synchronize()
print((time.perf_counter() - begin) * 1e6)
assert np.array_equal(out.copy_to_host(), table)
"""


def warm(cuda: Any, quick: bool) -> list[Figure]:
    """First launch with a warm disk cache."""
    module = module_of(cuda)
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "warm.py")
        with open(program, "w") as file:
            file.write(PROGRAM)
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder, "CUDA_CAPTURES": "0"}

        def first(version: str) -> float:
            command = [sys.executable, "-W", "ignore", program, version, module]
            return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)

        first("captured"), first("argument")  # fills the cache
        versions = {version: (lambda version=version: first(version)) for version in ("argument", "captured")}
        return compared("warm start", interleaved(versions, 3 if quick else 7), "argument")
