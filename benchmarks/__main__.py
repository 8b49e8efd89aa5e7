"""Run the benchmarks and print a table of ratios."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import benchmarks
import cuda_captures
from benchmarks.costs import COSTS
from benchmarks.device_work import DEVICE_WORK
from benchmarks.factory import factory
from benchmarks.held import held
from benchmarks.pieces import PIECES
from benchmarks.sass import write_all
from benchmarks.timing import Figure
from benchmarks.upload import upload
from benchmarks.warm import warm

NAMES: dict[str, Callable[[Any, bool], list[Figure]]] = {
    **DEVICE_WORK,
    **COSTS,
    "factory": factory,
    "warm": warm,
    "upload": upload,
    "held": held,
}


def shown(figures: list[Figure], compiler: str) -> Table:
    """A table of figures."""
    table = Table(title=f"ratios, {compiler}", title_justify="left")
    for column in ("work", "version", "median", "spread", "unit", "ratio", "note"):
        table.add_column(column, justify="right" if column in ("median", "spread", "ratio") else "left")
    for figure in figures:
        ratio = "" if figure.ratio is None else f"{figure.ratio:.3f}"
        if figure.median is None:
            table.add_row(figure.work, figure.version, "missing", "", "", "", figure.note)
        else:
            median, spread = f"{figure.median:,.1f}", f"{figure.spread:,.1f}"
            table.add_row(figure.work, figure.version, median, spread, figure.unit, ratio, figure.note)
    return table


def main() -> int:
    """Measure what is asked for; 1 if something failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=benchmarks.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"what to run: {', '.join(NAMES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, fewer rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--compiler", default="numba.cuda", help="module of the compiler (default: numba.cuda)")
    parser.add_argument("--sass", type=Path, metavar="FOLDER", help="write PTX and SASS of the device work there")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(PIECES if arguments.sass else NAMES)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")
    cuda = importlib.import_module(arguments.compiler)
    cuda = getattr(cuda, "cuda", cuda)
    console = Console(width=None if sys.stdout.isatty() else 160)
    cuda_captures.enable()
    if arguments.sass:
        console.print(write_all(cuda, arguments.names or list(PIECES), arguments.sass))
        return 0
    figures: list[Figure] = []
    failed = []
    for name in arguments.names or NAMES:
        begin = time.perf_counter()
        try:
            found = NAMES[name](cuda, arguments.quick)
        except Exception:
            traceback.print_exc()
            failed.append(name)
            continue
        finally:
            console.print(f"{name}: {time.perf_counter() - begin:.1f} s")
        figures += found
        if arguments.json:  # after each, so that an interrupted run leaves what it has
            arguments.json.write_text(json.dumps(written(figures, cuda, arguments.quick), indent=1))
    console.print(shown(figures, arguments.compiler))
    if failed:
        console.print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def written(figures: list[Figure], cuda: Any, quick: bool) -> dict[str, Any]:
    """Figures as they are written, with what they were measured on."""
    name = cuda.get_current_device().name
    return {
        "compiler": "numba-cuda" if cuda.__name__.startswith("numba.") else "numba-cuda-mlir",
        "device": name.decode() if isinstance(name, bytes) else str(name),
        "quick": quick,
        "figures": [vars(figure) for figure in figures],
    }


if __name__ == "__main__":
    sys.exit(main())
