"""What the functions of NumPy, CuPy, numba.cuda and their like give, by name."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable

import numpy as np

from cuda_captures.check.values import Value, host, scalar

Shape = tuple[int | None, ...] | None
Dtype = np.dtype[np.generic] | None

# Modules with NumPy's functions, and what their arrays are.
LIBRARIES = {
    "numpy": ("host", "NumPy array"),
    "cupy": ("device", "CuPy array"),
    "cupynumeric": ("host", "NumPy array"),
    "jax.numpy": ("device", "JAX array"),
}
CUDA = ("numba.cuda", "numba_cuda_mlir.cuda")
DEVICE_MADE = {"to_device", "device_array", "device_array_like", "as_cuda_array", "from_cuda_array_interface"} | {
    "managed_array",
    "mapped_array",
    "mapped_array_like",
}
HOST_MADE = {"pinned_array", "pinned_array_like"}
SHAPED = {"zeros", "ones", "empty", "full", "ndarray", "device_array", "managed_array", "mapped_array", "pinned_array"}
LIKE = {f"{name}_like" for name in ("zeros", "ones", "empty", "full", "device_array", "mapped_array", "pinned_array")}
CONVERTED = {"array", "asarray", "ascontiguousarray", "asfortranarray", "asanyarray", "copy", "require"} | {
    "to_device",
    "as_cuda_array",
}
MADE = SHAPED | LIKE | CONVERTED
MADE |= {"arange", "linspace", "logspace", "geomspace", "eye", "identity", "tri", "diag", "diagflat", "vander"}
MADE |= {"fromfile", "frombuffer", "fromiter", "fromstring", "fromfunction", "loadtxt", "genfromtxt", "memmap", "load"}
MADE |= {"concatenate", "stack", "vstack", "hstack", "dstack", "column_stack", "tile", "repeat", "outer", "kron"}
MADE |= {
    "reshape",
    "ravel",
    "transpose",
    "swapaxes",
    "moveaxis",
    "expand_dims",
    "squeeze",
    "broadcast_to",
    "roll",
    "flip",
}
MADE |= {
    "sort",
    "argsort",
    "unique",
    "cumsum",
    "cumprod",
    "diff",
    "pad",
    "where",
    "clip",
    "convolve",
    "histogram_bin_edges",
}
MADE |= {"hanning", "hamming", "blackman", "kaiser", "bartlett", "append", "insert", "delete", "meshgrid_", "packbits"}
MADE |= {"atleast_1d", "atleast_2d", "atleast_3d", "flatnonzero", "triu", "tril", "cross", "searchsorted_", "require"}
FFT = {
    "fft",
    "ifft",
    "rfft",
    "irfft",
    "fft2",
    "ifft2",
    "fftn",
    "ifftn",
    "rfftn",
    "fftfreq",
    "rfftfreq",
    "fftshift",
    "ifftshift",
}
INDEXERS = {"r_", "c_", "mgrid", "ogrid"}
# Elementwise: of scalars a scalar, of arrays an array.
ELEMENTWISE = {name for name in dir(np) if isinstance(getattr(np, name), np.ufunc)} | {
    "round", "around", "real", "imag", "nan_to_num", "angle", "conj", "sinc", "i0", "interp", "rint", "fix",
}  # fmt: skip
REDUCING = {
    "sum",
    "prod",
    "min",
    "max",
    "mean",
    "median",
    "std",
    "var",
    "any",
    "all",
    "argmin",
    "argmax",
    "amin",
    "amax",
}
REDUCING |= {
    "ptp",
    "average",
    "nansum",
    "nanmax",
    "nanmin",
    "nanmean",
    "percentile",
    "quantile",
    "count_nonzero",
    "trapezoid",
}
RANDOM_SHAPED = {"rand": None, "randn": None}
RANDOM = {
    "random",
    "random_sample",
    "ranf",
    "sample",
    "uniform",
    "normal",
    "randint",
    "integers",
    "exponential",
    "poisson",
}
RANDOM |= {"standard_normal", "lognormal", "binomial", "choice", "permutation", "gamma", "beta"}
# Methods that give an array of the same kind.
SAME = {"astype", "copy", "reshape", "ravel", "flatten", "transpose", "view", "squeeze", "swapaxes", "byteswap", "clip"}
SAME |= {
    "repeat",
    "take",
    "conj",
    "conjugate",
    "cumsum",
    "cumprod",
    "round",
    "diagonal",
    "contiguous",
    "clone",
    "detach",
}
TORCH_MADE = {
    "tensor",
    "zeros",
    "ones",
    "empty",
    "full",
    "arange",
    "linspace",
    "rand",
    "randn",
    "as_tensor",
    "eye",
    "randint",
}

Folded = Callable[[ast.expr], object]  # the number, string or tuple of such that an expression is, or None


def argument(call: ast.Call, position: int, *names: str) -> ast.expr | None:
    """An argument of a call by position or name."""
    if len(call.args) > position >= 0 and not any(isinstance(one, ast.Starred) for one in call.args[: position + 1]):
        return call.args[position]
    return next((one.value for one in call.keywords if one.arg in names), None)


def dtype_of(text: object) -> Dtype:
    """A dtype from its name, such as ``"float32"``, ``"<f4"`` or ``"numpy.float32"``."""
    if not isinstance(text, str):
        return None
    name = (
        text.rpartition(".")[2]
        if text.startswith(("numpy.", "cupy.", "jax.", "torch.", "builtins.", "numba."))
        else text
    )
    try:
        return np.dtype({"long": "int64", "single": "float32", "double": "float64"}.get(name, name))
    except TypeError:
        return None


def shape_of(folded: object) -> Shape:
    """A shape from a number or a tuple."""
    if isinstance(folded, int) and not isinstance(folded, bool):
        return (folded,)
    if isinstance(folded, tuple):
        return tuple(one if isinstance(one, int) else None for one in folded)
    return None


def made(name: str, call: ast.Call, base: Value, given: Value | None, fold: Folded) -> Value | None:
    """What a function that makes arrays gives.

    Parameters
    ----------
    name
        The function's name in its module.
    call
        The call.
    base
        An array of the library's kind, of which nothing else is known.
    given
        What the first argument is, if that is known.
    fold
        Finds the number, string, tuple or dtype's name that an expression is.
    """
    position = {"full": 2, "full_like": 2, "arange": 3, "linspace": 5, "eye": 3, "geomspace": 4, "logspace": 4}.get(
        name, 1
    )
    written = argument(call, position, "dtype")
    dtype = dtype_of(fold(written)) if written is not None else None
    double = np.dtype("float64") if written is None else dtype
    first = argument(call, 0, "shape", "N", "object", "a", "start", "stop", "obj", "ary", "M")
    value = None if first is None else fold(first)
    if name in SHAPED:
        if name == "full" and written is None:
            double = _dtype_of_number(fold(argument(call, 1, "fill_value") or ast.Constant(None)))
        if name in ("device_array", "managed_array", "mapped_array", "pinned_array") and written is None:
            double = np.dtype("float64")
        return base.but(shape=shape_of(value), dtype=double)
    if name in LIKE:
        known = given if given is not None and given.is_array else base
        return base.but(shape=known.shape, dtype=known.dtype if written is None else dtype)
    if name in CONVERTED:
        return _converted(base, given, first, written, dtype)
    if name in ("eye", "identity", "tri"):
        rows = value if isinstance(value, int) else None
        second = argument(call, 1, "M") if name != "identity" else None
        columns = fold(second) if second is not None else rows
        if name == "identity":
            second = argument(call, 1, "dtype")
            double = np.dtype("float64") if second is None else dtype_of(fold(second))
        return base.but(shape=(rows, columns if isinstance(columns, int) else None), dtype=double)
    if name == "arange":
        return base.but(**_ranged([fold(one) for one in call.args[:3]], written, dtype))
    if name in ("linspace", "logspace", "geomspace"):
        count = argument(call, 2, "num")
        number = 50 if count is None else fold(count)
        return base.but(shape=(number if isinstance(number, int) else None,), dtype=double)
    return base.but(dtype=dtype)


def random(name: str, call: ast.Call, fold: Folded) -> Value:
    """What a function or method of ``numpy.random`` gives."""
    if name in RANDOM_SHAPED:
        sizes = [fold(one) for one in call.args]
        return host(shape_of(tuple(sizes)), np.dtype("float64")) if sizes else scalar()
    only_size = name in ("random", "random_sample", "standard_normal", "ranf", "sample")
    size = argument(call, 0 if only_size else 2, "size")
    if size is None:
        return scalar() if name not in ("permutation", "choice") else Value("unknown")
    floating = name not in ("randint", "integers", "choice", "permutation", "binomial", "poisson")
    dtype = next((dtype_of(fold(one.value)) for one in call.keywords if one.arg == "dtype"), np.dtype("float64"))
    return host(shape_of(fold(size)), dtype if floating else None)


def _converted(base: Value, given: Value | None, first: ast.expr | None, written: object, dtype: Dtype) -> Value:
    if given is not None and given.is_array:
        return base.but(shape=given.shape, dtype=given.dtype if written is None else dtype)
    if given is not None and given.kind == "scalar":
        return base.but(shape=(), dtype=dtype)
    shape, number = _literal(first) if first is not None else (None, None)
    if shape is None:
        return base.but(dtype=dtype)
    return base.but(shape=shape, dtype=dtype if written is not None else number)


def _literal(node: ast.expr) -> tuple[Shape, Dtype]:
    """Shape and dtype of nested lists of numbers."""
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    if isinstance(node, ast.Constant):
        return (), _dtype_of_number(node.value)
    if not isinstance(node, (ast.List, ast.Tuple)) or any(isinstance(one, ast.Starred) for one in node.elts):
        return None, None
    if not node.elts:
        return (0,), np.dtype("float64")
    inner = [_literal(one) for one in node.elts]
    first = next((shape for shape, _ in inner if shape is not None), None)
    dtypes = [dtype for _, dtype in inner]
    dtype = np.result_type(*dtypes) if all(one is not None for one in dtypes) else None
    if first is None:
        # Expressions, most likely numbers: the count of them is known, and no more.
        return None, None
    if any(shape is not None and shape != first for shape, _ in inner):
        return None, None
    return (len(node.elts), *first), dtype


def _dtype_of_number(number: object) -> Dtype:
    if isinstance(number, (bool, int, float, complex)):
        return np.asarray(number).dtype
    return None


def _ranged(bounds: list[object], written: object, dtype: Dtype) -> dict[str, object]:
    numbers = [one for one in bounds if isinstance(one, (int, float))]
    if not numbers or len(numbers) != len(bounds):
        return {"shape": (None,), "dtype": dtype}
    start, stop, step = 0.0, float(numbers[0]), 1.0
    if len(numbers) > 1:
        start, stop = float(numbers[0]), float(numbers[1])
    if len(numbers) > 2:
        step = float(numbers[2])
    count = max(0, math.ceil((stop - start) / step)) if step and math.isfinite(stop) else None
    if written is None:
        dtype = np.dtype("int64") if all(isinstance(one, int) for one in numbers) else np.dtype("float64")
    return {"shape": (count,), "dtype": dtype}
