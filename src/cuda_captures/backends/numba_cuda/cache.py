"""numba-cuda's disk cache, with captures: entries hold machine code and the paths of slots, never an address.

The directories, the index and its invalidation by the source file's stamp stay upstream's; the key of an entry is
ours, because upstream's neither sees globals nor device functions, and has the contents of closure cells in it.
"""

from __future__ import annotations

import pickle
from typing import Any

from numba.cuda.core.caching import Cache
from numba.cuda.dispatcher import CUDACache, CUDACacheImpl, _Kernel

from cuda_captures.backends.uncached import warn_uncacheable, warn_unwritable
from cuda_captures.code import Code, Use
from cuda_captures.key import SCHEMA, Unkeyable

upstream_reduce = CUDACacheImpl.reduce
upstream_rebuild = CUDACacheImpl.rebuild
upstream_index_key = Cache._index_key
upstream_load_overload = CUDACache.load_overload
upstream_save_overload = CUDACache.save_overload
UpstreamKernel = _Kernel

# What reading an entry that was truncated, or written by something else, may raise.
UNREADABLE = (
    pickle.UnpicklingError,
    EOFError,
    AttributeError,
    ImportError,
    IndexError,
    KeyError,
    TypeError,
    ValueError,
)


def reduce(code: Code) -> dict[str, Any]:
    """An entry for the cache."""
    return {
        "schema": SCHEMA,
        "kernel": UpstreamKernel._reduce_states(code.product),
        "uses": [(use.slot, use.signature, use.recipe, use.name, use.written) for use in code.uses],
        "key": code.key,
        "constant_bytes": code.constant_bytes,
    }


def code_from(entry: dict[str, Any]) -> Code:
    """Code from an entry of the cache."""
    uses = tuple(
        Use(slot, None, signature, recipe, name, written) for slot, signature, recipe, name, written in entry["uses"]
    )
    product = UpstreamKernel._rebuild(**entry["kernel"])
    return Code(uses, product, entry["key"], constant_bytes=entry["constant_bytes"], source="disk")


def reduce_kernel(self: Any, kernel: Any) -> Any:
    """What upstream's cache pickles for a kernel."""
    return kernel._reduce_states()


def rebuild_kernel(self: Any, target_context: Any, payload: Any) -> Any:
    """A kernel from what upstream's cache had; None, a miss, if it is no entry of ours."""
    from .kernel import CaptureKernel, dispatcher_at_work

    if dispatcher_at_work() is None or not isinstance(payload, dict) or payload.get("schema") != SCHEMA:
        return None
    return CaptureKernel.from_cache(code_from(payload))


def index_key(self: Any, sig: Any, codegen: Any) -> Any:
    """The key of an entry: ours, while a dispatcher compiles with captures."""
    from .kernel import dispatcher_at_work, key_at_work

    dispatcher = dispatcher_at_work()
    if dispatcher is None:
        return upstream_index_key(self, sig, codegen)
    return sig, codegen.magic_tuple(), ("cuda-captures", SCHEMA, key_at_work(dispatcher, sig).digest)


def load_overload(self: Any, sig: Any, target_context: Any) -> Any:
    """Load a kernel; whatever is wrong with an entry is a miss."""
    try:
        return upstream_load_overload(self, sig, target_context)
    except Unkeyable:
        return None  # said when the kernel that had to be compiled is not saved
    except UNREADABLE as error:
        if isinstance(error, NameError):
            raise
        return None


def save_overload(self: Any, sig: Any, data: Any) -> None:
    """Save a kernel, if it can be found again; what cannot is said by name."""
    code = getattr(data, "code", None)
    if code is None:
        upstream_save_overload(self, sig, data)
        return
    if code.key is None:
        warn_uncacheable(self._name, self._py_func, code)
        return
    from .kernel import dispatcher_at_work, dispatching

    try:
        with dispatching(dispatcher_at_work(), code.key):
            try:
                upstream_save_overload(self, sig, data)
            except UNREADABLE:  # the index that was there is not one: begin anew
                self.flush()
                upstream_save_overload(self, sig, data)
    except OSError as error:
        warn_unwritable(self._name, self._py_func, self.cache_path, error)
