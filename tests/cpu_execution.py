"""Kernels of numba-cuda, executed on the CPU: the LLVM IR that is lowered for a GPU, run by llvmlite.

::

    lowered = lower(kernel, (types.float64[::1],))
    execute(lowered, (array,), grid=4, block=32)

Threads run one after another, blocks too.  So a kernel in which threads wait for each other is refused
(:class:`NotExecutable`); so is whatever else the CPU has nothing for.  Every access to memory is checked for bounds,
for permission and for the alignment that the code claims (:class:`BadAccess`), and with ``debug=True`` exceptions
that a kernel raises come out of :func:`execute`.

Captured arrays come through slots: ``slots`` gives the bytes of each slot symbol, ``memory`` the arrays that they may
point to.

State: translated code belongs to its code library and is freed with it; a launch holds its lock.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from cpu_arguments import Marshalling, Region, region_of
from cpu_launcher import UNRESTRICTED, WRITE
from cpu_lowering import Lowered, lower, types_of
from cpu_runtime import SREGS, function_address, library_address
from cpu_translation import HostCode, NotExecutable, translate

__all__ = [
    "BadAccess",
    "Lowered",
    "NotExecutable",
    "execute",
    "lower",
    "slot_bytes",
    "slot_sizes",
    "types_of",
]


class BadAccess(Exception):
    """A kernel touched memory that it must not touch, or not at that alignment."""


def slot_bytes(array: np.ndarray[Any, Any], size: int = 8) -> bytes:
    """What a slot of a size in bytes holds for an array: its address; in a longer slot, shape and strides too."""
    words = [array.ctypes.data]
    if size > 8:
        words += [*array.shape, *array.strides]
    made = np.array(words, np.int64).tobytes()
    if len(made) != size:
        raise ValueError(f"a slot of {size} bytes does not fit an array of {array.ndim} dimensions")
    return made


def slot_sizes(code: Any) -> dict[str, int]:
    """Size in bytes of each slot symbol that a kernel and its device functions declare."""
    return dict(executable(as_lowered(code, ())).code.slots)


def execute(
    code: Any,
    args: tuple[Any, ...],
    grid: int | tuple[int, ...],
    block: int | tuple[int, ...],
    slots: Mapping[str, bytes] | None = None,
    *,
    memory: Iterable[np.ndarray[Any, Any]] | None = None,
    optimise: bool = True,
) -> None:
    """Run a kernel on the CPU.

    Parameters
    ----------
    code
        What :func:`lower` returned, numba-cuda's kernel object, or a code library that has an entry; for a library
        the argument types are those that numba gives the values.
    args
        NumPy arrays, used in place; scalars, tuples, records.
    grid, block
        Blocks in the grid and threads in a block, in up to three dimensions.
    slots
        The bytes of each slot that the code declares.
    memory
        The arrays that slots may lead to, and that the kernel may touch beside its arguments.  Without it, and with
        slots, any address may be touched.
    optimise
        Whether to run LLVM's optimisation first, which takes the promises of the IR (``invariant.load`` and the
        like) at their word.

    Raises
    ------
    NotExecutable
        If the code needs something that the CPU has not.
    BadAccess
        If it touches memory that is neither an argument's, nor in ``memory``, nor its own; or writes an array that
        is not writeable; or touches memory at an alignment other than it claims.
    Exception
        Whatever a kernel compiled with ``debug=True`` raises.
    """
    lowered = as_lowered(code, args)
    marshalling = Marshalling(lowered.argtypes, args)
    regions: list[Region] | None = list(marshalling.regions)
    if memory is not None:
        regions = [*marshalling.regions, *(region_of(one, f"memory[{index}]") for index, one in enumerate(memory))]
    elif slots:
        regions = None
    ready = executable(lowered, optimise)
    ready.launch(marshalling, three(grid), three(block), slots or {}, regions, lowered)


def as_lowered(code: Any, args: tuple[Any, ...]) -> Lowered:
    """What is known of a kernel, from any of the forms that :func:`execute` takes."""
    if isinstance(code, Lowered):
        return code
    library = getattr(code, "_codelibrary", code)
    argtypes = getattr(code, "argument_types", None)
    if argtypes is None:
        argtypes = types_of(*args)
    return Lowered(library, library._entry_name, argtypes, getattr(code, "call_helper", None))


def three(extent: int | tuple[int, ...]) -> tuple[int, int, int]:
    """An extent in three dimensions."""
    given = extent if isinstance(extent, tuple) else (extent,)
    x, y, z = (*given, 1, 1)[:3]
    if len(given) > 3 or min(x, y, z) < 1:
        raise ValueError(f"an extent has one to three dimensions of at least 1 (got {extent})")
    return x, y, z


_executables: weakref.WeakKeyDictionary[Any, dict[bool, Executable]] = weakref.WeakKeyDictionary()


def executable(lowered: Lowered, optimise: bool = True) -> Executable:
    """The machine code of a library for this CPU, made once."""
    made = _executables.setdefault(lowered.library, {})
    if optimise not in made:
        made[optimise] = Executable(translate(lowered.library.llvm_strs, lowered.entry), optimise)
    return made[optimise]


@functools.cache
def host_target() -> llvm.Target:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple()


NEAR = 4096  # bytes outside of an array within which a bad address is said to be meant for it


class Executable:
    """Machine code for this CPU.  One launch at a time, by its lock."""

    def __init__(self, code: HostCode, optimise: bool) -> None:
        self.code = code
        self._lock = threading.Lock()
        machine = host_target().create_target_machine(
            cpu=llvm.get_host_cpu_name(),
            features=llvm.get_host_cpu_features().flatten(),
            opt=2 if optimise else 0,
            jit=True,
        )
        module = llvm.parse_assembly(
            f'target triple = "{machine.triple}"\ntarget datalayout = "{machine.target_data}"\n{code.text}',
            llvm.create_context(),
        )
        module.verify()
        if optimise:
            builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
            builder.getModulePassManager().run(module, builder)
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._map_functions(module)
        self._engine.finalize_object()
        words = [ctypes.c_void_p] + [ctypes.c_uint32] * 6
        self._launch = ctypes.CFUNCTYPE(None, *words)(self._engine.get_function_address("device.launch"))
        self._fault = (ctypes.c_uint64 * 6).from_address(self._address("device.fault"))
        self._sregs = (ctypes.c_uint32 * len(SREGS)).from_address(self._address("device.sregs"))
        self._regions = ctypes.c_void_p.from_address(self._address("device.regions"))
        self._count = ctypes.c_int64.from_address(self._address("device.regions.count"))
        self._statics = self._own_regions()

    def _address(self, symbol: str) -> int:
        return int(self._engine.get_global_value_address(symbol))

    def _map_functions(self, module: llvm.ModuleRef) -> None:
        for function in module.functions:
            name = function.name
            if not function.is_declaration or name.startswith("llvm."):
                continue
            if name in ("_setjmp", "longjmp"):
                address: int | None = library_address(name)
            else:
                address = function_address(name)
            if address is None:
                raise NotExecutable(NO_FUNCTION.format(name=name.replace("device.nvvm.", "llvm.nvvm.", 1)))
            self._engine.add_global_mapping(function, address)

    def _own_regions(self) -> list[Region]:
        rows = (ctypes.c_uint64 * (2 * len(self.code.statics))).from_address(self._address("device.statics"))
        return [
            Region(f"`{name}` in the code", start, start + size, writable)
            for (name, writable), start, size in zip(self.code.statics, rows[::2], rows[1::2], strict=True)
        ]

    def launch(
        self,
        marshalling: Marshalling,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        slots: Mapping[str, bytes],
        regions: list[Region] | None,
        lowered: Lowered,
    ) -> None:
        """Run every thread of a grid."""
        known = None if regions is None else [*regions, *self._statics]
        cells = b"".join(marshalling.cells)
        table = [(one.start, one.stop, int(one.writable)) for one in known or ()]
        rows = (ctypes.c_uint64 * (3 * len(table)))(*(word for row in table for word in row))
        with self._lock:
            self._fill(slots)
            self._fault[0] = 0
            self._regions.value = ctypes.addressof(rows)
            self._count.value = UNRESTRICTED if known is None else len(table)
            error = self._error_code(lowered.entry)
            if error is not None:
                error.value = 0
            self._launch(cells, *grid, *block)
            if self._fault[0]:
                raise BadAccess(self._describe(known or ()))
            if error is not None and error.value:
                raise_device_error(lowered, error.value)

    def _fill(self, slots: Mapping[str, bytes]) -> None:
        if slots.keys() != self.code.slots.keys():
            raise ValueError(f"the code declares the slots {sorted(self.code.slots)} (got {sorted(slots)})")
        for symbol, data in slots.items():
            if len(data) != self.code.slots[symbol]:
                raise ValueError(f"slot {symbol} has {self.code.slots[symbol]} bytes (got {len(data)})")
            ctypes.memmove(self._address(symbol), data, len(data))

    def _error_code(self, entry: str) -> ctypes.c_int32 | None:
        """Where a kernel compiled with ``debug=True`` notes that it raised."""
        name = f"{entry}__errcode__"
        if all(static != name for static, _ in self.code.statics):
            return None
        return ctypes.c_int32.from_address(self._address(name))

    def _describe(self, known: Iterable[Region]) -> str:
        _, kind, address, size, align, misaligned = self._fault
        registers = dict(zip(SREGS, self._sregs, strict=True))
        thread = tuple(registers[f"tid.{axis}"] for axis in "xyz")
        block = tuple(registers[f"ctaid.{axis}"] for axis in "xyz")
        what = f"thread {thread} of block {block} {'writes' if kind == WRITE else 'reads'} {size} bytes at {address:#x}"
        near = [one for one in known if one.start - NEAR <= address < one.stop + NEAR]
        if near:
            nearest = min(near, key=lambda one: max(one.start - address, address + size - one.stop, 0))
            inside = nearest.start <= address and address + size <= nearest.stop
            what += f", byte {address - nearest.start} of {nearest.label}"
        if misaligned:
            return f"{what}, and its code claims an alignment of {align}"
        if not near:
            return f"{what}, near nothing that it may touch"
        return f"{what}, which it may only read" if inside else f"{what}, which has {nearest.stop - nearest.start}"


def raise_device_error(lowered: Lowered, code: int) -> None:
    """Raise what a kernel raised."""
    if lowered.call_helper is None:
        raise RuntimeError(f"the kernel raised the exception with the number {code}")
    kind, arguments, _ = lowered.call_helper.get_exception(code)
    raise kind(*(arguments or ()))


NO_FUNCTION = """\
the kernel calls `{name}`, for which the CPU harness has nothing: threads run one after another, so barriers, votes and
shuffles cannot be executed, nor can the device's own library for memory and printing."""
