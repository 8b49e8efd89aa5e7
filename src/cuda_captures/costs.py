"""A warning, once for each array, where it costs much to see at each launch whether the host has edited it."""

from __future__ import annotations

import weakref
from typing import Any

from cuda_captures.discovery import Place, discover
from cuda_captures.errors import CapturePerformanceWarning, line_naming, pointer, warn_at
from cuda_captures.extents import Array, root_of
from cuda_captures.page_book import page_book
from cuda_captures.pages import CannotWatch

MUCH = 100e-6  # seconds a launch: some ten times what a launch itself takes

_warned: dict[int, weakref.ref[Array]] = {}  # by identity of the array that owns the memory; goes with it


def warn_of_cost(copy: Any, array: Array, kernel: Any, place: Place, written: bool) -> None:
    """Warn of an array that is digested at each launch, if that takes long.

    Parameters
    ----------
    copy
        Its device copy, which knows how edits are noticed.
    array
        A captured NumPy array.
    kernel
        The Python function that is being bound; and the place where it finds the array.
    written
        Whether the kernel writes it.

    Notes
    -----
    Called when arrays are bound, never for a launch that finds everything as it was.  The warning is given for the
    line that names the array, whoever launches.  Who asked for ``verify`` knows that it costs.
    """
    if copy.way != "digest" or copy.verify or copy.cost < MUCH or _known(root_of(array)):
        return
    capture = discover(kernel).by_place.get(place.key)
    function = capture.function if capture is not None else kernel
    text = DIGESTED.format(
        name=place.name,
        nbytes=copy.nbytes,
        kernel=kernel.__name__,
        cost=duration(copy.cost),
        why=copy.why,
        where=pointer(function, place.name),
    )
    line = line_naming(function.__code__, place.name)
    warn_at(function, line, text + ways_out(place.name, written), CapturePerformanceWarning)


def _known(root: Array) -> bool:
    """Whether an array has been warned of; now it has."""
    key = id(root)
    known = _warned.get(key)
    if known is not None and known() is root:
        return True
    _warned[key] = weakref.ref(root, lambda _: _warned.pop(key, None))
    return False


def ways_out(name: str, written: bool) -> str:
    """What to write instead of a live array that has to be digested; one that kernels write can be no snapshot."""
    text = (DEVICE_ARRAY if written else SNAPSHOT + DEVICE_ARRAY).format(name=name)
    try:
        page_book()
    except CannotWatch:
        return text
    return text + OWN_MEMORY.format(name=name)


def duration(seconds: float) -> str:
    """A time as people write it, with two digits."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.2g} {unit}" if seconds * factor < 100 else f"{seconds * factor:,.0f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


DIGESTED = """\
`{name}` ({nbytes:,} bytes), captured by kernel `{kernel}`, is digested at each launch to see whether it was edited.
That takes about {cost}. Why so: {why}.
  {where}
"""

SNAPSHOT = """\
Does the host not edit it? `{name} = cuda_captures.snapshot({name})`, and `cuda_captures.refresh({name})` after an edit.
"""

DEVICE_ARRAY = "Do only kernels use it? Make it a device array: `{name} = cuda.to_device({name})`."

OWN_MEMORY = """
Or give it memory whose edits the system tells of, which is much cheaper: `{name} = {name}.copy()`."""
