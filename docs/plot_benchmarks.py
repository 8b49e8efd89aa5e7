"""Plots of measured ratios, one for each piece of work, from a file of figures.

    python -m benchmarks --json figures.json        # on a machine with a GPU
    python docs/plot_benchmarks.py figures.json     # writes docs/plots/*.png, which the performance page shows

Needs matplotlib, of the extra `examples`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

PLOTS = Path(__file__).parent / "plots"


def kind_of(figure: dict[str, Any]) -> str:
    """What was measured, without the size: ``gather`` of ``gather 8,000 B``."""
    text = re.split(r"\d", str(figure["work"]), maxsplit=1)[0].strip().removesuffix(" of")
    return text or str(figure["work"])


def draw(kind: str, figures: list[dict[str, Any]], directory: Path) -> Path:
    """Draw the ratios of one kind of work to their references, with their spread."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    compared = [figure for figure in figures if figure["ratio"] is not None]
    labels = [f"{figure['work']}: {figure['version']}" for figure in compared]
    ratios = [figure["ratio"] for figure in compared]
    spreads = [figure["ratio"] * figure["spread"] / figure["median"] for figure in compared]
    height = 0.9 + 0.3 * len(compared)
    plot, axis = pyplot.subplots(figsize=(7.5, height), layout="constrained")
    rows = range(len(compared))
    axis.errorbar(ratios, rows, xerr=spreads, fmt="o", color="#08519c", markersize=5, capsize=2)
    axis.axvline(1.0, color="0.6", linewidth=0.8, zorder=0)
    axis.set_yticks(rows, labels, fontsize=8)
    axis.set_ylim(len(compared) - 0.4, -0.6)
    if max(ratios) > 10 * min(ratios):
        axis.set_xscale("log")
    references = {figure["version"] for figure in figures if figure["ratio"] is None}
    axis.set_xlabel(f"time over that of: {', '.join(sorted(references))}")
    axis.set_title(kind, fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    path = directory / f"{re.sub(r'[^a-z0-9]+', '_', kind.lower()).strip('_')}.png"
    plot.savefig(path, dpi=90)
    pyplot.close(plot)
    return path


def drawn(figures: list[dict[str, Any]], directory: Path) -> list[Path]:
    """Draw all figures; returns the files."""
    directory.mkdir(parents=True, exist_ok=True)
    grouped = groupby(sorted(figures, key=kind_of), key=kind_of)
    kinds = [(kind, list(group)) for kind, group in grouped]
    return [
        draw(kind, group, directory) for kind, group in kinds if any(figure["ratio"] is not None for figure in group)
    ]


def main() -> int:
    """Draw the figures of a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", type=Path, help="what `python -m benchmarks --json` wrote")
    parser.add_argument("--into", type=Path, default=PLOTS, help="directory (default: docs/plots)")
    options = parser.parse_args()
    for path in drawn(json.loads(options.figures.read_text()), options.into):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
