"""How numba-cuda spells what the analysis of writes asks about."""

from __future__ import annotations

from typing import Any

from numba import cuda
from numba.cuda import types
from numba.cuda.dispatcher import CUDADispatcher

from cuda_captures.writes import Dialect, Effects

from .stand_ins import module_capture

# Types whose values hold no reference to an array's memory.
PLAIN = (
    types.Number,
    types.Boolean,
    types.NPDatetime,
    types.NPTimedelta,
    types.NoneType,
    types.UnicodeType,
    types.Literal,
    types.SliceType,
    types.RangeType,
    types.RangeIteratorType,
    types.EnumMember,
    types.Module,
    types.DType,
    types.Function,
    types.Dispatcher,
    types.Omitted,
)

ATOMICS = tuple(
    getattr(cuda.atomic, name)
    for name in ("add", "sub", "and_", "or_", "xor", "inc", "dec", "exch", "max", "min", "nanmax", "nanmin", "compare_and_swap", "cas")
)
READING_METHODS = frozenset(
    {"sum", "prod", "min", "max", "mean", "var", "std", "argmin", "argmax", "any", "all", "copy", "item"}
    | {"view", "reshape", "transpose", "ravel", "flatten", "astype", "count", "index"}
)
# Functions of NumPy that write an argument; every other one only reads what it is given.
WRITING_FUNCTIONS = frozenset({"put", "place", "fill_diagonal", "copyto", "putmask", "shuffle"})
READING_BUILTINS = frozenset(
    {len, min, max, sum, abs, enumerate, zip, iter, reversed, tuple, print, range, bool, isinstance}
)


def refers(typed: Any) -> bool:
    """Whether a value of this type may refer to an array's memory."""
    if typed is None:
        return True
    if isinstance(typed, types.BaseTuple):
        return any(map(refers, typed.types))
    if isinstance(typed, types.Optional):
        return refers(typed.type)
    return not isinstance(typed, PLAIN)


def effects_of_call(expr: Any, function_type: Any) -> Effects | str | None:
    """What a call does to what it is given."""
    if isinstance(function_type, types.Dispatcher):
        return effects_of_dispatcher(function_type.dispatcher, expr)
    if isinstance(function_type, types.BoundFunction):
        return "reads" if str(function_type.key[0]).rpartition(".")[2] in READING_METHODS else None
    function = getattr(function_type, "typing_key", None)
    if function is None:
        return None
    if any(function is atomic for atomic in ATOMICS):
        return "atomic"
    if function is cuda.const.array_like or (callable(function) and function in READING_BUILTINS):
        return "reads"
    module = getattr(function, "__module__", None) or ""
    if module.partition(".")[0] in ("numpy", "math", "operator", "_operator", "cmath"):
        return None if getattr(function, "__name__", "") in WRITING_FUNCTIONS else "reads"
    return None


def effects_of_dispatcher(dispatcher: Any, expr: Any) -> Effects | None:
    """What a device function does, recorded when it was compiled for these argument types."""
    if not isinstance(dispatcher, CUDADispatcher) or expr.kws or expr.vararg is not None:
        return None
    found: list[Effects] = []
    for arguments, result in dispatcher.overloads.items():
        if len(arguments) == len(expr.args):
            effects = getattr(result.library, "effects", None)
            if effects is None:
                return None
            found.append(effects)
    if not found:
        return None
    merged = Effects()
    for effects in found:  # which overload the call took is the linker's affair; all of them together is safe
        merged.written |= effects.written
        merged.returned |= effects.returned
    merged.certainly = {
        origin: statement
        for origin, statement in found[0].certainly.items()
        if all(origin in effects.certainly for effects in found)
    }
    return merged


DIALECT = Dialect(refers, effects_of_call, module_capture)
