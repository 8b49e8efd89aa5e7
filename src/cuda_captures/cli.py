"""The command ``cuda-captures``."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    options = parser().parse_args(arguments)
    if options.command == "run":
        return run(options.script, options.arguments, options.module)
    from cuda_captures import demo

    return demo.main()


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="cuda-captures",
        description="CUDA kernels written in Python capture global and closure arrays by reference.",
    )
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("demo", help="run the program of numba/numba#9084, on a GPU or without one")
    running = commands.add_parser(
        "run",
        help="run an unmodified program with captures enabled, in it and in its child processes",
        usage="cuda-captures run [-m] SCRIPT [ARGUMENTS ...]",
    )
    running.add_argument("-m", dest="module", action="store_true", help="SCRIPT is the name of a module")
    running.add_argument("script", metavar="SCRIPT", help="a Python file, or a module with -m")
    running.add_argument("arguments", nargs=argparse.REMAINDER, help="what the program gets")
    return made


def run(script: str, arguments: Sequence[str], module: bool = False) -> int:
    """Run a program as Python would, with captures enabled.

    Its exit status and its exceptions are its own.  Child processes have captures enabled too, through the
    environment.
    """
    from cuda_captures import backends

    os.environ["CUDA_CAPTURES"] = "1"
    backends.enable()
    sys.argv = [script, *arguments]
    if module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    elif not os.path.exists(script):
        print(f"cuda-captures run: there is no file {script!r}", file=sys.stderr)
        return 2
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
        runpy.run_path(script, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
