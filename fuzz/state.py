"""How far a run has come, in a file that is whole at any moment."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Ended:
    """What became of one program.

    Parameters
    ----------
    number
        Of the program.
    kind
        As :class:`fuzz.judging.Verdict` has it, or ``ended the process``, or ``took too long``.
    seconds
        That it took.
    reason
        Why it is not right; None if it is.
    case
        The case that is kept of a failure; None for none.
    text
        What there is to say of a failure.
    """

    number: int
    kind: str
    seconds: float = 0.0
    reason: str | None = None
    case: str | None = None
    text: str = ""


FAILURES = frozenset({"failure", "invalid", "ended the process", "took too long"})  # of the kinds


@dataclass
class Progress:
    """Of one compiler.

    Attributes
    ----------
    following
        The number of the next program, counted from the first of the seed.
    pending
        Programs that were begun, as numbers, and have not ended; they come first when the run is resumed.
    seconds
        Taken so far, by all processes together.
    kinds
        How many programs became what.
    reasons
        What the compiler lacks, and why captures refused, by reason.
    failures
        By reason, the case that shows it.
    """

    following: int = 0
    pending: list[int] = field(default_factory=list)
    seconds: float = 0.0
    kinds: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """How many programs have ended."""
        return sum(self.kinds.values())

    @property
    def failed(self) -> int:
        """How many programs failed."""
        return sum(count for kind, count in self.kinds.items() if kind in FAILURES)

    def alike(self, reason: str) -> int:
        """How many failures for one reason there are."""
        return sum(known.endswith(f": {reason}") for known in self.failures)

    def count(self, ended: Ended) -> None:
        """One more program."""
        for counts, name in ((self.kinds, ended.kind), (self.reasons, ended.reason)):
            if name is not None:
                counts[name] = counts.get(name, 0) + 1
        self.seconds += ended.seconds
        if ended.case is not None:
            known = f"{ended.kind} {self.alike(str(ended.reason)) + 1}: {ended.reason}"
            self.failures[known] = ended.case

    def summary(self) -> str:
        """In a few lines."""
        lines = ["none"]
        if self.done:
            lines = [f"{self.done} programs, {self.failed} failures, {self.seconds / self.done:.2f} s each"]
        lines += [f"  {count:6} {kind}" for kind, count in Counter(self.kinds).most_common()]
        lines += [f"    {count:6} {reason}" for reason, count in Counter(self.reasons).most_common(12)]
        lines += [f"  failure {case}: {reason}" for reason, case in self.failures.items()]
        return "\n".join(lines)


class State:
    """A run, by compiler.

    Parameters
    ----------
    path
        Of the file; None keeps nothing.
    seed
        Of a new run.  One that is resumed must have the same.

    Raises
    ------
    ValueError
        If the file is of a run with another seed.
    """

    def __init__(self, path: Path | None, seed: int) -> None:
        self.path = path
        self.seed = seed
        self.progress: dict[str, Progress] = {}
        if path is not None and path.exists():
            kept = json.loads(path.read_text())
            if kept["seed"] != seed:
                raise ValueError(f"{path} is of a run with the seed {kept['seed']} (got {seed}); give another file")
            self.progress = {name: Progress(**one) for name, one in kept["progress"].items()}

    def of(self, name: str) -> Progress:
        """The progress of one compiler."""
        return self.progress.setdefault(name, Progress())

    def save(self) -> None:
        """Write the file: it has this or what it had before, whatever happens meanwhile."""
        if self.path is None:
            return
        text = json.dumps({"seed": self.seed, "progress": {name: asdict(one) for name, one in self.progress.items()}})
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        beside.write_text(text)
        beside.replace(self.path)
