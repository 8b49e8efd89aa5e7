"""Device code that divides integers by anything goes on, as on a GPU; on an x86 processor it would end the process."""

from __future__ import annotations

import ctypes

import llvmlite.binding as llvm
import pytest

from cpu_execution import host_target
from cpu_translation import Rewriting

LOWEST = -(1 << 63)
CASES = [(7, 2), (-7, 2), (7, -2), (7, -1), (LOWEST, 3), (7, 0), (0, 0), (LOWEST, -1)]


@pytest.mark.parametrize("what", ["sdiv", "srem", "udiv", "urem"])
def test_no_divisor_ends_the_process(what: str) -> None:
    lines = "\n".join(Rewriting("f").line(f"  %q = {what} i64 %a, %b, !dbg !7"))
    machine = host_target().create_target_machine(jit=True)
    module = llvm.parse_assembly(
        f"define i64 @f(i64 %a, i64 %b) {{\n{lines}\n  ret i64 %q\n}}\n", llvm.create_context()
    )
    module.verify()
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    divide = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(engine.get_function_address("f"))
    for a, b in CASES:
        found = divide(a, b)
        if b == 0 or (what[0] == "s" and (a, b) == (LOWEST, -1)):
            continue  # whatever it is
        if what[0] == "u":
            a, b, found = (one % (1 << 64) for one in (a, b, found))
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)  # towards zero
        assert found == (quotient if what.endswith("div") else a - b * quotient), (a, b)
