"""What a kernel executed on the CPU finds instead of the GPU's intrinsics and libraries.

Three sources, in this order:

- :data:`DEVICE_FUNCTIONS`, LLVM IR that is linked with the kernel, for what NVVM calls ``llvm.nvvm.…`` (here
  ``device.nvvm.…``: LLVM lets nobody define a name of its own) and for libdevice's integer functions;
- the C library's mathematics for libdevice's other functions, so results equal those of Python's ``math``;
- NumPy, called back, for half precision, which numba-cuda takes from PTX and from CUDA C++ that is linked in.

State: callbacks are made once per name and kept until the interpreter exits, because compiled code holds their
addresses; any thread may ask for one.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import importlib
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

SREGS = (*(f"{name}.{axis}" for name in ("tid", "ctaid", "ntid", "nctaid") for axis in "xyz"), "laneid")
WARP_SIZE = 32


def _sreg_functions() -> str:
    lines = [f"@device.sregs = global [{len(SREGS)} x i32] zeroinitializer, align 4"]
    for index, name in enumerate(SREGS):
        lines.append(
            f"define linkonce_odr i32 @device.nvvm.read.ptx.sreg.{name}() alwaysinline {{\n"
            f"  %value = load i32, ptr getelementptr ([{len(SREGS)} x i32], ptr @device.sregs, i32 0, i32 {index})\n"
            "  ret i32 %value\n}"
        )
    lines.append(
        f"define linkonce_odr i32 @device.nvvm.read.ptx.sreg.warpsize() alwaysinline {{ ret i32 {WARP_SIZE} }}"
    )
    return "\n".join(lines)


def _wrapped(name: str, results: str, arguments: str, body: str) -> str:
    """A function of libdevice in one expression."""
    return f"define linkonce_odr {results} @__nv_{name}({arguments}) alwaysinline {{\n{body}\n}}"


def _integer_functions() -> Iterable[str]:
    for suffix, bits in (("", 32), ("ll", 64)):
        word = f"i{bits}"
        one, two = f"{word} %a", f"{word} %a, {word} %b"
        narrow = "ret i32 %r" if bits == 32 else "%n = trunc i64 %r to i32\n ret i32 %n"
        yield _wrapped(
            "abs" if bits == 32 else "llabs",
            word,
            one,
            f" %r = call {word} @llvm.abs.{word}({word} %a, i1 false)\n ret {word} %r",
        )
        yield _wrapped(
            f"brev{suffix}", word, one, f" %r = call {word} @llvm.bitreverse.{word}({word} %a)\n ret {word} %r"
        )
        yield _wrapped(f"popc{suffix}", "i32", one, f" %r = call {word} @llvm.ctpop.{word}({word} %a)\n {narrow}")
        yield _wrapped(
            f"clz{suffix}", "i32", one, f" %r = call {word} @llvm.ctlz.{word}({word} %a, i1 false)\n {narrow}"
        )
        yield _wrapped(  # position of the lowest set bit counted from 1, and 0 for 0
            f"ffs{suffix}",
            "i32",
            one,
            f" %t = call {word} @llvm.cttz.{word}({word} %a, i1 false)\n %u = add {word} %t, 1\n"
            f" %z = icmp eq {word} %a, 0\n %r = select i1 %z, {word} 0, {word} %u\n {narrow}",
        )
        for name, intrinsic in (("min", "smin"), ("max", "smax"), ("umin", "umin"), ("umax", "umax")):
            full = name if bits == 32 else (f"ll{name}" if name[0] == "m" else f"ull{name[1:]}")
            yield _wrapped(
                full, word, two, f" %r = call {word} @llvm.{intrinsic}.{word}({word} %a, {word} %b)\n ret {word} %r"
            )


def _float_classes() -> Iterable[str]:
    """Classes as LLVM numbers them: NaN is 3, infinities 516, finite values 504."""
    for stem, mask in (("isnan", 3), ("isinf", 516), ("isfinite", 504)):
        for suffix, kind, size in (("d", "double", "f64"), ("f", "float", "f32")):
            name = "finitef" if (stem, suffix) == ("isfinite", "f") else stem + suffix
            yield _wrapped(
                name,
                "i32",
                f"{kind} %a",
                f" %c = call i1 @llvm.is.fpclass.{size}({kind} %a, i32 {mask})\n %r = zext i1 %c to i32\n ret i32 %r",
            )


def _reciprocal_roots() -> Iterable[str]:
    for suffix, kind, size in (("", "double", "f64"), ("f", "float", "f32")):
        yield _wrapped(
            f"rsqrt{suffix}",
            kind,
            f"{kind} %a",
            f" %s = call {kind} @llvm.sqrt.{size}({kind} %a)\n %r = fdiv {kind} 1.0, %s\n ret {kind} %r",
        )


REDUCTION = "device.red."
_RED = re.compile(r"red(?:\.relaxed\.sys)?\.global\.(\w+\.\w+) \[\$0\], \$1;")
# What PTX names it, LLVM's operation, its type: from the PTX ISA, ``red``, and LLVM's reference, ``atomicrmw``.
REDUCTIONS = (
    *((f"add.u{bits}", "add", f"i{bits}") for bits in (32, 64)),
    *((f"{name}.b{bits}", name, f"i{bits}") for name in ("and", "or", "xor") for bits in (32, 64)),
    *((f"{name}.s{bits}", name, f"i{bits}") for name in ("max", "min") for bits in (32, 64)),
    *((f"{name}.u{bits}", f"u{name}", f"i{bits}") for name in ("max", "min") for bits in (32, 64)),
    ("add.f32", "fadd", "float"),
    ("add.f64", "fadd", "double"),
)


def _atomics() -> Iterable[str]:
    for kind, size in (("float", "f32"), ("double", "f64")):
        yield (
            f"define linkonce_odr {kind} @device.nvvm.atomic.load.add.{size}.p0{size}(ptr %p, {kind} %v) {{\n"
            f" %old = atomicrmw fadd ptr %p, {kind} %v monotonic\n ret {kind} %old\n}}"
        )
    for name, operation in (("inc", "uinc_wrap"), ("dec", "udec_wrap")):
        yield (
            f"define linkonce_odr i32 @device.nvvm.atomic.load.{name}.32.p0i32(ptr %p, i32 %v) {{\n"
            f" %old = atomicrmw {operation} ptr %p, i32 %v monotonic\n ret i32 %old\n}}"
        )
    for name, operation, kind in REDUCTIONS:
        yield (
            f'define linkonce_odr void @"{REDUCTION}{name}"(i64 %address, {kind} %v) {{\n'
            f" %p = inttoptr i64 %address to ptr\n"
            f" %old = atomicrmw {operation} ptr %p, {kind} %v monotonic\n ret void\n}}"
        )
    for scope in ("cta", "gl", "sys"):  # threads run one after another, so memory is always in order
        yield f"define linkonce_odr void @device.nvvm.membar.{scope}() alwaysinline {{ ret void }}"


@functools.cache
def device_functions() -> str:
    """LLVM IR of everything that needs no other library."""
    parts = [*_integer_functions(), *_float_classes(), *_reciprocal_roots(), *_atomics()]
    return "\n".join([_sreg_functions(), *parts]) + "\n"


# Functions of libdevice that the C library has under the same name, for double and (with an f) for float.
LIBM = frozenset(
    re.findall(
        r"\w+",
        """
        acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp10 exp2 expm1
        fabs fdim floor fma fmax fmin fmod frexp hypot ilogb j0 j1 ldexp lgamma llrint llround log log10
        log1p log2 logb modf nearbyint nextafter pow remainder remquo rint round scalbn sin sincos sinh sqrt
        tan tanh tgamma trunc y0 y1
        """,
    )
)


@functools.cache
def _libraries() -> tuple[ctypes.CDLL, ...]:
    return ctypes.CDLL(ctypes.util.find_library("m")), ctypes.CDLL(None)


def library_address(name: str) -> int:
    """Address of a function of the C library."""
    for library in _libraries():
        try:
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        except AttributeError:
            continue
    raise LookupError(name)


@functools.cache
def function_address(name: str) -> int | None:
    """Address on the host of a function that device code calls by this name; None if the host has none."""
    if name.startswith("__nv_"):
        stem = name.removeprefix("__nv_").removeprefix("fast_")
        if stem in LIBM or (stem.endswith("f") and stem[:-1] in LIBM):
            return library_address(stem)
        if stem in ("powi", "powif"):
            return _keep(_power(ctypes.c_double if stem == "powi" else ctypes.c_float))
        return None
    operation = half_operation(name)
    if operation is not None:
        return _keep(operation)
    if name.startswith(CONVERSION):
        return _keep(conversion(name.removeprefix(CONVERSION)))
    if name == "numba_attempt_nocopy_reshape":
        return _reshape_address()
    return None


def _reshape_address() -> int | None:
    """numba's own C function, which reshape_funcs.cu of numba-cuda does again for the device."""
    try:
        helpers = importlib.import_module("numba._helperlib").c_helpers
    except ImportError:
        return None
    return int(helpers["attempt_nocopy_reshape"])


_kept: list[Any] = []


def _keep(callback: Any) -> int:
    _kept.append(callback)
    return ctypes.cast(callback, ctypes.c_void_p).value or 0


def _power(kind: Any) -> Any:
    scalar = np.float64 if kind is ctypes.c_double else np.float32

    def powi(base: float, exponent: int) -> float:
        with np.errstate(all="ignore"):
            return float(np.power(scalar(base), scalar(exponent)))

    return ctypes.CFUNCTYPE(kind, kind, ctypes.c_int32)(powi)


# Half precision: conversions in inline PTX, and shims around CUDA C++ that numba-cuda links.

CONVERSION = "device.cvt."
_CVT = re.compile(r"cvt(?:\.(?P<round>rn|rni|rz|rzi|rm|rmi|rp|rpi))?\.(?P<to>[fsu]\d+)\.(?P<from>[fsu]\d+) \$0, \$1;")
_C_TYPES: dict[str, Any] = {
    **{f"{kind}{bits}": getattr(ctypes, f"c_{name}{bits}") for kind, name in (("s", "int"), ("u", "uint"))
       for bits in (8, 16, 32, 64)},
    "f16": ctypes.c_uint16,
    "f32": ctypes.c_float,
    "f64": ctypes.c_double,
}  # fmt: skip
_DTYPES = {"s": "i", "u": "u", "f": "f"}
_ROUND: dict[str, Callable[[Any], Any]] = {"rn": np.rint, "rz": np.trunc, "rm": np.floor, "rp": np.ceil}


def function_name(assembly: str) -> str | None:
    """The name of the function for one line of PTX; None if there is none."""
    reduced = _RED.fullmatch(assembly)
    if reduced is not None:
        return f"{REDUCTION}{reduced[1]}"
    found = _CVT.fullmatch(assembly)
    if found is None or "f16" not in (found["to"], found["from"]):
        return None
    mode = found["round"] or "rn"
    if found["to"].startswith("f") and mode != "rn":
        return None
    return f"{CONVERSION}{mode.removesuffix('i')}.{found['to']}.{found['from']}"


def conversion(name: str) -> Any:
    """The callback of one conversion, ``rounding.to.from``, rounding to nearest even where it makes a float."""
    mode, to, source = name.split(".")
    into = np.dtype(f"{_DTYPES[to[0]]}{int(to[1:]) // 8}")

    def convert(bits: Any) -> Any:
        value = np.uint16(bits).view(np.float16) if source == "f16" else bits
        with np.errstate(all="ignore"):
            if into.kind != "f":  # PTX clamps to the range, and gives 0 for NaN
                if np.isnan(value):
                    return 0
                limits = np.iinfo(into)
                return min(max(int(_ROUND[mode](np.clip(np.float64(value), -1e19, 1e19))), limits.min), limits.max)
            made = np.asarray(value).astype(into)
        return int(made.view(np.uint16)) if to == "f16" else float(made)

    return ctypes.CFUNCTYPE(_C_TYPES[to], _C_TYPES[source])(convert)


_SHIM = re.compile(r"_Z(?:(?P<operator>[a-z]{2})RK6__half(?:S1_)?|L\d+(?P<name>[a-z_]\w*?)6__half(?:S_)*)_nbst")
_OPERATORS: dict[str, Callable[..., Any]] = {
    "pl": np.add, "mi": np.subtract, "ml": np.multiply, "dv": np.divide, "ng": np.negative, "ps": np.positive,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_NAMED: dict[str, Callable[..., Any]] = {
    "__habs": np.abs, "hsqrt": np.sqrt, "hfloor": np.floor, "hceil": np.ceil, "htrunc": np.trunc, "hrint": np.rint,
    "__hadd": np.add, "__hsub": np.subtract, "__hmul": np.multiply, "__hdiv": np.divide, "__hneg": np.negative,
    "__hmax": np.fmax, "__hmin": np.fmin,
}  # fmt: skip


def half_operation(name: str) -> Any | None:
    """The callback of one shim: writes the result through its first pointer, reads operands through the others."""
    found = _SHIM.fullmatch(name)
    if found is None:
        return None
    function = _OPERATORS.get(found["operator"] or "") or _NAMED.get(found["name"] or "")
    if function is None:
        return None
    operands = 1 if function in (np.negative, np.positive) or getattr(function, "nin", 0) == 1 else 2

    def operate(result: int, *pointers: int) -> int:
        values = [np.uint16(ctypes.c_uint16.from_address(pointer).value).view(np.float16) for pointer in pointers]
        with np.errstate(all="ignore"):
            made = function(*values)
        if made.dtype == np.bool_:
            ctypes.c_uint8.from_address(result).value = int(made)
        else:
            ctypes.c_uint16.from_address(result).value = int(np.float16(made).view(np.uint16))
        return 0

    return ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, *[ctypes.c_void_p] * operands)(operate)
