"""How the compilers spell what the analysis of writes asks about; numba's type system, which each has a copy of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from cuda_captures.writes import Dialect, Effects

# Types whose values hold no reference to an array's memory.
PLAIN = [
    "Number",
    "Boolean",
    "NPDatetime",
    "NPTimedelta",
    "NoneType",
    "UnicodeType",
    "Literal",
    "SliceType",
    "RangeType",
    "RangeIteratorType",
    "EnumMember",
    "Module",
    "DType",
    "Function",
    "Dispatcher",
    "Omitted",
]
ATOMICS = [
    "add",
    "sub",
    "and_",
    "or_",
    "xor",
    "inc",
    "dec",
    "exch",
    "max",
    "min",
    "nanmax",
    "nanmin",
    "compare_and_swap",
    "cas",
]
READING_METHODS = frozenset(
    {"sum", "prod", "min", "max", "mean", "var", "std", "argmin", "argmax", "any", "all", "copy", "item"}
    | {"view", "reshape", "transpose", "ravel", "flatten", "astype", "count", "index"}
)
# Functions of NumPy that write an argument; every other one only reads what it is given.
WRITING_FUNCTIONS = frozenset({"put", "place", "fill_diagonal", "copyto", "putmask", "shuffle"})
READING_BUILTINS = frozenset(
    {len, min, max, sum, abs, enumerate, zip, iter, reversed, tuple, print, range, bool, isinstance}
)
READING_MODULES = frozenset({"numpy", "math", "operator", "_operator", "cmath"})


def dialect_of(
    types: ModuleType,
    cuda: Any,
    effects_of_device_function: Callable[[Any, Any], Iterable[Effects | None]],
    module_capture: Callable[[Any, str], Any],
) -> Dialect:
    """The dialect of a compiler.

    Parameters
    ----------
    types
        Its copy of numba's types.
    cuda
        Its module ``cuda``.
    effects_of_device_function
        For a dispatcher and a call, the effects of every compilation that the call may take; None for one that is
        not known.
    module_capture
        As :class:`~cuda_captures.writes.Dialect` has it.
    """
    plain = tuple(getattr(types, name) for name in PLAIN)
    atomics = tuple(getattr(cuda.atomic, name) for name in ATOMICS)

    def refers(typed: Any) -> bool:
        if typed is None:
            return True
        if isinstance(typed, types.BaseTuple):
            return any(map(refers, typed.types))
        if isinstance(typed, types.Optional):
            return refers(typed.type)
        return not isinstance(typed, plain)

    def effects_of_call(expr: Any, function_type: Any) -> Effects | str | None:
        if isinstance(function_type, types.Dispatcher):
            if expr.kws or expr.vararg is not None:
                return None
            return merged(list(effects_of_device_function(function_type.dispatcher, expr)))
        if isinstance(function_type, types.BoundFunction):
            return "reads" if str(function_type.key[0]).rpartition(".")[2] in READING_METHODS else None
        function = getattr(function_type, "typing_key", None)
        if function is None:
            return None
        if any(function is atomic for atomic in atomics):
            return "atomic"
        if function is cuda.const.array_like or (callable(function) and function in READING_BUILTINS):
            return "reads"
        module = getattr(function, "__module__", None) or ""
        if module.partition(".")[0] in READING_MODULES:
            return None if getattr(function, "__name__", "") in WRITING_FUNCTIONS else "reads"
        return None

    return Dialect(refers, effects_of_call, module_capture)


def merged(found: list[Effects | None]) -> Effects | None:
    """The effects of a call that may take any of some compilations; None if one of them is not known.

    Which one the call took is the linker's affair; all of them together is safe.
    """
    known = [effects for effects in found if effects is not None]
    if not known or len(known) < len(found):
        return None
    together = Effects()
    for effects in known:
        together.written |= effects.written
        together.returned |= effects.returned
    together.certainly = {
        origin: statement
        for origin, statement in known[0].certainly.items()
        if all(origin in effects.certainly for effects in known)
    }
    return together
