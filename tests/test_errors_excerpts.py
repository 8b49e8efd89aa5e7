"""Messages show the line of source that they are about, with a caret under the name."""

from __future__ import annotations

import linecache
from typing import Any

import pytest

from cuda_captures.errors import line_naming, pointer
from kernels_in_memory import written

WIDE = "表"


def lines(text: str) -> list[str]:
    return text.split("\n")


def test_the_caret_is_under_the_name() -> None:
    kernel = written("def kernel(out):\n    x = 1\n    out[x] = untabled[0] + table[x]\n")
    head, code, caret = lines(pointer(kernel, "table"))
    assert head.endswith(">:3, in kernel")
    assert code == "    out[x] = untabled[0] + table[x]"
    assert caret == "                           ^^^^^"
    assert line_naming(kernel.__code__, "table") == 3


@pytest.mark.parametrize(
    ("source", "name", "shown", "marked"),
    [
        ("def kernel(out):\n    out[0] = config.table[1]\n", "table", "out[0] = config.table[1]", "table"),
        ("def kernel(out):\n    out[0] = tables[1][0]\n", "tables[1]", "out[0] = tables[1][0]", "tables"),
        ("def kernel(out):\n    out[0] = cell.weight[0]\n", "cell.weight", "out[0] = cell.weight[0]", "cell"),
        (
            "def kernel(out):\n    f = lambda i: table[i]\n    out[0] = f(1)\n",
            "table",
            "f = lambda i: table[i]",
            "table",
        ),
        ("def kernel(out):\n    'table'\n    print('table', table)\n", "table", "print('table', table)", "table"),
        ("def kernel(out):\n    a, b = out, table\n", "table", "a, b = out, table", "table"),
        (f"def kernel(out):\n    {WIDE} = 1; out[{WIDE}] = t\n", "t", f"{WIDE} = 1; out[{WIDE}] = t", "t"),
        ("def kernel(out):\n    out[0] =\ttable[1]\n", "table", "out[0] =\ttable[1]", "table"),
    ],
)
def test_what_is_shown(source: str, name: str, shown: str, marked: str) -> None:
    _, code, caret = lines(pointer(written(source), name))
    assert code == f"    {shown}"
    columns = caret.expandtabs(8).index("^")
    wide = code.expandtabs(8)
    cells = "".join(one * (2 if one == WIDE else 1) for one in wide)
    assert cells[columns:].startswith(marked)
    assert not cells[:columns].endswith(marked)
    assert caret.strip() == "^" * len(marked)


def test_without_the_source_only_the_line_is_named() -> None:
    namespace: dict[str, Any] = {}
    exec("def kernel(out):\n    out[0] = table[1]\n", namespace)
    assert pointer(namespace["kernel"], "table") == "<string>:2, in kernel"


def test_a_line_that_does_not_hold_the_name_is_marked_whole() -> None:
    kernel = written("def kernel(out):\n    view = table[1:]\n    view[0] = 1\n")
    assert lines(pointer(kernel, "table", 3))[1:] == ["    view[0] = 1", "    ^^^^^^^^^^^"]


def test_a_file_that_was_edited_since_is_not_pointed_into_blindly() -> None:
    kernel = written("def kernel(out):\n    out[0] = table[1]\n")
    filename = kernel.__code__.co_filename
    linecache.cache[filename] = (9, None, ["def kernel(out):\n", "    table = 5  # moved\n"], filename)
    assert lines(pointer(kernel, "table"))[1:] == ["    table = 5  # moved", "    ^^^^^"]
