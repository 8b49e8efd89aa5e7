"""Whose device copy is whose: one copy per piece of host memory, policy and device, shared by everybody.

Live copies of one context never overlap.  An array that overlaps some without being covered gets one copy over the
union; the old ones are marked ``superseded`` and their holders move over at their next launch, so that views of one
buffer stay views of one buffer on the device.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cuda_captures import driver
from cuda_captures.copies import Mirror
from cuda_captures.device import Context, on_device
from cuda_captures.driver import OutOfDeviceMemory
from cuda_captures.extents import Array, Extent, extent, root_of, wanted_extent
from cuda_captures.mapping import MappedMirror
from cuda_captures.shelf import AnyMirror, Shelf

__all__ = ["LAUNCH_LOCK", "DeviceCopy", "MappedMirror", "Mirror", "acquire", "copies_of", "memory", "refresh_snapshot"]

LAUNCH_LOCK = threading.RLock()
"""Held by a launch from ``refresh`` to ``used``, so that no other thread's update of a copy falls in between; and by
whoever makes copies.  Never waited for by a finalizer."""

NO_ROOM = (
    "no room on device {device} for the copy of a captured NumPy array: {wanted:,} bytes.\n"
    "Copies of captured arrays hold {held:,} bytes there now{rows}\n"
    "Free device memory, let go of kernels and arrays that are not needed, or mark the array with "
    "cuda_captures.mapped(...) to use it in place."
)

SENT_AGAIN = 2 << 20
"""Bytes of a copy that takes about as long to send once more as to watch."""

SPARE_COPIES: list[Callable[[], object]] = []
"""Called when there is no room: they let go of copies that are held for those who may come."""

_shelves: dict[int, Shelf] = {}  # by context identifier; touched under LAUNCH_LOCK


def acquire(array: Array, device: int, *, policy: str = "live", verify: bool = False, watched: bool = True) -> Any:
    """The device copy of a NumPy array; made if there is none.

    Parameters
    ----------
    array
        Of any layout; what lies between its lowest and highest byte is copied.
    device
        Ordinal of the device.
    policy
        ``"live"``, ``"snapshot"`` or ``"mapped"``.
    verify
        Whether every "unchanged" is checked against a digest.
    watched
        False for a copy that may well be used for one launch only: a new small one is not watched before the second.

    Returns
    -------
    Mirror or MappedMirror
        To be held as long as its addresses are in use.  Nothing is copied before its first ``refresh``.

    Raises
    ------
    OutOfDeviceMemory
        With the bytes wanted and what is held; everything is as before.
    CaptureError
        If memory that shall be mapped cannot be.
    """
    with LAUNCH_LOCK, on_device(device) as context:
        root = root_of(array)
        if not array.size:
            return Mirror(extent(array), [root], context, policy="snapshot")
        bounds = extent(array)
        shelf = _shelves.setdefault(context.id, Shelf())
        present = shelf.meeting(bounds)
        if policy == "mapped":
            return _acquire_mapped(bounds, root, context, present)
        for mirror in present:
            if mirror.policy == policy and mirror.covers(bounds) and mirror.verify == verify:
                if watched and isinstance(mirror, Mirror):
                    mirror.watch()
                return mirror
        if policy == "snapshot":
            # Snapshots may overlap: a larger one made later would bring the edits that the first must not show.
            return _made(bounds, [root], context, policy, verify, [])
        wanted = wanted_extent(array, root)
        try:
            return _acquire_live(wanted, root, context, shelf, verify, watched)
        except OutOfDeviceMemory:
            if wanted == bounds:
                raise
        return _acquire_live(bounds, root, context, shelf, verify, watched)


def _acquire_live(bounds: Extent, root: Array, context: Context, shelf: Shelf, verify: bool, watched: bool) -> Mirror:
    start, stop = bounds
    roots = [root]
    # They do not overlap, so that the union with those at both ends meets no further one.
    replaced = [mirror for mirror in shelf.meeting(bounds) if mirror.policy == "live"]
    for mirror in replaced:
        start, stop = min(start, mirror.start), max(stop, mirror.stop)
        roots += [other for other in mirror.roots if not any(other is known for known in roots)]
    watched = watched or verify or stop - start > SENT_AGAIN
    return _made((start, stop), roots, context, "live", verify, replaced, watched)


def _acquire_mapped(bounds: Extent, root: Array, context: Context, present: list[AnyMirror]) -> MappedMirror:
    for mirror in present:
        if isinstance(mirror, MappedMirror) and mirror.covers(bounds):
            return mirror
    mapped = MappedMirror(bounds, root, context)
    _shelves[context.id].put(mapped)
    return mapped


def _made(
    bounds: Extent,
    roots: list[Array],
    context: Context,
    policy: str,
    verify: bool,
    replaced: Sequence[AnyMirror],
    watched: bool = True,
) -> Mirror:
    try:
        try:
            mirror = Mirror(bounds, roots, context, policy=policy, verify=verify, watched=watched)
        except OutOfDeviceMemory:
            for let_go in SPARE_COPIES:
                let_go()
            gc.collect()  # copies may hang on cycles that nobody has collected yet
            mirror = Mirror(bounds, roots, context, policy=policy, verify=verify, watched=watched)
    except OutOfDeviceMemory as error:
        rows = [copy for copy in memory() if copy.device == context.device and copy.policy != "mapped"]
        held = sum(copy.nbytes for copy in rows)
        text = "".join(f"\n    {copy}" for copy in rows[:10]) + ("\n    …" if len(rows) > 10 else "")
        raise OutOfDeviceMemory(
            error.call,
            error.code,
            advice=NO_ROOM.format(
                device=context.device, wanted=bounds[1] - bounds[0], held=held, rows=":" + text if rows else "."
            ),
        ) from error
    for old in replaced:
        old.superseded = True
    _shelves[context.id].put(mirror)
    return mirror


def refresh_snapshot(array: Array) -> int:
    """Copy the snapshots of an array again, in place, on every device; done when the call returns.

    Launches already made read what was there before.

    Returns
    -------
    int
        How many copies were renewed; 0 if no kernel has captured the array as a snapshot yet.
    """
    bounds = extent(array)
    with LAUNCH_LOCK:
        found = [mirror for mirror in _all() if isinstance(mirror, Mirror) and mirror.policy == "snapshot"]
        found = [mirror for mirror in found if mirror.start < bounds[1] and bounds[0] < mirror.stop]
        for mirror in found:
            with on_device(mirror.device):
                mirror.again()
        return len(found)


def copies_of(array: Array, policy: str) -> list[AnyMirror]:
    """The copies that hold all of a NumPy array under a policy, by device; to look at, not to use."""
    if not array.size:
        return []
    bounds = extent(array)
    with LAUNCH_LOCK:
        found = [mirror for mirror in _all() if mirror.policy == policy and mirror.covers(bounds)]
    return sorted(found, key=lambda mirror: mirror.device)


@dataclass(frozen=True)
class DeviceCopy:
    """One row of :func:`memory`.

    Parameters
    ----------
    array
        What is copied: type and shape of the array that owns the memory.
    nbytes
        Bytes of the copy; of a mapped array, bytes of the host.
    device
        Ordinal.
    policy
        ``"live"``, ``"snapshot"`` or ``"mapped"``.
    way
        How edits of the host are noticed.
    users
        Names of the kernels that use it.
    """

    array: str
    nbytes: int
    device: int
    policy: str
    way: str
    users: tuple[str, ...]

    def __str__(self) -> str:
        users = f", used by {', '.join(self.users)}" if self.users else ""
        return f"{self.array}: {self.nbytes:,} bytes on device {self.device}, {self.policy} ({self.way}){users}"


def memory() -> list[DeviceCopy]:
    """The device copies of captured NumPy arrays that are held now, largest first."""
    with LAUNCH_LOCK:
        rows = [
            DeviceCopy(
                described(mirror.roots),
                mirror.nbytes,
                mirror.device,
                mirror.policy,
                mirror.way,
                tuple(sorted(set(mirror.users.names()))),
            )
            for mirror in _all()
        ]
    return sorted(rows, key=lambda row: -row.nbytes)


def _all() -> list[AnyMirror]:
    return [mirror for shelf in _shelves.values() for mirror in shelf if not mirror.superseded]


def described(roots: list[Array]) -> str:
    """Type and shape of the arrays that own some memory."""
    return " and ".join(f"{root.dtype} {root.shape}" for root in roots) or "an array that is gone"


def _forget() -> None:
    for mirror in _all():
        mirror.superseded = True  # its lock may be held for ever, by a thread that does not exist here
    _shelves.clear()
    # Another thread may have held it at the fork; that thread does not exist here.
    LAUNCH_LOCK._at_fork_reinit()  # type: ignore[attr-defined]


driver.after_fork(_forget)
