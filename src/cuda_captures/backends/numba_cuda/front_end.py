"""Captured arrays in numba-cuda's front end."""

from __future__ import annotations

from typing import Any

from numba import cuda
from numba.cuda import types
from numba.cuda.core import errors, ir
from numba.cuda.core.interpreter import Interpreter
from numba.cuda.core.typeinfer import TypeInferer
from numba.cuda.descriptor import cuda_target
from numba.cuda.target import CUDATypingContext
from numba.cuda.typing.typeof import Purpose, typeof, typeof_impl

from cuda_captures.backends.by_interface import ByInterface
from cuda_captures.backends.front_end import CaptureInference, FrontEnd
from cuda_captures.session import current

upstream_interpret = Interpreter.interpret
upstream_resolve_module_constants = CUDATypingContext.resolve_module_constants


def typeof_captured(value: Any) -> Any:
    """The compiler's type of an array that is named from outside."""
    try:
        return typeof(value, Purpose.constant)
    except Exception:
        described = ByInterface.of(value)
        if described is None:
            raise
        return typeof(described, Purpose.constant)


def knows(value: Any) -> bool:
    """Whether a type was registered for an object's class, with this compiler or with numba, or for a class."""
    if isinstance(value, type):
        cuda_target.typing_context.refresh()
        return cuda_target.typing_context._lookup_global(value) is not None
    return any(one.dispatch(type(value)) is not one.dispatch(object) for one in (typeof_impl, *numbas_typeof()))


def numbas_typeof() -> list[Any]:
    """Numba's own table of types, where that is installed and asked."""
    try:
        from numba.core.typing.typeof import typeof_impl as core
    except ImportError:
        return []
    return [core]


def typing_errors() -> tuple[type[BaseException], ...]:
    """Errors of type inference: numba-cuda's, and numba's where that is installed and types for it."""
    try:
        from numba.core.errors import TypingError
    except ImportError:
        return (errors.TypingError,)
    return errors.TypingError, TypingError


FRONT_END = FrontEnd(
    ir=ir,
    typeof=typeof_captured,
    array_type=types.Array,
    errors=typing_errors(),
    array_like=cuda.const.array_like,
    knows=knows,
)


def interpret(self: Any, bytecode: Any) -> Any:
    """The front end's translation of bytecode, with stand-ins where a function names an array."""
    func_ir = upstream_interpret(self, bytecode)
    session = current()
    if session is not None:
        FRONT_END.stand_in_arrays(func_ir, session)
    return func_ir


def resolve_module_constants(self: Any, typ: Any, attr: str) -> Any:
    """Type of an attribute of a module."""
    captured = FRONT_END.module_capture(typ.pymod, attr)
    if captured is None:
        return upstream_resolve_module_constants(self, typ, attr)
    return self.resolve_value_type(captured)


class CaptureTypeInferer(CaptureInference, TypeInferer):  # type: ignore[misc]
    """numba-cuda's type inference, with captures."""

    front_end = FRONT_END

    @property
    def dialect(self) -> Any:  # type: ignore[override]
        """Made with this module's names, and so after it."""
        from .effects import DIALECT

        return DIALECT
