"""Run the benchmarks and print a table of ratios."""

from __future__ import annotations

import argparse
import importlib
import json
import os

from rich.console import Console
from rich.table import Table

import cuda_captures
from benchmarks.work import WORK


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"what to run: {', '.join(WORK)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, fewer rounds")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    parser.add_argument("--compiler", default="numba.cuda", help="module of the compiler (default: numba.cuda)")
    arguments = parser.parse_args()
    os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")
    cuda = importlib.import_module(arguments.compiler)
    cuda = getattr(cuda, "cuda", cuda)
    cuda_captures.enable()
    table = Table(title=f"ratios, {arguments.compiler}", title_justify="left")
    for column in ("work", "version", "median us", "spread", "ratio"):
        table.add_column(column, justify="left" if column in ("work", "version") else "right")
    figures = []
    for name in arguments.names or WORK:
        for figure in WORK[name](cuda, arguments.quick):
            figures.append(figure)
            ratio = "" if figure.ratio is None else f"{figure.ratio:.3f}"
            table.add_row(figure.work, figure.version, f"{figure.median:.1f}", f"{figure.spread:.1f}", ratio)
    Console(width=110).print(table)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump([vars(figure) for figure in figures], file, indent=1)


if __name__ == "__main__":
    main()
