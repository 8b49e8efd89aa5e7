"""Device arrays that a compiler can type by one protocol and not by the one that it tries first.

Both compilers ask for DLPack before the CUDA Array Interface, and not every library can serve them: JAX 0.11 fails
where the caller says that it wants no synchronisation.  And where an interface gives strides, they ask how many bits
its elements have, which bools do not know.
"""

from __future__ import annotations

from typing import Any


class ByInterface:
    """Shows a compiler nothing of a device array but its CUDA Array Interface, and of that no strides.

    The type of its elements and their dimensions are all that is asked: layouts are the signature's.
    """

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__cuda_array_interface__ = interface

    @classmethod
    def of(cls, value: Any) -> ByInterface | None:
        """For an array that has the interface; else None."""
        interface = getattr(value, "__cuda_array_interface__", None)
        return None if interface is None else cls({**interface, "strides": None})
