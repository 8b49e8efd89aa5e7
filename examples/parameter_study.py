"""A parameter study: a thousand tables, a kernel made anew for each, and one compilation.

Each table is a pair potential of the Mie family (repulsive exponent n, attractive exponent 6; n = 12 is that of
Lennard-Jones), and a factory makes the kernel that captures it.  The kernel integrates the second virial coefficient
at many temperatures, in reduced units::

    B(T) = -2 pi * integral of (exp(-u(r) / T) - 1) r^2 dr

    python examples/parameter_study.py                          # on a GPU: 1,000 tables
    NUMBA_ENABLE_CUDASIM=1 python examples/parameter_study.py   # without one: 13
    python examples/parameter_study.py --plot study.png         # and a picture; needs matplotlib

Every coefficient is checked against NumPy's.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable

import numpy as np
from numba import cuda
from rich.console import Console

import cuda_captures

cuda_captures.enable()

SIMULATOR = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
POINTS = 201 if SIMULATOR else 4_001  # odd, for Simpson's rule
NEAREST, FARTHEST = 0.4, 12.0  # distances, in units of the particle's diameter
STEP = (FARTHEST - NEAREST) / (POINTS - 1)
TEMPERATURES = np.geomspace(0.8, 20.0, 32 if SIMULATOR else 256)  # in units of the well's depth
DISTANCES = np.linspace(NEAREST, FARTHEST, POINTS)


def mie(exponent: float, distance: np.ndarray = DISTANCES) -> np.ndarray:
    """The potential at some distances, in units of the well's depth."""
    scale = exponent / (exponent - 6.0) * (exponent / 6.0) ** (6.0 / (exponent - 6.0))
    return scale * (distance**-exponent - distance**-6.0)


def integrating(potential: np.ndarray) -> Callable:
    """The kernel for one potential, which it captures."""

    @cuda.jit
    def virial(temperatures, coefficients):
        i = cuda.grid(1)
        if i < temperatures.size:
            total = 0.0
            for k in range(POINTS):
                distance = NEAREST + k * STEP
                weight = 1.0 if k == 0 or k == POINTS - 1 else 2.0 + 2.0 * (k % 2)
                total += weight * (math.exp(-potential[k] / temperatures[i]) - 1.0) * distance * distance
            core = -(NEAREST**3) / 3.0  # where the potential is as good as infinite
            coefficients[i] = -2.0 * math.pi * (core + total * STEP / 3.0)

    return virial


def expected(potential: np.ndarray) -> np.ndarray:
    """The same with NumPy; shape of TEMPERATURES."""
    weights = np.where(np.arange(POINTS) % 2, 4.0, 2.0)
    weights[[0, -1]] = 1.0
    mayer = np.exp(-potential / TEMPERATURES[:, None]) - 1.0
    return -2.0 * math.pi * (-(NEAREST**3) / 3.0 + (mayer * DISTANCES**2) @ weights * STEP / 3.0)


def plot(path: str, exponents: np.ndarray, results: np.ndarray) -> None:
    """Draw the potentials and their coefficients, coloured by exponent."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import cm, colors, pyplot

    norm = colors.LogNorm(exponents.min(), exponents.max())
    colour = cm.ScalarMappable(norm, "viridis")
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.0, 3.4), layout="constrained")
    distance = np.linspace(0.85, 3.0, 300)
    shown = np.unique(np.linspace(0, len(exponents) - 1, 7).astype(int))
    for exponent, result in zip(exponents[shown], results[shown], strict=True):
        left.plot(distance, mie(exponent, distance), color=colour.to_rgba(exponent), linewidth=1.0)
        right.plot(TEMPERATURES, result, color=colour.to_rgba(exponent), linewidth=1.0)
    left.set(xlim=(0.85, 3.0), ylim=(-1.1, 1.5), xlabel="distance / diameter", ylabel="potential / depth")
    left.set_title("captured tables", fontsize=10)
    right.set(xscale="log", xlabel="temperature × k / depth", ylabel="second virial coefficient / diameter$^3$")
    right.set_title("what the kernels computed", fontsize=10)
    right.set_xticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    right.minorticks_off()
    for axis in (left, right):
        axis.axhline(0.0, color="0.6", linewidth=0.7, zorder=0)
        axis.spines[["top", "right"]].set_visible(False)
    bar = figure.colorbar(colour, ax=(left, right), label="repulsive exponent")
    ticks = [8, 12, 16, 24, 36]
    bar.set_ticks(ticks, labels=[str(tick) for tick in ticks])
    bar.minorticks_off()
    figure.savefig(path, dpi=80, pil_kwargs={"optimize": True})


def main() -> int:
    """Run it; the status is 1 if a coefficient is not NumPy's, or machine code was not shared."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=13 if SIMULATOR else 1_000)
    parser.add_argument("--plot", metavar="FILE", help="draw the results into a PNG")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # host arrays as arguments, and small grids in the simulator

    console = Console(soft_wrap=True)
    exponents = np.geomspace(8.0, 36.0, options.tables)
    results = np.zeros((options.tables, TEMPERATURES.size))
    sources: Counter[str] = Counter()
    worst = 0.0
    first = None
    begin = time.perf_counter()
    for exponent, result in zip(exponents, results, strict=True):
        potential = mie(exponent)
        kernel = integrating(potential)
        first = first or kernel  # kept: machine code is shared for as long as some kernel has it
        kernel[(TEMPERATURES.size + 31) // 32, 32](TEMPERATURES, result)
        reference = expected(potential)
        worst = max(worst, float(np.abs(result - reference).max() / np.abs(reference).max()))
        sources.update(one.source for one in cuda_captures.report(kernel).specialisations)
    taken = time.perf_counter() - begin
    console.print(f"{options.tables:,} tables of {POINTS * 8:,} bytes, {results.size:,} coefficients, {taken:.1f} s")
    if sources:  # none in the simulator, which compiles nothing
        console.print(
            f"kernels that were compiled: {sources['compiled']}; that shared its code: {sources['process']:,}"
        )
    console.print(f"largest difference from NumPy: {worst:.1e} of the largest coefficient")
    if options.plot:
        plot(options.plot, exponents, results)
        console.print(f"drawn: {options.plot}")
    agreed = worst < 1e-10 and sources["compiled"] <= 1
    console.print("The kernels and NumPy agree." if agreed else "[bold red]They disagree, or code was not shared.[/]")
    return 0 if agreed else 1


if __name__ == "__main__":
    sys.exit(main())
