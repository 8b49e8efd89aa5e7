"""``python -m stress``: one program and its options."""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from stress import kernels, launches, sanitizing, threads
from stress.counting import Grown
from stress.machine import COMPILERS, Gpu, NoGpu
from stress.sanitizing import Absent
from stress.subjects import Wrong
from stress.threads import CompiledOften


def main(arguments: list[str] | None = None, machine: Callable[[str], Any] = Gpu) -> int:
    """The command: 0 if all was well, 1 if not, 2 if it cannot be run here."""
    options = parser().parse_args(arguments)
    os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")
    warnings.simplefilter("ignore")
    try:
        return int(not options.run(options, machine))
    except (NoGpu, Absent) as error:
        print(error)
        return 2
    except (Wrong, Grown, CompiledOften, TimeoutError) as error:
        print(f"failed: {type(error).__name__}: {error}")
        return 1


def parser() -> argparse.ArgumentParser:
    """What the command takes."""
    whole = argparse.ArgumentParser(prog="python -m stress", description="Launches, kernels and threads, many of each.")
    programs = whole.add_subparsers(required=True, metavar="PROGRAM")
    shown = argparse.ArgumentDefaultsHelpFormatter

    one = programs.add_parser("launches", help=launches.__doc__, formatter_class=shown)
    one.add_argument("--launches", type=int, default=1_000_000, help="how many")
    for share in fields(launches.Shares):
        text = f"share of launches before which: {share.name}" if share.name != "check" else "share that is compared"
        one.add_argument(f"--{share.name}", type=float, default=share.default, help=text)
    one.set_defaults(run=run_launches)

    one = programs.add_parser("kernels", help=kernels.__doc__, formatter_class=shown)
    one.add_argument("--kernels", type=int, default=10_000, help="how many")
    one.set_defaults(run=run_kernels)

    one = programs.add_parser("threads", help=threads.__doc__, formatter_class=shown)
    one.add_argument("--threads", type=int, default=32, help="how many")
    one.add_argument("--repeat", type=int, default=200, help="how often")
    one.add_argument("--different-every", type=int, default=20, help="a kernel of its own for each thread: once in N")
    one.add_argument("--launches", type=int, default=20, help="of each thread, while others edit and rebind")
    one.set_defaults(run=run_threads)

    for one in programs.choices.values():
        one.add_argument("--compiler", choices=COMPILERS, default=COMPILERS[0], help="which")

    one = programs.add_parser("sanitize", help=sanitizing.__doc__, formatter_class=shown)
    one.add_argument("folder", type=Path, help="where logs are put")
    one.add_argument("--tools", nargs="+", default=list(sanitizing.TOOLS), help="of compute-sanitizer")
    one.add_argument("--shares", nargs="+", choices=list(sanitizing.SHARES), default=list(sanitizing.SHARES))
    one.add_argument("--seconds", type=float, default=240.0, help="that each process may take")
    one.add_argument("--jobs", type=int, default=6, help="processes at a time")
    one.set_defaults(run=run_sanitizer)
    return whole


def run_launches(options: argparse.Namespace, machine: Callable[[str], Any]) -> bool:
    """``launches``."""
    shares = launches.Shares(**{share.name: getattr(options, share.name) for share in fields(launches.Shares)})
    launches.launches(machine(options.compiler), options.launches, shares).check(launches.BOUNDS)
    return True


def run_kernels(options: argparse.Namespace, machine: Callable[[str], Any]) -> bool:
    """``kernels``."""
    here = machine(options.compiler)
    if not here.lets_go:
        print(kernels.KEPT_BY_UPSTREAM)
        return True
    kernels.kernels(here, options.kernels).check(kernels.BOUNDS)
    return True


def run_threads(options: argparse.Namespace, machine: Callable[[str], Any]) -> bool:
    """``threads``."""
    threads.threads(
        machine(options.compiler), options.threads, options.repeat, options.different_every, options.launches
    )
    return True


def run_sanitizer(options: argparse.Namespace, machine: Callable[[str], Any]) -> bool:
    """``sanitize``."""
    return sanitizing.sanitize(options.folder, options.tools, options.shares, options.seconds, options.jobs)


if __name__ == "__main__":
    raise SystemExit(main())
