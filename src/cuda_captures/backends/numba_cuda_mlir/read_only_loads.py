"""Loads of arrays that nobody writes while the kernel runs go through the read-only cache (``ld.global.nc``).

On compute capability 10.0 and later the compiler's NVVM does that for loads marked ``invariant``.  Below, its path
through LLVM 7 drops the mark, so such loads become a line of PTX.
"""

from __future__ import annotations

import re
from typing import Any

import numba_cuda_mlir.mlir_optimization as optimization
from numba_cuda_mlir._mlir import ir
from numba_cuda_mlir._mlir.dialects import llvm
from numba_cuda_mlir._mlir.extras import types as mlir_types
from numba_cuda_mlir.mlir.util import find_ops

from .address_arithmetic import drop_unsigned_promises
from .lowering import INVARIANT, is_slot
from .reductions import reduce_unused
from .slot_pointers import in_global_memory, slot_behind

upstream_run_pre_codegen_patterns = optimization.run_pre_codegen_patterns

# Instruction suffix, register constraint and type that is loaded, by what the program loads.
LOADS = {
    "f64": ("f64", "d", "f64"),
    "f32": ("f32", "f", "f32"),
    "i64": ("b64", "l", "i64"),
    "i32": ("b32", "r", "i32"),
    "i16": ("b16", "h", "i16"),
    "f16": ("b16", "h", "i16"),
    "bf16": ("b16", "h", "i16"),
    "i8": ("u8", "h", "i16"),  # PTX has no registers of 8 bits
}
BYTES = {"f64": 8, "f32": 4}
DEFAULT_CHIP = "75"  # of the dialect, which does not print it
CHIP = re.compile(r'chip = "sm_(\w+)"')
COMPLEX = re.compile(r"!llvm\.struct<\((f32|f64), \1\)>")


def run_pre_codegen_patterns(module: Any) -> Any:
    """The compiler's last patterns before NVVM, and then ours."""
    result = upstream_run_pre_codegen_patterns(module)
    declared = [operation for gpu_module in module.body for operation in slots_of(gpu_module)]
    if not declared:
        return result
    slots = {operation.sym_name.value for operation in declared}
    invariant = {operation.sym_name.value for operation in declared if INVARIANT in operation.attributes}
    chip = chip_of(module)
    seven = optimization._needs_llvm70_path(chip)
    if not seven:  # the older path drops such promises itself
        drop_unsigned_promises(module)
    for load in find_ops(module, lambda operation: operation.name == "llvm.load"):
        load = getattr(load, "operation", load)
        if slot_behind(load.operands[0]) in invariant:
            if seven:
                replace(load)
            else:
                load.attributes["invariant"] = ir.UnitAttr.get()
    reduce_unused(module, slots, divmod(int(re.sub(r"\D", "", chip)), 10))
    return result


def slots_of(gpu_module: Any) -> list[Any]:
    """The declarations of slots in a module."""
    blocks = [block for region in gpu_module.regions for block in region.blocks]
    return [operation for block in blocks for operation in block if is_slot(operation)]


def chip_of(module: Any) -> str:
    """What a module is compiled for: ``"90"``."""
    found = next(filter(None, (CHIP.search(str(one.attributes["targets"])) for one in module.body)), None)
    return found.group(1) if found is not None else DEFAULT_CHIP


def replace(load: Any) -> None:
    """Put PTX in the place of a load, if it loads what a register holds."""
    kind = load.results[0].type
    pair = COMPLEX.fullmatch(str(kind))
    if pair is None and str(kind) not in LOADS:
        return
    with ir.InsertionPoint(load), load.location:
        address = in_global_memory(load.operands[0])
        if pair is None:
            value = read_only_load(address, kind)
        else:  # two loads: a vector load would ask for more alignment than the type has
            value = llvm.UndefOp(kind).result
            for index in range(2):
                part = read_only_load(address, ir.Type.parse(pair[1]), index * BYTES[pair[1]])
                value = llvm.insertvalue(container=value, value=part, position=ir.DenseI64ArrayAttr.get([index]))
    load.results[0].replace_all_uses_with(value)
    load.erase()


def read_only_load(address: Any, kind: Any, offset: int = 0) -> Any:
    """A load through the read-only cache."""
    suffix, constraint, loaded = LOADS[str(kind)]
    where = f"[$1+{offset}]" if offset else "[$1]"
    text = f"ld.global.nc.{suffix} $0, {where};"
    value = llvm.inline_asm(ir.Type.parse(loaded), [address], text, f"={constraint},l", has_side_effects=False)
    if str(kind) == "i8":
        return llvm.trunc(mlir_types.i8(), value, ir.Attribute.parse("#llvm.overflow<none>"))
    return value if loaded == str(kind) else llvm.bitcast(kind, value)
