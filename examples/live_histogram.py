"""A histogram whose bins are edited between launches until each holds the same share of the samples.

The bin edges are a captured NumPy array.  After each launch the host moves them, in place, to where the counts say
that the quantiles are; the next launch counts in the new bins.  Nothing is passed to the kernel but the samples, and
nothing is compiled again.  The counters are captured too: the kernel adds to them, and they are back on the host when
the launch call returns.

    python examples/live_histogram.py                          # on a GPU
    NUMBA_ENABLE_CUDASIM=1 python examples/live_histogram.py   # without one, few samples
    python examples/live_histogram.py --plot histogram.png     # and a picture; needs matplotlib

Each round is checked against `np.histogram`.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings

import numpy as np
from numba import cuda
from rich.console import Console
from rich.table import Table

import cuda_captures

cuda_captures.enable()

SIMULATOR = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
BINS = 24
LOW, HIGH = -6.0, 10.0

EDGES = np.linspace(LOW, HIGH, BINS + 1)
COUNTS = np.zeros(BINS, np.int64)


@cuda.jit
def count(samples):
    """Count each sample in the last bin whose left edge is not above it."""
    for i in range(cuda.grid(1), samples.size, cuda.gridsize(1)):
        low, high = 0, BINS
        while high - low > 1:
            middle = (low + high) // 2
            if EDGES[middle] <= samples[i]:
                low = middle
            else:
                high = middle
        cuda.atomic.add(COUNTS, low, 1)


def samples_of(number: int, seed: int) -> np.ndarray:
    """Samples of two peaks, one of them narrow, all between LOW and HIGH."""
    random = np.random.default_rng(seed)
    wide = random.normal(-1.0, 1.5, number - number // 3)
    narrow = random.normal(4.0, 0.3, number // 3)
    return np.clip(np.concatenate([wide, narrow]), LOW, np.nextafter(HIGH, LOW))


def move_edges() -> None:
    """Put the inner edges, in place, where the last counts say that the quantiles are."""
    shares = np.concatenate([[0.0], np.cumsum(COUNTS)]) / COUNTS.sum()
    EDGES[1:-1] = np.interp(np.linspace(0, 1, BINS + 1)[1:-1], shares, EDGES)


def unevenness() -> float:
    """Largest share of a bin over the mean share, less one."""
    return float(COUNTS.max() / COUNTS.mean() - 1.0)


def plot(path: str, rounds: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """Draw the first, the second and the last round."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    chosen = [0, 1, len(rounds) - 1]
    figure, axes = pyplot.subplots(1, 3, figsize=(9.0, 3.0), sharex=True, sharey=True, layout="constrained")
    for axis, number in zip(axes, chosen, strict=True):
        edges, counts = rounds[number]
        density = counts / counts.sum() / np.diff(edges)
        axis.stairs(density, edges, fill=True, color="#9ecae1", edgecolor="#08519c", linewidth=0.8)
        axis.vlines(edges, -0.035, -0.01, color="#cb181d", linewidth=0.8)
        spread = counts.max() / counts.mean()
        axis.set_title(f"round {number + 1}: fullest bin {spread:.2f} × the mean", fontsize=9)
        axis.set_xlabel("sample")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("density")
    axes[0].set_xlim(LOW, HIGH)
    figure.savefig(path, dpi=100)


def main() -> int:
    """Run it; the status is 1 if a round disagrees with NumPy, or the bins do not become even."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=6_000 if SIMULATOR else 20_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", metavar="FILE", help="draw the rounds into a PNG")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # host arrays as arguments, and small grids in the simulator

    samples = samples_of(options.samples, options.seed)
    on_device = cuda.to_device(samples)
    grid, block = (1, 8) if SIMULATOR else (1024, 256)
    table = Table(title=f"{options.samples:,} samples in {BINS} bins")
    for column in ("round", "narrowest bin", "fullest bin", "above the mean", "as NumPy"):
        table.add_column(column, justify="right")
    rounds = []
    right = True
    for number in range(1, options.rounds + 1):
        COUNTS[:] = 0
        count[grid, block](on_device)
        agrees = bool(np.array_equal(COUNTS, np.histogram(samples, EDGES)[0]))
        right = right and agrees
        rounds.append((EDGES.copy(), COUNTS.copy()))
        narrowest = f"{np.diff(EDGES).min():.3f}"
        table.add_row(
            str(number), narrowest, f"{COUNTS.max():,}", f"{unevenness():.1%}", "yes" if agrees else "[bold red]no[/]"
        )
        move_edges()
    console = Console()
    console.print(table)
    even = rounds[-1][1].max() / rounds[-1][1].mean() < 1.25
    if options.plot:
        plot(options.plot, rounds)
        console.print(f"drawn: {options.plot}", soft_wrap=True)
    if right and even:
        console.print("Every round agrees with NumPy, and the bins are even.")
        return 0
    console.print("[bold red]A round disagrees with NumPy.[/]" if not right else "[bold red]The bins are uneven.[/]")
    return 1


if __name__ == "__main__":
    sys.exit(main())
