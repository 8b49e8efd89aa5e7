"""numba-cuda's dispatcher, with captures.

Kernels that were compiled before captures were enabled are compiled again at their next launch.  Device functions
keep one compilation per meaning of what they capture; those made for ``cuda.compile`` have no slots, because nobody
would fill them.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakSet

from numba.cuda import launchconfig
from numba.cuda.core.compiler_lock import global_compiler_lock
from numba.cuda.dispatcher import CUDADispatcher

from cuda_captures.backends.meanings import Meanings
from cuda_captures.binding import refuse_in_graph
from cuda_captures.discovery import discover
from cuda_captures.errors import CaptureTypingError, brief
from cuda_captures.ordering import LEGACY
from cuda_captures.policy import check_options
from cuda_captures.session import Session, compiling, current
from cuda_captures.settings import current as settings

from . import target
from .kernel import CaptureKernel, dispatching
from .target import stream_handle, with_default_stream

upstream_initialise = CUDADispatcher.__init__
upstream_compile = CUDADispatcher.compile
upstream_compile_device = CUDADispatcher.compile_device
upstream_get_call_template = CUDADispatcher.get_call_template
upstream_call = CUDADispatcher.call
upstream_configure = CUDADispatcher.configure.__wrapped__  # without its table

_threads = threading.local()

# Device functions with compilations of ours, so that disabling can take these out of use.
TOUCHED: WeakSet[Any] = WeakSet()


# Replaced at each enabling: kernels compiled while captures were disabled are then looked at again.
_enabling: list[object] = [object()]


def begin() -> None:
    """Look again at every dispatcher that is launched from now on."""
    _enabling[0] = object()


def end() -> None:
    """Leave device functions as upstream knows them."""
    for dispatcher in TOUCHED:
        _table(dispatcher).forget_captures(dispatcher)
    TOUCHED.clear()


def initialise(self: Any, py_func: Any, targetoptions: dict[str, Any], *args: Any, **kwargs: Any) -> None:
    """Decorate a function; the option that is ours is checked."""
    check_options(targetoptions)
    upstream_initialise(self, py_func, targetoptions, *args, **kwargs)


def compile_kernel(self: Any, sig: Any) -> Any:
    """Compile a kernel for argument types, or load it from the disk cache."""
    launch = launchconfig.current_launch_config()
    if launch is not None and (stream := stream_handle(launch.stream)) not in LEGACY:
        refuse_in_graph(self.py_func, stream)
    with dispatching(self):
        return upstream_compile(self, sig)


def call(self: Any, args: Any, launch_config: Any) -> None:
    """Launch; a kernel that was compiled without captures is compiled again first."""
    if vars(self).get("_captures_seen") is not _enabling[0]:
        recompile_plain(self)
        self._captures_seen = _enabling[0]
    try:
        upstream_call(self, args, launch_config)
    except (CaptureTypingError, NameError) as error:
        raise brief(error) from error.__cause__


def configure(self: Any, *args: Any, **kwargs: Any) -> Any:
    """A launch configuration, remembered by its kernel.

    Upstream remembers the last 128 of all kernels in one table, which keeps these kernels and what they capture; and
    it makes a stream object for each configuration for the default stream, where one serves them all.
    """
    if len(args) == 2 and not kwargs and target.default_stream is not None:
        args = (*args, target.default_stream)
    key = (args, *sorted(kwargs.items())) if kwargs else args
    try:
        return self._captures_configurations[key]
    except AttributeError:
        self._captures_configurations = {}
    except KeyError:
        pass
    known = self._captures_configurations
    if len(known) >= CONFIGURATIONS:
        known.pop(next(iter(known)), None)
    return known.setdefault(key, with_default_stream(upstream_configure(self, *args, **kwargs)))


CONFIGURATIONS = 128  # as many as upstream remembers


@global_compiler_lock  # type: ignore[untyped-decorator]
def recompile_plain(dispatcher: Any) -> None:
    """Compile anew what a dispatcher had compiled before captures were enabled."""
    plain = [types for types, kernel in dispatcher.overloads.items() if not isinstance(kernel, CaptureKernel)]
    if not plain or dispatcher.targetoptions.get("device"):
        return
    could_compile, specialized = dispatcher._can_compile, dispatcher._specialized
    dispatcher._reset_overloads()
    dispatcher._can_compile, dispatcher._specialized = True, False
    try:
        for types in plain:
            dispatcher.compile(types)
    finally:
        dispatcher._can_compile, dispatcher._specialized = could_compile, specialized


def compile_device(self: Any, args: Any, return_type: Any = None) -> Any:
    """Compile a device function: for a call, as what calls it; ahead of any call, with captures."""
    if current() is not None or getattr(_threads, "typing", False):
        return compile_callee(self, args, return_type)
    session = Session(discover(self.py_func), self.targetoptions.get("captures"), settings().host)
    with compiling(session):
        try:
            return compile_callee(self, args, return_type)
        finally:
            session.close()


def compile_callee(self: Any, args: Any, return_type: Any = None) -> Any:
    """Compile a device function; the compilation that is there is used if it means the same."""
    table = _table(self)
    if return_type is not None:
        table.return_types[tuple(args)] = return_type
    if not table.select(self, args):
        return_type = table.return_types.get(tuple(args))
        table.compiled(self, args, lambda: upstream_compile_device(self, args, return_type))
    return self.overloads[args]


def get_call_template(self: Any, args: Any, kws: Any) -> Any:
    """How a call of a device function is typed: by compilations that mean what its captures mean now."""
    table = _table(self)
    for types in list(self.overloads):
        if not table.select(self, types):
            compile_callee(self, types)
    before = getattr(_threads, "typing", False)
    _threads.typing = True
    try:
        return upstream_get_call_template(self, args, kws)
    finally:
        _threads.typing = before


class DeviceMeanings(Meanings):
    """The compilations of one device function; knows which return types were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.return_types: dict[Any, Any] = {}

    def select(self, dispatcher: Any, types: Any) -> bool:
        present = dispatcher.overloads.get(tuple(types))
        if present is not None and not dispatcher._can_compile:  # compiled eagerly, for a signature
            self.return_types.setdefault(tuple(types), present.signature.return_type)
        return super().select(dispatcher, types)


def _table(dispatcher: Any) -> DeviceMeanings:
    table = vars(dispatcher).get("_captures_meanings")
    if table is None:
        table = dispatcher._captures_meanings = DeviceMeanings()
        TOUCHED.add(dispatcher)
    return table
