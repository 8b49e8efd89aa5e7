"""What a call gives: of NumPy and its like, of builtins, of functions and classes of the program."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from cuda_captures.check import arrays
from cuda_captures.check.scopes import Scope
from cuda_captures.check.values import UNKNOWN, Value, Values, host, scalar

if TYPE_CHECKING:
    from cuda_captures.check.origins import Origins

MARKERS = {f"cuda_captures.{name}": name for name in ("live", "snapshot", "mapped", "constant")}


def of_call(origins: Origins, node: ast.Call, scope: Scope, depth: int) -> Values:
    """What a call may give."""
    program = origins.program
    for dotted in sorted(program.dotted(node.func, scope)):
        value = _by_name(origins, dotted, node, scope, depth)
        if value is not None:
            return value
    values: list[Value] = []
    for binding, made in program.definitions(node.func, scope):
        if binding.how == "class" or made.is_class:
            values += _instance(origins, made, node, scope, depth)
        else:
            values += _result(origins, made, depth)
    if values:
        return tuple(values)
    named = _named_tuple(origins, node, scope, depth)
    if named is not None:
        return (named,)
    if isinstance(node.func, ast.Attribute):
        return _method(origins, node.func, node, scope, depth)
    return (UNKNOWN,)


def _by_name(origins: Origins, dotted: str, node: ast.Call, scope: Scope, depth: int) -> Values | None:
    """What a function known by its dotted name gives."""
    from cuda_captures.check import origins as rules

    def fold(one: ast.expr) -> object:
        return origins.fold(one, scope, depth)

    module, _, name = dotted.rpartition(".")
    plain = dotted.removeprefix("builtins.")
    if plain in rules.NUMBERS:
        number = fold(node)
        return (scalar(number if isinstance(number, (int, float)) else None),)
    for known, what in (
        (rules.LISTS, "list"),
        (rules.DICTIONARIES, "dictionary"),
        (rules.SETS, "set"),
        (rules.RANGES, "range"),
    ):
        if plain in known:
            return (Value("container", plain if plain == "frozenset" else what),)
    if plain == "tuple":
        return (Value("tuple", "tuple"),)
    if plain in ("abs", "min", "max"):
        return origins.elementwise(node.args, scope, depth)
    if module == "math" or dotted in ("os.cpu_count", "time.time"):
        return (scalar(),)
    if dotted in MARKERS and node.args:
        return tuple(one.but(marked=MARKERS[dotted], node=None) for one in origins.of(node.args[0], scope, depth))
    if module in arrays.LIBRARIES or module in arrays.CUDA:
        return _of_array_library(origins, module, name, node, scope, depth)
    if module in ("numpy.random", "random") and name in (*arrays.RANDOM, *arrays.RANDOM_SHAPED):
        return (arrays.random(name, node, fold),) if module == "numpy.random" else (scalar(),)
    if module == "numpy.fft" and name in arrays.FFT:
        return (host(),)
    if dotted == "types.SimpleNamespace":
        return (Value("object", "simple namespace"),)
    if dotted == "numpy.random.default_rng" or dotted == "numpy.random.RandomState":
        return (Value("object", "numpy.random.Generator"),)
    if module == "torch" and name in arrays.TORCH_MADE:
        device = next((fold(one.value) for one in node.keywords if one.arg == "device"), None)
        on_device = isinstance(device, str) and device.startswith("cuda")
        return (Value("device", "PyTorch tensor") if on_device else Value("object", "PyTorch tensor on the host"),)
    return None


def _of_array_library(
    origins: Origins, module: str, name: str, node: ast.Call, scope: Scope, depth: int
) -> Values | None:
    """What a function of NumPy, of a library like it, or of ``numba.cuda`` gives."""

    def fold(one: ast.expr) -> object:
        return origins.fold(one, scope, depth)

    if module in arrays.CUDA:
        if name not in arrays.DEVICE_MADE | arrays.HOST_MADE:
            return None
        base = Value("device", "device array") if name in arrays.DEVICE_MADE else host()
    else:
        kind, what = arrays.LIBRARIES[module]
        base = Value("device", what) if kind == "device" else host()
    if arrays.dtype_of(name) is not None and module in arrays.LIBRARIES and name not in ("copy", "array"):
        number = fold(node.args[0]) if node.args else 0
        return (scalar(number if isinstance(number, (int, float)) else None),)
    if name in arrays.MADE or module in arrays.CUDA:
        given = origins.of(node.args[0], scope, depth) if node.args else ()
        first = given[0] if len(given) == 1 else None
        value = arrays.made(name, node, base, first, fold)
        if module == "numpy" and first is not None and first.kind == "device" and name not in arrays.CONVERTED:
            value = base
        return None if value is None else (value.but(guessed=name == "load"),)
    if name in arrays.ELEMENTWISE:
        found = origins.elementwise(node.args, scope, depth)
        return found if any(one.is_array or one.kind == "scalar" for one in found) else (UNKNOWN,)
    if name in arrays.REDUCING:
        return (UNKNOWN,) if any(one.arg == "axis" for one in node.keywords) or len(node.args) > 1 else (scalar(),)
    if name == "dtype":
        return (Value("dtype", "dtype"),)
    every = [one for argument in node.args for one in origins.of(argument, scope, depth)]
    return (base.but(guessed=True),) if any(one.is_array for one in every) else (UNKNOWN,)


def _result(origins: Origins, function: Scope, depth: int) -> Values:
    """What a function of the program returns."""
    node = function.node
    if function in origins.pending or isinstance(node, ast.AsyncFunctionDef):
        return (UNKNOWN,)
    if isinstance(node, ast.FunctionDef) and node.decorator_list:
        return (UNKNOWN,)  # the decorator may change it
    results = [one for reading in origins.program.readings for one in reading.returns.get(function, ())]
    if not results:
        return (UNKNOWN,)
    origins.pending.add(function)
    try:
        return tuple(one.but(literal=False) for result in results for one in origins.of(result, function, depth))
    finally:
        origins.pending.discard(function)


def _instance(origins: Origins, made: Scope, node: ast.Call, scope: Scope, depth: int) -> Values:
    """An instance of a class of the program; a named tuple is a tuple."""
    assert isinstance(made.node, ast.ClassDef)
    around = made.parent or made
    bases = {one for base in made.node.bases for one in origins.program.dotted(base, around)}
    if bases & {"typing.NamedTuple"}:
        given = [*node.args, *(one.value for one in node.keywords)]
        return (origins.tuple_of(given, scope, depth, f"named tuple {made.name}"),)
    if bases & {"builtins.tuple", "enum.Enum", "enum.IntEnum"} or any(
        isinstance(base, ast.Call) for base in made.node.bases
    ):
        return (UNKNOWN,)
    kind = "dataclass" if is_dataclass(made, origins) else "class"
    return (Value("object", f"object of {kind} {made.name}"),)


def is_dataclass(made: Scope, origins: Origins) -> bool:
    """Whether a class of the program is a dataclass."""
    assert isinstance(made.node, ast.ClassDef)
    for decorator in made.node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if "dataclasses.dataclass" in origins.program.dotted(called, made.parent or made):
            return True
    return False


def _named_tuple(origins: Origins, node: ast.Call, scope: Scope, depth: int) -> Value | None:
    """A tuple whose class is what ``collections.namedtuple`` gave."""
    from cuda_captures.check.program import Variable

    for referent in origins.program.referents(node.func, scope):
        for binding in referent.bindings if isinstance(referent, Variable) else ():
            made = binding.value
            if isinstance(made, ast.Call) and origins.program.dotted(made.func, binding.scope) & {
                "collections.namedtuple"
            }:
                given = [*node.args, *(one.value for one in node.keywords)]
                return origins.tuple_of(given, scope, depth, f"named tuple {binding.name}")
    return None


def _method(origins: Origins, called: ast.Attribute, node: ast.Call, scope: Scope, depth: int) -> Values:
    """What a method of an array gives."""
    name = called.attr
    values: list[Value] = []
    for base in origins.of(called.value, scope, depth):
        values.append(_method_of(origins, base, name, node, scope, depth))
    return tuple(values)


def _method_of(origins: Origins, base: Value, name: str, node: ast.Call, scope: Scope, depth: int) -> Value:
    def fold(one: ast.expr) -> object:
        return origins.fold(one, scope, depth)

    if base.what == "numpy.random.Generator" and name in (*arrays.RANDOM, *arrays.RANDOM_SHAPED):
        return arrays.random(name, node, fold)
    if base.what.startswith("PyTorch") and (
        name == "cuda" or (name == "to" and node.args and str(fold(node.args[0])).startswith("cuda"))
    ):
        return Value("device", "PyTorch tensor")
    if not base.is_array:
        return UNKNOWN
    if name in ("copy_to_host", "get") or (name == "numpy" and not node.args):
        return host(base.shape, base.dtype)
    if name == "tolist":
        return Value("container", "list")
    if name == "item" or (name in arrays.REDUCING and not node.args and not node.keywords):
        return scalar()
    if name == "astype" and node.args:
        return base.but(dtype=arrays.dtype_of(fold(node.args[0])), node=None)
    if name in ("copy", "conj", "conjugate", "round", "clip", "flatten", "ravel", "reshape"):
        if name in ("flatten", "ravel", "reshape"):
            return _reshaped(base, name, node, fold)
        return base.but(node=None)
    if name in arrays.SAME:
        return base.but(shape=None, dtype=None if name == "view" else base.dtype, node=None)
    return UNKNOWN


def _reshaped(base: Value, name: str, node: ast.Call, fold: arrays.Folded) -> Value:
    """The same elements in another shape."""
    bytes_before, dtype = base.nbytes, base.dtype
    count = None if bytes_before is None or dtype is None or not dtype.itemsize else bytes_before // dtype.itemsize
    if name in ("flatten", "ravel"):
        return base.but(shape=(count,), node=None)
    shape = arrays.shape_of(fold(node.args[0]) if len(node.args) == 1 else tuple(fold(one) for one in node.args))
    if shape is not None and count is not None and (any(one is None or one < 0 for one in shape)):
        shape = (count,)  # the shape is of no account but for the bytes
    return base.but(shape=shape, node=None)
