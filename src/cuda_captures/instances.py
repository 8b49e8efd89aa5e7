"""A module that is loaded and bound to arrays: what a launch uses, and how it is made ready for one."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cuda_captures import device as cuda_device
from cuda_captures import mirrors
from cuda_captures.copies import WRITTEN_IN_GRAPH
from cuda_captures.discovery import Place
from cuda_captures.errors import CaptureError, about
from cuda_captures.extents import extent
from cuda_captures.ordering import LEGACY, wait_for_producer
from cuda_captures.spares import Spares
from cuda_captures.storage import producer_stream
from cuda_captures.variants import Variant

# Module instances that graphs launch.  Nobody tells when a graph is gone, and replaying one whose module has been
# unloaded is a crash.  Only ever added to, by launches.
IN_GRAPHS: list[Instance] = []


class Instance:
    """A loaded module whose slots are filled, and what they point at.

    Parameters
    ----------
    context, variant
        What it was made in and for; held, so that their identities stay theirs.
    launchable
        The backend's kernel.
    copies
        Device copies of NumPy arrays, each once.
    written
        Copies that the kernel writes, each with its array.
    held, held_bytes
        Device arrays, and the bytes of their elements.
    producers
        Device arrays whose library works on a stream of its own.

    Notes
    -----
    What it is bound to never changes, so any thread may use it.  The loaded module and the copies go when the last
    launch that holds the instance is over and the kernel's table has let go of it; a module that was launched on
    nothing but the legacy default stream then becomes a spare one.
    """

    __slots__ = (
        "__weakref__",
        "arrays",
        "context",
        "copies",
        "elsewhere",
        "filled",
        "held",
        "held_bytes",
        "in_graph",
        "launchable",
        "plain",
        "producers",
        "spares",
        "unchanged",
        "variant",
        "writes",
        "written",
    )

    def __init__(
        self,
        context: Any,
        variant: Variant,
        launchable: Any,
        copies: Sequence[mirrors.Mirror],
        written: Sequence[tuple[mirrors.Mirror, np.ndarray[Any, Any]]],
        held: Sequence[Any],
        producers: Sequence[Any],
        arrays: Sequence[Any],
        unchanged: Callable[[], bool],
        held_bytes: int = 0,
        spares: Spares | None = None,
        filled: cuda_device.Event | None = None,
    ) -> None:
        self.spares: Spares | None = None
        self.elsewhere = self.in_graph = False
        self.filled = filled
        self.context = context
        self.variant = variant
        self.launchable = launchable
        self.copies = tuple(copies)
        self.written = tuple((mirror, weakref.ref(array)) for mirror, array in written)
        self.writes = tuple({id(mirror): mirror for mirror, _ in written}.values())
        self.held = tuple(held)
        self.held_bytes = held_bytes
        self.producers = tuple(producers)
        self.arrays = tuple(weakref.ref(array) if isinstance(array, np.ndarray) else None for array in arrays)
        self.unchanged = unchanged
        self.plain = not self.copies and not self.producers
        self.spares = spares

    def __del__(self) -> None:
        if self.spares is not None and not self.elsewhere:
            self.spares.give(self.context, self.launchable)

    def launched_elsewhere(self, stream: int) -> None:
        """Make ready for a launch on another stream than the legacy default one.

        It must come after the slots were filled; and if it goes into a graph, which may be replayed when the kernel
        is gone, the instance stays for the life of the process.
        """
        self.elsewhere = True
        if self.in_graph and self.filled is None:
            return
        capturing = cuda_device.is_capturing(stream)
        if capturing and not self.in_graph and self._not_for_graphs() is None:  # else the launch is refused
            self.in_graph = True
            IN_GRAPHS.append(self)
        filled = self.filled
        if filled is None:
            return
        with cuda_device.relaxed_capture():
            if filled.done():
                self.filled = None
            elif capturing:
                filled.synchronize()  # a graph cannot wait for what is outside of it
            else:
                filled.hold(stream)

    def ready(self, stream: int) -> bool:
        """Bring the copies up to date for a launch on a stream; False if the instance must be replaced first.

        Raises
        ------
        CaptureError
            If something could not be sent, or the stream is capturing and something would have to be copied back.
        """
        if self.written and stream not in LEGACY and cuda_device.is_capturing(stream):
            self._refuse_in_graph()
        ready = False
        try:
            ready = self._refreshed(stream)
        finally:
            if not ready:
                self.unused()
        return ready

    def _refreshed(self, stream: int) -> bool:
        for mirror in self.copies:
            if mirror.superseded:
                return False
            mirror.refresh(stream, writes=mirror in self.writes)
        for array in self.producers:
            producer = producer_stream(array)
            if producer is not None:
                wait_for_producer(producer, stream)
        return not any(mirror.superseded for mirror in self.copies)

    def unused(self) -> None:
        """Note that the launch that the copies were made ready for is not made."""
        for mirror in self.copies:
            mirror.unused()

    def _refuse_in_graph(self) -> None:
        array = self._not_for_graphs()
        if array is not None:
            raise about(extent(array)[0], CaptureError(WRITTEN_IN_GRAPH))

    def _not_for_graphs(self) -> np.ndarray[Any, Any] | None:
        """An array that the kernel writes and that a graph could not bring home."""
        arrays = (reference() for mirror, reference in self.written if mirror.policy != "mapped")
        return next((array for array in arrays if array is not None), None)

    def launched(self, stream: int, owner: Any) -> None:
        """Note that a launch on a stream uses the copies."""
        for mirror in self.copies:
            mirror.used(stream, owner, writes=self._written_in(mirror))

    def _written_in(self, mirror: mirrors.Mirror) -> Sequence[np.ndarray[Any, Any]]:
        if not self.written:
            return ()
        return [array for one, reference in self.written if one is mirror and (array := reference()) is not None]

    def copy_back(self, stream: int, owner: Any) -> None:
        """Put what the kernel wrote into the NumPy arrays; waits for the stream if there is any.

        An array that cannot be written does not keep the others from it.
        """
        failed: BaseException | None = None
        for mirror, reference in self.written:
            array = reference()
            if array is not None:
                try:
                    mirror.copy_back(array, stream, owner)
                except BaseException as error:
                    failed = failed or error
        if failed is not None:
            raise failed

    def forsake(self) -> None:
        """Give up what a launch that failed may have written to the copies."""
        for mirror, reference in self.written:
            array = reference()
            if array is not None:
                mirror.forsake(array)

    def copied(self) -> list[tuple[Place, np.ndarray[Any, Any], mirrors.Mirror]]:
        """The captured NumPy arrays that are still there, each with its place and its device copy."""
        found = []
        for (_, place), reference in zip(self.variant.arrays, self.arrays, strict=True):
            array = reference() if reference is not None else None
            if array is not None:
                found += [(place, array, copy) for copy in self.copies if copy.covers(extent(array))]
        return found

    def serves(self, arrays: Sequence[Any]) -> bool:
        """Whether this instance was made for these very arrays, and its copies of them are current."""
        for array, reference in zip(arrays, self.arrays, strict=True):
            if reference is not None and reference() is not array:
                return False
        return not any(mirror.superseded for mirror in self.copies)
