"""How kernels of the compilers are taken apart and put together: what pickle and ``copy`` make of them.

The compilers pickle a kernel to one block of bytes, arrays included, and refuse arrays in device memory.  Joined to
captures, a kernel is reduced to what :mod:`cuda_captures.travelling` sends.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import uuid
from collections.abc import Mapping
from typing import Any

from cuda_captures.travelling import Luggage, Packed, unpacked

# Where each compiler keeps its copy of cloudpickle, by the name of the backend; the simulator is a part of numba-cuda.
CLOUDPICKLES: Mapping[str, str] = {
    "numba_cuda": "numba.cuda.serialize",
    "simulator": "numba.cuda.cloudpickle",
    "numba_cuda_mlir": "numba_cuda_mlir.numba_cuda.serialize",
}


def reduce(kernel: Any) -> Any:
    """What takes the place of a dispatcher's ``__reduce__``."""
    return unpacked, (Packed(kernel, again, pack, once=backend_of(type(kernel)) == "numba_cuda_mlir"),)


def again(kernel: Any) -> Any:
    """Another kernel of the same function: what ``copy.copy`` makes, with nothing compiled."""
    return assemble(type(kernel), states_of(kernel))


def pack(kernel: Any, luggage: Luggage) -> bytes:
    """A kernel as bytes, without the arrays that the luggage takes."""
    backend = backend_of(type(kernel))
    serialize = importlib.import_module(CLOUDPICKLES[backend])
    pickler = getattr(serialize, "NumbaPickler", None) or serialize.CloudPickler
    file = io.BytesIO()
    _packer(pickler)(file, luggage, type(kernel)).dump(kernel)
    return file.getvalue()


def backend_of(kind: type) -> str:
    """The name of the backend that a class of kernels belongs to."""
    if kind.__module__.startswith("numba.cuda.simulator."):
        return "simulator"
    return "numba_cuda_mlir" if kind.__module__.startswith("numba_cuda_mlir.") else "numba_cuda"


_packers: dict[Any, Any] = {}


def _packer(pickler: Any) -> Any:
    """A compiler's pickler that takes kernels apart itself and leaves arrays to the luggage."""
    if pickler not in _packers:

        class Packer(pickler):  # type: ignore[misc]
            """One pickling of one kernel."""

            def __init__(self, file: io.BytesIO, luggage: Luggage, kind: type) -> None:
                super().__init__(file, protocol=5)
                self.luggage = luggage
                self.kind = kind

            def persistent_id(self, value: Any) -> Any:
                return self.luggage.number(value)

            def reducer_override(self, value: Any) -> Any:
                if isinstance(value, self.kind):
                    return assemble, (type(value), states_of(value))
                return super().reducer_override(value)

        _packers[pickler] = Packer
    return _packers[pickler]


def states_of(kernel: Any) -> dict[str, Any]:
    """What a kernel is made of."""
    if backend_of(type(kernel)) != "simulator":
        return dict(kernel._reduce_states())
    names = {"_device": "device", "_fastmath": "fastmath", "_debug": "debug", "extensions": "extensions", "fn": "fn"}
    return {option: getattr(kernel, name) for name, option in names.items()}


def assemble(kind: Any, states: Mapping[str, Any]) -> Any:
    """A kernel, or device function, of its parts."""
    if backend_of(kind) == "simulator":
        return kind(**states)
    if "uuid" in states:
        # By it the compiler finds a kernel that has come before, with what that captured then.
        states = {**states, "uuid": str(uuid.uuid4())}
    made = kind._rebuild(**states)
    if "uuid" in states:
        with contextlib.suppress(ValueError):  # it keeps the last ones that came, and with them their tables
            kind._recent.remove(made)
    return made
