"""numba-cuda-mlir's disk cache, with captures: entries hold machine code and the paths of slots, never an address.

The directories, the index and its invalidation by the source file's stamp stay upstream's; the key of an entry is
ours, because upstream's neither sees globals nor device functions, and has the contents of closure cells in it.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from numba_cuda_mlir import types
from numba_cuda_mlir.caching import MLIRCache
from numba_cuda_mlir.numba_cuda import typing

from cuda_captures.backends.argument_types import signature_text
from cuda_captures.backends.uncached import warn_uncacheable, warn_unwritable
from cuda_captures.code import Code, Use
from cuda_captures.key import SCHEMA, Key, Unkeyable

upstream_load_overload = MLIRCache.load_overload
upstream_save_overload = MLIRCache.save_overload

# What reading an entry that was truncated, or written by something else, may raise.
UNREADABLE = (pickle.UnpicklingError, EOFError, AttributeError, ImportError, LookupError, TypeError, ValueError)


def entry_of(code: Code) -> dict[str, Any]:
    """An entry for the cache."""
    product = code.product
    return {
        "schema": SCHEMA,
        "backend": "numba-cuda-mlir",
        "metadata": product.metadata,
        "argtypes": tuple(product.signature.args),
        "return_type": product.signature.return_type,
        "numba_ir": product.numba_ir,
        "uses": [(use.slot, use.signature, use.recipe, use.name, use.written) for use in code.uses],
        "key": code.key,
        "constant_bytes": code.constant_bytes,
    }


def code_from(entry: Any) -> Code | None:
    """Code from an entry of the cache; None, a miss, if it is no entry of ours."""
    from .kernel import Product

    if not isinstance(entry, dict) or entry.get("schema") != SCHEMA or entry.get("backend") != "numba-cuda-mlir":
        return None
    uses = tuple(
        Use(slot, None, signature, recipe, name, written) for slot, signature, recipe, name, written in entry["uses"]
    )
    signature = typing.signature(entry["return_type"], *entry["argtypes"])
    product = Product(entry["metadata"], signature, entry["numba_ir"])
    return Code(uses, product, entry["key"], constant_bytes=entry["constant_bytes"], source="disk")


def index_key(argtypes: Sequence[Any], key: Key) -> tuple[Any, ...]:
    """The key of an entry in upstream's index."""
    return ("cuda-captures", SCHEMA, signature_text(types, argtypes), key.digest)


def fetch(cache: Any, argtypes: Sequence[Any], key: Key) -> Code | None:
    """The code of a key from a kernel's disk cache; whatever is wrong with an entry is a miss."""
    if not isinstance(cache, MLIRCache) or not cache._enabled:
        return None
    try:
        with cache._guard_against_spurious_io_errors():
            return code_from(cache._cache_file.load(index_key(argtypes, key)))
    except UNREADABLE as error:
        if isinstance(error, NameError):
            raise
        return None


def store(cache: Any, argtypes: Sequence[Any], code: Code) -> None:
    """Put code into a kernel's disk cache; what cannot be found again is said by name."""
    if not isinstance(cache, MLIRCache) or not cache._enabled:
        return
    if code.key is None:
        warn_uncacheable(cache._name, cache._py_func, code)
        return
    entry, index = entry_of(code), index_key(argtypes, code.key)
    try:
        with cache._guard_against_spurious_io_errors():
            cache._impl.locator.ensure_cache_path()
            try:
                cache._cache_file.save(index, entry)
            except UNREADABLE:  # the index that was there is not one: begin anew
                cache.flush()
                cache._cache_file.save(index, entry)
    except OSError as error:
        warn_unwritable(cache._name, cache._py_func, cache.cache_path, error)


def load_overload(self: Any, sig: Any, target_context: Any) -> Any:
    """The kernel that the dispatcher at work is about to compile, if the disk cache has it."""
    from . import dispatcher

    making = dispatcher.at_work()
    if making is None:
        return upstream_load_overload(self, sig, target_context)
    try:
        return making.from_cache(self, tuple(sig.args))
    except Unkeyable:
        return None  # said when the kernel that had to be compiled is not saved


def save_overload(self: Any, sig: Any, data: Any) -> None:
    """Save a kernel, if it can be found again."""
    code = getattr(data, "code", None)
    if code is None:
        upstream_save_overload(self, sig, data)
    else:
        store(self, tuple(sig.args), code)
