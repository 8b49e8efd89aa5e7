"""Which captured name an error is about, and where the source names it.

What raises often knows an array's memory and no name: device copies are shared by kernels that call it differently.
Here the name is put into the message, by whoever launches or binds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cuda_captures.discovery import Place, discover
from cuda_captures.errors import CaptureError, pointer
from cuda_captures.extents import Array, Extent, extent

CAPTURED = """\
  `{name}`, captured by kernel `{kernel}`:
  {where}"""


def where_named(kernel: Any, place: Place) -> str:
    """File, line and source where a kernel, or a function that it calls, first names a place; with a caret.

    Reads the kernel again, so it is for messages and not for launches.
    """
    capture = discover(kernel).by_place.get(place.key)
    function = capture.function if capture is not None else getattr(kernel, "py_func", kernel)
    return pointer(function, place.name)


def where_first_named(kernel: Any) -> str:
    """Where a kernel first names an array; where it begins, if it names none."""
    for capture in discover(kernel).arrays:
        return pointer(capture.function, capture.place.name)
    return pointer(kernel, kernel.__name__)


def say_where(error: CaptureError, kernel: Any, place: Place) -> None:
    """Put a captured name, and where it is named, after the first line of an error's message; once."""
    if error.located:
        return
    error.located = True
    text = CAPTURED.format(name=place.name, kernel=kernel.__name__, where=where_named(kernel, place))
    first, *rest = str(error).split("\n")
    error.args = ("\n".join((first, text, *rest)),)


def say_whose(error: CaptureError, kernel: Any, copied: Iterable[tuple[Place, Array, Any]]) -> None:
    """Say of an error about some memory which captured array lies there; else one whose copy it is in.

    Parameters
    ----------
    kernel
        The Python function.
    copied
        The kernel's NumPy arrays, each with its place and its device copy.
    """
    address = error.address
    if address is None or error.located:
        return
    near = [(place, array) for place, array, copy in copied if copy.start <= address <= copy.stop]
    near.sort(key=lambda pair: not contains(extent(pair[1]), address))
    if near:
        say_where(error, kernel, near[0][0])


def contains(bounds: Extent, address: int) -> bool:
    """Whether an address is one of an array's."""
    return bounds[0] <= address < bounds[1]
