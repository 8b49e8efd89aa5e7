"""What is captured, where it lives, why it was compiled: as records, for programs; they show themselves to people.

How they look in a terminal and in a notebook is in :mod:`~cuda_captures.report_text` and
:mod:`~cuda_captures.report_html`.  Records hold texts and numbers only: no array, no function, nothing of a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from cuda_captures.contents import CONSTANT_LIMIT


class Record:
    """What the records here have in common: they turn into dictionaries that ``json`` takes."""

    def to_dict(self) -> dict[str, Any]:
        """The same as numbers, texts, lists and dictionaries."""
        return {one.name: _plain(getattr(self, one.name)) for one in fields(self)}  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    return value


@dataclass(frozen=True)
class Copy(Record):
    """The device copy that an array is in; other arrays may be in it too.

    Parameters
    ----------
    device
        Ordinal.
    nbytes
        Of the whole copy.
    way, why, cost
        How edits of the host's bytes are noticed, why in that way, and about how many seconds that takes a launch.
    kernels
        Names of the kernels that use it.
    instances
        How many loaded modules use it: one for each kernel, tuple of argument types and meaning of its names.
    uploads, uploaded
        How many times something was sent so far, and how many bytes in all.
    downloads, downloaded
        The same for what kernels wrote.
    """

    device: int
    nbytes: int
    way: str
    why: str
    cost: float
    kernels: tuple[str, ...]
    instances: int
    uploads: int
    uploaded: int
    downloads: int
    downloaded: int


@dataclass(frozen=True)
class Row(Record):
    """One captured array.

    Parameters
    ----------
    name, path
        The name, and how the kernel reaches it: ``("device function `scatter`", "closure `sigma`")``.
    where
        File and line of the first use: ``"/home/me/physics.py:12"``.
    dtype, shape, strides, nbytes
        Of the array now; strides in bytes.
    policy
        ``live``, ``snapshot``, ``mapped``, ``constant``, or ``device`` for a device array.
    noticed, why
        How edits of the host are noticed, and why so.
    written
        Whether the kernel writes it; None before it is compiled.
    general
        Whether one compilation serves every shape; None before it is compiled.
    copies
        Its device copies.
    """

    name: str
    path: tuple[str, ...]
    where: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    nbytes: int
    policy: str
    noticed: str
    why: str
    written: bool | None
    general: bool | None
    copies: tuple[Copy, ...] = ()


@dataclass(frozen=True)
class Specialisation(Record):
    """One compilation of a kernel.

    Parameters
    ----------
    signature
        Argument types.
    source
        How this kernel came by it: ``"compiled"``, ``"process"`` (another kernel had it) or ``"disk"``.
    key
        Digest of its key; None for code that can be neither shared nor cached.
    why_private
        Then the reasons, each with a name.
    differs
        If it was compiled: what differs by name from the nearest code that was there.
    constant_bytes
        Constant memory that holds contents of captured arrays, because it was asked for.
    slot_bytes
        Constant memory that holds addresses and shapes of captured arrays.
    """

    signature: str
    source: str
    key: str | None
    why_private: tuple[str, ...]
    differs: tuple[str, ...]
    constant_bytes: int
    slot_bytes: int


@dataclass(frozen=True)
class Level(Record):
    """Where code is looked for before it is compiled.

    Parameters
    ----------
    name
        ``"kernel"``: among its own specialisations; ``"process"``: the other kernels'; ``"disk"``.
    hits, misses
        Of the look-ups made when a name meant something new; launches that find every name unchanged look nothing up.
    note
        Why it is not asked, if so.
    """

    name: str
    hits: int
    misses: int
    note: str = ""


@dataclass(frozen=True)
class Advice(Record):
    """What would be better, with the reason.

    Parameters
    ----------
    name
        The captured name; the kernel's if it is about all of them.
    text
        One or two sentences.
    """

    name: str
    text: str


@dataclass(frozen=True, repr=False)
class CaptureReport(Record):
    """What :func:`cuda_captures.report` found.

    Shows itself: with ``print`` and ``rich.print`` in a terminal, by itself in a notebook.

    Parameters
    ----------
    kernel
        Its name.
    where
        File and line.
    rows
        The captured arrays; as key ``captures`` in the dictionary.
    specialisations
        What it was compiled to, in order.
    levels
        Where code was looked for, and how often it was found.
    launches
        How many there were with captures; two of different threads at one moment may count as one.  None where they are
        not counted.
    advice
        What would be better.
    note
        What else there is to say: that it has not been compiled, or is simulated.
    """

    kernel: str
    where: str
    rows: tuple[Row, ...]
    specialisations: tuple[Specialisation, ...] = ()
    levels: tuple[Level, ...] = ()
    launches: int | None = None
    advice: tuple[Advice, ...] = ()
    note: str = ""

    @property
    def constant_memory(self) -> int:
        """Bytes of constant memory that captures take in the specialisation that takes most."""
        return max((one.constant_bytes + one.slot_bytes for one in self.specialisations), default=0)

    def to_dict(self) -> dict[str, Any]:
        found = super().to_dict()
        return {("captures" if name == "rows" else name): value for name, value in found.items()} | {
            "constant_memory": self.constant_memory,
            "constant_memory_limit": CONSTANT_LIMIT,
        }

    def __str__(self) -> str:
        from cuda_captures.report_text import plain

        return plain(self)

    def __repr__(self) -> str:
        return str(self).rstrip()

    def __rich__(self) -> Any:
        from cuda_captures.report_text import renderable

        return renderable(self)

    def _repr_html_(self) -> str:
        from cuda_captures.report_html import html

        return html(self)


@dataclass(frozen=True, repr=False)
class Explanation(CaptureReport):
    """What :func:`cuda_captures.explain` found by compiling: a report, and what was compiled.

    Parameters
    ----------
    slots
        Symbols of the slots in the machine code.
    key
        The key as text; None if some name cannot be identified.
    ptx
        The PTX before the link; not in the dictionary.
    cubin
        The linked machine code; not in the dictionary.
    """

    slots: tuple[str, ...] = ()
    key: str | None = None
    ptx: str = field(default="", repr=False)
    cubin: bytes = field(default=b"", repr=False)

    @property
    def constant_bytes(self) -> int:
        """Constant memory that holds data of captured arrays: only what was asked for."""
        return sum(one.constant_bytes for one in self.specialisations)

    @property
    def why_private(self) -> tuple[str, ...]:
        """Why the code can be neither shared nor cached."""
        return tuple(reason for one in self.specialisations for reason in one.why_private)

    def to_dict(self) -> dict[str, Any]:
        found = {name: value for name, value in super().to_dict().items() if name not in ("ptx", "cubin")}
        return found | {"constant_bytes": self.constant_bytes, "why_private": list(self.why_private)}
