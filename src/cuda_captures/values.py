"""Values as text that is equal only for values that compile to the same code.

Equality of Python is not enough: ``0.0 == -0.0``, ``1 == True == 1.0``.  The text holds types and bits, no address,
and nothing that depends on the order of a hash.
"""

from __future__ import annotations

import enum
import hashlib
import math
import struct
from collections.abc import Callable
from types import EllipsisType, ModuleType
from typing import Any

import numpy as np

from cuda_captures.libraries import library_object


class Unidentifiable(Exception):
    """A value that no text can stand for; the argument says why."""


def text_of(value: Any, hint: str = "") -> str:
    """A value as text.

    Raises
    ------
    Unidentifiable
        For values whose meaning for the compiler cannot be seen; never a guess.
    """
    writer = _WRITERS.get(type(value))
    if writer is not None:
        return writer(value)
    return _other(value, hint)


def enum_class(value: object) -> type[enum.Enum] | None:
    """The enumeration that a value is, or is a member of; None for anything else."""
    kind = value if isinstance(value, type) else type(value)
    return kind if issubclass(kind, enum.Enum) else None


def _float(value: float) -> str:
    if math.isnan(value):
        return f"float nan {struct.pack('>d', value).hex()}"
    return f"float {value!r}"


def _complex(value: complex) -> str:
    return f"complex ({_float(value.real)}, {_float(value.imag)})"


def _bytes(value: bytes) -> str:
    return f"bytes {len(value)} {shortened(value)}"


def _str(value: str) -> str:
    return f"str {value!a}"


def _slice(value: slice) -> str:
    return f"slice ({text_of(value.start)}, {text_of(value.stop)}, {text_of(value.step)})"


def _range(value: range) -> str:
    return f"range ({value.start}, {value.stop}, {value.step})"


def _tuple(value: tuple[Any, ...]) -> str:
    return f"({', '.join(map(text_of, value))})"


def _frozenset(value: frozenset[Any]) -> str:
    return f"frozenset ({', '.join(sorted(map(text_of, value)))})"


_WRITERS: dict[type, Callable[[Any], str]] = {
    type(None): lambda value: "None",
    bool: lambda value: f"bool {value}",
    int: lambda value: f"int {value}" if -(1 << 200) < value < 1 << 200 else f"int {value:#x}",
    float: _float,
    complex: _complex,
    str: _str,
    bytes: _bytes,
    tuple: _tuple,
    slice: _slice,
    range: _range,
    frozenset: _frozenset,
    EllipsisType: lambda value: "Ellipsis",
}

# Types whose values text can stand for, without a look at the value; and those whose values change.
PLAIN = frozenset(_WRITERS) - {tuple, frozenset, slice}
CONTAINERS = (list, dict, set, bytearray)


def one_line(text: str) -> str:
    """Text without line breaks, so that no name with one in it can look like another line of a key."""
    return text.replace("\\", "\\\\").replace("\n", "\\n") if "\n" in text else text


def shortened(data: bytes) -> str:
    """Some bytes as text: themselves if few, else a digest."""
    return data.hex() if len(data) <= 64 else "digest " + hashlib.blake2b(data, digest_size=20).hexdigest()


def _other(value: Any, hint: str) -> str:
    if isinstance(value, np.generic):
        if value.dtype.hasobject:
            raise Unidentifiable("it is a record with Python objects")
        return f"{dtype_text(value.dtype)} {value!s} [{shortened(value.tobytes())}]".replace("\n", " ")
    if isinstance(value, np.dtype):
        return f"dtype {dtype_text(value)}"
    if isinstance(value, enum.Enum):
        return _member(value)
    if isinstance(value, type):
        return _class(value, hint)
    if isinstance(value, tuple):
        return f"{named(type(value))}{getattr(type(value), '_fields', '')}({', '.join(map(text_of, value))})"
    if is_compiler_type(value):
        return _compiler_type(value)
    library = None if isinstance(value, ModuleType) else library_object(value, hint)
    if library is not None:
        return library
    raise Unidentifiable(why_not(value))


def _member(value: enum.Enum) -> str:
    kinds = ", ".join(kind.__name__ for kind in type(value).__mro__[1:-1])
    return f"enum {named(type(value))}({kinds}).{value.name} = {text_of(value.value)}"


def _class(value: type, hint: str) -> str:
    if issubclass(value, enum.Enum):
        kinds = ", ".join(kind.__name__ for kind in value.__mro__[1:-1])
        members = ", ".join(f"{name} = {text_of(one.value)}" for name, one in value.__members__.items())
        return f"enum class {named(value)}({kinds}): {members}"
    library = library_object(value, hint)
    if library is not None:
        return library
    fields = getattr(value, "_fields", None)
    if issubclass(value, tuple) and isinstance(fields, tuple):
        defaults = getattr(value, "_field_defaults", {})
        texts = ", ".join(f"{name} = {text_of(defaults[name])}" if name in defaults else name for name in fields)
        return f"named tuple class {named(value)}: {texts}"
    raise Unidentifiable("it is a class, whose meaning for the compiler is defined elsewhere")


def named(kind: type) -> str:
    """A class by module and qualified name."""
    return f"{kind.__module__}.{kind.__qualname__}"


_COMPILERS = ("numba", "numba_cuda", "numba_cuda_mlir")

# Types of the compilers whose text says everything, and those whose text does if that of what they are made of does.
# The text of others is a name only, or an address.
_SPELT_OUT = frozenset(
    {
        "Boolean",
        "BooleanLiteral",
        "CharSeq",
        "Complex",
        "Float",
        "Integer",
        "IntegerLiteral",
        "NPDatetime",
        "NPTimedelta",
        "NoneType",
        "Record",
        "UnicodeCharSeq",
    }
)
_MADE_OF_OTHERS = frozenset({"Array", "NestedArray", "Tuple", "UniTuple"})


def is_compiler_type(value: Any) -> bool:
    """Whether a value is a type of one of the compilers, such as ``numba.float32``."""
    kind = type(value)
    return kind.__module__.partition(".")[0] in _COMPILERS and any(base.__name__ == "Type" for base in kind.__mro__)


def _compiler_type(value: Any) -> str:
    kind = type(value)
    if kind.__name__ in _MADE_OF_OTHERS:
        for part in (*getattr(value, "types", ()), getattr(value, "dtype", None)):
            if part is not None:
                _compiler_type(part)
    elif kind.__name__ not in _SPELT_OUT:
        raise Unidentifiable(f"it is the compiler's type {kind.__name__}, which refers to an object")
    return f"compiler type {named(kind)} {value.name}"


def dtype_text(dtype: np.dtype[Any]) -> str:
    """A dtype with everything that compiled code depends on: order of bytes, offsets, sizes, alignment, titles."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return f"{dtype_text(base)}{list(shape)}"
    if dtype.fields is None:
        return dtype.str[1:] if dtype.byteorder in "|=" or dtype.isnative else dtype.str
    names = dtype.names or ()
    parts = []
    for name in names:
        field = dtype.fields[name]
        title = f" title {text_of(field[2])}" if len(field) > 2 else ""
        parts.append(f"{name!a}: {dtype_text(field[0])} at {field[1]}{title}")
    aligned = " aligned" if dtype.isalignedstruct else ""
    return f"record{{{', '.join(parts)}}} of {dtype.itemsize}{aligned} to {dtype.alignment}"


def why_not(value: Any) -> str:
    """Why a value cannot be identified, to follow the words "cannot be identified:"."""
    if isinstance(value, CONTAINERS):
        kind = type(value).__name__
        return f"it is a {kind}, whose items may change one by one; an array (`np.array(...)`) is captured by reference"
    return f"it is an object of {named(type(value))}, whose meaning for the compiler is defined elsewhere"
