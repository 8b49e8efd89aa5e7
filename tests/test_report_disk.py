"""Reports: what the disk cache had, read from the compilers' own index and data files."""

from __future__ import annotations

import importlib
import types
from pathlib import Path
from typing import Any

import pytest

from conftest import module_of
from cuda_captures.backends.cached_keys import keys_in
from cuda_captures.backends.inspection import until
from cuda_captures.key import Key
from cuda_captures.misses import why_missed

CACHING = {"numba-cuda": "numba.cuda.core.caching", "numba-cuda-mlir": "numba_cuda_mlir.numba_cuda.core.caching"}


@pytest.fixture
def files(compiler: str, tmp_path: Path) -> Any:
    """The index and data files of one kernel's cache, as the compiler writes them."""
    module_of(compiler)
    return importlib.import_module(CACHING[compiler]).IndexDataCacheFile(str(tmp_path), "kernel", "stamp")


def key(n: int, name: str = "kernel") -> Key:
    return Key(f"function 0 = `{name}`\nfunction 0 global n = int {n}", f"{name}{n}")


def cache_of(files: Any, enabled: bool = True) -> Any:
    return types.SimpleNamespace(_cache_file=files, _enabled=enabled)


def test_keys_of_entries_in_their_order(files: Any) -> None:
    for n in (3, 1, 2):
        files.save(("index", n), {"key": key(n), "kernel": b"..."})
    assert keys_in(cache_of(files)) == [key(3), key(1), key(2)]


def test_no_cache(files: Any) -> None:
    assert keys_in(None) is None
    assert keys_in(cache_of(files, enabled=False)) is None
    assert keys_in(cache_of(files)) == []


def test_what_cannot_be_read_is_left_out(files: Any, tmp_path: Path) -> None:
    files.save("upstream's", ("a", "tuple"))
    files.save("no key", {"kernel": b""})
    files.save("truncated", {"key": key(1)})
    files.save("removed", {"key": key(2)})
    files.save("whole", {"key": key(3)})
    data = tmp_path / files._load_index()["truncated"]
    data.write_bytes(data.read_bytes()[:-5])
    (tmp_path / files._load_index()["removed"]).unlink()
    assert keys_in(cache_of(files)) == [key(3)]
    (tmp_path / "kernel.nbi").write_bytes(b"no index")
    assert keys_in(cache_of(files)) == []


def test_what_was_there_before() -> None:
    keys = [key(1), key(2), key(3)]
    assert until(key(2), keys) == [key(1)]
    assert until(key(9), keys) == keys


def test_the_nearest_of_the_same_name_is_told() -> None:
    far = Key("function 0 = `kernel`\nfunction 0 global n = int 7\nsignature = (a)\noption x = 1", "far")
    wanted = Key("function 0 = `kernel`\nfunction 0 global n = int 8\nsignature = (b)", "wanted")
    assert why_missed(wanted, [far, key(5), key(8, "other")]) == (
        "global `n`: int 5 → int 8",
        "signature: absent → (b)",
    )
    assert why_missed(wanted, [key(8, "other")]) == ()
    assert why_missed(wanted, [wanted]) == ()


def test_who_differs_in_much_is_told_in_short() -> None:
    lines = [f"function 1 global name{n} = int {n}" for n in range(20)]
    one = Key("function 0 = `kernel`\nfunction 1 = `look`", "one")
    other = Key("\n".join([one.text, *lines]), "other")
    told = why_missed(other, [one])
    assert told[0] == "global `name0` of `look`: absent → int 0"
    assert told[-1] == "and 14 more"
    assert len(told) == 7
