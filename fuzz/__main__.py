"""``python -m fuzz``: run programs for some time."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

from backends_under_test import INSTALLED
from fuzz import corpus
from fuzz.running import Run
from fuzz.state import State


def main(arguments: list[str] | None = None) -> int:
    """The command: 1 if anything failed, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m fuzz", description="Generated kernels with captures, against plain Python."
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default: %(default)s)")
    parser.add_argument("--programs", type=float, default=float("inf"), help="at most so many of each compiler")
    parser.add_argument("--workers", type=int, default=1, help="processes at the same time (default: %(default)s)")
    parser.add_argument("--compiler", choices=[*INSTALLED, "both"], default="both", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="which programs (default: %(default)s)")
    parser.add_argument("--state", type=Path, help="file that keeps how far the run has come; it is resumed from there")
    parser.add_argument(
        "--corpus", type=Path, default=corpus.FOLDER, help="where cases are kept (default: %(default)s)"
    )
    parser.add_argument("--gpu", action="store_true", help="run on a GPU instead of the CPU")
    options = parser.parse_args(arguments)
    for one in (signal.SIGTERM, signal.SIGINT):  # a shell has its background programs ignore the latter
        signal.signal(one, signal.default_int_handler)
    state = State(options.state, options.seed)
    compilers = INSTALLED if options.compiler == "both" else [options.compiler]
    options.corpus.mkdir(parents=True, exist_ok=True)
    run = Run(state, compilers, options.gpu, options.corpus.resolve(), print, options.workers)
    try:
        run.go(options.seconds, options.programs)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here" if options.state else "stopped")
    for name, progress in state.progress.items():
        print(f"{name}: {progress.summary()}")
    return int(any(progress.failed for progress in state.progress.values()))


if __name__ == "__main__":
    raise SystemExit(main())
