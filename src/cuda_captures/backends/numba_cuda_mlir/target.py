"""What numba-cuda-mlir compiles for, as the key sees it; and the small things that need a device."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from cuda.bindings import driver as cuda_driver
from numba_cuda_mlir import _whole_function_planners, tools
from numba_cuda_mlir._launch_config import _LAUNCH_CONFIG_TRACKER_OPTION
from numba_cuda_mlir.descriptor import mlir_target
from numba_cuda_mlir.numba_cuda.cudadrv import devices

from cuda_captures import device as cuda_device
from cuda_captures import driver
from cuda_captures.discovery import Discovery
from cuda_captures.driver import DriverError
from cuda_captures.symbols import write_symbols

# Options that do not change the code: what is printed or timed, how arguments are prepared, who caches it; the
# architecture, which the target has; and what upstream's decorator leaves behind.
PRINTED = [
    "dump",
    "dump_ast",
    "dump_ast_after_all",
    "dump_cubin",
    "dump_llvmir",
    "dump_mlir",
    "dump_numba_ir",
    "dump_ptx",
    "print_before_all",
    "print_after_all",
    "profile_jit",
]
OUTSIDE_THE_CODE = frozenset(
    {"captures", "cache", "extensions", "shared_memory_carveout", "chip", "cc", "signature", "link"}
    | {"annotations_as_signatures", _LAUNCH_CONFIG_TRACKER_OPTION, *PRINTED}
)


@functools.lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Versions of the distributions whose code makes the code."""
    found = {}
    for name in ("cuda-captures", "numba-cuda-mlir", "nvidia-nvvm", "nvidia-cuda-nvcc-cu12", "nvidia-nvjitlink"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def target_of(chip: str) -> dict[str, Any]:
    """What is compiled for: architecture and versions."""
    return {"backend": "numba-cuda-mlir", "chip": chip, "nvrtc": tools.get_cuda_runtime_version(), **versions()}


def unseen(discovery: Discovery, options: Mapping[str, Any]) -> list[str]:
    """What the code depends on besides what the key has: reasons not to share it, each with a name."""
    reasons = []
    if _whole_function_planners._planner_registry.has_planners:
        reasons.append("a whole-function planner is registered with numba-cuda-mlir")
    if "__launch_config__" in options:
        reasons.append("the kernel is compiled for its launch configuration")
    reasons += [f"option `{name}` is set: its text is for each compilation" for name in PRINTED if options.get(name)]
    mlir_target.ensure_initialized()
    for reached in discovery.reached[1:]:
        if reached.dispatcher is None and mlir_target.typing_context._lookup_global(reached.function) is not None:
            reasons.append(f"`{reached.function.__name__}` is implemented by an overload, which the key cannot see")
    return reasons


@contextmanager
def compiling_for(cc: tuple[int, int] | None) -> Iterator[None]:
    """Let the compiler, which asks once per process, take a compute capability for the current device's.

    Under the compiler's lock.
    """
    if cc is None:
        yield
        return
    before = tools._cached_cc
    tools._cached_cc = cc
    tools.is_using_llvm70.cache_clear()
    try:
        yield
    finally:
        tools._cached_cc = before
        tools.is_using_llvm70.cache_clear()


def current_cc() -> tuple[int, int]:
    """Compute capability of the current device; without a device, what the compiler was told."""
    if tools._cached_cc is not None and not cuda_device.available():
        return tuple(tools._cached_cc)
    return tuple(devices.get_context().device.compute_capability)


@functools.lru_cache(maxsize=1)
def device_count() -> int:
    """How many devices the process sees; fixed once the driver is initialised."""
    return int(driver.calls.device_count())


def context_for(args: Sequence[Any]) -> Any:
    """The context that upstream's launcher uses: the one of the first array, or the current one.

    Parameters
    ----------
    args
        What the launcher gets: scalars and device arrays.

    Returns
    -------
    Any
        The compiler's context object; with several devices this package's, because other libraries may have made
        another device current behind the compiler's back.
    """
    here = devices.get_context()
    if device_count() == 1:
        return here
    home = next((home for home in map(home_of, args) if home is not None), None)
    current = cuda_device.current()
    if home is None or home == current.device:
        return current
    with cuda_device.on_device(home) as there:
        return there


def home_of(arg: Any) -> int | None:
    """Ordinal of the device of an array; None for anything else, and for memory that is not of one device."""
    interface = getattr(arg, "__cuda_array_interface__", None)
    address = interface["data"][0] if interface is not None else 0
    return cuda_device.pointer_device(address) if address else None


def inside(context: Any) -> AbstractContextManager[Any]:
    """Make a context current for a while."""
    if isinstance(context, cuda_device.Context):
        return cuda_device.on_device(context.device)
    return nullcontext()


def has_stream(arg: Any) -> bool:
    """Whether upstream's launcher takes the current stream of the library that an argument comes from."""
    return type(arg).__module__.partition(".")[0] in ("torch", "cupy")


def stream_handle(stream: Any, args: Sequence[Any]) -> int:
    """The driver's handle of the stream that upstream's launcher uses.

    Without one it takes the current stream of the library that an argument comes from.
    """
    if stream is None:
        for arg in args:
            library = type(arg).__module__.partition(".")[0]
            if library == "torch":
                import torch

                return int(torch.cuda.current_stream(arg.device).cuda_stream)
            if library == "cupy":
                import cupy

                return int(cupy.cuda.get_current_stream().ptr)
        return 0
    for name in ("cuda_stream", "ptr", "handle"):  # PyTorch, CuPy, cuda.core and numba
        handle = getattr(stream, name, None)
        if handle is not None:
            return int(handle)
    return int(stream)


def fill(library: int, symbol: str, data: bytes) -> None:
    """Write a slot of a loaded library, in the current context.

    A slot that the linker dropped, because nothing reads it, is left alone.
    """
    address = address_of(library, symbol, data)
    if address is not None:
        write_symbols([(address, data)])


def address_of(library: int, symbol: str, data: bytes) -> int | None:
    """Device address of a slot that shall hold some bytes, in the current context; None if the linker dropped it."""
    error, address, size = cuda_driver.cuLibraryGetGlobal(cuda_driver.CUlibrary(library), symbol.encode())
    if error == cuda_driver.CUresult.CUDA_ERROR_NOT_FOUND:
        return None
    if error != cuda_driver.CUresult.CUDA_SUCCESS:
        raise DriverError("cuLibraryGetGlobal", error.name)
    assert int(size) >= len(data), f"slot {symbol} has {int(size)} bytes, and {len(data)} are to be written"
    return int(address)


def unload(library: int) -> None:
    """Unload a library that nothing is launched from any more.

    Raises
    ------
    DriverError
        If the driver refuses.
    """
    (error,) = cuda_driver.cuLibraryUnload(cuda_driver.CUlibrary(library))
    if error != cuda_driver.CUresult.CUDA_SUCCESS:
        raise DriverError("cuLibraryUnload", error.name)
