"""What `check` finds and how it says it: the wrong code under carets, the reason, what to write instead."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from cuda_captures.check import Finding, check, texts

HEAD = "import numpy as np\nfrom numba import cuda\n"


def findings(directory: Path, text: str, **others: str) -> list[Finding]:
    """The findings in a program, and in other files beside it."""
    for name, content in {**others, "program": HEAD + textwrap.dedent(text)}.items():
        path = directory / f"{name}.py"
        path.write_text(textwrap.dedent(content))
    return list(check([str(directory)]).findings)


def kernel(body: str, decorator: str = "@cuda.jit") -> str:
    return f"\n{decorator}\ndef k(i, out):\n{textwrap.indent(textwrap.dedent(body), '    ')}\n"


READ = kernel("out[i] = table[i]")
CACHED = kernel("out[i] = table[i]", "@cuda.jit(cache=True)")
VALUE = kernel("out[i] = value", "@cuda.jit(cache=True)")

# Program, and the findings that are wanted: kind, certainty and a part of the text.
CASES: dict[str, list[tuple[str, str, str]]] = {
    f"table = np.zeros(100_000){READ}": [
        ("host-array", "certain", r"a NumPy array of 800,000 bytes(.|\n)*does not compile, and ptxas names no variable")
    ],
    f"table = np.zeros(100){READ}": [("host-array", "certain", "threads that read different elements wait")],
    f"table = np.load('t.npy'){READ}": [("host-array", "likely", "over 65,536 bytes it does not compile")],
    f"table = np.arange(4.0){READ}": [("host-array", "certain", r"ask for it, `cuda.const.array_like\(table\)`")],
    f"table = np.zeros(9){kernel('table[i] = out[i]')}": [("host-array", "certain", "the copy is read-only")],
    f"table = np.zeros(9){kernel('cuda.atomic.add(table, i, 1)')}": [("host-array", "certain", "the launch traps")],
    f"table = np.zeros(9){READ}table[0] = 1": [("host-array", "certain", "launches keep the old contents")],
    f"table = np.zeros(9){READ}table *= 2": [("host-array", "certain", "edited: .*table \\*= 2")],
    f"table = np.zeros(9){READ}np.copyto(table, 1)": [("host-array", "certain", "edited: .*copyto")],
    f"table = np.zeros(9)\ndef edit():\n    table.fill(3){READ}": [("host-array", "certain", "edited: .*fill")],
    f"table = np.zeros(9){CACHED}": [("host-array", "certain", "a later process silently takes the old contents")],
    f"table = cuda.to_device(np.zeros(9)){READ}": [("device-array", "certain", "second GPU ends in an illegal")],
    f"table = cuda.device_array(9){CACHED}": [("device-array", "certain", "PicklingError")],
    f"import cupy\ntable = cupy.arange(9) * 2{READ}": [("device-array", "certain", "a CuPy array")],
    f"import torch\ntable = torch.zeros(9, device='cuda:0'){READ}": [("device-array", "certain", "PyTorch tensor")],
    f"import torch\ntable = torch.zeros(9).cuda(){READ}": [("device-array", "certain", "PyTorch tensor")],
    f"import torch\ntable = torch.zeros(9){READ}": [("object", "certain", "a PyTorch tensor on the host")],
    f"table = (np.zeros(9), 1){READ}": [("array-in-tuple", "certain", "with 1 NumPy array\n(.|\n)*internal error")],
    f"table = (np.zeros(9999), np.ones(4)){READ}": [("array-in-tuple", "certain", "with 2 NumPy arrays(.|\n)*ptxas")],
    f"table = (cuda.device_array(9),) * 3{READ}": [],  # how many cannot be told, nor of what
    f"table = (cuda.device_array(9), cuda.device_array(9)){kernel('table[0][i] = 1')}": [
        ("array-in-tuple", "certain", r"2 device arrays(.|\n)*takes the arrays for read-only(.|\n)*writes into it")
    ],
    f"from collections import namedtuple\nT = namedtuple('T', 'a b')\ntable = T(np.zeros(3), 1)"
    f"{kernel('out[i] = table.a[i]')}": [("array-in-tuple", "certain", "a named tuple T with 1 NumPy array")],
    f"table = (1, 2, 3){READ}": [],
    "table = np.zeros(9)\ndef k(i): return table[i]\ncuda.compile(k, 'float64(int64)')": [
        ("host-array", "certain", "compiled function `k` captures(.|\n)*instead: (.|\n)*compile_with_slots")
    ],
    f"table = [1, 2]{READ}": [("container", "certain", r"a list(.|\n)*change one by one(.|\n)*np.array\(table\)")],
    f"table = [0] * 9{READ}": [("container", "certain", "a list")],
    f"table = {{1: 2}}{READ}": [("container", "certain", r"a dictionary(.|\n)*of keys and of values")],
    f"table = {{1, 2}}{kernel('out[i] = i in table')}": [("container", "certain", r"np.array\(sorted\(table\)\)")],
    f"table = frozenset((1, 2)){kernel('out[i] = i in table')}": [("container", "certain", "tuple.sorted.table")],
    f"table = range(3){READ}": [("container", "certain", "cannot type it(.|\n)*capture its bounds")],
    f"class A: pass\na = A(){kernel('out[i] = a.table[i]')}": [
        ("object", "certain", "an object of class A\n(.|\n)*`table = a.table`(.|\n)*pass that as an argument")
    ],
    f"class A:\n    table = 1{kernel('out[i] = A.table')}": [("object", "certain", "`A`, a class(.|\n)*one by one")],
    "class A:\n    def build(self):\n        @cuda.jit\n        def k(i, out): out[i] = self.table[i]": [
        ("object", "certain", "captures `self`, an object(.|\n)*`table = self.table`")
    ],
    f"a = np.zeros(5000)\nb = np.zeros(5000){kernel('out[i] = a[i] + b[i]')}": [
        ("constant-memory", "certain", r"`a` \(40,000 bytes\) and `b` \(40,000 bytes\), together 80,000 bytes"),
        ("host-array", "certain", "`a`"),
        ("host-array", "certain", "`b`"),
    ],
    f"value = 1{kernel('out[i] = value')}value = 2": [
        ("rebound", "likely", r"bound anew: .*value = 2\n(.|\n)*launches do not follow(.|\n)*both before and after")
    ],
    f"value = 1\ndef change():\n    global value\n    value = 2{kernel('out[i] = value')}": [
        ("rebound", "possible", "goes stale if that is executed after the first launch")
    ],
    f"{kernel('out[i] = value')}for value in range(3):\n    k[1, 1](0, out)": [("rebound", "likely", "for value in")],
    f"table = cuda.device_array(3){READ}table = cuda.device_array(4)": [
        ("device-array", "certain", "`table`"),
        ("rebound", "likely", "the array that the name has at the first launch"),
    ],
    f"import os\nvalue = int(os.environ['N']){VALUE}": [("cached", "likely", "differs from process to process")],
    f"value = 3{VALUE}": [],
    f"from library import table{READ}": [
        ("unknown", "possible", "`table` comes from `library.table`, which is not among the checked files")
    ],
    "def make(table):\n    @cuda.jit\n    def k(i, out): out[i] = table[i]": [
        ("unknown", "possible", "cannot be told from the checked files(.|\n)*a tuple of numbers is fine")
    ],
    "def make(table):\n    @cuda.jit\n    def k(i, out): out[i] = table[i]\nmake(np.zeros(3))": [
        ("host-array", "likely", "told from the calls in the checked files")
    ],
    f"table = None\nif out:\n    table = np.zeros(9){READ}": [("host-array", "likely", "elsewhere it is None")],
    f"if out:\n    table = np.zeros(9)\nelse:\n    table = other(){READ}": [
        ("host-array", "possible", "what some of them give cannot be told")
    ],
}  # fmt: skip


@pytest.mark.parametrize("program", CASES)
def test_finding(tmp_path: Path, program: str) -> None:
    found = findings(tmp_path, program)
    assert [(one.kind, one.certainty) for one in found] == [case[:2] for case in CASES[program]], found
    for one, (_, _, text) in zip(found, CASES[program], strict=True):
        assert re.search(text, str(one)), str(one)


NOTHING = [
    f"TABLE = np.zeros(9){kernel('table = cuda.const.array_like(TABLE); out[i] = table[i]')}",
    f"table = np.zeros(9){kernel('if i < table.shape[0] and i < len(table): out[i] = table.size')}",
    f"import math\n{kernel('out[i] = math.pi + np.pi + np.float32(3) + cuda.threadIdx.x')}",
    f"table = np.zeros(9){kernel('table = cuda.local.array(3, np.float32); out[i] = table[i]')}",
    f"table = np.zeros(9){kernel('for table in range(3): out[table] = 1')}",
    "table = np.zeros(9)\n@cuda.jit\ndef k(table, out): out[0] = table[0]",
    "table = np.zeros(9)\n@cuda.jit\ndef k(i, out, _=table[0]): out[i] = 1",
    "table = np.zeros(9)\nclass A:\n    @cuda.jit\n    def k(table, out): out[0] = table[0]",
    f"import cuda_captures\ntable = cuda_captures.snapshot(np.zeros(9)){READ}",
    f"dtype = np.dtype([('a', 'f4')])\nkind = np.float32{kernel('x = cuda.local.array(3, kind); y = dtype')}",
    f"try:\n    value = 1\nexcept ImportError:\n    value = 2{kernel('out[i] = value')}",
    f"if np:\n    value = 1\nelse:\n    value = 2{kernel('out[i] = value')}",
    f"value = 1\nvalue = 2{kernel('out[i] = value')}",
    f"table = np.zeros(9)\ntable[0] = 3{kernel('out[i] = table.size')}",
    "for value in range(3):\n    @cuda.jit\n    def k(out): out[0] = value\n    k[1, 1](out)",
    "def f():\n    value = 1\n    @cuda.jit\n    def k(out): out[0] = value\n    k[1, 1](out)\n    value = 2",
    f"table = np.zeros(9){kernel('out[i] = table[i]  # captures: ignore')}",
    "from enum import Enum\nclass E(Enum):\n    A = 1\n" + kernel("out[i] = E.A"),
    "from numba import types\nclass T(types.Type): pass\nt = T()" + kernel("x = cuda.local.array(3, t)"),
    "table = np.zeros(9)\ndef plain(i, out): out[i] = table[i]",
]


@pytest.mark.parametrize("program", NOTHING)
def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path, program: str) -> None:
    assert [str(one) for one in findings(tmp_path, program)] == []


def test_the_whole_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("look.py").write_text(
        f"{HEAD}ä, table = 'ä', np.zeros(10_000)\n@cuda.jit\ndef k(i, out):\n\tout['ä'] = table[i]\n"
    )
    (found,) = check(["look.py"]).findings
    assert str(found) == (
        "look.py:6:13: host-array [certain]: kernel `k` captures `table`, a NumPy array of 80,000 bytes\n"
        "     6 | \tout['ä'] = table[i]\n"
        "       | \t           ^^^^^\n"
        "  made: look.py:3:4: ä, table = 'ä', np.zeros(10_000)\n"
        "  why: numba copies a captured NumPy array into constant memory, which has 65,536 bytes: this does not"
        " compile, and ptxas names no variable.\n"
        "  instead: pass `table` to `k` as an argument; or call `cuda_captures.enable()` before the first launch: it"
        " is then captured by reference."
    )
    assert found.to_dict()["column"] == 13
    assert found.to_dict()["cured_by_captures"] is True


TABLES = "import numpy as np\nsigma = np.zeros(3)\nVALUE = 3\n"
IMPORTING = "from tables import sigma, VALUE\nimport tables as t" + kernel(
    "out[i] = sigma[i] + t.sigma[i] + VALUE", "@cuda.jit(cache=True)"
)


def test_through_imports_of_the_checked_files(tmp_path: Path) -> None:
    other = "import tables\ndef edit():\n    tables.sigma[0] = 1\n    tables.sigma = None\n"
    found = {
        one.name: one for one in findings(tmp_path, IMPORTING, tables=TABLES, other=other) if one.kind != "rebound"
    }
    assert list(found) == ["sigma", "t.sigma", "VALUE"]
    assert "made: " + str(tmp_path / "tables.py") + ":2:1: sigma" in str(found["sigma"])
    assert "edited: " + str(tmp_path / "other.py") + ":3:5" in str(found["sigma"])
    assert "an attribute of a module, which numba-cuda-mlir does not compile" in str(found["t.sigma"])
    assert found["VALUE"].kind == "cached"
    assert "`VALUE` is compiled into cached kernel `k`, and is written in another file" in str(found["VALUE"])
    assert f"after an edit of {tmp_path / 'tables.py'} a later process silently takes" in str(found["VALUE"])
    rebound = [one for one in findings(tmp_path, IMPORTING) if one.kind == "rebound"]
    assert [one.name for one in rebound] == ["t.sigma"]  # `from tables import sigma` keeps what it got


def test_a_device_function_of_a_cached_kernel(tmp_path: Path) -> None:
    program = """
        import os
        def make(scale):
            @cuda.jit(device=True)
            def inner(x): return x * scale
            return inner
        @cuda.jit(device=True)
        def middle(x): return x * value
        value = float(os.environ["X"])
        @cuda.jit(cache=True)
        def k(i, out): out[i] = middle(i)
    """
    (found,) = findings(tmp_path, program)
    assert (found.kind, found.name, found.function) == ("cached", "value", "middle")
    assert "the cached kernel: " in str(found)
    assert "pass `value` as an argument, or leave cache=True out; or call" in str(found)


def test_every_text_is_shown_by_some_program(tmp_path: Path) -> None:
    seen = "".join(str(one) for program in CASES for one in findings(tmp_path, program))
    seen += "".join(str(one) for one in findings(tmp_path, IMPORTING, tables=TABLES))
    for name, text in vars(texts).items():
        if name.isupper() and not name.startswith("_"):
            for one in text.values() if isinstance(text, dict) else [text]:
                longest = max(re.split(r"\{+\w+\}+", one), key=len).strip()
                assert len(longest) > 12, name
                assert longest in seen, name


def test_what_was_overwritten_before_is_not_seen(tmp_path: Path) -> None:
    program = f"""
def make(n):
    table = unknown(n)
    with open(n):
        table = np.zeros(3)
    if n:
        table = np.ones(4)
    @cuda.jit
    def k(i, out): out[i] = table[i]
    return k
other = [1]
other = np.zeros(3)
{kernel("out[i] = other[i]")}
"""
    made, other = findings(tmp_path, program)
    assert (made.name, made.kind, made.certainty) == ("table", "host-array", "certain")
    assert [one.text.strip() for one in made.related] == ["table = np.zeros(3)", "table = np.ones(4)"]
    assert (other.name, other.kind, other.certainty) == ("other", "host-array", "certain")
