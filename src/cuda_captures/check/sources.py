"""The files that are checked: found, decoded and parsed.

Nothing of the program is imported or executed.  A file that cannot be read or parsed is kept with the reason: it is
reported, and the others are checked.
"""

from __future__ import annotations

import ast
import io
import os
import symtable
import sys
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

VERSION = ".".join(map(str, sys.version_info[:2]))
LEFT_OUT = {"__pycache__", "node_modules", "site-packages"}
CURRENT_DIRECTORY = "."


@dataclass(eq=False)
class Source:
    """One file.

    Parameters
    ----------
    path
        As it is shown.
    module
        Its dotted name: from the outermost directory that is a package.
    root
        The directory that the dotted name starts from.
    is_package
        Whether it is an ``__init__.py``.
    text
        The decoded text; empty if it could not be decoded.
    tree
        What it was parsed to; None if it was not.
    problem
        Then the reason, with its line and column from 1 (0: not known).
    parents
        The node above each node.
    """

    path: str
    module: str
    root: Path
    is_package: bool
    text: str = ""
    tree: ast.Module | None = None
    problem: tuple[str, int, int] | None = None
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)

    @property
    def lines(self) -> list[str]:
        """Lines as the parser counts them: form feeds and the like end none."""
        return self.text.split("\n")

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes above a node, the nearest first."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent


def find(paths: Iterable[str]) -> Iterator[str]:
    """The Python files at paths: files as they are, directories through and through.

    Hidden directories, caches and virtual environments below a directory are left out.

    Raises
    ------
    FileNotFoundError
        For a path that is not there.
    """
    seen: set[str] = set()
    for path in paths:
        if not os.path.exists(path):
            raise FileNotFoundError(f"there is no file or directory {path!r}")
        for file in _below(path) if os.path.isdir(path) else [path]:
            real = os.path.realpath(file)
            if real not in seen:
                seen.add(real)
                yield file


def _below(directory: str) -> Iterator[str]:
    for parent, directories, files in os.walk(directory):
        directories[:] = sorted(
            name
            for name in directories
            if not name.startswith(".")
            and name not in LEFT_OUT
            and not os.path.exists(os.path.join(parent, name, "pyvenv.cfg"))
        )
        for name in sorted(files):
            if name.endswith((".py", ".pyw")):
                path = os.path.join(parent, name)
                yield path[2:] if directory == CURRENT_DIRECTORY and path.startswith("./") else path


def load(path: str) -> Source:
    """Read and parse a file; what goes wrong is the source's ``problem``."""
    source = Source(path, *_module(Path(path)))
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        source.problem = (f"it cannot be read: {error.strerror}", 0, 0)
        return source
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        source.text = io.TextIOWrapper(io.BytesIO(data), encoding).read()  # line ends become "\n", as for Python
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        source.problem = (f"it cannot be decoded: {error}", 0, 0)
        return source
    _parse(source)
    return source


def _parse(source: Source) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes and the like: not ours to tell
            tree = ast.parse(source.text, source.path)
            symtable.symtable(source.text, source.path, "exec")  # finds what is wrong with scopes
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                source.parents[child] = node
    except SyntaxError as error:
        source.problem = (f"it is no Python {VERSION}: {error.msg}", error.lineno or 0, error.offset or 0)
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes; nested too deeply
        source.problem = (f"it cannot be parsed: {error or type(error).__name__}", 0, 0)
    else:
        source.tree = tree


def _module(path: Path) -> tuple[str, Path, bool]:
    """Dotted name, where that starts, and whether it is a package."""
    path = Path(os.path.abspath(path))
    is_package = path.stem == "__init__"
    parts = [] if is_package else [path.stem]
    directory = path.parent
    while (directory / "__init__.py").exists() and directory.parent != directory:
        parts.append(directory.name)
        directory = directory.parent
    return ".".join(reversed(parts)), directory, is_package
