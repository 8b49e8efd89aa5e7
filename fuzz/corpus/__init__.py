"""Programs that captures once got wrong, each as small as it could be made; kept as tests."""

from __future__ import annotations

import importlib
from pathlib import Path

from fuzz.program import Program

FOLDER = Path(__file__).parent


def cases() -> list[str]:
    """Their names."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")


def load(name: str) -> Program:
    """One of them."""
    found = importlib.import_module(f"fuzz.corpus.{name}").PROGRAM
    assert isinstance(found, Program)
    return found


def keep(name: str, program: Program, why: str, folder: Path = FOLDER) -> Path:
    """Write a case."""
    path = folder / f"{name}.py"
    path.write_text(program.case(why))
    return path
