"""numba-cuda's kernel, with captures: compiled once per key, bound per device, followed from launch to launch."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from numba.cuda import types
from numba.cuda.core import sigutils
from numba.cuda.core.compiler_lock import global_compiler_lock
from numba.cuda.cudadrv.linkable_code import LinkableCode
from numba.cuda.dispatcher import _Kernel
from numba.cuda.dispatcher import get_current_device as upstream_get_current_device

from cuda_captures.backends.argument_types import signature_text
from cuda_captures.backends.key_options import options_of
from cuda_captures.backends.launching import launch_with_copies
from cuda_captures.backends.warned import warnings_kept
from cuda_captures.binding import Follower
from cuda_captures.code import Code, Use
from cuda_captures.discovery import Discovery
from cuda_captures.instances import Instance
from cuda_captures.key import Key
from cuda_captures.ordering import LEGACY
from cuda_captures.session import Session, compiling, current
from cuda_captures.symbols import enqueue_symbols, write_symbols

from . import cache, target
from .library import Loaded

UpstreamKernel = _Kernel

# Options that do not change the code: how arguments are prepared, where the cubin runs, who caches it.
OUTSIDE_THE_CODE = frozenset({"extensions", "captures", "shared_memory_carveout", "cache"})

_threads = threading.local()


def dispatcher_at_work() -> Any:
    """The dispatcher that compiles in this thread, or None."""
    return getattr(_threads, "dispatcher", None)


@contextmanager
def dispatching(dispatcher: Any, key: Key | None = None) -> Iterator[None]:
    """Let what is compiled in this thread know its dispatcher; and the key, if that is known."""
    before = dispatcher_at_work(), getattr(_threads, "key", None)
    _threads.dispatcher, _threads.key = dispatcher, key
    try:
        yield
    finally:
        _threads.dispatcher, _threads.key = before


def key_at_work(dispatcher: Any, sig: Any) -> Key:
    """The key of what the dispatcher at work compiles.

    Raises
    ------
    Unkeyable
        Where not all that the kernel sees can be identified.
    """
    known: Key | None = getattr(_threads, "key", None)
    if known is not None:
        return known
    argtypes, _ = sigutils.normalize_signature(sig)
    options = dict(dispatcher.targetoptions)
    captures = options.pop("captures", None)
    toolchain = NumbaCudaToolchain(dispatcher.py_func, argtypes, options, dispatcher)
    return Follower(dispatcher.py_func, toolchain, captures).specialisations.key()


class CaptureKernel(UpstreamKernel):  # type: ignore[misc, valid-type]
    """A kernel for one tuple of argument types, in as many specialisations as what it captures calls for.

    It looks like the specialisation used last: what upstream's inspection reads are that one's attributes.
    """

    def __init__(
        self,
        py_func: Any,
        argtypes: tuple[Any, ...],
        captures: str | Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        if options.get("device"):
            raise RuntimeError("Cannot compile a device function as a kernel")
        self._follow(py_func, argtypes, captures, options)
        self._adopt(self.follower.variant().code)

    def _follow(self, py_func: Any, argtypes: Any, captures: Any, options: dict[str, Any]) -> None:
        self.toolchain = NumbaCudaToolchain(py_func, argtypes, options, dispatcher_at_work())
        self.follower = Follower(py_func, self.toolchain, captures)

    @classmethod
    def from_cache(cls, code: Code) -> CaptureKernel:
        """The kernel of the dispatcher at work, from code that its disk cache had."""
        dispatcher = dispatcher_at_work()
        options = dict(dispatcher.targetoptions)
        captures = options.pop("captures", None)
        kernel: CaptureKernel = cls.__new__(cls)
        kernel._follow(dispatcher.py_func, tuple(code.product.signature.args), captures, options)
        kernel._adopt(kernel.follower.specialisations.adopt(code).code)
        return kernel

    def _adopt(self, code: Code) -> None:
        """Look like a specialisation."""
        self.code = code
        mine = {"py_func", "extensions"}
        self.__dict__.update({name: value for name, value in vars(code.product).items() if name not in mine})
        self.py_func = self.toolchain.py_func
        self.extensions = self.toolchain.options.get("extensions") or []
        annotations = self.toolchain.annotations
        if annotations is not None and code in annotations:
            self._type_annotation = annotations[code]

    def bind(self) -> None:
        """Make the machine code for the current device; it is loaded, and slots are filled, at the first launch."""
        library = self._codelibrary
        if not library.is_loaded:
            library.get_cubin()

    def bound(self, stream: int | None = None, context: Any = None) -> Instance:
        """The module instance for what the names mean now, in the current context; made if there is none."""
        instance = self.follower.rebind(context or target.current_context(), stream)
        if instance.launchable.code is not self.code:
            self._adopt(instance.launchable.code)
        return instance

    def launch(self, args: Any, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0) -> None:
        """Launch with captured names meaning what they mean now."""
        context = target.current_context()
        instance = self.follower.current(context)
        if instance is None:
            instance = self.bound(0 if stream is target.default_stream else target.stream_handle(stream), context)
        elif instance.launchable.code is not self.code:
            self._adopt(instance.launchable.code)
        if stream is not target.default_stream and (handle := target.stream_handle(stream)) not in LEGACY:
            instance.launched_elsewhere(handle)
        if instance.plain:
            UpstreamKernel.launch(instance.launchable, args, griddim, blockdim, stream, sharedmem)
        else:
            self._launch_with_copies(instance, args, griddim, blockdim, stream, sharedmem)

    def _launch_with_copies(
        self, instance: Instance, args: Any, griddim: Any, blockdim: Any, stream: Any, sharedmem: int
    ) -> None:
        handle = target.stream_handle(stream)
        launch_with_copies(
            instance,
            handle,
            None,  # cuda.core's stream keeps no handle of numba's alive
            lambda bound: UpstreamKernel.launch(bound, args, griddim, blockdim, stream, sharedmem),
            lambda: self.bound(handle),
            self.toolchain.py_func,
        )

    def _reduce_states(self) -> dict[str, Any]:
        return cache.reduce(self.code)


class BoundKernel(UpstreamKernel):  # type: ignore[misc, valid-type]
    """One loaded module instance as upstream's launch sees a kernel."""

    def __init__(self, code: Code, loaded: Any, extensions: list[Any], carveout: Any, apart: Hashable) -> None:
        self.__dict__.update(vars(code.product))
        self.code = code
        self.extensions = extensions
        self.shared_memory_carveout = None if carveout is None else self._parse_carveout(carveout)
        self.apart = apart
        self._codelibrary = loaded
        UpstreamKernel.bind(self)

    def fill(self, slots: Sequence[tuple[str, bytes]]) -> None:
        """Write the slots of this instance."""
        if slots:
            library = self._codelibrary.cufunc.module.handle
            self._addresses = {symbol: target.symbol_address(library, symbol) for symbol, _ in slots}
            write_symbols(self._placed(slots))

    def refill(self, slots: Sequence[tuple[str, bytes]], stream: int) -> None:
        """Enqueue writing them anew on a stream."""
        if slots:
            enqueue_symbols(self._placed(slots), stream)

    def _placed(self, slots: Sequence[tuple[str, bytes]]) -> list[tuple[int, bytes]]:
        return [(self._addresses[symbol], data) for symbol, data in slots]

    @property
    def launchable(self) -> BoundKernel:
        return self


class NumbaCudaToolchain:
    """Compiling, loading and caching for one kernel and one tuple of argument types."""

    def __init__(self, py_func: Any, argtypes: tuple[Any, ...], options: Mapping[str, Any], dispatcher: Any) -> None:
        self.py_func = py_func
        self.argtypes = argtypes
        self.options = dict(options)
        self.cc: tuple[int, int] | None = None
        self._dispatcher = weakref.ref(dispatcher) if dispatcher is not None else None
        # Type annotations refer to the function and so to what it captures: kept here, not in code that is shared.
        self.annotations: weakref.WeakKeyDictionary[Code, Any] | None = None  # None for most: others compile

    def identity(self) -> tuple[str, Mapping[str, Any], Mapping[str, Any]]:
        return (
            signature_text(types, self.argtypes),
            options_of(self.options, OUTSIDE_THE_CODE, LinkableCode),
            target.target_of(self.cc),
        )

    def unseen(self, discovery: Discovery) -> list[str]:
        return target.unseen(discovery)

    def compile(self, session: Session) -> Code:
        options = {name: value for name, value in self.options.items() if name not in ("captures", "cache")}
        if options.get("link"):
            options["link"] = list(options["link"])  # upstream appends to it
        session.cc = self.cc
        with compiling(session), warnings_kept() as warned:
            try:
                product = UpstreamKernel(self.py_func, self.argtypes, **options)
                library = product._codelibrary
                library.get_cubin()
                library.llvm_strs  # noqa: B018 - the text; the module's objects are dropped with what they refer to
                code = Code(uses_of(library), product, constant_bytes=constant_bytes(library))
            finally:
                session.close()
        # Upstream's cache keeps the launch configuration that code depends on; the process's table does not.
        code.why_private = tuple(dict.fromkeys(session.unseen))
        code.single = bool(warned) or bool(getattr(product, "launch_config_sensitive", False))
        if self.annotations is None:
            self.annotations = weakref.WeakKeyDictionary()
        self.annotations[code] = product._type_annotation
        strip(product)
        return code

    def load(self, code: Code, context: Any) -> BoundKernel:
        library = code.product._codelibrary
        if not code.uses and (library._setup_functions or library._teardown_functions):
            # Callbacks are upstream's affair: they are called when the context lets go of the module.
            return self._bound(code, Loaded(None, library.get_cufunc()))
        return self._bound(code, library.load_instance(context))

    def _bound(self, code: Code, loaded: Any) -> BoundKernel:
        options = self.options
        extensions = options.get("extensions") or []
        return BoundKernel(code, loaded, extensions, options.get("shared_memory_carveout"), self.apart)

    lends = True

    @property
    def apart(self) -> Hashable:
        # By identity: a loaded module holds its extensions, so theirs stay theirs.
        options = self.options
        return (*map(id, options.get("extensions") or ()), options.get("shared_memory_carveout"))

    def likeness(self) -> Hashable:
        return target.likeness(self.argtypes, self.options, OUTSIDE_THE_CODE, self.cc)

    @property
    def lock(self) -> Any:
        """Held while code is made; upstream holds it around each compilation."""
        return global_compiler_lock

    def fetch(self, key: Key) -> Code | None:
        dispatcher = self._dispatcher() if self._dispatcher is not None else None
        if dispatcher is None or dispatcher is dispatcher_at_work():  # the dispatcher has asked its cache already
            return None
        with dispatching(dispatcher, key):
            kernel = dispatcher._cache.load_overload(self.argtypes, dispatcher.targetctx)
        return kernel.code if kernel is not None else None

    def store(self, code: Code) -> None:
        dispatcher = self._dispatcher() if self._dispatcher is not None else None
        if dispatcher is None or dispatcher is dispatcher_at_work():
            return
        with dispatching(dispatcher, code.key):
            dispatcher._cache.save_overload(self.argtypes, _Storable(code, dispatcher.targetctx))


class _Storable:
    """Code as upstream's cache takes it."""

    def __init__(self, code: Code, target_context: Any) -> None:
        self.code = code
        self.codegen = target_context.codegen()

    def _reduce_states(self) -> dict[str, Any]:
        return cache.reduce(self.code)


def uses_of(library: Any) -> tuple[Use, ...]:
    """The captured arrays of a compiled kernel, in a fixed order."""
    return tuple(
        # Copies: a device function's own are for the next kernel that calls it.
        replace(use, written=use.place is not None and use.place.key in library.written)
        for _, use in sorted(library.uses.items())
    )


def constant_bytes(library: Any) -> int:
    """Constant memory that captures take because it was asked for, in bytes."""
    return sum(captured.nbytes for captured in library.constants.values())


def strip(product: Any) -> None:
    """Take everything out of a compiled kernel that refers to functions or arrays: shared code must not keep them."""
    product.py_func = None
    product._type_annotation = None
    product.extensions = []
    product.fndesc = product.environment = None  # they hold the function's namespace
    library = product._codelibrary
    library.uses = {symbol: Use(use.slot, None, use.signature) for symbol, use in library.uses.items()}
    library.constants, library.written, library.effects = {}, set(), None
    library.discard_modules()


class _DeviceOf:
    """Stands for a device of a compute capability where there is none."""

    def __init__(self, cc: tuple[int, int]) -> None:
        self.compute_capability = cc


def get_current_device() -> Any:
    """The device to compile for: the session's, or the current one."""
    session = current()
    if session is not None and session.cc is not None:
        return _DeviceOf(session.cc)
    return upstream_get_current_device()
