"""What is found out of one kernel: its captures, and what it compiles to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import cuda_captures
from cuda_captures import backends
from cuda_captures.discovery import discover
from cuda_captures.report import CaptureReport


@dataclass
class Inspection:
    """One kernel or device function.

    Parameters
    ----------
    name
        Its name in the module.
    kind
        ``"kernel"`` or ``"device function"``.
    reports
        What it captures: a report without a compilation, or an explanation for each signature.
    values
        Names with scalars, strings and the like, which are compiled in and followed.
    unknown
        Names that cannot be identified, with the reasons.
    """

    name: str
    kind: str
    reports: list[CaptureReport]
    values: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)

    @property
    def constant_bytes(self) -> int:
        """The most constant memory that contents and addresses of captures take in any of its compilations."""
        return max((one.constant_memory for one in self.reports), default=0)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "constant_bytes": self.constant_bytes,
            "reports": [one.to_dict() for one in self.reports],
            "values": self.values,
            "unknown": self.unknown,
        }


def inspect(
    name: str, dispatcher: Any, signatures: list[Any], cc: tuple[int, int]
) -> tuple[Inspection, list[CompilationError]]:
    """Inspect one kernel or device function; nothing is launched.

    Parameters
    ----------
    name
        Its name in the module.
    dispatcher
        What ``cuda.jit`` made.
    signatures
        The argument types to compile it for; none for a device function, which is compiled with its kernels.
    cc
        Compute capability to compile for.

    Returns
    -------
    tuple
        What was found, and what went wrong in compiling.
    """
    kind = "device function" if is_device_function(dispatcher) else "kernel"
    found = discover(dispatcher)
    inspection = Inspection(
        name,
        kind,
        [],
        {one.place.name: shortened(one.value) for one in found.captures if one.kind == "value"},
        {one.place.name: one.why for one in found.unknown},
    )
    errors = []
    for signature in signatures if kind == "kernel" else ():
        try:
            inspection.reports.append(cuda_captures.explain(dispatcher, signature, cc))
        except Exception as error:  # the compiler's own, of any class
            errors.append(CompilationError(name, str(signature), error))
    if not inspection.reports:
        report = cuda_captures.report(dispatcher)
        if not backends.simulating(distribution_of(dispatcher)):
            report = replace(report, note=NOT_COMPILED if errors else NOTES[kind])
        inspection.reports.append(report)
    return inspection, errors


NOT_COMPILED = "not compiled: it does not compile for the types that it was given"
NOTES = {
    "kernel": "not compiled: name its argument types with --signature",
    "device function": "compiled with the kernels that call it",
}


def distribution_of(dispatcher: Any) -> str:
    """The compiler that made a dispatcher."""
    package = type(dispatcher).__module__.partition(".")[0]
    return next((one.distribution for one in backends.COMPILERS if one.module.partition(".")[0] == package), "")


def is_device_function(dispatcher: Any) -> bool:
    """Whether it was decorated with ``device=True``."""
    options = getattr(dispatcher, "targetoptions", None) or {}
    return bool(options.get("device", getattr(dispatcher, "_device", False)))


def shortened(value: Any, width: int = 60) -> str:
    """A value as one would write it, on a line."""
    text = repr(value)
    return text if len(text) <= width else f"{text[: width - 1]}…"


@dataclass
class CompilationError:
    """A kernel that does not compile for a signature."""

    name: str
    signature: str
    error: Exception

    @property
    def text(self) -> str:
        """What the compiler says, without empty lines."""
        said = "\n".join([str(self.error), *getattr(self.error, "__notes__", ())])
        lines = [line for line in said.splitlines() if line.strip()]
        return "\n".join(lines) or type(self.error).__name__

    def to_dict(self) -> dict[str, str]:
        return {
            "name": self.name,
            "signature": self.signature,
            "error": type(self.error).__name__,
            "text": self.text,
        }
