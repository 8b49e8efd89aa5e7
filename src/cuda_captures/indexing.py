"""How a function indexes what it captures, read off its bytecode."""

from __future__ import annotations

import dis
from types import CodeType

_PASSED_OVER = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL"})


def indexed_by_constants(code: CodeType, name: str) -> bool:
    """Whether every use of a name, a variable or a module's attribute, is ``name[constant]``, and there is one."""
    uses = list(_uses(code, name))
    return bool(uses) and all(uses)


def _uses(code: CodeType, name: str) -> list[bool]:
    instructions = [one for one in dis.get_instructions(code) if one.opname not in _PASSED_OVER]
    found = []
    for position, instruction in enumerate(instructions):
        if instruction.opname.startswith("LOAD_") and instruction.opcode not in dis.hasconst:
            named = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
            if name in named:
                found.append(named[-1] == name and _by_constant(instructions[position + 1 : position + 3]))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found += _uses(constant, name)
    return found


def _by_constant(following: list[dis.Instruction]) -> bool:
    if len(following) < 2:
        return False
    index, operation = following
    constant = index.opcode in dis.hasconst or index.opname == "LOAD_SMALL_INT"
    subscript = operation.opname == "BINARY_SUBSCR" or (operation.opname == "BINARY_OP" and operation.argrepr == "[]")
    return constant and subscript
