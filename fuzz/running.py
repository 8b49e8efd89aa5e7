"""A run: programs one after the other, what became of them, and the cases that are kept."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_captures
from backends_under_test import using
from fuzz import corpus
from fuzz.generating import generate
from fuzz.judging import Verdict, judge
from fuzz.on_gpu import GpuWorld, is_fatal
from fuzz.program import Program
from fuzz.shrinking import shrink
from fuzz.state import GIVEN_UP, State

PER_SEED = 10_000_000  # programs; the next seed's follow
ALIKE = 3  # cases that are kept of failures for one reason
TOGETHER = 20  # programs of one compiler before it is the other's turn


class Run:
    """A run that can be stopped at any moment and resumed.

    Parameters
    ----------
    state
        How far it has come.
    compilers
        To run programs with, in turn.
    gpu
        Whether on a GPU.
    folder
        Where cases are kept.
    say
        Told of each failure.
    """

    def __init__(
        self,
        state: State,
        compilers: list[str],
        gpu: bool = False,
        folder: Path = corpus.FOLDER,
        say: Callable[[str], object] = print,
    ) -> None:
        self.state = state
        self.compilers = compilers
        self.gpu: Any = GpuWorld if gpu else None
        self.folder = folder
        self.say = say
        self._warm: set[str] = set()

    def name(self, compiler: str) -> str:
        """The name of a compiler's progress."""
        return f"{compiler} on a GPU" if self.gpu else compiler

    def go(self, seconds: float = float("inf"), programs: float = float("inf")) -> None:
        """Run programs for some time, or some programs of each compiler.

        Raises
        ------
        SystemExit
            If a GPU is of no more use.
        """
        until = time.monotonic() + seconds
        last = {one: self.state.of(self.name(one)).following + programs for one in self.compilers}
        while True:
            busy = False
            for compiler in self.compilers:
                progress = self.state.of(self.name(compiler))
                with using(compiler), cuda_captures.enabled():
                    for _ in range(TOGETHER):
                        if time.monotonic() >= until or progress.following >= last[compiler]:
                            break
                        busy = True
                        self.one(compiler)
            if not busy:
                return

    def one(self, compiler: str) -> None:
        """The next program of a compiler, which must be the one under test."""
        progress = self.state.of(self.name(compiler))
        number = self.state.seed * PER_SEED + progress.following
        started = time.monotonic()
        progress.begun += 1
        self.state.save()
        if progress.begun > GIVEN_UP:
            self._keep(compiler, number, generate(number), "ended the process", "ended the process")
            progress.count("failure")
        else:
            self._judged(compiler, number, judge(generate(number), number, self.gpu))
        progress.ended(time.monotonic() - started)
        self.state.save()
        if compiler not in self._warm:  # what a compiler leaves for good need not be looked through again
            self._warm.add(compiler)
            gc.collect()
            gc.freeze()

    def _judged(self, compiler: str, number: int, verdict: Verdict) -> None:
        progress = self.state.of(self.name(compiler))
        reason = None if verdict.kind == "right" else verdict.outcome.reason
        if verdict.kind in ("right in part", "refused as it must be"):
            reason = None
        progress.count(verdict.kind, reason)
        if verdict.kind not in ("failure", "invalid"):
            return
        alike = sum(known.endswith(f": {reason}") for known in progress.failures)
        if alike == ALIKE:
            return
        known = f"{verdict.kind} {alike + 1}: {reason}"
        program = verdict.program or generate(number)
        fatal = self.gpu is not None and is_fatal(verdict.outcome.detail)
        if verdict.failed and not fatal:

            def still(smaller: Program) -> bool:
                found = judge(smaller, number, self.gpu)
                return found.failed and found.outcome.kind == verdict.outcome.kind

            program = shrink(program, still)
        self._keep(compiler, number, program, known, verdict.outcome.detail)
        if fatal:
            progress.ended(0.0)
            self.state.save()
            raise SystemExit(f"program {number} left the GPU of no more use: {verdict.outcome.detail}")

    def _keep(self, compiler: str, number: int, program: Program, reason: str, detail: str) -> None:
        name = f"{compiler.replace('-', '_')}_{number}"
        why = f"Program {number}, {self.name(compiler)}: {reason}".replace("\\", "/").replace('"', "'")
        corpus.keep(name, program, why, self.folder)
        self.state.of(self.name(compiler)).failures[reason] = name
        self.say(f"{name}: {reason}\n{detail}\n{program.source()}")
