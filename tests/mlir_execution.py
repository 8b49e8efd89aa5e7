"""Kernels of numba-cuda-mlir, executed on the CPU: the LLVM IR that the compiler makes for a GPU, run by llvmlite.

The compiler's modern path is taken (compute capability 10.0 and later), because its LLVM IR can be had as text; the
path for older devices goes through a library that hands it to NVVM at once.  How threads run, and what is checked, is
:mod:`cpu_execution`'s.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba_cuda_mlir.mlir_optimization import get_llvmir
from numba_cuda_mlir.numba_cuda import types
from numba_cuda_mlir.numba_cuda.typing.typeof import Purpose, typeof

from cpu_arguments import Region, integer_cell, region_of, scalar_cells
from cpu_execution import Executable, three
from cpu_translation import translate

CHIP = re.compile(r'chip = "sm_\w+"')


def types_of(*args: Any) -> tuple[Any, ...]:
    """The compiler's types of values passed to a kernel."""
    return tuple(typeof(arg, Purpose.argument) for arg in args)


class Marshalling:
    """The cells of the arguments of one launch: of an array its address twice, 0, its shape, its strides in elements.

    So the compiler's native launcher has it, in ``extract_cuda_array``.
    """

    def __init__(self, argtypes: Sequence[Any], args: Sequence[Any]) -> None:
        self.regions: list[Region] = []
        self.cells = [
            cell
            for position, (typed, value) in enumerate(zip(argtypes, args, strict=True))
            for cell in self._flatten(typed, value, f"argument {position}")
        ]

    def _flatten(self, typed: Any, value: Any, label: str) -> Iterator[bytes]:
        if isinstance(typed, types.Array):
            self.regions.append(region_of(value, label))
            strides = [stride // value.itemsize for stride in value.strides]
            fields = (value.ctypes.data, value.ctypes.data, 0, *value.shape, *strides)
            yield from map(integer_cell, fields)
        elif isinstance(typed, types.BaseTuple):
            for index, (item_type, item) in enumerate(zip(typed, value, strict=True)):
                yield from self._flatten(item_type, item, f"{label}[{index}]")
        else:
            (numba_typed,) = numba_types_of(value)
            yield from scalar_cells(numba_typed, value, label)


def numba_types_of(value: Any) -> tuple[Any, ...]:
    """numba's types, which the harness's scalars are written for."""
    from cpu_lowering import types_of

    return types_of(value)


class _Entry:
    """What the harness asks of a lowered kernel."""

    def __init__(self, name: str) -> None:
        self.entry = name
        self.call_helper = None


_executables: weakref.WeakKeyDictionary[Any, dict[bool, Executable]] = weakref.WeakKeyDictionary()

# Promises to LLVM in spellings that numba's own replacement of IR does not know.
PROMISES = re.compile(
    r"^attributes #.*\n| #[0-9]+(?= ?[{]?$)|(?<= )(?:noundef |nonnull )*range\([^)]*\) ", re.MULTILINE
)


def llvm_of(product: Any) -> str:
    """The LLVM IR of a compiled kernel, as the harness reads it."""
    module = CHIP.sub('chip = "sm_100"', product.metadata["mlir_module_optimized"])
    text = get_llvmir(SimpleNamespace(metadata={"mlir_module_optimized": module}), {"chip": "sm_100"})
    return PROMISES.sub("", text).replace(" common global ", " global ")


def execute(
    product: Any,
    argtypes: Sequence[Any],
    args: tuple[Any, ...],
    grid: int | tuple[int, ...],
    block: int | tuple[int, ...],
    slots: Mapping[str, bytes],
    memory: Iterable[np.ndarray[Any, Any]],
    optimise: bool = True,
) -> None:
    """Run a kernel on the CPU.

    Parameters
    ----------
    product
        What the backend compiled it to, for a compute capability of 10.0 or later.
    argtypes, args
        Types of the arguments, and the arguments.
    grid, block, slots, memory, optimise
        As :func:`cpu_execution.execute` has them.
    """
    made = _executables.setdefault(product, {})
    if optimise not in made:
        made[optimise] = Executable(translate([llvm_of(product)], product.entry), optimise)
    marshalling: Any = Marshalling(argtypes, args)
    regions = [*marshalling.regions, *(region_of(one, f"memory[{index}]") for index, one in enumerate(memory))]
    entry: Any = _Entry(product.entry)
    made[optimise].launch(marshalling, three(grid), three(block), slots, regions, entry)
