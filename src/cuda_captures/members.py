"""Objects whose attributes kernels read: dataclass instances, simple namespaces, and classes of the user's own.

What an attribute is, is looked up without running any code of the user's: a property or a method is known by what the
class holds, and told by name.  Pure functions; any thread may call them.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import sys
from types import FunctionType, MemberDescriptorType, SimpleNamespace
from typing import Any, Final

import numpy as np

from cuda_captures.libraries import PYTHON, library_of

# Classes of these are the compiler's to understand (`cuda.atomic` is one), not objects with attributes of the user's.
_OTHERS = frozenset({"numpy", "numba", "numba_cuda", "numba_cuda_mlir", "cuda", "cupy", "torch", "llvmlite", "ctypes"})
_NOT_THERE: Final = object()


def has_members(value: object) -> bool:
    """Whether kernels read attributes of a value one by one.

    So it is for instances of dataclasses, for ``types.SimpleNamespace``, and for classes that are the user's own and
    of no kind that a compiler knows (enumerations, exceptions, tuples, numbers).  An object that says its numba type
    (``_numba_type_``) is the compiler's.
    """
    if isinstance(value, type):
        return is_users_class(value)
    kind = type(value)
    if not (isinstance(value, SimpleNamespace) or dataclasses.is_dataclass(kind)):
        return False
    return not isinstance(value, tuple) and not hasattr(kind, "_numba_type_")


def frozen_fields(value: object) -> frozenset[str]:
    """The fields of an instance of a frozen dataclass, which stay what they are; none for anything else."""
    kind = type(value)
    parameters = getattr(kind, "__dataclass_params__", None)
    if isinstance(value, type) or parameters is None or not parameters.frozen:
        return frozenset()
    return _field_names(kind)


def why_no_member(value: object, name: str) -> str:
    """Why a kernel cannot read an attribute of an object, in words that follow the attribute's name; empty if it can.

    Examples
    --------
    ``"is a property, which is code"``.
    """
    if name.startswith("__") and name.endswith("__"):
        return "is one of Python's special attributes"
    if not isinstance(value, type) and (name in _field_names(type(value)) or name in getattr(value, "__dict__", ())):
        return "" if inspect.getattr_static(value, name, _NOT_THERE) is not _NOT_THERE else "is not set"
    held = inspect.getattr_static(value, name, _NOT_THERE)
    if held is _NOT_THERE:
        dynamic = inspect.getattr_static(type(value), "__getattr__", None)
        return "is not there" if dynamic is None else "is made by `__getattr__`, which is code"
    return _why_not_plain(value, held)


def _why_not_plain(value: object, held: Any) -> str:
    """Why what a class holds under a name is no plain attribute; empty if it is one."""
    if isinstance(held, (staticmethod, MemberDescriptorType)):
        return ""
    if isinstance(held, (property, functools.cached_property)):
        return "is a property, which is code"
    if isinstance(held, classmethod):
        return "is a class method, which takes a class"
    function = isinstance(held, FunctionType) or hasattr(held, "py_func")
    if function:
        return "" if isinstance(value, type) else "is a method, which takes an object"
    return "is a descriptor, which is code" if hasattr(type(held), "__get__") else ""


def is_users_class(kind: type) -> bool:
    """Whether a class is the user's own, and of no kind that a compiler knows."""
    if issubclass(kind, (enum.Enum, BaseException, tuple, np.generic)):
        return False
    home = kind.__module__
    if home.partition(".")[0] in _OTHERS or hasattr(kind, "_numba_type_"):
        return False
    module = sys.modules.get(home)
    return module is None or home == "__main__" or library_of(module) != PYTHON


def _field_names(kind: type) -> frozenset[str]:
    return (
        frozenset(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else frozenset()
    )
