"""Programs one after the other in this process, with one compiler."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cuda_captures
from backends_under_test import using
from fuzz import corpus
from fuzz.generating import generate
from fuzz.judging import Outcome, Verdict, judge, judge_after_fatal
from fuzz.lacking import NOTHING, lacking_of
from fuzz.lean import is_whole, one_thread, remembering, without_machine_code
from fuzz.on_gpu import GpuWorld, is_fatal
from fuzz.program import Program
from fuzz.shrinking import shrink
from fuzz.state import Ended

ALIKE = 3  # cases that are kept of failures for one reason
ALL = 32  # one program in so many, on the CPU, has what its compiler lacks
RANDOM_COLLECTIONS = 4  # in one program of so many the collector comes by whenever it likes
SETTLED = 25  # programs after which what compilers keep for good need not be looked through by the collector


def program_of(number: int, compiler: str, gpu: bool) -> Program:
    """The program of a number, for a compiler."""
    everything = not gpu and number % ALL == ALL - 1
    return generate(number, NOTHING if everything else lacking_of(compiler, gpu))


class Runner:
    """Runs programs with one compiler.  Captures must be enabled; :func:`ready` sees to it.

    Parameters
    ----------
    compiler
        Which is the one under test.
    gpu
        Whether on a GPU.
    folder
        Where cases are kept.

    Attributes
    ----------
    spent
        Whether the GPU is, or may be, of no more use to this process.
    """

    def __init__(self, compiler: str, gpu: bool = False, folder: Path = corpus.FOLDER) -> None:
        self.compiler = compiler
        self.gpu: Any = GpuWorld if gpu else None
        self.folder = folder
        self.spent = False
        self._known: dict[str, int] = {}
        self._run = 0

    def one(self, number: int, fatal: Outcome | None = None) -> Ended:
        """Run a program.

        Parameters
        ----------
        number
            Of it.
        fatal
            What its captured form ended in, if that left another process's GPU of no more use.
        """
        started = time.monotonic()
        program = program_of(number, self.compiler, self.gpu is not None)
        with contextlib.ExitStack() as lean:
            if not is_whole(number):
                lean.enter_context(remembering(self.compiler))
                if self.gpu is None:
                    lean.enter_context(without_machine_code(self.compiler))
            if number % RANDOM_COLLECTIONS:
                gc.disable()
            try:
                verdict = (
                    judge(program, number, self.gpu) if fatal is None else judge_after_fatal(program, fatal, GpuWorld)
                )
            finally:
                gc.enable()
            taken = time.monotonic() - started
            outcomes = (verdict.outcome, verdict.argument) if fatal is None else (verdict.argument,)
            self.spent |= self.gpu is not None and any(one is not None and is_fatal(one.detail) for one in outcomes)
            ended = self._judged(number, program, verdict, taken)
        self._run += 1
        if self._run == 1 or self._run % SETTLED == 0:
            gc.collect()
            gc.freeze()
        return ended

    def _judged(self, number: int, program: Program, verdict: Verdict, seconds: float) -> Ended:
        quiet = verdict.kind in ("right", "right in part", "refused as it must be")
        reason = None if quiet else verdict.outcome.reason
        if verdict.kind == "fatal":
            return Ended(number, "fatal", seconds, reason, text=verdict.outcome.detail)
        if verdict.kind not in ("failure", "invalid") or self._known.get(str(reason), 0) >= ALIKE:
            return Ended(number, verdict.kind, seconds, reason)
        self._known[str(reason)] = self._known.get(str(reason), 0) + 1
        program = verdict.program or program
        if verdict.failed and not (self.gpu is not None and is_fatal(verdict.outcome.detail)):
            program = self.shrunk(number, program, verdict)
            self.spent |= self.gpu is not None  # a smaller program may have ended in anything
        return self.keep(Ended(number, verdict.kind, seconds, reason, text=verdict.outcome.detail), program)

    def shrunk(self, number: int, program: Program, verdict: Verdict) -> Program:
        """The smallest program that fails alike."""

        def still(smaller: Program) -> bool:
            found = judge(smaller, number, self.gpu)
            return found.failed and found.outcome.kind == verdict.outcome.kind

        return shrink(program, still)

    def keep(self, ended: Ended, program: Program) -> Ended:
        """Keep a case."""
        return keep(ended, program, self.compiler, self.gpu is not None, self.folder)


def keep(ended: Ended, program: Program, compiler: str, gpu: bool, folder: Path) -> Ended:
    """Keep what failed as a case, and say so."""
    name = f"{compiler.replace('-', '_')}_{ended.number}"
    reason = f"{ended.kind}: {ended.reason}".replace("\\", "/").replace('"', "'")
    corpus.keep(name, program, f"Program {ended.number}, {named(compiler, gpu)}: {reason}", folder)
    text = f"{name}: {reason}\n{ended.text}\n{program.source()}"
    return Ended(ended.number, ended.kind, ended.seconds, ended.reason, name, text)


def named(compiler: str, gpu: bool) -> str:
    """What the progress of a compiler is called."""
    return f"{compiler} on a GPU" if gpu else compiler


@contextmanager
def ready(compiler: str, gpu: bool = False, folder: Path = corpus.FOLDER, alone: bool = True) -> Iterator[Runner]:
    """Something that runs programs with a compiler, which is the one under test meanwhile.

    Parameters
    ----------
    alone
        Whether no other process runs programs; if one does, the compiler makes do with one thread.
    """
    with using(compiler), cuda_captures.enabled():
        if not alone:
            one_thread(compiler)
        yield Runner(compiler, gpu, folder)
