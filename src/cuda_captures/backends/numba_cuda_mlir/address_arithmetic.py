"""Address arithmetic without promises that a reversed array breaks.

MLIR lowers an access to address arithmetic that promises never to wrap around as unsigned numbers (``nuw``).  That is
wrong for a negative stride.  While strides are arguments LLVM can make nothing of it; those of a captured array are
constants, from which it may conclude anything.
"""

from __future__ import annotations

import re
from typing import Any

from numba_cuda_mlir._mlir import ir

ARITHMETIC = re.compile(r"^(\s*%\S+ = llvm\.(?:mul|add|sub|shl) .*)overflow<nsw, nuw>", re.MULTILINE)
ADDRESS = re.compile(r"^(\s*%\S+ = llvm\.getelementptr )inbounds\|nuw ", re.MULTILINE)


def drop_unsigned_promises(module: Any) -> None:
    """Drop them from a module, in place.

    They are no attributes that the compiler's bindings let anyone change, so the module is printed and parsed.
    """
    text = module.operation.get_asm(enable_debug_info=True)
    signed = ADDRESS.sub(r"\1inbounds ", ARITHMETIC.sub(r"\1overflow<nsw>", text))
    if signed == text:
        return
    parsed = ir.Module.parse(signed, module.context)
    for operation in list(module.body):
        operation.operation.erase()
    for operation in list(parsed.body):
        operation.operation.detach_from_parent()
        module.body.append(operation)
