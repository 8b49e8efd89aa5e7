"""A kernel with captured tables, compiled by numba-cuda and loaded by cuda.core: what a library author does.

The code holds no address. The library that loads it fills its slots, keeps the binding, and wraps its launches in it.

Without a GPU everything up to the load is done, and the program says what it leaves out. Options: --cc 9.0
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from numba import types

import cuda_captures

N = 1 << 20
SIGNATURE = types.void(types.CPointer(types.int64), types.CPointer(types.float64), types.int64)

table = np.linspace(0.0, 1.0, N)  # 8 MB: far more than constant memory could hold
offsets = np.array([0.0, 100.0])


def kernel_of(cuda):
    @cuda.jit
    def look_up(where, out, n):
        i = cuda.grid(1)
        if i < n:
            out[i] = table[where[i]] + offsets[i % 2]

    return look_up


def compiled(cuda, cc):
    """The kernel's machine code, with slots."""
    code = cuda_captures.compile_with_slots(kernel_of(cuda), SIGNATURE, output="cubin", cc=cc)
    print(f"compiled for compute capability {cc[0]}.{cc[1]}: {len(code.code):,} bytes, kernel {code.entry[:24]}...")
    for slot in code.slots:
        path = " → ".join(slot.path)
        print(f"slot {slot.symbol}: {slot.nbytes} bytes for {path}, {slot.dtype} {slot.shape}, {slot.policy}")
    return code


def expected(where):
    return table[where] + offsets[np.arange(where.size) % 2]


def run(code, device):
    """Load, fill and launch; whether every result is right."""
    from cuda.core import LaunchConfig, LegacyPinnedMemoryResource, ObjectCode, launch

    stream = device.create_stream()
    pinned = LegacyPinnedMemoryResource()  # memory that both sides use
    buffers = [pinned.allocate(8 * N, stream=stream) for _ in range(2)]
    where = np.from_dlpack(buffers[0]).view(np.int64)
    out = np.from_dlpack(buffers[1]).view(np.float64)
    where[:] = np.random.default_rng(1).integers(0, N, N)

    module = ObjectCode.from_cubin(code.code)
    kernel = module.get_kernel(code.entry)
    binding = code.fill(module, device)
    config = LaunchConfig(grid=(N + 255) // 256, block=256)

    right = []
    for factor in (1, -2):
        table[::3] *= factor  # an edit on the host
        with binding.launching(stream):
            launch(stream, config, kernel, int(buffers[0].handle), int(buffers[1].handle), N)
        stream.sync()
        right.append(np.array_equal(out, expected(where)))
    print(f"launched twice, before and after an edit of the table: {'right' if all(right) else 'wrong'}")
    return all(right)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cc", default="9.0", help="compute capability to compile for where there is no GPU")
    arguments = parser.parse_args()

    from cuda.core import Device
    from numba import cuda

    cuda_captures.enable()
    if not cuda.is_available():
        compiled(cuda, tuple(map(int, arguments.cc.split("."))))
        print("There is no GPU here: the code is not loaded, no slot is filled, and nothing is launched.")
        return 0
    device = Device()
    device.set_current()
    capability = device.compute_capability
    return 0 if run(compiled(cuda, (capability.major, capability.minor)), device) else 1


if __name__ == "__main__":
    sys.exit(main())
