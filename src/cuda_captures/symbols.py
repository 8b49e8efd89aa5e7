"""Writing the symbols of a loaded module: its slots.

The bytes go through page-locked memory.  From ordinary memory the driver would first wait for all that the stream
holds (CUDA driver API, API synchronization behavior), so that binding a kernel would wait for the launches before it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cuda_captures import driver
from cuda_captures.device import current, relaxed_capture
from cuda_captures.staging import staging

FEW = 16  # bytes: as words that the calls themselves hold they are sooner under way than through a block of memory

Symbol = tuple[int, bytes]  # device address in the current context, and what shall be there


def write_symbols(symbols: Sequence[Symbol]) -> None:
    """Fill symbols of a module that nothing has been launched from; done when the call returns."""
    context = current()
    with relaxed_capture():
        # On a stream of our own: the synchronous copy would wait for the kernels of every blocking stream.
        staging(context).write(symbols, context.stream)
        driver.calls.stream_synchronize(context.stream)


def enqueue_symbols(symbols: Sequence[Symbol], stream: int) -> None:
    """Fill symbols as soon as a stream comes to it; what they held is read until then.

    The bytes have been taken when the call returns, which waits for nothing on the stream.
    """
    if sum(len(data) for _, data in symbols) > FEW:
        staging(current()).write(symbols, stream)
        return
    for address, data in symbols:
        for at in range(0, len(data), 4):
            driver.calls.fill_word(address + at, int.from_bytes(data[at : at + 4], sys.byteorder), stream)
