"""Machine code that is loaded for one module instance, and unloaded with it.

The driver's library is loaded and unloaded here, by the driver's own calls: cuda.core keeps what it has loaded for the
life of the process (seen on a device: 30 kB of host memory each), or unloads it, by its version.
"""

from __future__ import annotations

import weakref
from typing import Any

from cuda_captures import device as cuda_device
from cuda_captures import driver


class MachineCode:
    """A cubin that is loaded once more, for the current context.

    Parameters
    ----------
    image
        The cubin.

    Attributes
    ----------
    handle
        The driver's, of the library.

    Raises
    ------
    DriverError
        If the driver cannot load it; nothing stays loaded then.

    Unloaded when collected, in whatever thread that happens, once nothing can launch it any more; the driver waits for
    launches that are under way.  Not at interpreter exit, after ``fork`` in the child, or once the context is gone.
    """

    def __init__(self, image: bytes) -> None:
        context = cuda_device.current()
        with cuda_device.relaxed_capture():
            self.handle: int = driver.calls.library_load(image)
        unload: weakref.finalize[Any, MachineCode] = weakref.finalize(
            self, cuda_device.release, "library_unload", self.handle, context.id, context.device
        )
        unload.atexit = False

    def kernel(self, symbol: str) -> int:
        """The driver's handle of a kernel in it, which is good for as long as this is held.

        Raises
        ------
        DriverError
            If there is no such kernel.
        """
        kernel: int = driver.calls.library_kernel(self.handle, symbol)
        return kernel
