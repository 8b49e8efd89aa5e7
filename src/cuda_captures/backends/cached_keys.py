"""The keys of what a kernel's disk cache holds; both compilers have numba's index and data files."""

from __future__ import annotations

import pickle
from typing import Any

from cuda_captures.key import Key

# What reading something that was truncated, or written by something else, may raise.
UNREADABLE = (
    OSError,
    EOFError,
    pickle.UnpicklingError,
    AttributeError,
    ImportError,
    LookupError,
    TypeError,
    ValueError,
)
READ = 64  # entries, the newest: each has to be read whole


def keys_in(cache: Any) -> list[Key] | None:
    """Keys of the entries of a dispatcher's disk cache; None if it has none.

    For reports: reads files.  What cannot be read is left out.
    """
    files = getattr(cache, "_cache_file", None)
    if files is None or not getattr(cache, "_enabled", True):
        return None
    try:
        names = list(files._load_index().values())
    except UNREADABLE:
        return []
    found = []
    for name in names[-READ:]:
        try:
            entry = files._load_data(name)
        except UNREADABLE:
            continue
        key = entry.get("key") if isinstance(entry, dict) else None
        if isinstance(key, Key):
            found.append(key)
    return found
