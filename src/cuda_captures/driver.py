"""The calls that the package makes to the CUDA driver, as one table.

Everything else says ``driver.calls.event_record(...)``: plain integers in, plain integers out, a failure raised as
:class:`DriverError`.  One table means one place that knows the binding, and one place where a test puts a driver
that lives in memory, or one whose n-th call fails.

``calls`` is in one of three states.  Until the first call it is *closed*: importing this file initialises nothing,
and a process that never needs the device may fork as it likes.  Then it is a :class:`Driver`.  In a child forked
after that it *refuses*: CUDA does not survive ``fork``, and the child is told so instead of hanging.

Any thread may read ``calls``; only :func:`install`, the first call and the fork hook replace it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from cuda_captures.errors import CaptureError

CAPTURE_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
HOST_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE and CU_MEMHOSTREGISTER_PORTABLE
HOST_DEVICEMAP = 2  # CU_MEMHOSTREGISTER_DEVICEMAP

NO_BINDING = (
    "the package cuda-bindings is missing.\n"
    "Install cuda-captures with the extra of your compiler, for example pip install 'cuda-captures[cu13]'."
)

NO_DRIVER = (
    "there is no CUDA driver on this machine: {error}\n"
    "Without one, kernels can be looked at with cuda_captures.explain(kernel, signature), or run in numba's simulator "
    "(NUMBA_ENABLE_CUDASIM=1)."
)

FORKED = (
    "this process was forked from one that had used CUDA, and CUDA does not work in such a child.\n"
    "Start worker processes with the 'spawn' or 'forkserver' method "
    "(multiprocessing.set_start_method('spawn')), or fork before the first use of CUDA."
)


class DriverError(CaptureError):
    """A call to the CUDA driver failed.

    Attributes
    ----------
    call
        The function of the driver, ``"cuMemAlloc"``.
    code
        The name of the error, ``"CUDA_ERROR_OUT_OF_MEMORY"``.
    """

    def __init__(self, call: str, code: str, text: str = "", advice: str = "") -> None:
        self.call = call
        self.code = code
        super().__init__(f"{call}: {code}" + (f" ({text})" if text else "") + (f"\n{advice}" if advice else ""))


class OutOfDeviceMemory(DriverError):
    """The device has no room for a copy; what was there before is as it was."""


class Driver:
    """The driver of this machine, through ``cuda.bindings``.

    Addresses, streams, events and contexts are integers; sizes are in bytes.  Every method raises
    :class:`DriverError` when the driver refuses, and nothing else.
    """

    in_use = True

    def __init__(self) -> None:
        try:
            from cuda.bindings import driver as binding
        except ImportError as error:
            raise CaptureError(NO_BINDING) from error
        self._binding: Any = binding
        try:
            self._do("cuInit", 0)
        except RuntimeError as error:  # the library itself is not there
            raise CaptureError(NO_DRIVER.format(error=error)) from error

    def _do(self, name: str, *arguments: Any) -> Any:
        code, *values = getattr(self._binding, name)(*arguments)
        if code != 0:
            self._refuse(name, code)
        return values[0] if values else None

    def _refuse(self, name: str, code: Any) -> None:
        found, text = self._binding.cuGetErrorString(code)
        spelled = text.decode() if found == 0 and text else ""
        if code.name == "CUDA_ERROR_OUT_OF_MEMORY":
            raise OutOfDeviceMemory(name, code.name, spelled)
        advice = FORKED if code.name == "CUDA_ERROR_NOT_INITIALIZED" else ""
        raise DriverError(name, code.name, spelled, advice)

    # devices and contexts

    def device_count(self) -> int:
        return int(self._do("cuDeviceGetCount"))

    def context_id(self) -> int:
        """Of the current context; no two contexts of a process ever have the same."""
        return int(self._do("cuCtxGetId", 0))

    def context_handle(self) -> int:
        return int(self._do("cuCtxGetCurrent"))

    def context_device(self) -> int:
        return int(self._do("cuCtxGetDevice"))

    def context_synchronize(self) -> None:
        self._do("cuCtxSynchronize")

    def primary_active(self, device: int) -> bool:
        code, _, active = self._binding.cuDevicePrimaryCtxGetState(device)
        if code != 0:
            self._refuse("cuDevicePrimaryCtxGetState", code)
        return bool(active)

    def primary_retain(self, device: int) -> int:
        return int(self._do("cuDevicePrimaryCtxRetain", device))

    def primary_release(self, device: int) -> None:
        self._do("cuDevicePrimaryCtxRelease", device)

    def context_push(self, context: int) -> None:
        self._do("cuCtxPushCurrent", context)

    def context_pop(self) -> None:
        self._do("cuCtxPopCurrent")

    def can_access_peer(self, device: int, peer: int) -> bool:
        return bool(self._do("cuDeviceCanAccessPeer", device, peer))

    def enable_peer_access(self, context: int) -> None:
        """Let the current context use the memory of another one."""
        self._do("cuCtxEnablePeerAccess", context, 0)

    # machine code

    def library_load(self, image: bytes) -> int:
        """Load machine code; the driver keeps a copy of it."""
        return int(self._do("cuLibraryLoadData", image, [], [], 0, [], [], 0))

    def library_kernel(self, library: int, name: str) -> int:
        return int(self._do("cuLibraryGetKernel", library, name.encode()))

    def library_unload(self, library: int) -> None:
        self._do("cuLibraryUnload", library)

    # memory

    def mem_alloc(self, nbytes: int) -> int:
        return int(self._do("cuMemAlloc", nbytes))

    def mem_free(self, address: int) -> None:
        self._do("cuMemFree", address)

    def host_alloc(self, nbytes: int) -> int:
        """Page-locked memory that every context may copy from and to."""
        return int(self._do("cuMemHostAlloc", nbytes, HOST_PORTABLE))

    def host_free(self, address: int) -> None:
        self._do("cuMemFreeHost", address)

    def host_register(self, address: int, nbytes: int) -> None:
        """Page-lock memory that is already there and map it for every device."""
        self._do("cuMemHostRegister", address, nbytes, HOST_PORTABLE | HOST_DEVICEMAP)

    def host_unregister(self, address: int) -> None:
        self._do("cuMemHostUnregister", address)

    def host_device_pointer(self, address: int) -> int:
        return int(self._do("cuMemHostGetDevicePointer", address, 0))

    def pointer_attribute(self, name: str, address: int) -> int | None:
        """What the driver knows about an address; ``None`` for memory it has never heard of.

        Ask :func:`cuda_captures.device.ordinal_of` for the device.
        """
        attribute = getattr(self._binding.CUpointer_attribute, f"CU_POINTER_ATTRIBUTE_{name}")
        code, value = self._binding.cuPointerGetAttribute(attribute, address)
        if code != 0:
            if code.name == "CUDA_ERROR_INVALID_VALUE":
                return None
            self._refuse("cuPointerGetAttribute", code)
        return int(value)

    # copies; the host side of the asynchronous ones is page-locked

    def copy_to_device(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._do("cuMemcpyHtoDAsync", target, source, nbytes, stream)

    def copy_to_host(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._do("cuMemcpyDtoHAsync", target, source, nbytes, stream)

    def fill_word(self, target: int, word: int, stream: int) -> None:
        """Set four bytes of device memory; the call holds what they shall be."""
        self._do("cuMemsetD32Async", target, word, 1, stream)

    # events and streams

    def event_create(self) -> int:
        return int(self._do("cuEventCreate", 2))  # CU_EVENT_DISABLE_TIMING: the cheap kind

    def event_record(self, event: int, stream: int) -> None:
        self._do("cuEventRecord", event, stream)

    def event_done(self, event: int) -> bool:
        (code,) = self._binding.cuEventQuery(event)
        if code != 0 and code.name != "CUDA_ERROR_NOT_READY":
            self._refuse("cuEventQuery", code)
        return bool(code == 0)

    def event_synchronize(self, event: int) -> None:
        self._do("cuEventSynchronize", event)

    def stream_create(self) -> int:
        return int(self._do("cuStreamCreate", 1))  # CU_STREAM_NON_BLOCKING: the legacy stream does not wait for it

    def stream_wait(self, stream: int, event: int) -> None:
        self._do("cuStreamWaitEvent", stream, event, 0)

    def stream_synchronize(self, stream: int) -> None:
        self._do("cuStreamSynchronize", stream)

    def stream_id(self, stream: int) -> int:
        """Of a stream; unlike its handle, never used again for another one."""
        return int(self._do("cuStreamGetId", stream))

    def stream_capturing(self, stream: int) -> bool:
        code, status = self._binding.cuStreamIsCapturing(stream)
        if code != 0:
            # The legacy default stream while another stream captures: nothing may be enqueued there now.
            if code.name == "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT":
                return True
            self._refuse("cuStreamIsCapturing", code)
        return bool(status != 0)

    def capture_mode(self, mode: int) -> int:
        """Set what this thread may do while a stream captures; returns what it was."""
        return int(self._do("cuThreadExchangeStreamCaptureMode", self._binding.CUstreamCaptureMode(mode)))


class _Closed:
    """Before the first call: opens the driver when a call is looked up."""

    in_use = False

    def __getattr__(self, name: str) -> Any:
        return getattr(install(Driver()), name)


class _Forked:
    """In a child of a process that used CUDA: every call raises."""

    in_use = False

    def __getattr__(self, name: str) -> Any:
        raise CaptureError(FORKED)


calls: Any = _Closed()

_after_fork: list[Callable[[], None]] = []


def install(table: Any) -> Any:
    """Put another table in place, and return it: the opened driver, or a test's."""
    global calls
    calls = table
    return table


def forked() -> bool:
    """Whether this process was forked from one that had used CUDA."""
    return isinstance(calls, _Forked)


def closed() -> Any:
    """A table in its first state, that opens the driver at the first call."""
    return _Closed()


def after_fork(forget: Callable[[], None]) -> None:
    """Have something called in a forked child that must forget what it holds on devices, without driver calls."""
    _after_fork.append(forget)


def _in_child() -> None:
    if not calls.in_use:
        return
    install(_Forked())
    for forget in _after_fork:
        forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
