"""X-rays through layers of real materials: Monte Carlo against the Beer-Lambert law.

The cross sections of all elements from hydrogen to californium, by process and energy, are one captured table of
2.4 MB; the layers are captured too, and so are the counters that the kernel adds to.  Between two energies nothing is
passed to the GPU but the seeds and the number of the energy.

    python examples/xray_attenuation.py                          # on a GPU
    NUMBA_ENABLE_CUDASIM=1 python examples/xray_attenuation.py   # without one, few photons
    python examples/xray_attenuation.py --plot xray.png          # and a picture; needs matplotlib

Needs `pip install "cuda-captures[cu13,examples]"`: cross sections are those of Elam, Ravel and Sieber (2002), from
the package xraydb.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
import warnings

import numpy as np
import xraydb
from numba import cuda
from rich.console import Console
from rich.table import Table
from scipy.stats import binomtest

import cuda_captures

cuda_captures.enable()

SIMULATOR = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
ELEMENTS = 98
PROCESSES = ("photo", "coh", "incoh")
ENERGIES = np.geomspace(5e3, 3e5, 1024)  # eV
LAYERS = (("water", 3.0), ("aluminum", 0.2), ("kapton", 0.5), ("silicon", 0.1))  # material, thickness in cm

# cm2/g, by element, process and energy
CROSS_SECTIONS = np.array(
    [[xraydb.mu_elam(z, ENERGIES, kind=process) for process in PROCESSES] for z in range(1, ELEMENTS + 1)]
)


def composition(material: str) -> np.ndarray:
    """Partial density of each element in a material, g/cm3."""
    formula, density = xraydb.get_material(material)
    parts = {symbol: count * xraydb.atomic_mass(symbol) for symbol, count in xraydb.chemparse(formula).items()}
    densities = np.zeros(ELEMENTS)
    for symbol, mass in parts.items():
        densities[xraydb.atomic_number(symbol) - 1] = density * mass / sum(parts.values())
    return densities


DENSITIES = np.array([composition(material) for material, _ in LAYERS])
THICKNESSES = np.array([thickness for _, thickness in LAYERS])

TRANSMITTED = np.zeros(1, np.int64)
INTERACTIONS = np.zeros((len(LAYERS), len(PROCESSES)), np.int64)

MODULUS = 2_147_483_647  # the minimal standard generator of Park and Miller (1988)


@cuda.jit(device=True)
def following(state):
    """The next state of a photon's random numbers."""
    return (16_807 * state) % MODULUS


@cuda.jit(device=True)
def attenuation(layer, process, energy):
    """Linear attenuation coefficient of a process in a layer, 1/cm."""
    total = 0.0
    for element in range(ELEMENTS):
        density = DENSITIES[layer, element]
        if density > 0.0:
            total += density * CROSS_SECTIONS[element, process, energy]
    return total


@cuda.jit
def transport(seeds, energy):
    """Follow each photon to its first interaction, or out at the other side, and count it."""
    photon = cuda.grid(1)
    if photon >= seeds.size:
        return
    state = following(following(seeds[photon]))
    depth = -math.log(state / MODULUS)  # optical depth at which it interacts
    for layer in range(THICKNESSES.size):
        coefficient = 0.0
        for process in range(3):
            coefficient += attenuation(layer, process, energy)
        depth -= coefficient * THICKNESSES[layer]
        if depth < 0.0:
            state = following(following(state))  # after one step, the next number shows which layer it was
            share = state / MODULUS * coefficient
            process = 0
            share -= attenuation(layer, 0, energy)
            while share > 0.0 and process < 2:
                process += 1
                share -= attenuation(layer, process, energy)
            cuda.atomic.add(INTERACTIONS, (layer, process), 1)
            return
    cuda.atomic.add(TRANSMITTED, 0, 1)


def beer_lambert(energy: float) -> tuple[float, np.ndarray]:
    """The law's share of photons that pass all layers, and of those that interact, by layer and process."""
    passing = 1.0
    interacting = np.zeros((len(LAYERS), len(PROCESSES)))
    for layer, (material, thickness) in enumerate(LAYERS):
        coefficients = np.array([float(xraydb.material_mu(material, energy, kind=kind)) for kind in PROCESSES])
        stopped = -passing * math.expm1(-coefficients.sum() * thickness)
        interacting[layer] = stopped * coefficients / coefficients.sum()
        passing -= stopped
    return passing, interacting


def chance(photons: int, passing: float, interacting: np.ndarray) -> float:
    """Probability of counts as far from the law as those of the last launch.

    Each count is binomial.  The probability of the least likely one is multiplied by the number of counts, which
    bounds that of all together (Bonferroni), whatever depends on what.
    """
    counts = [TRANSMITTED[0], *INTERACTIONS.flat]
    shares = [passing, *interacting.flat]
    tests = [binomtest(int(count), photons, share) for count, share in zip(counts, shares, strict=True)]
    return min(1.0, len(tests) * min(test.pvalue for test in tests))


def plot(path: str, photons: int, measured: list[tuple[float, float, np.ndarray]]) -> None:
    """Draw shares of photons against energy: the law as lines and areas, Monte Carlo as points.

    Parameters
    ----------
    path
        Of a PNG.
    photons
        How many were followed at each energy.
    measured
        For each energy, in eV: the share that passed, and the shares that interacted, by layer and process.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.0, 3.4), sharex=True, sharey=True, layout="constrained")
    energies = ENERGIES[300::12]
    laws = [beer_lambert(energy) for energy in energies]
    points = np.array([energy for energy, _, _ in measured]) / 1e3

    def compare(axis, label, colour, law, shares):
        axis.plot(energies / 1e3, law, color=colour, linewidth=1.2)
        error = np.sqrt(np.maximum(shares * (1.0 - shares), 0.0) / photons)
        axis.errorbar(points, shares, error, fmt="o", markersize=4, color=colour, label=label, capsize=2)

    compare(left, "transmitted", "#252525", [law[0] for law in laws], np.array([one[1] for one in measured]))
    for layer, colour in enumerate(("#3182bd", "#e6550d", "#31a354", "#756bb1")):
        shares = np.array([interacting[layer].sum() for _, _, interacting in measured])
        compare(left, f"stopped in {LAYERS[layer][0]}", colour, [law[1][layer].sum() for law in laws], shares)
    names = ("photoelectric", "scattered, coherent", "scattered, incoherent")
    for process, colour in enumerate(("#c51b8a", "#fa9fb5", "#636363")):
        shares = np.array([interacting[:, process].sum() for _, _, interacting in measured])
        compare(right, names[process], colour, [law[1][:, process].sum() for law in laws], shares)
    left.set(ylabel="share of photons", title="where they end")
    right.set(title="what stopped them")
    for axis in (left, right):
        axis.set(xscale="log", xlabel="energy, keV")
        axis.set_xticks([20, 50, 100, 200], ["20", "50", "100", "200"])
        axis.minorticks_off()
        axis.legend(fontsize=8, frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=80, pil_kwargs={"optimize": True})


def main() -> int:
    """Run it; the status is 1 if Monte Carlo and the law disagree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photons", type=int, default=1_000 if SIMULATOR else 4_000_000, help="for each energy")
    parser.add_argument("--energies", type=int, default=3 if SIMULATOR else 8, help="how many energies")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", metavar="FILE", help="draw the shares into a PNG")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # host arrays as arguments, and small grids in the simulator

    random = np.random.default_rng(options.seed)
    layers = ", ".join(f"{thickness} cm {material}" for material, thickness in LAYERS)
    table = Table(title=f"{options.photons:,} photons through {layers}")
    for column in ("keV", "Beer-Lambert", "Monte Carlo", "photoelectric", "chance", "ms"):
        table.add_column(column, justify="right")
    least = 1.0
    measured = []
    for energy in np.linspace(300, len(ENERGIES) - 1, options.energies).astype(int):
        TRANSMITTED[:] = 0
        INTERACTIONS[:] = 0
        seeds = random.integers(1, MODULUS - 1, options.photons)
        begin = time.perf_counter()
        transport[(options.photons + 127) // 128, 128](seeds, energy)
        taken = time.perf_counter() - begin
        if TRANSMITTED[0] + INTERACTIONS.sum() != options.photons:
            raise RuntimeError(f"{TRANSMITTED[0] + INTERACTIONS.sum():,} of {options.photons:,} photons were counted")
        passing, interacting = beer_lambert(ENERGIES[energy])
        likely = chance(options.photons, passing, interacting)
        least = min(least, likely)
        measured.append((ENERGIES[energy], TRANSMITTED[0] / options.photons, INTERACTIONS / options.photons))
        table.add_row(
            f"{ENERGIES[energy] / 1e3:.1f}",
            f"{passing:.5f}",
            f"{TRANSMITTED[0] / options.photons:.5f}",
            f"{INTERACTIONS[:, 0].sum() / max(INTERACTIONS.sum(), 1):.1%}",
            f"{likely:.2g}",
            f"{taken * 1e3:.1f}",
        )
    console = Console()
    console.print(table)
    if options.plot:
        plot(options.plot, options.photons, measured)
        console.print(f"drawn: {options.plot}", soft_wrap=True)
    console.print(f"captured table: {CROSS_SECTIONS.nbytes:,} bytes")
    if not SIMULATOR:
        console.print(str(cuda_captures.report(transport)), markup=False)
    agreed = least > 1e-6  # where the law holds, one run of eight energies in 125,000 is below
    console.print("Monte Carlo and the Beer-Lambert law agree." if agreed else "[bold red]They disagree.[/]")
    return 0 if agreed else 1


if __name__ == "__main__":
    sys.exit(main())
