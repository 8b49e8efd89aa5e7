"""Compiling and linking without a GPU, with the real NVVM and nvJitLink, and reading what came out.

No driver is needed as long as every call is told the compute capability: ``CUDACodeLibrary.get_cubin(cc=…)`` and
``driver._Linker(cc=…)`` ask no device, and cuda.core takes nvJitLink if it is there.  What does ask one is
``_Kernel.__init__`` (``get_current_device()``, and ``get_asm_str()`` without a cc), ``CUDADispatcher.compile_device``,
``CUDACodeLibrary._ensure_cc(None)``, ``JITCUDACodegen.magic_tuple`` (for the index of the disk cache).

A cubin is an ELF file.  Of its sections, ``.nv.constant0.KERNEL`` is the bank of a kernel's parameters and
``.nv.constant3`` that of ``__constant__`` symbols; ``.nv.constant2.KERNEL`` and ``.nv.constant4`` hold what the
compiler puts there itself (CUDA Binary Utilities, section on cuobjdump; seen in cubins of CUDA 13).
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from cpu_lowering import Lowered, lower

USER_BANK = ".nv.constant3"  # of compute capabilities 5.0 to 12.0
REGISTER_COUNT, MAX_THREADS = 0x2F, 0x05  # attributes in .nv.info, as cuobjdump names them EIATTR_…
SIZED_VALUE = 0x04  # the form of an attribute that is followed by its size and a value


@dataclass(frozen=True)
class ConstantSymbol:
    """A symbol in constant memory.

    Parameters
    ----------
    name
        Not unique: modules linked without LTO may each have a symbol of their own by one name.
    section
        Its bank.
    offset, size
        In bytes.
    visible
        Whether the host can find it by name.
    """

    name: str
    section: str
    offset: int
    size: int
    visible: bool


def compiled(py_func: Any, argtypes: Any, cc: tuple[int, int] = (9, 0), **options: Any) -> bytes:
    """The cubin of a kernel; options are those of :func:`cpu_lowering.lower`."""
    return linked(lower(py_func, argtypes, cc=cc, **options), cc)


def linked(lowered: Any, cc: tuple[int, ...] | None = (9, 0)) -> bytes:
    """The cubin of a lowered kernel, of numba-cuda's kernel object or of a code library.

    ``cc=None`` is for a library of the backend, which knows what it was compiled for.
    """
    library = lowered.library if isinstance(lowered, Lowered) else getattr(lowered, "_codelibrary", lowered)
    return bytes(library.get_cubin(cc=cc).code)


def _elf(cubin: bytes) -> ELFFile:
    return ELFFile(io.BytesIO(cubin))


def symbol_table(elf: ELFFile) -> SymbolTableSection:
    """The symbols of an ELF file."""
    table = elf.get_section_by_name(".symtab")
    assert isinstance(table, SymbolTableSection)
    return table


def sections(cubin: bytes) -> dict[str, int]:
    """Size in bytes of every section."""
    return {section.name: int(section["sh_size"]) for section in _elf(cubin).iter_sections()}


def constant_sections(cubin: bytes) -> dict[str, int]:
    """Size in bytes of every bank of constant memory."""
    return {name: size for name, size in sections(cubin).items() if name.startswith(".nv.constant")}


def constant_symbols(cubin: bytes) -> list[ConstantSymbol]:
    """The symbols in constant memory; parameters of kernels have none."""
    elf = _elf(cubin)
    banks = {index: one.name for index, one in enumerate(elf.iter_sections()) if one.name.startswith(".nv.constant")}
    return [
        ConstantSymbol(
            symbol.name,
            banks[symbol["st_shndx"]],
            int(symbol["st_value"]),
            int(symbol["st_size"]),
            symbol["st_info"]["bind"] == "STB_GLOBAL",
        )
        for symbol in symbol_table(elf).iter_symbols()
        if symbol["st_shndx"] in banks and symbol["st_info"]["type"] == "STT_OBJECT"
    ]


def user_constants(cubin: bytes) -> dict[str, int]:
    """Bytes by name of the symbols in the bank of ``__constant__`` symbols, checked to fill it but for alignment.

    So a test can say that captures take no constant memory but their slots:
    ``user_constants(cubin) == {slot: 8, …}``.
    """
    symbols = [one for one in constant_symbols(cubin) if one.section == USER_BANK]
    found: dict[str, int] = {}
    end = 0
    for symbol in sorted(symbols, key=lambda one: one.offset):
        assert 0 <= symbol.offset - end < 256, f"bytes of {USER_BANK} before offset {symbol.offset} have no symbol"
        end = symbol.offset + symbol.size
        found[symbol.name] = found.get(symbol.name, 0) + symbol.size
    total = constant_sections(cubin).get(USER_BANK, 0)
    assert 0 <= total - end < 16, f"the last {total - end} bytes of {USER_BANK} have no symbol"
    return found


def compute_capability(cubin: bytes) -> tuple[int, int]:
    """What a cubin was compiled for, from the flags in its header."""
    elf = _elf(cubin)
    flags = elf["e_flags"]
    number: int = (flags >> 8 if elf["e_ident"]["EI_ABIVERSION"] >= 8 else flags) & 0xFF  # CUDA 13 moved it
    return number // 10, number % 10


def registers(cubin: bytes, kernel: str) -> int:
    """Registers per thread of a kernel."""
    elf = _elf(cubin)
    symbols = symbol_table(elf)
    for attribute, value in _attributes(elf, ".nv.info"):
        if attribute == REGISTER_COUNT:
            index, count = struct.unpack("<II", value)
            if symbols.get_symbol(index).name == kernel:
                return int(count)
    raise LookupError(f"no register count of {kernel}")


def max_threads(cubin: bytes, kernel: str) -> tuple[int, int, int] | None:
    """The bound on threads per block that a kernel was compiled for; None if it has none."""
    for attribute, value in _attributes(_elf(cubin), f".nv.info.{kernel}"):
        if attribute == MAX_THREADS:
            x, y, z = struct.unpack("<III", value)
            return x, y, z
    return None


def _attributes(elf: ELFFile, section: str) -> Iterator[tuple[int, bytes]]:
    """The attributes of an ``.nv.info`` section that have a value of their own size."""
    found = elf.get_section_by_name(section)
    data = found.data() if found is not None else b""
    position = 0
    while position < len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, position)
        position += 4
        if form == SIZED_VALUE:
            yield attribute, data[position : position + size]
            position += size
