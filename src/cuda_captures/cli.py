"""The command ``cuda-captures``."""

from __future__ import annotations

import argparse
import importlib.util
import os
import runpy
import sys
from collections.abc import Sequence

import cuda_captures
from cuda_captures.startup import VARIABLE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    ours, program = split(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(ours)
    if options.command == "check":  # parses programs, and needs no compiler
        from cuda_captures.check.command import main as check

        return check(options.paths, options.json, options.certain, options.with_captures)
    try:
        cuda_captures.enable()
    except cuda_captures.CaptureVersionError as error:
        print(f"cuda-captures: {error}", file=sys.stderr)
        return 1
    if options.command == "run":
        return run(options.script, program, options.module)
    if options.command == "inspect":
        from cuda_captures.inspecting.command import main as inspect

        return inspect(options)
    from cuda_captures import demo

    return demo.main()


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is for this command, and what is for the program that it runs, dashes and all."""
    ours = len(arguments)
    if arguments[:1] == ["run"]:
        ours = 3 if arguments[1:2] == ["-m"] else 2
    return list(arguments[:ours]), list(arguments[ours:])


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="cuda-captures",
        description="CUDA kernels written in Python capture global and closure arrays by reference.",
    )
    made.add_argument("--version", action="version", version=f"%(prog)s {cuda_captures.__version__}")
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("demo", help="run the program of numba/numba#9084, on a GPU or without one")
    running = commands.add_parser(
        "run",
        help="run an unmodified program with captures enabled, in it and in its child processes",
        usage="cuda-captures run [-m] SCRIPT [ARGUMENTS ...]",
    )
    running.add_argument("-m", dest="module", action="store_true", help="SCRIPT is the name of a module")
    running.add_argument("script", metavar="SCRIPT", help="a Python file, or a module with -m")
    text = "look through Python files, without running them, for captures that break or go stale"
    checking = commands.add_parser("check", help=text, description=text)
    checking.add_argument("paths", nargs="+", metavar="PATH", help="a Python file, or a directory to look through")
    checking.add_argument("--json", action="store_true", help="print one JSON object")
    checking.add_argument("--certain", action="store_true", help="leave out findings that are not certain")
    checking.add_argument(
        "--with-captures", action="store_true", help="leave out findings that `cuda_captures.enable()` mends"
    )
    text = "import a program and show what its kernels capture"
    inspecting = commands.add_parser("inspect", help=text, description=text)
    inspecting.add_argument("target", metavar="MODULE_OR_FILE[:KERNEL]", help="what to import, and one kernel of it")
    inspecting.add_argument("--signature", metavar="SIG", help='compile for these types, such as "void(float64[:])"')
    inspecting.add_argument("--cc", default="9.0", metavar="X.Y", help="compute capability to compile for (9.0)")
    inspecting.add_argument(
        "--max-constant-bytes", type=int, metavar="N", help="exit with 1 if a kernel holds more data in constant memory"
    )
    inspecting.add_argument("--json", action="store_true", help="print one JSON object")
    return made


def run(script: str, arguments: Sequence[str], module: bool = False) -> int:
    """Run a program as Python would; captures are enabled already.

    Its exit status and its exceptions are its own.  Child processes have captures enabled too, through the
    environment.
    """
    os.environ[VARIABLE] = "1"
    sys.argv = [script, *arguments]
    if module:
        first = os.getcwd()
    elif os.path.isdir(script):
        first = script
    elif os.path.exists(script):
        first = os.path.dirname(os.path.abspath(script))
    else:
        print(f"cuda-captures run: there is no file {script!r}", file=sys.stderr)
        return 2
    if not sys.flags.safe_path:
        sys.path[0] = first  # was the directory of this command
    if module and not is_module(script):
        print(f"cuda-captures run: there is no module {script!r}", file=sys.stderr)
        return 2
    if module:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(script, run_name="__main__")
    return 0


def is_module(name: str) -> bool:
    """Whether there is a module of a name; as for running it, the packages that it is in are imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # of something that a package imports
        return False


if __name__ == "__main__":
    sys.exit(main())
