"""What became of a program: right, wrong, refused, or what the compiler lacks."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cpu_execution import BadAccess, NotExecutable
from cuda_captures import CaptureError
from fuzz.lean import is_optimised
from fuzz.on_cpu import ArgumentWorld, CapturedWorld, compiled_in, driver_in_memory
from fuzz.on_gpu import is_fatal
from fuzz.program import KERNELS, Piece, Program
from fuzz.worlds import Trace, World, executed


@dataclass(frozen=True)
class Outcome:
    """How a program ended in one world.

    Parameters
    ----------
    kind
        ``right``; ``wrong``; ``bad access``; ``refused`` by captures; ``error`` of anything else, such as the
        compiler; ``not executable`` on the CPU.
    detail
        What was wrong, or what was raised.
    """

    kind: str
    detail: str = ""

    @property
    def reason(self) -> str:
        """The detail without what differs from program to program."""
        if self.kind in ("wrong", "bad access"):
            return self.kind
        text = re.sub(r"\x1b\[[0-9;]*m", "", self.detail)
        lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
        telling = next((line for line in lines if REASON.match(line)), lines[0])
        return re.sub(r"\b[a-z]+_?[0-9]+\b|0x[0-9a-f]+|\d+", "N", f"{self.kind}: {telling}")[:110]


REASON = re.compile(
    r"No implementation|No match|Cannot|Unsupported|Unknown|No conversion|Invalid|Use of|Unable|.*not supp"
)


@dataclass(frozen=True)
class Verdict:
    """What became of a program.

    Parameters
    ----------
    kind
        ``right``; ``right in part``, without the statements that the compiler lacks; ``refused as it must be``;
        ``compiler lacks``, all of it; ``not executable``; ``invalid`` (plain Python does not take it either);
        ``failure``; or ``fatal``: the GPU is of no more use to this process, and another must ask about arguments.
    outcome
        In the captured form.
    argument
        In the argument form, if that was asked.
    program
        Of a failure: what failed, which may be a part.
    """

    kind: str
    outcome: Outcome
    argument: Outcome | None = None
    program: Program | None = None

    @property
    def failed(self) -> bool:
        """Whether captures did something else than Python, and arguments did not."""
        return self.kind == "failure"


def outcome(run: Callable[[], Trace], expected: Trace | None) -> Outcome:
    """How a run ended, compared with what is right."""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            trace = run()
        except NotExecutable as error:
            return Outcome("not executable", str(error))
        except BadAccess as error:
            return Outcome("bad access", str(error))
        except CaptureError as error:
            return Outcome("refused", str(error))
        except Exception as error:
            return Outcome("error", f"{type(error).__name__}: {error}")
    if expected is None:
        return Outcome("right")
    for (what, got), (_, right) in zip(trace, expected, strict=True):
        if got != right:
            return Outcome("wrong", f"{what}: {got[:64].hex(' ', 4)} instead of {right[:64].hex(' ', 4)}")
    return Outcome("right")


def judge(program: Program, seed: int = 0, gpu: Any = None) -> Verdict:
    """Run a program with the compiler under test; captures must be enabled.

    Parameters
    ----------
    program
        What to run.
    seed
        Of the order in which the driver in memory does its work; and whether what is executed is optimised first.
    gpu
        Makes a world to run it in instead of the CPU's, for a form.
    """
    threads = 1 if gpu is not None and program.racy else None
    if program.refused:
        return _refused(program, seed, gpu)
    try:
        right = World().run(program, threads=threads)
    except Exception as error:
        return Verdict("invalid", Outcome("error", f"{type(error).__name__}: {error}"))
    found = _captured(program, seed, gpu, right, threads)
    if found.kind in ("right", "not executable"):
        return Verdict(found.kind, found)
    if gpu is not None and is_fatal(found.detail):
        return Verdict("fatal", found, program=program)
    argument = _in_arguments(program, gpu, threads, seed)
    if argument.kind == "right" and found.kind == "refused":  # captures refuse an array; maybe only its shape was read
        argument = _in_arguments(program.probed(), gpu, threads, seed)
    if argument.kind == "right" and found.kind == "refused" and not _constants_taken(program):
        argument = Outcome("error", "as constants")
    if argument.kind == "right":
        return Verdict("failure", found, argument, program)
    lines = program.body()
    lacking = statements_lacking(program, seed) if gpu is None and len(lines) > 1 else []
    if lacking and len(lacking) < len(lines):
        verdict = judge(program.without(lacking), seed)
        if verdict.kind in ("right", "failure"):
            return replace(verdict, kind="right in part" if verdict.kind == "right" else "failure")
    if found.kind in RAN and argument.kind not in RAN and len(lacking) < len(lines):
        return Verdict("failure", found, argument, program)  # arguments do not compile, which is no excuse
    return Verdict("compiler lacks", found, argument)


def judge_after_fatal(program: Program, fatal: Outcome, gpu: Any) -> Verdict:
    """What became of a program whose captured form left another process's GPU of no more use."""
    argument = _in_arguments(program, gpu, 1 if program.racy else None)
    return Verdict("failure" if argument.kind == "right" else "compiler lacks", fatal, argument, program)


RAN = ("wrong", "bad access")  # kinds of outcomes of what was compiled and launched


def statements_lacking(program: Program, seed: int) -> list[Piece]:
    """The statements that the compiler gets wrong even with arguments, each asked about by itself."""
    lines = program.body()
    return [line for line in lines if not _taken(program.without(one for one in lines if one is not line), seed)]


def _taken(program: Program, seed: int) -> bool:
    if not program.kernels:  # a statement of a device function: called by a kernel of its own
        (line,) = program.body()
        program = replace(program, pieces=(*program.pieces, Piece(KERNELS[0], f"out[i] += {line.section}($*i)")))
    return _in_arguments(program, None, None, seed).kind == "right"


def _constants_taken(program: Program) -> bool:
    """Whether the compiler alone compiles in what the program has compiled in."""
    source = program.source()
    if "cap.constant(" not in source:
        return True
    values = executed(source, World().words())["made"]["arguments"]()
    probes = {piece.name: piece.text for piece in program.pieces if piece.section == "probe"}
    return all(
        compiled_in(probes[name].replace(f"${name}", "table"), value)
        for name, value in zip(program.paths(), values, strict=True)
        if name in probes and isinstance(value, np.ndarray)
    )


def _in_arguments(program: Program, gpu: Any, threads: int | None, seed: int = 0) -> Outcome:
    """What becomes of the argument form."""
    try:
        right = World().run(program, threads=threads)
    except Exception as error:
        return Outcome("invalid", f"{type(error).__name__}: {error}")
    world = ArgumentWorld(is_optimised(seed)) if gpu is None else gpu("argument")
    return outcome(lambda: world.run(program, "argument", threads), right)


def _captured(program: Program, seed: int, gpu: Any, right: Trace | None, threads: int | None) -> Outcome:
    if gpu is not None:
        return outcome(lambda: gpu("captured").run(program, threads=threads), right)
    with driver_in_memory(seed) as driver:
        return outcome(lambda: CapturedWorld(driver, seed % 2 * 5, is_optimised(seed)).run(program), right)


def _refused(program: Program, seed: int, gpu: Any) -> Verdict:
    allowed = [piece for piece in program.pieces if piece.section == "forbidden"]
    verdict = judge(replace(program.without(allowed), refused=""), seed, gpu)
    path = program.paths().get(program.refused)
    if verdict.kind != "right" or path is None:
        return verdict
    found = _captured(program, seed, gpu, None, None)
    if found.kind == "refused" and path in found.detail and "writes" in found.detail:
        return Verdict("refused as it must be", found)
    return Verdict("failure", found, program=program)
