"""Checking that a compiler is built as a backend expects: every private name that the backend reaches into.

If a name is missing or takes other parameters, enabling refuses with the list instead of half-working.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from collections.abc import Sequence

from cuda_captures.errors import CaptureVersionError

# Module, attribute, and the parameters that it must take; None for what is not called.
Joint = tuple[str, str, tuple[str, ...] | None]


def check_joints(distribution: str, joints: Sequence[Joint]) -> None:
    """Refuse a compiler that is not built as a backend expects.

    Raises
    ------
    CaptureVersionError
        Naming the joints that are missing or of another shape.
    """
    faults = [fault for joint in joints if (fault := fault_of(*joint)) is not None]
    if faults:
        version = importlib.metadata.version(distribution)
        listed = "\n".join(f"  {fault}" for fault in faults)
        raise CaptureVersionError(SHAPE.format(distribution=distribution, version=version, faults=listed))


def fault_of(module: str, attribute: str, parameters: tuple[str, ...] | None) -> str | None:
    """What is wrong with one joint, or None."""
    try:
        found: object = importlib.import_module(module)
    except ImportError as error:
        return f"{module} cannot be imported ({error})"
    for part in attribute.split("."):
        found = getattr(found, part, None)
        if found is None:
            return f"{module}.{attribute} is missing"
    if parameters is None:
        return None
    if not callable(found):
        return f"{module}.{attribute} is not callable"
    signature = inspect.signature(found)
    missing = [name for name in parameters if name not in signature.parameters]
    if missing:
        return f"{module}.{attribute}{signature} has no parameter {', '.join(missing)}"
    return None


SHAPE = """\
{distribution} {version} is not built as cuda-captures expects, so captures were not enabled:
{faults}
Install a version that it was tested with, or report this with the lines above."""
