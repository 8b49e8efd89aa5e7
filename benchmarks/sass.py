"""Machine code of the device work, side by side and counted: ``python -m benchmarks --sass FOLDER [NAME ...]``.

Compiled for compute capability 9.0, without a GPU.  The argument form is compiled with captures enabled here, because
what this package tells the compiler of threads and divisors is the same for arguments.
"""

from __future__ import annotations

import importlib
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.table import Table

import cuda_captures
from benchmarks.nvrtc import compiled
from benchmarks.pieces import PIECES, Piece

INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?);", re.MULTILINE)
KINDS = {
    "instructions": r"",
    "LDG": r"\bLDG\.(?!.*CONSTANT)",
    "LDG.CONSTANT": r"\bLDG\..*CONSTANT",
    "LD": r"\bLD\.",
    "LDC": r"\b(LDC|ULDC)\b",
    "IMAD.WIDE": r"\bIMAD\.WIDE",
    "IMAD": r"\bIMAD\b(?!\.(MOV|SHL|WIDE))",
    "carries": r"\bP\d, .*\bRZ?\b|\.X\b|\.EX\b",
    "SEL": r"\bSEL\b",
    "branches": r"\b(BRA|EXIT)\b",
}
LOADS = {
    "ld.global": r"ld\.global\.(?!nc)",
    "ld.global.nc": r"ld\.global\.nc",
    "ld.const": r"ld\.const",
    "ld": r"\bld\.[bfsuv]\d",
}


def write_all(cuda: Any, names: list[str], folder: Path) -> Table:
    """Write PTX, cubin and SASS of the versions of pieces of work, and give a table of counts."""
    folder.mkdir(parents=True, exist_ok=True)
    disassembler = disassembler_found()
    table = Table(title=f"{cuda.__name__}, cc 9.0, {folder}", title_justify="left")
    for column in ("work", "version", *LOADS, *KINDS):
        table.add_column(column, justify="left" if column in ("work", "version") else "right")
    for name in names:
        for piece in PIECES[name](True):
            for version, ptx, cubin in versions(cuda, piece):
                path = folder / f"{piece.slug}.{version}"
                sass = written(path, ptx, cubin, disassembler)
                counts = [str(len(re.findall(pattern, ptx))) for pattern in LOADS.values()]
                table.add_row(piece.name, version, *counts, *([""] * len(KINDS) if sass is None else counted(sass)))
    if disassembler is None:
        table.caption = "no SASS: there is neither nvdisasm nor cuobjdump; `pip install nvidia-cuda-nvdisasm` has one"
    return table


def versions(cuda: Any, piece: Piece) -> Iterator[tuple[str, str, bytes]]:
    """PTX before the link and linked machine code of each version."""
    arguments, tables = list(piece.arguments.values()), list(piece.tables.values())
    kernels = {"captured": (piece.captured_form(cuda, piece.tables), arguments)}
    if piece.compiled_in:
        kernels["captured_constant"] = piece.constants_form(cuda), arguments
    kernels["argument"] = piece.argument_form(cuda), arguments + tables
    for version, (kernel, args) in kernels.items():
        explanation = cuda_captures.explain(kernel, types_of(cuda, args))
        yield version, explanation.ptx, explanation.cubin
    for version, compiled_in in (("cpp", False), ("cpp_compiled_in", True)):
        if piece.compiled_in or not compiled_in:
            yield version, *compiled(piece.cpp(compiled_in)[0])


def types_of(cuda: Any, arrays: list[Any]) -> tuple[Any, ...]:
    """The compiler's types of arrays that are passed to a kernel."""
    package = "numba.cuda" if cuda.__name__.startswith("numba.") else "numba_cuda_mlir.numba_cuda"
    typeof = importlib.import_module(f"{package}.typing.typeof")
    return tuple(typeof.typeof(array, typeof.Purpose.argument) for array in arrays)


def disassembler_found() -> list[str] | None:
    """The command that disassembles a cubin, or None."""
    wheels = [Path(folder) / "nvidia" for folder in (*site.getsitepackages(), *sys.path)]
    folders = [*Path("/usr/local").glob("cuda*/bin"), *(bin for folder in wheels for bin in folder.glob("*/bin"))]
    for name, options in (("nvdisasm", ["-c"]), ("cuobjdump", ["-sass"])):
        path = shutil.which(name) or next((str(one / name) for one in folders if (one / name).is_file()), None)
        if path is not None:
            return [path, *options]
    return None


def written(path: Path, ptx: str, cubin: bytes, disassembler: list[str] | None) -> str | None:
    """Write the code of one version; gives its SASS."""
    ptx_file, cubin_file, sass_file = (path.with_name(f"{path.name}.{kind}") for kind in ("ptx", "cubin", "sass"))
    ptx_file.write_text(ptx)
    cubin_file.write_bytes(cubin)
    if disassembler is None:
        return None
    done = subprocess.run([*disassembler, str(cubin_file)], capture_output=True, text=True, check=True)
    sass_file.write_text(done.stdout)
    return done.stdout


def counted(sass: str) -> list[str]:
    """How many instructions of each kind there are."""
    instructions = [one for one in INSTRUCTION.findall(sass) if not one.startswith("NOP")]
    return [str(sum(bool(re.search(pattern, one)) for one in instructions)) for pattern in KINDS.values()]
