"""Names in ``@cuda.jit(captures={...})`` that a kernel does not capture: most often they are misspelt."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from types import FunctionType, ModuleType

from cuda_captures.captures import Discovery
from cuda_captures.errors import CaptureWarning, warn_at


def warn_of_unused(function: FunctionType, policies: str | Mapping[str, str] | None, discovery: Discovery) -> None:
    """Warn of names that have a policy and that no function of a kernel names.

    A name that means something else than an array now may mean one later, so it is not warned of.

    Parameters
    ----------
    function
        The kernel's Python function.
    policies
        Its ``captures=`` option.
    discovery
        What it sees.
    """
    if not isinstance(policies, Mapping):
        return
    arrays = [capture.place.name for capture in discovery.arrays]
    others = {
        capture.place.name
        for capture in (*discovery.captures, *discovery.fixed)
        if capture.kind != "array" and not isinstance(capture.value, ModuleType)
    }
    for name in policies:
        if any(array == name or array.startswith((f"{name}.", f"{name}[")) for array in arrays):
            continue
        if name in others or re.split(r"[.\[]", name)[0] in others:
            continue
        warn_at(
            function,
            function.__code__.co_firstlineno,
            UNUSED.format(
                name=name,
                policy=policies[name],
                kernel=function.__name__,
                present=_present(arrays),
                cure=_cure(name, arrays),
            ),
            CaptureWarning,
        )


def _present(arrays: list[str]) -> str:
    names = ", ".join(f"`{name}`" for name in dict.fromkeys(arrays))
    return f"the arrays that it captures are {names}" if names else "it captures no arrays"


def _cure(name: str, arrays: list[str]) -> str:
    last = name.rpartition(".")[2]
    alike = [last] if last in arrays else difflib.get_close_matches(name, arrays, 1)
    if alike:
        return f"Did you mean `{alike[0]}`? Else leave the name out."
    return "Write the name as the kernel does, or leave it out."


UNUSED = """\
captures={{{name!r}: {policy!r}}}: kernel `{kernel}` captures nothing of that name; {present}.
{cure}"""
