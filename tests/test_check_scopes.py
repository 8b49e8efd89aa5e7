"""Scopes of checked files against Python's own symbol tables."""

from __future__ import annotations

import ast
import json
import random
import symtable
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuda_captures.check.reading import read
from cuda_captures.check.scopes import Scope
from cuda_captures.check.sources import Source, load

LIBRARY = Path(json.__file__).parent.parent
FILES = [
    "ast.py",
    "dataclasses.py",
    "functools.py",
    "inspect.py",
    "typing.py",
    "enum.py",
    "asyncio/tasks.py",
    "types.py",
]
FILES += ["contextlib.py", "unittest/mock.py", "json/decoder.py", "concurrent/futures/process.py", "statistics.py"]


def scopes_of(text: str, directory: Path) -> Scope:
    path = directory / "program.py"
    path.write_text(textwrap.dedent(text))
    source = load(str(path))
    assert source.problem is None, source.problem
    return read(source).module


def pairs(scope: Scope, table: symtable.SymbolTable) -> Iterator[tuple[Scope, symtable.SymbolTable]]:
    """Scopes with Python's tables of the same functions and classes, where that can be told."""
    yield scope, table
    mine: dict[tuple[str, int], list[Scope]] = {}
    theirs: dict[tuple[str, int], list[symtable.SymbolTable]] = {}
    for child in scope.children:
        mine.setdefault((child.name, child.node.lineno), []).append(child)  # type: ignore[attr-defined]
    for one in table.get_children():
        theirs.setdefault((one.get_name(), one.get_lineno()), []).append(one)
    for key, found in mine.items():
        named = isinstance(found[0].node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        if named and len(found) == len(theirs.get(key, ())) == 1:
            yield from pairs(found[0], theirs[key][0])


def agree(module: Scope, text: str) -> int:
    """Compare where each name that a function reads lives; returns how many were compared."""
    compared = 0
    for scope, table in pairs(module, symtable.symtable(text, "program.py", "exec")):
        for name in dict.fromkeys(node.id for node in scope.reads):
            if name.startswith("__") and not name.endswith("__"):
                continue  # mangled in classes
            if name not in table.get_identifiers():
                assert sys.version_info >= (3, 12), "type parameters, in annotations, have a table of their own"
                continue
            symbol = table.lookup(name)
            home = scope.resolve(name)
            if scope.parent is None:
                assert (home is scope) == (symbol.is_assigned() or symbol.is_imported() or home is scope), name
            elif symbol.is_free():
                assert home not in (None, scope, module), (scope.name, name)
            elif symbol.is_local():
                assert home is scope, (scope.name, name)
            elif symbol.is_global():
                assert home is None or home.parent is None, (scope.name, name)
            compared += 1
    return compared


@pytest.mark.parametrize("name", FILES)
def test_names_live_where_python_says(name: str) -> None:
    source = load(str(LIBRARY / name))
    assert source.tree is not None
    assert agree(read(source).module, source.text) > 50


PROGRAM = """
    import numpy as np
    from . import sibling as other
    table = 1
    def outer(parameter, *rest, keyword=table, **more):
        table = parameter
        def inner():
            nonlocal table
            table = [table for table in rest if (found := table)]
            return table, found, keyword
        class Local:
            table = 3
            def method(self):
                return table, __class__, np
        def writes():
            global table, made
            table = made = 2
            for index, (a, *b) in enumerate(more):
                pass
            with open(a) as file, file:
                del index
            try:
                pass
            except Exception as error:
                raise error
            match table:
                case {"a": first, **others}: return first, others
                case [one, *many] as whole: return one, many, whole
        return inner, Local, writes, lambda x, y=table: (x, y, table)
    table += 1
    annotated: int
    (a, b), c.d, e[0] = 1, 2, 3
"""


def test_every_way_to_bind_a_name(tmp_path: Path) -> None:
    module = scopes_of(PROGRAM, tmp_path)
    assert agree(module, textwrap.dedent(PROGRAM)) > 20
    outer = module.children[0]
    inner, local, writes, _ = outer.children
    assert [binding.how for binding in module.bindings["table"]] == ["assign", "augment", "assign"]
    assert [binding.scope.name for binding in module.bindings["table"]] == ["module", "module", "writes"]
    assert [binding.scope.name for binding in outer.bindings["table"]] == ["outer", "inner"]
    assert set(outer.bindings) == {"parameter", "rest", "keyword", "more", "table", "inner", "Local", "writes"}
    assert set(writes.bindings) == {"index", "a", "b", "file", "error", "first", "others", "one", "many", "whole"}
    assert inner.resolve("found") is inner
    assert local.resolve("table") is local
    assert local.children[0].resolve("table") is outer
    assert writes.resolve("made") is module
    assert module.bindings["other"][0].target == ("", "sibling", 1)
    assert "annotated" not in module.bindings


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type parameters came with Python 3.12")
def test_type_parameters(tmp_path: Path) -> None:
    module = scopes_of("def f[T](x: T):\n    return T\ntype A[U] = list[U]\nclass C[V]:\n    v = V\n", tmp_path)
    assert module.children[0].resolve("T") is module.children[0]
    assert "A" in module.bindings


def test_random_bytes_are_reported_and_not_fatal(tmp_path: Path) -> None:
    rolls = random.Random(4)
    path = tmp_path / "odd.py"
    texts = [bytes(rolls.randrange(256) for _ in range(rolls.randrange(1, 200))) for _ in range(200)]
    for text in texts:
        path.write_bytes(text)
        source = load(str(path))
        assert (source.tree is None) == (source.problem is not None)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"x = (", "it is no Python 3.*'(' was never closed"),
        (b"def f():\n    nonlocal x\n", "no binding for nonlocal 'x' found"),
        (b"print 'old'", "Missing parentheses"),
        (b"x = 1\x00", "null bytes"),
        (b"# -*- coding: nonsense -*-\n", "it cannot be decoded: unknown encoding"),
        (b"x = '\xff'", "it cannot be decoded: "),
        ("(" * 500 + ")" * 500, "too many nested parentheses"),
        ("-" * 20_000 + "1", ""),
        ("x = " + "+".join(["1"] * 20_000), ""),
    ],
)
def test_files_that_cannot_be_parsed(tmp_path: Path, data: bytes | str, reason: str) -> None:
    path = tmp_path / "odd.py"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    source = load(str(path))
    if source.problem is not None:
        import re

        assert re.search(reason.replace("(", r"\(").replace(")", r"\)") if reason else ".", source.problem[0])
    else:
        assert not reason
        read(source)


@pytest.mark.parametrize(
    "data",
    [
        "# -*- coding: latin-1 -*-\nname = 'ä'\n".encode("latin-1"),
        "\ufeffname = 'ä'\n".encode(),
        b"name = 1\r\nother = 2\r",
        b"\x0cname = 1\n",
        b"",
    ],
)
def test_encodings_and_line_ends(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "odd.py"
    path.write_bytes(data)
    source = load(str(path))
    assert source.problem is None
    assert isinstance(source, Source)
    assert not data or "name" in read(source).module.bindings
