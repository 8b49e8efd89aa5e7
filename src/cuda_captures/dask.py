"""Dask: tables that kernels capture are sent to each worker once, not with each task.

::

    cuda_captures.dask.share(client, look_up, scatter, sample)

From then on tasks that use these kernels, or any other kernel that captures the same tables, refer to the tables by
their contents.  Workers that join later get them as they join: the scheduler keeps them until :func:`unshare`.

Only this module imports ``distributed``; it comes with the extra ``dask``.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

try:
    from distributed.diagnostics.plugin import WorkerPlugin
except ImportError as error:
    raise ImportError(
        'cuda_captures.dask needs dask and distributed: `pip install "cuda-captures[dask]"`', name=error.name
    ) from error

from cuda_captures import arrivals
from cuda_captures.discovery import discover
from cuda_captures.places import function_of
from cuda_captures.travelling import REFERENCES, Shared, array_of, written_arrays

__all__ = ["share", "unshare"]

PIECE = 1 << 30  # bytes; a message holds 4 GiB at most


def share(client: Any, *things: Any) -> Any:
    """Send the tables that kernels capture to every worker of a cluster, once.

    Parameters
    ----------
    client
        A ``distributed.Client``.
    *things
        Kernels, whose captured arrays are meant, and arrays.  Arrays that are captured under the policies ``live`` or
        ``mapped`` by a marker or by their kernel, which each task gets for itself, are left out.

    Returns
    -------
    None
        When the workers have the tables; for an asynchronous client an awaitable of it.

    Raises
    ------
    TypeError
        For things that are neither kernels nor arrays.

    Notes
    -----
    Contents count, as they are now.  A table that is edited afterwards is sent with the tasks, as it is then, until
    it is shared again.  Sharing what is shared already sends nothing.
    """
    return client.sync(_share, client, _tables(things))


def unshare(client: Any, *things: Any) -> Any:
    """Have the workers, and the scheduler, let go of tables.

    Parameters
    ----------
    client
        A ``distributed.Client``.
    *things
        As for :func:`share`; without any, all that this process has shared with the cluster.

    Notes
    -----
    Call it when tasks that refer to the tables are done: those that come to a worker afterwards fail, with an error
    that says so.
    """
    keys = list(_tables(things)) if things else [key for key, one in REFERENCES.items() if one.of is client]
    return client.sync(_unshare, client, keys)


def _tables(things: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays in host memory, by their contents."""
    return {arrivals.content_key(array): array for thing in things for array in _arrays(thing)}


def _arrays(thing: Any) -> Iterator[np.ndarray[Any, Any]]:
    thing = getattr(thing, "dispatcher", thing)  # a configured kernel knows its own
    array, _ = array_of(thing)
    if array is not None:
        found = [array]
    elif function_of(thing) is not None:
        private = written_arrays(thing)
        captured = [one.value for one in discover(thing).arrays if id(one.value) not in private]
        found = [array_of(value)[0] for value in captured]
    else:
        raise TypeError(f"share() takes kernels and arrays, and got a {type(thing).__qualname__}: {thing!r}")
    yield from (one for one in found if one is not None and arrivals.sharable(one))


async def _share(client: Any, tables: dict[str, np.ndarray[Any, Any]]) -> None:
    present = await client.run_on_scheduler(_plugins_there)
    for key, array in tables.items():
        for plugin in _plugins(key, array):
            if plugin.name not in present:
                await client.register_plugin(plugin)
        reference = weakref.ref(client)
        REFERENCES[key] = Shared(f"the Dask cluster at {client.scheduler.address}", reference, _running)


def _running(client: Any) -> bool:
    return bool(client.status == "running")


async def _unshare(client: Any, keys: list[str]) -> None:
    present = await client.run_on_scheduler(_plugins_there)
    for key in keys:
        REFERENCES.pop(key, None)
        for name in present:
            if name.startswith(f"{_PREFIX}{key} "):
                await client.unregister_worker_plugin(name)


_PREFIX = "cuda-captures "


def _plugins_there(dask_scheduler: Any) -> list[str]:
    """Names of the tables that a scheduler has; runs there."""
    return [name for name in dask_scheduler.worker_plugins if name.startswith(_PREFIX)]


def _plugins(key: str, array: np.ndarray[Any, Any]) -> Iterator[Table]:
    memory, order = arrivals.memory_of(array), arrivals.order_of(array)
    count = max(1, -(-len(memory) // PIECE))
    for index in range(count):
        piece = bytes(memory[index * PIECE : (index + 1) * PIECE])
        yield Table(key, index, count, piece, (array.shape, array.dtype, order))


_lock = threading.Lock()
_pieces: dict[tuple[str, int], dict[int, bytes]] = {}  # of tables that have come to a worker in part


class Table(WorkerPlugin):
    """One table, or a piece of one, on its way to each worker.

    Parameters
    ----------
    key
        Of its contents.
    index, count
        Which piece of how many.
    data
        The bytes of the piece.
    form
        Shape, dtype and order of the whole.
    """

    idempotent = True

    def __init__(self, key: str, index: int, count: int, data: bytes, form: Any) -> None:
        self.key = key
        self.index = index
        self.count = count
        self.data = data
        self.form = form
        self.name = f"{_PREFIX}{key} {index + 1} of {count}"

    def setup(self, worker: Any) -> None:
        """Keep the table for the kernels that come to this process."""
        with _lock:
            here = _pieces.setdefault((self.key, id(worker)), {})
            here[self.index] = self.data
            self.data = b""
            if len(here) < self.count:
                return
            del _pieces[self.key, id(worker)]
        shape, dtype, order = self.form
        data = here[0] if self.count == 1 else b"".join(here[index] for index in range(self.count))
        made: np.ndarray[Any, Any] = np.ndarray(shape, dtype, data, order=order)
        arrivals.keep(made.view(np.recarray) if self.key.endswith(" recarray") else made)

    def teardown(self, worker: Any) -> None:
        """Let go of it; the first of its pieces to go takes it along."""
        if self.index == 0:
            arrivals.forget(self.key)
