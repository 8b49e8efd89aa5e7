"""What numba-cuda compiles for, as the key sees it; and the small things that need its driver."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Collection, Hashable, Mapping
from typing import Any

from numba.cuda import launchconfig
from numba.cuda.core import config
from numba.cuda.cudadrv import devices, driver
from numba.cuda.descriptor import cuda_target

from cuda_captures import device as cuda_device
from cuda_captures.backends.key_options import plain_options
from cuda_captures.discovery import Discovery
from cuda_captures.errors import CaptureError


@functools.lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Versions of the distributions whose code makes the code."""
    found = {}
    for name in ("cuda-captures", "numba-cuda", "llvmlite", "nvidia-nvvm", "nvidia-cuda-nvcc-cu12", "nvidia-nvjitlink"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def target_of(cc: tuple[int, int] | None = None) -> dict[str, Any]:
    """What is compiled for: compute capability, versions, and configuration that changes the code."""
    if cc is None:
        cc = tuple(devices.get_context().device.compute_capability)
    return {
        "backend": "numba-cuda",
        "cc": f"{cc[0]}.{cc[1]}",
        "nrt": bool(getattr(config, "CUDA_ENABLE_NRT", False)),
        "warn of uninitialised variables": bool(getattr(config, "ALWAYS_WARN_UNINIT_VAR", False)),
        **versions(),
    }


def likeness(argtypes: Any, options: Mapping[str, Any], outside: Collection[str], cc: Any) -> Hashable:
    """Equal only where argument types, options and target are, and nothing else matters; None if that is not sure."""
    launch = launchconfig.current_launch_config()
    if launch is not None and launch._is_kernel_launch_config_sensitive():
        return None
    for name in DUMPS:
        if getattr(config, name, False):
            return None
    plain = plain_options(options, outside)
    if plain is None:
        return None
    if cc is None:
        try:
            cc = _cc_of(_current_device())
        except CaptureError:  # there is no driver; whoever needs one says so
            return None
    nrt, warn = getattr(config, "CUDA_ENABLE_NRT", False), getattr(config, "ALWAYS_WARN_UNINIT_VAR", False)
    return argtypes, plain, cc, bool(nrt), bool(warn)


def _current_device() -> int:
    """Ordinal of the device that a launch would go to; cheaper than upstream's way, where there is a context."""
    try:
        return cuda_device.current_device()
    except cuda_device.DriverError:
        return int(devices.get_context().device.id)


@functools.cache
def _cc_of(device: int) -> tuple[int, int]:
    """Compute capability of a device, by its ordinal."""
    return tuple(devices.gpus[device].compute_capability)


def unseen(discovery: Discovery) -> list[str]:
    """What the code depends on besides what the key has: reasons not to share it, each with a name."""
    reasons = []
    launch = launchconfig.current_launch_config()
    if launch is not None and launch._is_kernel_launch_config_sensitive():
        reasons.append("the kernel is compiled for its launch configuration")
    reasons += [f"{name} is set: its text is for each compilation" for name in DUMPS if getattr(config, name, False)]
    functions = [reached for reached in discovery.reached[1:] if reached.dispatcher is None]
    if functions:
        cuda_target.typing_context.refresh()
    for reached in functions:
        if cuda_target.typing_context._lookup_global(reached.function) is not None:
            reasons.append(f"`{reached.function.__name__}` is implemented by an overload, which the key cannot see")
    return reasons


DUMPS = ("DUMP_BYTECODE", "DUMP_CFG", "DUMP_IR", "DUMP_SSA", "DUMP_LLVM", "DUMP_ASSEMBLY", "DEBUG_TYPEINFER")


default_stream: Any = None
"""The object that every launch on the default stream has, so that it is told by its identity."""


def with_default_stream(configured: Any) -> Any:
    """A launch configuration; one for the default stream has the one object for it."""
    global default_stream
    if stream_handle(configured.stream) == 0:
        # Two threads may both get here: launches with the other's object take a little longer.
        default_stream = configured.stream = default_stream or configured.stream
    return configured


_contexts: dict[int, Any] = {}  # upstream's, by the driver's identifier, which is never used twice; a handful, for good


def current_context() -> Any:
    """Upstream's object of the current context, which it takes longer to find; made if there is none yet."""
    try:
        here = cuda_device.current()
    except cuda_device.DriverError:  # this thread has none
        return devices.get_context()
    known = _contexts.get(here.id)
    if known is not None and known.device.primary_context is known:  # it was not reset
        return known
    found = devices.get_context()
    if found.device.primary_context is found and int(found.handle) == here.handle:
        _contexts[here.id] = found
    return found


def stream_handle(stream: Any) -> int:
    """The driver's handle of a stream as a launch has it."""
    return int(getattr(stream, "handle", stream) or 0)


def symbol_address(library: Any, symbol: str) -> int:
    """Device address of a symbol of a loaded library, in the current context."""
    return int(driver.driver.cuLibraryGetGlobal(library, symbol.encode())[0])
