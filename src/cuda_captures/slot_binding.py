"""Filling the slots of code that somebody else loads and launches.

A :class:`SlotBinding` holds what the slots point at.  It is what a module instance is to a kernel of the compilers,
except that its owner says when a launch is made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuda_captures import device as cuda_device
from cuda_captures import driver, mirrors
from cuda_captures.code import Use
from cuda_captures.discovery import Place
from cuda_captures.driver import DriverError
from cuda_captures.errors import CaptureError
from cuda_captures.session import is_array
from cuda_captures.signature import array_signature
from cuda_captures.storage import address_of, producer_stream
from cuda_captures.symbols import write_symbols


@dataclass(frozen=True)
class Filling:
    """What is to be filled.

    Parameters
    ----------
    function
        The name of what was compiled.
    uses
        Its slots, each with the place of its array.
    verify
        Whether every "unchanged" is checked against a digest.
    """

    function: str
    uses: tuple[tuple[Use, Place], ...]
    verify: bool = False


class SlotBinding:
    """Filled slots of a loaded library, and what they point at.

    Keep it as long as the library is launched: it holds the device copies of NumPy arrays, and the device arrays.
    Wrap each launch in :meth:`launching`.

    Attributes
    ----------
    device
        Ordinal of the device.
    arrays
        The captured arrays by symbol, as they were found when the slots were filled.

    Notes
    -----
    Any thread may use it.  Names that are bound anew later are not followed: fill again for that, once nothing that
    was launched is still running.
    """

    def __init__(self, filling: Filling, library: int, device: int, arrays: dict[str, Any]) -> None:
        self.filling = filling
        self.device = device
        self.arrays = arrays
        self._library = library
        self._copies: dict[str, Any] = {}
        self._streams: set[int] = set()
        self._fill()

    def _fill(self) -> None:
        """Acquire the copies and write the slots; before the first launch, or after the last."""
        copies, filled = {}, []
        with mirrors.LAUNCH_LOCK, cuda_device.on_device(self.device):
            for use, place in self.filling.uses:
                array = self.arrays[use.slot.symbol]
                if isinstance(array, np.ndarray) and use.signature.memory == "host":
                    copy = mirrors.acquire(array, self.device, policy=use.signature.policy, verify=self.filling.verify)
                    copy.users.note(self, self.filling.function)
                    copies[use.slot.symbol] = copy
                    address = copy.address_of(array)
                else:
                    address = address_of(array)
                    refuse_other_device(address, place, self)
                form = array_signature(array, use.signature.policy)
                filled.append((use.slot.symbol, use.slot.pack(address, form.shape or (), form.strides or ())))
            write(self._library, filled, self.filling.function)
        self._copies = copies

    @contextlib.contextmanager
    def launching(self, stream: Any = 0) -> Iterator[None]:
        """Around a launch on a stream: before it the copies are brought up to date, after it writes are put back.

        Parameters
        ----------
        stream
            A ``cuda.core`` stream, anything with ``__cuda_stream__``, or the driver's handle.

        Examples
        --------
        ``with binding.launching(stream): launch(stream, config, kernel, *args)``

        Notes
        -----
        Edits made on the host before are seen.  If the code writes a NumPy array, leaving the block waits for the
        stream and puts what was written into the array.  Launches of other threads wait meanwhile.
        """
        handle = stream_handle(stream)
        with cuda_device.on_device(self.device):
            with mirrors.LAUNCH_LOCK:
                while not self._ready(handle):
                    for used in self._streams:  # the slots must not change under what was launched
                        driver.calls.stream_synchronize(used)
                    self._streams.clear()
                    self._fill()
                self._streams.add(handle)
                try:
                    yield
                finally:
                    for symbol, copy in self._copies.items():
                        copy.used(handle, stream, writes=self._written(symbol))
            for symbol, copy in self._copies.items():
                for array in self._written(symbol):
                    copy.copy_back(array, handle, stream)

    def _ready(self, stream: int) -> bool:
        """Bring the copies up to date; False if one was replaced by a larger one."""
        for symbol, copy in self._copies.items():
            if copy.superseded:
                return False
            copy.refresh(stream, writes=bool(self._written(symbol)))
        for array in self.arrays.values():
            producer = None if isinstance(array, np.ndarray) else producer_stream(array)
            if producer is not None and producer != stream:
                cuda_device.order(producer, stream)
        return not any(copy.superseded for copy in self._copies.values())

    def _written(self, symbol: str) -> list[np.ndarray[Any, Any]]:
        """The array behind a slot, if the code may write it."""
        return [self.arrays[symbol] for use, _ in self.filling.uses if use.slot.symbol == symbol and use.written]

    def __repr__(self) -> str:
        return f"<{len(self.arrays)} filled slots of {self.filling.function} on device {self.device}>"


def bind(filling: Filling, library: Any, device: Any) -> SlotBinding:
    """Fill the slots of a library for what the captured names mean now."""
    arrays = {}
    for use, place in filling.uses:
        array = place.read()
        form = array_signature(array, use.signature.policy) if is_array(array) else None
        if form is None or not use.signature.accepts(form):
            found = type(array).__name__ if form is None else str(form)
            raise CaptureError(
                OTHER_ARRAY.format(name=place.name, function=filling.function, wanted=use.signature, found=found)
            )
        arrays[use.slot.symbol] = array
    ordinal = cuda_device.current_device() if device is None else int(getattr(device, "device_id", device))
    return SlotBinding(filling, int(getattr(library, "handle", library)), ordinal, arrays)


def write(library: int, filled: list[tuple[str, bytes]], function: str) -> None:
    """Write the slots of a library that has them, in the current context.

    One that the linker dropped, because nothing reads it, is left alone.

    Raises
    ------
    CaptureError
        If there are slots to be filled and the library has none of them.
    """
    found = [(symbol_in(library, symbol), data) for symbol, data in filled]
    placed = [(address, data) for address, data in found if address is not None]
    if filled and not placed:
        symbols = ", ".join(symbol for symbol, _ in filled)
        raise CaptureError(NO_SLOTS.format(function=function, symbols=symbols))
    write_symbols(placed)


def symbol_in(library: int, symbol: str) -> int | None:
    """Device address of a symbol of a library, in the current context; None if the library does not have it."""
    from cuda.bindings import driver as bindings

    error, address, _ = bindings.cuLibraryGetGlobal(bindings.CUlibrary(library), symbol.encode())
    if error == bindings.CUresult.CUDA_ERROR_NOT_FOUND:
        return None
    if error != bindings.CUresult.CUDA_SUCCESS:
        raise DriverError("cuLibraryGetGlobal", error.name)
    return int(address)


def stream_handle(stream: Any) -> int:
    """The driver's handle of a stream."""
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int((protocol() if callable(protocol) else protocol)[1])
    return int(getattr(stream, "handle", stream) or 0)


def refuse_other_device(address: int, place: Place, binding: SlotBinding) -> None:
    """Refuse a device array that is not where the code is launched."""
    home = cuda_device.pointer_device(address) if address else None
    if home is not None and home != binding.device:
        raise CaptureError(
            OTHER_DEVICE.format(name=place.name, function=binding.filling.function, home=home, device=binding.device)
        )


OTHER_ARRAY = """\
`{name}`, which `{function}` captures, is not what it was compiled for: {found}, and the code takes {wanted}.
Compile it again, with shapes="general" if shapes vary, or bind the name to an array of that form."""

NO_SLOTS = """\
the library has none of the slots of `{function}`: {symbols}.
It must be this code that is loaded; LTO-IR must be linked together with `definitions`, as PTX."""

OTHER_DEVICE = """\
`{name}`, which `{function}` captures, is on device {home}, and the slots are filled on device {device}.
Load and fill the code on device {home}, or bind the name to a copy on device {device}."""
