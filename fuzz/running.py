"""A run: processes that run programs, and what became of these.

The run itself touches no compiler and no GPU, so nothing that a program does can end it.  A process that ends under a
program makes that program a failure; another takes its place.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz import ROOT, corpus
from fuzz.runner import keep, named, program_of
from fuzz.state import Ended, Progress, State

PER_SEED = 10_000_000  # programs; the next seed's follow
AHEAD = 2  # programs that a process knows of: the one that it runs and the next
LIFE = 300  # programs of a process: what compilers and drivers keep for good goes with it
LATEST = 300.0  # seconds that a program may take, with making a failure small
SAVED = 2.0  # seconds between two savings of the state
ALIKE = 10  # cases that are kept of programs that end a process in one way
PATIENCE = 75.0  # seconds that processes get to end their programs when the time is over

WORKER = (sys.executable, "-m", "fuzz.working")


@dataclass(eq=False)
class Worker:
    """One process, for one compiler.

    Attributes
    ----------
    compiler
        Its.
    process, results
        The process, and the file descriptor that what it says comes from.
    orders
        Numbers of the programs that it was told of and that have not ended, in order; with what the captured form
        ended in where only arguments are to be asked about.
    told
        How many it was told of at all.
    since
        When it began the first of ``orders``.
    text
        What it has said of a line that is not complete.
    """

    compiler: str
    process: subprocess.Popen[str]
    results: int
    orders: deque[tuple[int, str]] = field(default_factory=deque)
    told: int = 0
    since: float = 0.0
    text: bytes = b""


class Run:
    """A run that can be stopped at any moment and resumed.

    Parameters
    ----------
    state
        How far it has come.
    compilers
        To run programs with.
    gpu
        Whether on a GPU.
    folder
        Where cases are kept.
    say
        Told of each failure.
    workers
        How many processes run programs at the same time.
    worker
        The command that is such a process.
    """

    def __init__(
        self,
        state: State,
        compilers: Sequence[str],
        gpu: bool = False,
        folder: Path = corpus.FOLDER,
        say: Callable[[str], object] = print,
        workers: int = 1,
        worker: Sequence[str] = WORKER,
    ) -> None:
        self.state = state
        self.compilers = compilers
        self.gpu = gpu
        self.folder = folder
        self.say = say
        self.count = workers
        self.command = worker
        self.workers: list[Worker] = []
        self._again: dict[str, deque[tuple[int, str]]] = {one: deque() for one in compilers}
        self._left: dict[str, float] = {}
        self._selector = selectors.DefaultSelector()
        self._saved = 0.0

    def progress(self, compiler: str) -> Progress:
        """Of a compiler."""
        return self.state.of(named(compiler, self.gpu))

    def go(self, seconds: float = float("inf"), programs: float = float("inf")) -> None:
        """Run programs for some time, or some programs of each compiler."""
        until = time.monotonic() + seconds
        for one in self.compilers:
            self._left[one] = programs
            self._again[one] = deque((number, "") for number in self.progress(one).pending)
        try:
            while time.monotonic() < until:
                self._tell()
                if not self.workers:
                    break
                self._hear(min(0.5, until - time.monotonic()))
            until = time.monotonic() + PATIENCE
            for worker in self.workers:
                _close(worker)
            while self.workers and time.monotonic() < until:
                self._hear(0.5)
        finally:
            for worker in list(self.workers):
                worker.process.kill()
                self._part_with(worker)
            self.state.save()

    # what processes are told

    def _tell(self) -> None:
        """Have as many processes as there shall be, each with something to do."""
        while len(self.workers) < self.count:
            found = min(filter(self._has_more, self.compilers), key=self._begun, default=None)
            if found is None:
                break
            self.workers.append(self._start(found))
        for worker in self.workers:
            if worker.process.stdin.closed:  # type: ignore[union-attr]
                continue
            while len(worker.orders) < AHEAD and worker.told < LIFE and self._has_more(worker.compiler):
                self._order(worker)
            if not worker.orders:
                _close(worker)

    def _has_more(self, compiler: str) -> bool:
        return bool(self._again[compiler]) or self._left[compiler] > 0

    def _begun(self, compiler: str) -> float:
        """How far a compiler is ahead of the others."""
        going = sum(worker.compiler == compiler for worker in self.workers)
        return going * 1e9 + self.progress(compiler).done

    def _start(self, compiler: str) -> Worker:
        results, said = os.pipe()
        options = [*(["gpu"] if self.gpu else []), *(["others"] if self.count > 1 else [])]
        process = subprocess.Popen(
            [*self.command, compiler, str(self.folder), str(said), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            pass_fds=[said],
            start_new_session=True,  # an interrupt from the keyboard is the run's to handle
        )
        os.close(said)
        worker = Worker(compiler, process, results)
        self._selector.register(results, selectors.EVENT_READ, worker)
        return worker

    def _order(self, worker: Worker) -> None:
        progress, again = self.progress(worker.compiler), self._again[worker.compiler]
        if again:
            number, fatal = again.popleft()
        else:
            number, fatal = self.state.seed * PER_SEED + progress.following, ""
            progress.following += 1
            progress.pending.append(number)
            self._left[worker.compiler] -= 1
        if not worker.orders:
            worker.since = time.monotonic()
        worker.orders.append((number, fatal))
        worker.told += 1
        with contextlib.suppress(BrokenPipeError):  # it is over, as will be heard
            print(json.dumps({"number": number, "fatal": fatal}), file=worker.process.stdin, flush=True)

    # what they say

    def _hear(self, seconds: float) -> None:
        """Take in what processes say, for some time at most."""
        for key, _ in self._selector.select(max(seconds, 0.0)):
            worker: Worker = key.data
            text = os.read(worker.results, 1 << 16)
            worker.text += text
            *lines, worker.text = worker.text.split(b"\n")
            for line in lines:
                self._heard(worker, Ended(**json.loads(line)))
            if not text:
                self._over(worker)
        for worker in list(self.workers):
            if worker.orders and time.monotonic() - worker.since > LATEST:
                worker.process.kill()
                self._failed(worker, "took too long", f"more than {LATEST:.0f} s")
        if time.monotonic() - self._saved > SAVED:
            self.state.save()
            self._saved = time.monotonic()

    def _heard(self, worker: Worker, ended: Ended) -> None:
        worker.orders.popleft()
        worker.since = time.monotonic()
        if ended.kind == "fatal":
            self._again[worker.compiler].append((ended.number, ended.text))
        else:
            self._count(worker.compiler, ended)

    def _over(self, worker: Worker) -> None:
        """A process has ended: as it should, or under a program."""
        status = worker.process.wait()
        if status and worker.orders:
            how = signal.Signals(-status).name if status < 0 else f"status {status}"
            self._failed(worker, "ended the process", how)
        else:
            self._part_with(worker)

    def _failed(self, worker: Worker, kind: str, how: str) -> None:
        """The program that a process was at made it end."""
        number, _ = worker.orders.popleft()
        text = f"{how}, as program {worker.told - len(worker.orders)} of its process"
        self._part_with(worker)
        if self.progress(worker.compiler).alike(how) < ALIKE:
            program = program_of(number, worker.compiler, self.gpu)
            ended = Ended(number, kind, time.monotonic() - worker.since, how, text=text)
            self._count(worker.compiler, keep(ended, program, worker.compiler, self.gpu, self.folder))
        else:
            self._count(worker.compiler, Ended(number, kind, reason=how))

    def _part_with(self, worker: Worker) -> None:
        """Forget a process; what it was told of and has not begun is for others."""
        self._again[worker.compiler].extendleft(reversed(worker.orders))
        worker.orders.clear()
        self.workers.remove(worker)
        self._selector.unregister(worker.results)
        os.close(worker.results)
        _close(worker)
        worker.process.wait()

    def _count(self, compiler: str, ended: Ended) -> None:
        progress = self.progress(compiler)
        progress.pending.remove(ended.number)
        progress.count(ended)
        if ended.case is not None:
            self.say(ended.text)


def _close(worker: Worker) -> None:
    """Tell a process that there is nothing more to do."""
    stream: Any = worker.process.stdin
    with contextlib.suppress(BrokenPipeError):
        stream.close()
