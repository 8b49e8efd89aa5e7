"""A kernel of numba-cuda-mlir, with captures: compiled once per key, bound per device, followed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numba_cuda_mlir import descriptor, mlir_compiler, mlir_lowering, tools, types
from numba_cuda_mlir._whole_function_planners import _REQUIRED_DYNAMIC_SHARED_MEMORY_KEY
from numba_cuda_mlir.mlir_optimization import _nrt_memsys_setup_callback
from numba_cuda_mlir.numba_cuda.core.compiler_lock import global_compiler_lock
from numba_cuda_mlir.numba_cuda.cudadrv.linkable_code import LinkableCode

from cuda_captures.backends.argument_types import signature_text
from cuda_captures.backends.key_options import options_of
from cuda_captures.backends.launching import launch_with_copies, make_ready
from cuda_captures.backends.warned import warnings_kept
from cuda_captures.binding import Follower
from cuda_captures.code import Code, Use
from cuda_captures.discovery import Discovery
from cuda_captures.errors import CaptureError
from cuda_captures.instances import Instance
from cuda_captures.key import Key
from cuda_captures.ordering import LEGACY
from cuda_captures.session import Session, compiling
from cuda_captures.whereabouts import where_first_named

from . import cache, target
from .loading import BoundKernel
from .lowering import CaptureLower
from .recorded import KEY, Recorded

upstream_compiler_entry = mlir_compiler.mlir_compiler_entry

# Of a compile result's metadata: what upstream's inspection and its cache read.  All of it text, bytes and numbers.
KEPT = (
    *("cubin", "ptx", "ltoir", "func_name", "mlir_module_str", "mlir_module_optimized", "needs_nrt", "nrt_inline"),
    *("gpu_target", "use_cooperative", "transformed_source", _REQUIRED_DYNAMIC_SHARED_MEMORY_KEY),
)


@dataclass(eq=False)
class Product:
    """What a kernel was compiled to; refers to no function and to no array.

    Parameters
    ----------
    metadata
        Of upstream's compile result, as far as it is text, bytes and numbers.
    signature
        Of the kernel.
    numba_ir
        Its intermediate representation, as text.
    """

    metadata: dict[str, Any]
    signature: Any
    numba_ir: str = ""

    @property
    def cubin(self) -> bytes:
        return bytes(self.metadata["cubin"])

    @property
    def entry(self) -> str:
        """Symbol of the kernel."""
        return str(self.metadata["func_name"])

    @property
    def cooperative(self) -> bool:
        return bool(self.metadata.get("use_cooperative", False))

    @property
    def shared_memory(self) -> int:
        """Bytes of dynamic shared memory that the code needs, whatever a launch asks for."""
        return int(self.metadata.get(_REQUIRED_DYNAMIC_SHARED_MEMORY_KEY, 0) or 0)


class CaptureKernel:
    """A kernel for one tuple of argument types, in as many specialisations as what it captures calls for.

    It stands where upstream has a compile result, and looks like the specialisation used last.

    Attributes
    ----------
    follower
        Follows the captured names.
    metadata, signature, library
        As upstream's compile results have them.
    """

    objectmode = False

    def __init__(self, toolchain: MLIRToolchain, captures: str | Mapping[str, str] | None, code: Code | None = None):
        self.toolchain = toolchain
        self.follower = Follower(toolchain.py_func, toolchain, captures)
        self.codegen = toolchain.codegen
        variant = self.follower.variant() if code is None else self.follower.specialisations.adopt(code)
        toolchain.asked = False
        self._adopt(variant.code)

    def _adopt(self, code: Code) -> None:
        """Look like a specialisation."""
        self.code = code
        product: Product = code.product
        chip = product.metadata["gpu_target"]["chip"]  # which upstream notes among the options when it compiles
        self.metadata = {**product.metadata, "targetoptions": {**self.toolchain.options, "chip": chip}}
        if product.metadata.get("needs_nrt"):
            self.metadata["setup_callbacks"] = [_nrt_memsys_setup_callback]
        self.metadata.update(self.toolchain.extras.get(code, {}))
        self.signature = product.signature
        self.entry_point = product.entry
        self.library = mlir_compiler.MLIRLibrary(
            product.numba_ir, product.metadata.get("ptx") or "", product.metadata["mlir_module_optimized"]
        )
        self.type_annotation = self.toolchain.annotations.get(code)

    def bound(self, context: Any, stream: int | None = None) -> Instance:
        """The module instance for what the names mean now, in a context; made if there is none."""
        with target.inside(context):
            instance = self.follower.rebind(context, stream)
        self.look_like(instance)
        return instance

    def look_like(self, instance: Instance) -> None:
        """Show upstream's inspection what is launched."""
        if instance.launchable.code is not self.code:
            self._adopt(instance.launchable.code)

    def launch(self, marshaller: Any, args: Sequence[Any]) -> None:
        """Launch with captured names meaning what they mean now.

        Parameters
        ----------
        marshaller
            Upstream's configured kernel.
        args
            What upstream's native launcher gets: scalars and device arrays.
        """
        context = target.context_for(args)
        stream = marshaller._launch_stream
        default = stream is None and not any(map(target.has_stream, args))
        instance = self.follower.current(context)
        if instance is None:
            instance = self.bound(context, 0 if default else target.stream_handle(stream, args))
        elif instance.launchable.code is not self.code:
            self._adopt(instance.launchable.code)
        if not default and (handle := target.stream_handle(stream, args)) not in LEGACY:
            instance.launched_elsewhere(handle)
        try:
            if instance.plain:
                bound = instance.launchable
                bound.configured(geometry_of(marshaller, bound.code.product.shared_memory))(*args)
            else:
                self._launch_with_copies(instance, marshaller, args, context)
        except BaseException:
            self.follower.forget_failed()  # the native launcher loads with the first launch, so that is what may fail
            raise

    def _launch_with_copies(self, instance: Instance, marshaller: Any, args: Sequence[Any], context: Any) -> None:
        handle = target.stream_handle(marshaller._launch_stream, args)
        with target.inside(context):
            launch_with_copies(
                instance,
                handle,
                marshaller._stream_ref or marshaller._launch_stream,
                lambda bound: bound.configured(geometry_of(marshaller, bound.code.product.shared_memory))(*args),
                lambda: self.bound(context, handle),
                self.toolchain.py_func,
            )

    def load(self, marshaller: Any, args: Sequence[Any]) -> None:
        """Do all that a launch does, but the launch."""
        context = target.context_for(args)
        instance = self.bound(context)
        try:
            with target.inside(context):
                stream = target.stream_handle(marshaller._launch_stream, args)
                instance = make_ready(instance, stream, lambda: self.bound(context), self.toolchain.py_func)
                instance.launchable.load(args)
        except BaseException:
            self.follower.forget_failed()
            raise


def geometry_of(marshaller: Any, shared_memory: int) -> tuple[Any, ...]:
    """Grid, block, stream, shared memory and cluster of a configured kernel, as the native launcher takes them."""
    known = vars(marshaller).get("_captures_geometry")
    if known is None:
        configured = marshaller._available_launch_config
        known = marshaller._captures_geometry = (
            configured["grid"],
            configured["block"],
            marshaller._launch_stream,
            configured["sharedmem"],
            configured.get("cluster"),
        )
    if shared_memory > (known[3] or 0):
        return (*known[:3], shared_memory, known[4])
    return known  # type: ignore[no-any-return]


class MLIRToolchain:
    """Compiling, loading and caching for one kernel and one tuple of argument types.

    Parameters
    ----------
    dispatcher
        Upstream's, referred to weakly; None for code that is only looked at.
    argtypes
        Argument types; an entry may be None, for the compiler to type the value.
    options
        Upstream's, of this compilation.
    values
        Arguments of the launch, until the first compilation.
    cc
        Compute capability to compile for instead of the current device's.
    """

    def __init__(
        self,
        dispatcher: Any,
        py_func: Any,
        argtypes: Sequence[Any],
        options: Mapping[str, Any],
        values: Sequence[Any] | None = None,
        cc: tuple[int, int] | None = None,
    ) -> None:
        self._dispatcher = weakref.ref(dispatcher) if dispatcher is not None else lambda: None
        self.py_func = py_func
        self.argtypes = tuple(argtypes)
        self.options = {name: value for name, value in options.items() if name != "captures"}
        self.values = values
        self.cc = cc
        self._alone = object()
        self.asked = True  # the dispatcher asks its disk cache itself, for the first specialisation
        # Type annotations refer to the function and so to what it captures, and the linker to linked code: kept here,
        # not in code that is shared.
        self.annotations: weakref.WeakKeyDictionary[Code, Any] = weakref.WeakKeyDictionary()
        self.extras: weakref.WeakKeyDictionary[Code, dict[str, Any]] = weakref.WeakKeyDictionary()

    @property
    def lock(self) -> Any:
        """Held while code is made; upstream holds it around each compilation."""
        return global_compiler_lock

    @property
    def codegen(self) -> Any:
        return descriptor.mlir_target.target_context.codegen()

    @property
    def chip(self) -> str:
        """The architecture to compile for: as asked for, or the current device's."""
        if self.cc is not None:
            return tools.format_arch(self.cc)
        asked: str | None = self.options.get("chip")
        return asked or tools.format_arch(target.current_cc())

    def unseen(self, discovery: Discovery) -> list[str]:
        return target.unseen(discovery, self.options)

    def identity(self) -> tuple[str, Mapping[str, Any], Mapping[str, Any]]:
        return (
            signature_text(types, self.argtypes),
            options_of(self.options, target.OUTSIDE_THE_CODE, LinkableCode),
            target.target_of(self.chip),
        )

    def compile(self, session: Session) -> Code:
        values, self.values = self.values, None
        if not issubclass(mlir_lowering.MLIRLower, CaptureLower):
            raise CaptureError(DISABLED.format(kernel=self.py_func.__name__, where=where_first_named(self.py_func)))
        options = {**self.options, "chip": self.chip, "link": list(self.options.get("link") or [])}
        descriptor.mlir_target.ensure_initialized()
        with compiling(session), target.compiling_for(self.cc), warnings_kept() as warned:
            try:
                result = upstream_compiler_entry(
                    pyfunc=self.py_func,
                    func_args=list(values) if values is not None else [None] * len(self.argtypes),
                    targetoptions=options,
                    override_argtypes=self.argtypes,
                )
            finally:
                session.close()
        metadata = {name: result.metadata[name] for name in KEPT if name in result.metadata}
        recorded: Recorded = result.metadata[KEY]
        constant_bytes = sum(captured.nbytes for captured in recorded.constants.values())
        product = Product(metadata, result.signature, result.library.get_ir())
        code = Code(uses_of(recorded), product, constant_bytes=constant_bytes)
        code.why_private = tuple(dict.fromkeys(session.unseen))
        if metadata.get("transformed_source") is not None:
            code.why_private = (
                *code.why_private,
                "its source is rewritten before it is compiled, with values that are not followed",
            )
        if "__launch_config__" in options:
            code.why_private = (*code.why_private, "its code depends on the launch configuration")
        code.single = bool(warned)
        self.annotations[code] = result.type_annotation
        names = ("linker", "link_plan", "linked_external_link_items", "setup_callbacks", "teardown_callbacks")
        self.extras[code] = {name: result.metadata[name] for name in names if name in result.metadata}
        return code

    lends = False

    @property
    def apart(self) -> Hashable:
        return self._alone  # a native launcher knows its function, and upstream's callbacks know their dispatcher

    def likeness(self) -> Hashable:
        return None

    def load(self, code: Code, context: Any) -> BoundKernel:
        debug = bool(self.options.get("debug", False))
        return BoundKernel(code, self.py_func, debug, self._callbacks(), self.apart)

    def _callbacks(self) -> Callable[[int], None] | None:
        """Upstream's calls after loading, for linked code and for its runtime."""
        dispatcher = self._dispatcher()
        if dispatcher is None or not (dispatcher._module_setup_callbacks or dispatcher._module_teardown_callbacks):
            return None
        hook: Callable[[int], None] = dispatcher._make_post_load_hook()
        return hook

    def fetch(self, key: Key) -> Code | None:
        dispatcher = self._dispatcher()
        if dispatcher is None or self.asked:
            return None
        return cache.fetch(dispatcher._cache, self.argtypes, key)

    def store(self, code: Code) -> None:
        dispatcher = self._dispatcher()
        if dispatcher is not None and not self.asked:
            cache.store(dispatcher._cache, self.argtypes, code)


def uses_of(recorded: Recorded) -> tuple[Use, ...]:
    """The captured arrays of a compiled kernel, in a fixed order.

    Copies: a device function's own are for the next kernel that calls it.
    """
    written = {use.place.key for symbol, use in recorded.uses.items() if symbol in recorded.written and use.place}
    return tuple(
        replace(use, written=use.place is not None and use.place.key in written)
        for _, use in sorted(recorded.uses.items())
    )


DISABLED = """\
kernel `{kernel}` must be compiled anew for what its names mean now, and captures are disabled.
  {where}
Call `cuda_captures.enable()` again, or leave the captured names as they were."""
