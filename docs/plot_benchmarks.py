"""Plots and tables of what was measured, one for each kind of work, from files of figures.

    python -m benchmarks --json numba-cuda.json                                        # on a machine with a GPU
    python -m benchmarks --compiler numba_cuda_mlir.cuda --json numba-cuda-mlir.json
    python docs/plot_benchmarks.py numba-cuda.json numba-cuda-mlir.json

writes ``docs/plots/*.png`` and ``docs/plots/tables.txt``, which the performance page shows.  Needs matplotlib, of the
extra `examples`.
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
COLOURS = ("#08519c", "#d94801", "#238b45")

Figure = dict[str, Any]


def read(path: Path) -> list[Figure]:
    """The figures of a file, each with the compiler that it was measured with."""
    content = json.loads(path.read_text())
    if isinstance(content, list):
        return [{"compiler": path.stem, **figure} for figure in content]
    return [{"compiler": content["compiler"], **figure} for figure in content["figures"]]


def kind_of(figure: Figure) -> str:
    """What was measured, without the size: ``gather`` of ``gather 8,000 B``."""
    text = re.split(r"\d", str(figure["work"]), maxsplit=1)[0].strip().removesuffix(" of")
    return text.partition(" per ")[0].split(",")[0] or str(figure["work"])


def has_ratio(figure: Figure) -> bool:
    """Whether a figure is to be seen in a plot."""
    return figure["ratio"] is not None and bool(figure["median"])


def draw(kind: str, figures: list[Figure], directory: Path) -> Path:
    """Draw the ratios of one kind of work to their references, with their spread, in a colour for each compiler."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    compared = [figure for figure in figures if has_ratio(figure)]
    labels = list(dict.fromkeys(f"{figure['work']}: {figure['version']}" for figure in compared))
    compilers = list(dict.fromkeys(figure["compiler"] for figure in figures))
    plot, axis = pyplot.subplots(figsize=(7.5, 1.0 + 0.3 * len(labels)), layout="constrained")
    for number, compiler in enumerate(compilers):
        mine = [figure for figure in compared if figure["compiler"] == compiler]
        rows = [labels.index(f"{figure['work']}: {figure['version']}") for figure in mine]
        shifted = [row + 0.22 * (number - (len(compilers) - 1) / 2) for row in rows]
        ratios = [figure["ratio"] for figure in mine]
        spreads = [figure["ratio"] * figure["spread"] / figure["median"] for figure in mine]
        colour = COLOURS[number % len(COLOURS)]
        axis.errorbar(ratios, shifted, xerr=spreads, fmt="o", color=colour, markersize=4, capsize=2, label=compiler)
    if len(compilers) > 1:
        axis.legend(fontsize=7, frameon=False)
    axis.axvline(1.0, color="0.6", linewidth=0.8, zorder=0)
    axis.set_yticks(range(len(labels)), labels, fontsize=8)
    axis.set_ylim(len(labels) - 0.4, -0.6)
    ratios = [figure["ratio"] for figure in compared]
    if max(ratios) > 10 * min(ratios):
        axis.set_xscale("log")
    references = {figure["version"] for figure in figures if figure["ratio"] is None and figure["median"] is not None}
    axis.set_xlabel(f"time over that of: {', '.join(sorted(references))}")
    axis.set_title(kind, fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    path = directory / f"{re.sub(r'[^a-z0-9]+', '_', kind.lower()).strip('_')}.png"
    plot.savefig(path, dpi=90)
    pyplot.close(plot)
    return path


def kinds_in(figures: list[Figure]) -> list[tuple[str, list[Figure]]]:
    """Figures by kind."""
    return [(kind, list(group)) for kind, group in groupby(sorted(figures, key=kind_of), key=kind_of)]


def drawn(figures: list[Figure], directory: Path) -> list[Path]:
    """Draw all figures; returns the files."""
    directory.mkdir(parents=True, exist_ok=True)
    return [draw(kind, group, directory) for kind, group in kinds_in(figures) if any(map(has_ratio, group))]


def cell(figure: Figure | None) -> str:
    """A figure in a table: the ratio, and what it is of."""
    if figure is None:
        return ""
    if figure["median"] is None:
        return f"none: {figure.get('note', '')}".replace("|", "\\|").replace("<", "\\<")
    value = f"{figure['median']:,.1f} ± {figure['spread']:,.1f} {figure.get('unit', 'us')}"
    note = f", {figure['note']}" if figure.get("note") else ""
    return f"{value}{note}" if figure["ratio"] is None else f"**{figure['ratio']:.3f}** ({value}{note})"


def tables(figures: list[Figure]) -> str:
    """All figures as Markdown, a table for each kind of work and a column for each compiler."""
    parts = []
    for kind, group in kinds_in(figures):
        compilers = list(dict.fromkeys(figure["compiler"] for figure in group))
        found = {(figure["work"], figure["version"], figure["compiler"]): figure for figure in group}
        rows = dict.fromkeys((figure["work"], figure["version"]) for figure in group)
        parts += [f"**{kind}**", "", f"| | | {' | '.join(compilers)} |", "|---" * (2 + len(compilers)) + "|"]
        for work, version in rows:
            cells = " | ".join(cell(found.get((work, version, compiler))) for compiler in compilers)
            parts.append(f"| {work} | {version} | {cells} |")
        parts.append("")
    return "\n".join(parts)


def main() -> int:
    """Draw the figures of files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", type=Path, nargs="+", help="what `python -m benchmarks --json` wrote")
    parser.add_argument("--into", type=Path, default=PLOTS, help="directory (default: docs/plots)")
    options = parser.parse_args()
    figures = [figure for path in options.figures for figure in read(path)]
    for path in drawn(figures, options.into):
        print(path)
    (options.into / "tables.txt").write_text(tables(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
