"""numba-cuda's dispatcher, with captures.

Kernels that were compiled before captures were enabled are compiled again at their next launch.  Device functions
keep one compilation per meaning of what they capture; those made for ``cuda.compile`` have no slots, because nobody
would fill them.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any
from weakref import WeakSet

from numba.cuda.core.compiler_lock import global_compiler_lock
from numba.cuda.dispatcher import CUDADispatcher

from cuda_captures.binding import followed, value_token
from cuda_captures.discovery import discover
from cuda_captures.key import array_signature
from cuda_captures.session import current

from .kernel import CaptureKernel, dispatching

upstream_compile = CUDADispatcher.compile
upstream_compile_device = CUDADispatcher.compile_device
upstream_get_call_template = CUDADispatcher.get_call_template
upstream_call = CUDADispatcher.call
upstream_configure = CUDADispatcher.configure.__wrapped__  # without its table

# Device functions with compilations of ours, so that disabling can take these out of use.
TOUCHED: WeakSet[Any] = WeakSet()

PLAIN = "plain"  # the meaning of what was compiled without a session


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


def compile_kernel(self: Any, sig: Any) -> Any:
    """Compile a kernel for argument types, or load it from the disk cache."""
    with dispatching(self):
        return upstream_compile(self, sig)


def call(self: Any, args: Any, launch_config: Any) -> None:
    """Launch; a kernel that was compiled without captures is compiled again first."""
    if vars(self).get("_captures_seen") is not _enabling[0]:
        recompile_plain(self)
        self._captures_seen = _enabling[0]
    upstream_call(self, args, launch_config)


def configure(self: Any, *args: Any, **kwargs: Any) -> Any:
    """A launch configuration, remembered by its kernel.

    Upstream remembers the last 128 of all kernels in one table, which keeps these kernels and what they capture.
    """
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
    return known.setdefault(key, upstream_configure(self, *args, **kwargs))


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
    """Compile a device function; the compilation that is there is used if it means the same."""
    table = _table(self)
    if return_type is not None:
        table.return_types[tuple(args)] = return_type
    if not table.select(self, args):
        upstream_compile_device(self, args, table.return_types.get(tuple(args)))
        table.note(self, args, self.overloads[args])
    return self.overloads[args]


def get_call_template(self: Any, args: Any, kws: Any) -> Any:
    """How a call of a device function is typed: by compilations that mean what its captures mean now."""
    table = _table(self)
    for types in list(self.overloads):
        if not table.select(self, types):
            compile_device(self, types)
    return upstream_get_call_template(self, args, kws)


class Meanings:
    """The compilations of one device function: by argument types, and by what its captures meant.

    Belongs to the dispatcher and goes with it; used under the compiler's lock.
    """

    def __init__(self) -> None:
        self.results: dict[tuple[Any, Hashable], Any] = {}
        self.meanings: dict[int, Hashable] = {}
        self.return_types: dict[Any, Any] = {}
        self.held: list[Any] = []  # objects that a meaning knows by identity

    def select(self, dispatcher: Any, types: Any) -> bool:
        """Make the compilation that means the same as now the one in use; False if there is none."""
        types = tuple(types)
        meaning, _ = meaning_now(dispatcher)
        present = dispatcher.overloads.get(types)
        if present is not None:
            was = self.meanings.get(id(present), PLAIN)
            if was == meaning:
                return True
            self.results[types, was] = present
            self.meanings[id(present)] = was
            if types not in self.return_types and not dispatcher._can_compile:
                self.return_types[types] = present.signature.return_type
            del dispatcher.overloads[types]
        known = self.results.get((types, meaning))
        if known is None:
            return False
        dispatcher.overloads[types] = known
        return True

    def note(self, dispatcher: Any, types: Any, result: Any) -> None:
        """Remember what a compilation means."""
        meaning, held = meaning_now(dispatcher)
        self.results[tuple(types), meaning] = result
        self.meanings[id(result)] = meaning
        self.held.extend(held)

    def forget_captures(self, dispatcher: Any) -> None:
        """Leave only what was compiled without captures."""
        for types in list(dispatcher.overloads):
            if self.meanings.get(id(dispatcher.overloads[types]), PLAIN) != PLAIN:
                del dispatcher.overloads[types]
        dispatcher.overloads.update({types: r for (types, meaning), r in self.results.items() if meaning == PLAIN})


def meaning_now(dispatcher: Any) -> tuple[Hashable, list[Any]]:
    """What the captures of a device function, and of those it calls, mean now; and the objects it names by identity."""
    session = current()
    if session is None:
        return PLAIN, []
    parts: list[Hashable] = []
    held: list[Any] = []
    for capture in discover(dispatcher).captures:
        key = capture.place.key
        if capture.kind == "array":
            policy = session.policy(capture.place, capture.value)
            signature = array_signature(capture.value, policy)
            layout = session.layouts.get(key)
            parts.append((key, signature if layout is None else signature.general(layout)))
            if policy == "constant":
                parts.append(capture.value.tobytes())
        elif followed(capture):
            parts.append((key, value_token(capture)))
            held.append(capture.value)
    return tuple(parts), held


def _table(dispatcher: Any) -> Meanings:
    table = vars(dispatcher).get("_captures_meanings")
    if table is None:
        table = dispatcher._captures_meanings = Meanings()
        TOUCHED.add(dispatcher)
    return table
