"""How far a run has come, in a file that is whole at any moment."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

GIVEN_UP = 2  # times that a program was begun and not ended, after which it is taken to end the process


@dataclass
class Progress:
    """Of one compiler.

    Attributes
    ----------
    following
        The number of the next program.
    begun
        How often that one was begun.
    seconds
        Taken so far.
    kinds
        How many programs became what.
    reasons
        What the compiler lacks, and why captures refused, by reason.
    failures
        By reason, the name of the case that shows it.
    """

    following: int = 0
    begun: int = 0
    seconds: float = 0.0
    kinds: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def count(self, kind: str, reason: str | None = None) -> None:
        """One more program of a kind."""
        for counts, name in ((self.kinds, kind), (self.reasons, reason)):
            if name is not None:
                counts[name] = counts.get(name, 0) + 1

    def ended(self, seconds: float) -> None:
        """Go on to the next program."""
        self.following += 1
        self.begun = 0
        self.seconds += seconds

    def summary(self) -> str:
        """In a few lines."""
        done = sum(self.kinds.values())
        lines = [f"{done} programs, {done / self.seconds:.2f} a second" if self.seconds else "none"]
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
