"""A kernel of numba-cuda-mlir loaded once more, with slots of its own.

Upstream's native launcher loads machine code when it first meets a kind of arguments, and launches what it has loaded
from then on.  So each module instance gets a launcher to itself, which is handed the code, and which tells when it has
loaded it: then the slots are filled, before the launch.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from numba_cuda_mlir import _cext, descriptor

from cuda_captures import device as cuda_device
from cuda_captures import driver
from cuda_captures.code import Code
from cuda_captures.errors import CaptureError
from cuda_captures.symbols import enqueue_symbols

from . import target

# Launch configurations that an instance remembers; all are forgotten when there are more.
GEOMETRIES = 256


class Loader:
    """Hands machine code to the native launcher, and fills the slots of what it loads.

    The native launcher holds this and takes no part in garbage collection, so nothing here may refer to it.

    Parameters
    ----------
    code
        The code to load.
    device
        Where it is launched.
    callbacks
        Upstream's own, for linked code; called with each loaded library.
    name, where
        Of the kernel, and where it is defined, to say in an error.
    """

    def __init__(self, code: Code, device: int, callbacks: Callable[[int], None] | None, name: str, where: str) -> None:
        product = code.product
        self.image: tuple[Any, ...] = (product.cubin, product.entry, product.cooperative)
        self.device = device
        self.callbacks = callbacks
        self.name, self.where = name, where
        self.slots: list[tuple[str, bytes]] = []
        self.libraries: list[int] = []
        self.failure = ""  # as text: an error holds frames, these the launch, and nothing ever lets go of this

    def __call__(self, args: Any) -> tuple[Any, ...]:
        """What the native launcher asks its compiler for."""
        return (*self.image, self.fill)

    def fill(self, library: int) -> None:
        """Fill the slots of a library that was just loaded.

        Raises
        ------
        CaptureError
            If the native launcher launches elsewhere than its arguments said.
        """
        self.libraries.append(library)
        try:
            here = cuda_device.current_device()
            if here != self.device:
                raise CaptureError(ELSEWHERE.format(kernel=self.name, where=self.where, here=here, device=self.device))
            for symbol, data in self.slots:
                target.fill(library, symbol, data)
            if self.callbacks is not None:
                self.callbacks(library)
        except BaseException as failure:
            # The native launcher would launch what it has loaded next time.
            self.failure = f"{type(failure).__name__}: {failure}"
            raise

    def unload(self) -> None:
        """Unload what was loaded; nothing can be launched any more."""
        self.image, self.callbacks = (), None
        self.slots.clear()
        while self.libraries:
            target.unload(self.libraries.pop())


class BoundKernel:
    """One module instance as a launch sees it.

    Attributes
    ----------
    code
        What is loaded.
    loader
        What fills its slots.

    Any thread may launch it.  When the last reference goes, what it has loaded is unloaded, unless the device is
    broken, the process was forked, or the interpreter exits: then that is left to the driver.

    The native launcher itself stays, about 2 kB of host memory.  It must never be destroyed once it has launched: its
    table of kernels is owned from two places and counted as from one, so it would be freed twice (0.6.0,
    ``KernelFamily`` in ``kernel.cpp``).
    """

    def __init__(
        self, code: Code, py_func: Any, debug: bool, callbacks: Callable[[int], None] | None, apart: Hashable
    ) -> None:
        self.code = code
        self.apart = apart
        device = cuda_device.current_device()
        name = py_func.__name__
        self.loader = Loader(
            code, device, callbacks, name, f"{py_func.__code__.co_filename}:{py_func.__code__.co_firstlineno}"
        )
        self._native = _Native(self.loader, py_func, debug)
        release = weakref.finalize(self, self._native.release, device)
        release.atexit = False

    @property
    def launchable(self) -> BoundKernel:
        return self

    @property
    def failed(self) -> bool:
        """Whether a launch was made of it and nothing can be launched: it was not loaded, or its slots not filled."""
        return bool(self.loader.failure) or not self.loader.libraries

    def fill(self, slots: Sequence[tuple[str, bytes]]) -> None:
        """Say what the slots shall hold."""
        self.loader.slots += slots

    def refill(self, slots: Sequence[tuple[str, bytes]], stream: int) -> None:
        """Enqueue writing them anew on a stream; libraries that are loaded later are filled with these."""
        self.loader.slots[:] = slots
        for library in self.loader.libraries:
            enqueue_symbols(
                [(address, data) for symbol, data in slots if (address := target.address_of(library, symbol, data))],
                stream,
            )

    def configured(self, geometry: tuple[Any, ...]) -> Any:
        """The native launcher for a grid, a block, a stream, shared memory and a cluster."""
        if self.loader.failure:
            loader = self.loader
            raise CaptureError(NOT_FILLED.format(kernel=loader.name, where=loader.where, failure=loader.failure))
        found = self._native.configurations.get(geometry)
        return found if found is not None else self._native.configure(geometry)

    def load(self, args: Sequence[Any]) -> None:
        """Load and fill ahead of the first launch with such arguments.

        The native launcher does so when it is asked to launch; it is asked for more shared memory than there is, which
        it refuses after loading and before launching.
        """
        try:
            self._native.configure(((1, 1, 1), (1, 1, 1), 0, 2**31 - 1, None))(*args)
        except (ValueError, RuntimeError) as error:
            if "dynamic shared memory" not in str(error):
                raise


class _Native:
    """The native launcher of one instance, and what refers to it."""

    def __init__(self, loader: Loader, py_func: Any, debug: bool) -> None:
        self.loader = loader
        self.dispatcher = _cext.KernelDispatcher(
            loader, tuple(descriptor.get_constant_args(py_func)), descriptor._ensure_numba_cuda_context, debug=debug
        )
        self.configurations: dict[Any, Any] = {}
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.dispatcher))  # so that it is never destroyed

    def configure(self, geometry: tuple[Any, ...]) -> Any:
        if len(self.configurations) >= GEOMETRIES:
            self.configurations.clear()
        made = self.configurations[geometry] = _cext.LaunchConfiguration(self.dispatcher, *geometry)
        return made

    def release(self, device: int) -> None:
        """Unload what the native launcher has loaded; it is not used any more."""
        self.configurations.clear()
        if driver.forked():
            return
        try:
            with cuda_device.on_device(device) as context, cuda_device.relaxed_capture():
                context.record(context.stream).done()  # raises if the context is broken
                self.loader.unload()
        except CaptureError:
            return


NOT_FILLED = """\
kernel `{kernel}` was loaded, and what it captures could not be bound: {failure}
  {where}
Launch it again: it is then loaded anew."""

ELSEWHERE = """\
kernel `{kernel}` was to be launched on device {device}, and numba-cuda-mlir launches it on device {here}.
  {where}
Make the device of its arguments current before the launch: `with cuda.gpus[{device}]: ...`."""
