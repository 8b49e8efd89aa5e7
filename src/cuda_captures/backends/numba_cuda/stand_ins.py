"""Stand-ins for captured arrays, with the types that numba-cuda gives them."""

from __future__ import annotations

from typing import Any

from numba.cuda import types
from numba.cuda.core import errors
from numba.cuda.typing.typeof import Purpose, typeof

from cuda_captures.discovery import AttributePlace
from cuda_captures.errors import CaptureTypingError
from cuda_captures.session import Captured, current, holds_array
from cuda_captures.writes import captured_in


def _typing_errors() -> tuple[type[Exception], ...]:
    """Errors of type inference: numba-cuda's, and numba's where that is installed and types for it."""
    found: list[type[Exception]] = [errors.TypingError]
    try:
        from numba.core.errors import TypingError
    except ImportError:
        return tuple(found)
    return (*found, TypingError)


TYPING_ERRORS: tuple[type[Exception], ...] = _typing_errors()


def type_stand_ins(value: Any) -> None:
    """Give stand-ins the compiler's type of their array.

    Raises
    ------
    CaptureTypingError
        With the compiler's message, and the variable's name, for an array that the compiler cannot type.
    """
    for captured in captured_in(value):
        if captured.typed is None:
            captured.typed = type_of(captured)


def type_of(captured: Captured) -> Any:
    """The type of a captured array: as an argument's, but read-only if it may not be written."""
    try:
        typed = typeof(captured.value, Purpose.constant)
    except (*TYPING_ERRORS, ValueError) as error:
        raise CaptureTypingError(
            UNTYPED.format(name=captured.name, where=captured.where(), reason=str(error).strip())
        ) from error
    form = captured.signature  # which knows alignment too; upstream takes every array for aligned
    return types.Array(typed.dtype, typed.ndim, form.layout, readonly=form.readonly, aligned=form.aligned)


def module_capture(module: Any, name: str) -> Any:
    """The stand-in for an array, or a tuple with one, that is an attribute of a module; None for anything else."""
    session = current()
    value = vars(module).get(name)
    if session is None or not holds_array(value):
        return None
    stand_in = session.stand_in(AttributePlace(module, name), value, session.discovery.function)
    type_stand_ins(stand_in)
    return stand_in


UNTYPED = """\
`{name}` is captured, and the compiler cannot type it: {reason}
  {where}
Convert it to an array that the compiler takes as an argument."""
