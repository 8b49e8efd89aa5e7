"""Captured arrays in numba-cuda-mlir's front end."""

from __future__ import annotations

import weakref
from typing import Any

from numba_cuda_mlir import cuda, mlir_compiler, types
from numba_cuda_mlir.descriptor import mlir_target
from numba_cuda_mlir.numba_cuda.core import errors, ir
from numba_cuda_mlir.numba_cuda.core.interpreter import Interpreter
from numba_cuda_mlir.numba_cuda.core.typeinfer import TypeInferer
from numba_cuda_mlir.numba_cuda.typing.context import BaseContext
from numba_cuda_mlir.numba_cuda.typing.typeof import Purpose, typeof, typeof_impl

from cuda_captures.backends.by_interface import ByInterface
from cuda_captures.backends.front_end import CaptureInference, FrontEnd
from cuda_captures.errors import CaptureTypingError
from cuda_captures.session import Captured, current

upstream_interpret = Interpreter.interpret
upstream_apply_ast_transforms = mlir_compiler.apply_ast_transforms
upstream_resolve_module_constants = BaseContext.resolve_module_constants

# Functions that the compiler made of others by rewriting their source; entries go with the function made.
_originals: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def apply_ast_transforms(func: Any, targetoptions: Any = None, argtypes: Any = None) -> Any:
    """The compiler's rewriting of source; remembers what it was made from."""
    made, source = upstream_apply_ast_transforms(func, targetoptions, argtypes)
    if made is not func:
        _originals[made] = func
    return made, source


def original(function: Any) -> Any:
    """The function as its author wrote it."""
    return _originals.get(function, function)


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
    """Whether a type was registered for an object's class, or for a class."""
    if isinstance(value, type):
        mlir_target.ensure_initialized()
        return mlir_target.typing_context._lookup_global(value) is not None
    return typeof_impl.dispatch(type(value)) is not typeof_impl.dispatch(object)


def refuse_unaddressable(captured: Captured) -> None:
    """Refuse arrays whose elements this compiler does not find.

    Its strides count elements, which it takes for aligned; and of records and strings it takes no notice of strides.

    Raises
    ------
    CaptureTypingError
        Naming the array, and what to write instead.
    """
    signature = captured.signature
    if captured.policy == "constant":  # compiled in as a contiguous copy
        return
    strides = captured.value.__cuda_array_interface__.get("strides") if not captured.on_host else captured.value.strides
    itemsize = signature.dtype.itemsize
    if signature.dtype.kind in "VSU":
        found = signature.ndim == 1 and signature.layout == "C"
        needed = "records and strings are taken from contiguous arrays of one dimension only"
    else:
        found = signature.aligned and not any(stride % itemsize for stride in strides or ())
        needed = f"strides must be multiples of {itemsize} bytes, and the first element aligned"
    if not found:
        text = UNADDRESSABLE.format(
            name=captured.name,
            where=captured.where(),
            strides=strides,
            ndim=signature.ndim,
            needed=needed,
            dtype=signature.dtype,
        )
        raise CaptureTypingError(text)


FRONT_END = FrontEnd(
    ir=ir,
    typeof=typeof_captured,
    array_type=types.Array,
    errors=(errors.TypingError,),
    array_like=cuda.const.array_like,  # type: ignore[attr-defined]
    knows=knows,
    refuse=refuse_unaddressable,
    original=original,
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
    """numba-cuda-mlir's type inference, with captures."""

    front_end = FRONT_END

    @property
    def dialect(self) -> Any:  # type: ignore[override]
        """Made with this module's names, and so after it."""
        from .effects import DIALECT

        return DIALECT


UNADDRESSABLE = """\
numba-cuda-mlir does not find the elements of `{name}`: dtype {dtype}, dimensions {ndim}, strides {strides}; {needed}.
  {where}
Capture a copy that it does: `{name} = np.ascontiguousarray({name})`, of one dimension for records and strings."""
