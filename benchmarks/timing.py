"""Interleaved timing: each round runs every version once, in turn, and ratios are taken between medians."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """Times of one version of one piece of work.

    Parameters
    ----------
    work, version
        What was measured, and in which form.
    median
        Microseconds.
    spread
        Half the interquartile range, microseconds.
    ratio
        Median over that of the reference version; None for the reference.
    """

    work: str
    version: str
    median: float
    spread: float
    ratio: float | None


def compared(work: str, versions: Mapping[str, list[float]], reference: str) -> list[Figure]:
    """Figures of the versions of one piece of work, as ratios to a reference version."""
    base = statistics.median(versions[reference])
    figures = []
    for version, times in versions.items():
        quarters = statistics.quantiles(times, n=4) if len(times) > 1 else [times[0]] * 3
        median = statistics.median(times)
        ratio = None if version == reference else median / base
        figures.append(Figure(work, version, median, (quarters[2] - quarters[0]) / 2, ratio))
    return figures


def interleaved(versions: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Times of each version, in microseconds, taken in turn."""
    times: dict[str, list[float]] = {version: [] for version in versions}
    for _ in range(rounds):
        for version, measure in versions.items():
            times[version].append(measure())
    return times


def device_time(launch: Callable[[], None], repeats: int = 1) -> Callable[[], float]:
    """A measure of a launch's time on the device, between events, in microseconds."""
    from numba import cuda

    start, stop = cuda.event(), cuda.event()

    def measure() -> float:
        start.record()
        for _ in range(repeats):
            launch()
        stop.record()
        stop.synchronize()
        return float(cuda.event_elapsed_time(start, stop)) * 1e3 / repeats

    launch()
    return measure


def host_time(call: Callable[[], None], repeats: int, finish: Callable[[], None]) -> Callable[[], float]:
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
