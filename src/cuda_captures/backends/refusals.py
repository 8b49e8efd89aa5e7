"""What a compiler may not do with a captured array, said alike by every backend."""

from __future__ import annotations

from typing import Any

from cuda_captures.arrivals import arrived
from cuda_captures.errors import CaptureTypingError, pointer
from cuda_captures.members import is_users_class
from cuda_captures.session import Captured, current


def refuse_writes(effects: Any, function: Any, cause: BaseException | None = None) -> None:
    """Refuse a function that for certain writes a captured array that may not be written.

    Raises
    ------
    CaptureTypingError
        Naming the array, the line of the write, why it may not be written, and the ways out.
    """
    for captured, statement in effects.certainly.items():
        if isinstance(captured, Captured) and captured.signature.readonly:
            flags = "arrived" if arrived(captured.value) else "flags"
            reason, cure = READONLY[captured.policy if captured.policy in READONLY else flags]
            where = pointer(function, captured.name, statement.loc.line)
            raise CaptureTypingError(
                WRITES.format(name=captured.name, where=where, reason=reason, cure=cure.format(name=captured.name))
            ) from cause


def refuse_object(named: Any, function: Any, cause: BaseException) -> None:
    """Refuse an object of a class of the user's, after the compiler has found no type for it.

    Raises
    ------
    CaptureTypingError
        Naming the object, and what to write instead.
    """
    kind = type(named.value)
    if current() is not None and is_users_class(kind) and not isinstance(named.value, type):
        text = OBJECT.format(name=named.name, kind=kind.__qualname__, where=pointer(function, named.name))
        raise CaptureTypingError(text) from cause


CONTAINER = """\
`{name}` is a {kind}, and kernels cannot capture a {kind}: its items are Python objects that may change one by one.
  {where}
Make it an array, which is captured by reference: `{name} = np.array({name})`."""

OBJECT = """\
`{name}` is an object of class {kind}, and kernels cannot capture objects of just any class.
  {where}
Bind what the kernel needs to a name of its own before the kernel is defined (`part = {name}.part`), or make the class a
dataclass: kernels read the attributes of those."""

WRITES = """\
a kernel writes `{name}`, {reason}.
  {where}
{cure}"""

READONLY = {
    "flags": (
        "which is not writeable (its flags.writeable is False)",
        "Capture a writeable array: `{name} = {name}.copy()`, or `{name}.flags.writeable = True` if it owns its data.",
    ),
    "arrived": (
        "which came with the kernel from another process, and is read-only: kernels here share it",
        "Write `cuda_captures.live({name})` where the kernel is sent from: then each kernel that is sent has its own.",
    ),
    "snapshot": (
        "which is captured under the policy `snapshot`: kernels read a copy, and would write into that",
        "Write `cuda_captures.live({name})`, so that what kernels write comes back to it.",
    ),
    "constant": (
        "which is captured under the policy `constant`: constant memory cannot be written",
        "Write `cuda_captures.live({name})`, so that what kernels write comes back to it.",
    ),
}

UNTYPED = """\
`{name}` is captured, and the compiler cannot type it: {reason}
  {where}
Convert it to an array that the compiler takes as an argument."""
