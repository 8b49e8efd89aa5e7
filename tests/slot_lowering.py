"""Slots in numba-cuda without the package: NumPy arrays that upstream would copy become loads from slots.

For tests of the harness alone.  It does what a backend does at its simplest: general slots for arrays of an odd
number of dimensions, exact ones for the others, named after the object.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from llvmlite import ir
from numba.cuda import types
from numba.cuda.target import CUDATargetContext

Array = np.ndarray[Any, Any]

WORD = ir.IntType(64)
CONSTANT_SPACE, GLOBAL_SPACE = 4, 1


def words_of(array: Array) -> int:
    """Size of the slot of an array, in words of 8 bytes."""
    return 1 + 2 * array.ndim if array.ndim % 2 else 1


def slots_for_constants(patches: pytest.MonkeyPatch) -> dict[str, Array]:
    """Lower to slots from now on; returns the arrays by symbol, filled as kernels are lowered."""
    found: dict[str, Array] = {}

    def make_constant_array(context: Any, builder: Any, typed: Any, value: Array) -> Any:
        symbol = f"cuda_capture_{id(value)}"
        found[symbol] = value
        words = words_of(value)
        kind = ir.ArrayType(WORD, words) if words > 1 else WORD
        slot = builder.module.globals.get(symbol)
        if slot is None:
            slot = ir.GlobalVariable(builder.module, kind, symbol, addrspace=CONSTANT_SPACE)
            slot.linkage, slot.align = "external", 8
        if words > 1:
            loaded = [builder.load(builder.gep(slot, [WORD(0), WORD(index)])) for index in range(words)]
            shape, strides = loaded[1 : 1 + value.ndim], loaded[1 + value.ndim :]
        else:
            loaded = [builder.load(slot)]
            shape = [context.get_constant(types.intp, extent) for extent in value.shape]
            strides = [context.get_constant(types.intp, stride) for stride in value.strides]
        array = context.make_array(typed)(context, builder)
        pointer = builder.inttoptr(loaded[0], ir.PointerType(array.data.type.pointee, addrspace=GLOBAL_SPACE))
        context.populate_array(
            array,
            data=builder.addrspacecast(pointer, array.data.type),
            shape=shape,
            strides=strides,
            itemsize=context.get_constant(types.intp, value.itemsize),
            meminfo=None,
        )
        return array._getvalue()

    patches.setattr(CUDATargetContext, "make_constant_array", make_constant_array)
    return found
