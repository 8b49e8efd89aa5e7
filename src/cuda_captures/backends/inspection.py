"""Explaining without a GPU, and reporting: what every backend says of a kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cuda_captures.advice import advice_for
from cuda_captures.backends.rows import defined_at, rows_of
from cuda_captures.binding import Follower
from cuda_captures.code import Code
from cuda_captures.key import Key
from cuda_captures.misses import why_missed
from cuda_captures.report import CaptureReport, Explanation, Level, Specialisation
from cuda_captures.specialising import CODES

Policies = str | Mapping[str, str] | None


@dataclass(frozen=True)
class Kernel:
    """What a backend knows of a kernel.

    Parameters
    ----------
    function
        Its Python function.
    policies
        Its ``captures=`` option.
    followers
        For each tuple of argument types, as text, what follows its captures.
    on_disk
        The keys in its disk cache, in the order of their writing; None if it has none.
    """

    function: Any
    policies: Policies
    followers: Sequence[tuple[str, Follower]]
    on_disk: Sequence[Key] | None = None


def report_of(kernel: Kernel) -> CaptureReport:
    """What a kernel captures, and what became of that so far; also of one that was never compiled."""
    return CaptureReport(**_facts(kernel))


def explanation_of(kernel: Kernel, code: Code, ptx: str, cubin: bytes) -> Explanation:
    """What a kernel captures, with what it was compiled to."""
    facts = _facts(kernel) | {"levels": (), "launches": None, "note": ""}
    return Explanation(
        **facts,
        slots=tuple(use.slot.symbol for use in code.uses),
        key=code.key.text if code.key is not None else None,
        ptx=ptx,
        cubin=cubin,
    )


def _facts(kernel: Kernel) -> dict[str, Any]:
    function = kernel.function
    codes = [
        (signature, follower, code)
        for signature, follower in kernel.followers
        for code in follower.specialisations.codes
    ]
    rows = rows_of(function, kernel.policies, [code for _, _, code in codes])
    specialisations = tuple(specialisation(*one, kernel.on_disk or ()) for one in codes)
    used = max((one.constant_bytes + one.slot_bytes for one in specialisations), default=0)
    keys = [
        [code.key for code in follower.specialisations.codes if code.key is not None]
        for _, follower in kernel.followers
    ]
    return {
        "kernel": function.__name__,
        "where": defined_at(function),
        "rows": tuple(row for row, _ in rows),
        "specialisations": specialisations,
        "levels": levels(kernel, specialisations),
        "launches": sum(follower.launches for _, follower in kernel.followers),
        "advice": advice_for(rows, keys, function.__name__, used),
        "note": "" if codes else NOT_COMPILED,
    }


def specialisation(signature: str, follower: Follower, code: Code, on_disk: Iterable[Key]) -> Specialisation:
    """What a report says of one compilation."""
    source = follower.specialisations.sources.get(code.number, code.source)
    differs: tuple[str, ...] = ()
    if source == "compiled" and code.key is not None:
        before = [
            one.key
            for one in (*CODES, *follower.specialisations.codes)
            if one.key is not None and one.number < code.number
        ]
        differs = why_missed(code.key, [*before, *until(code.key, on_disk)])
    return Specialisation(
        signature=signature,
        source=source,
        key=code.key.digest if code.key is not None else None,
        why_private=code.why_private,
        differs=differs,
        constant_bytes=code.constant_bytes,
        slot_bytes=sum(8 * use.slot.words for use in code.uses),
    )


def until(key: Key, keys: Iterable[Key]) -> list[Key]:
    """The keys before one of them; all if it is not there."""
    digests = [one.digest for one in keys]
    stop = digests.index(key.digest) if key.digest in digests else len(digests)
    return list(keys)[:stop]


def levels(kernel: Kernel, specialisations: Sequence[Specialisation]) -> tuple[Level, ...]:
    """Where code was looked for before it was compiled, and how often it was there."""
    if not specialisations:
        return ()
    kept = sum(follower.specialisations.kept for _, follower in kernel.followers)
    sources = [one.source for one in specialisations if one.key is not None]
    compiled, shared, loaded = (sources.count(source) for source in ("compiled", "process", "disk"))
    private = len(specialisations) - len(sources)
    unseen = f"not asked for {private}, which cannot be identified" if private else ""
    process = Level("process", shared, compiled + loaded, unseen)
    if kernel.on_disk is None:
        disk = Level("disk", 0, 0, "not asked: the kernel has no cache=True")
    else:
        disk = Level("disk", loaded, compiled, unseen)
    return Level("kernel", kept, len(specialisations)), process, disk


NOT_COMPILED = "not compiled with captures yet: launch it, cuda_captures.bind() it, or ask cuda_captures.explain()"
