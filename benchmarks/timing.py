"""Interleaved timing: each round runs every version once, in turn, and ratios are taken between medians."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """What was measured of one version of one piece of work.

    Parameters
    ----------
    work, version
        What was measured, and in which form.
    median
        In ``unit``; None if the version is missing.
    spread
        Half the interquartile range, in ``unit``.
    ratio
        Median over that of the reference version; None for the reference.
    unit
        Microseconds if nothing else is said.
    note
        What else there is to know; why a version is missing.
    """

    work: str
    version: str
    median: float | None
    spread: float = 0.0
    ratio: float | None = None
    unit: str = "us"
    note: str = ""


def compared(
    work: str,
    versions: Mapping[str, list[float]],
    reference: str,
    unit: str = "us",
    notes: Mapping[str, str] | None = None,
) -> list[Figure]:
    """Figures of the versions of one piece of work, as ratios to a reference version."""
    base = statistics.median(versions[reference])
    figures = []
    for version, values in versions.items():
        quarters = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
        median = statistics.median(values)
        ratio = None if version == reference or not base else median / base
        note = (notes or {}).get(version, "")
        figures.append(Figure(work, version, median, (quarters[2] - quarters[0]) / 2, ratio, unit, note))
    return figures


def interleaved(versions: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Times of each version, in microseconds, taken in turn."""
    times: dict[str, list[float]] = {version: [] for version in versions}
    for _ in range(rounds):
        for version, measure in versions.items():
            times[version].append(measure())
    return times


def device_time(cuda: Any, launch: Callable[[], object], repeats: int = 2) -> Callable[[], float]:
    """A measure of a launch's time on the device, between events, in microseconds.

    A launch before the first event keeps the device busy while the host gets ahead: what the host takes for a launch
    is not in the figure, if it takes less than the device.
    """
    start, stop = cuda.event(), cuda.event()

    def measure() -> float:
        launch()
        start.record()
        for _ in range(repeats):
            launch()
        stop.record()
        stop.synchronize()
        return float(cuda.event_elapsed_time(start, stop)) * 1e3 / repeats

    launch()
    return measure


def host_time(call: Callable[[], object], repeats: int, finish: Callable[[], object]) -> Callable[[], float]:
    """A measure of a call's time on the host, microseconds per call; ``finish`` drains the device untimed."""

    def measure() -> float:
        finish()
        begin = time.perf_counter()
        for _ in range(repeats):
            call()
        taken = time.perf_counter() - begin
        finish()
        return taken * 1e6 / repeats

    call()
    return measure
