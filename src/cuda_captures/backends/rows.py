"""The captured arrays of a kernel as rows of a report: what its names mean now, and what was compiled for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any

import numpy as np

from cuda_captures import mirrors
from cuda_captures.advice import NamedIn
from cuda_captures.code import Code, Use
from cuda_captures.discovery import Capture, Discovery, Place, discover
from cuda_captures.errors import line_naming
from cuda_captures.policy import policy_of
from cuda_captures.report import Copy, Row
from cuda_captures.session import is_array
from cuda_captures.settings import current as settings
from cuda_captures.signature import ArraySignature, array_signature

# How edits are noticed, by the way of a copy.
WAYS = {
    "unwritable": "sent once",
    "bytes": "bytes compared",
    "pages": "page watch",
    "digest": "digest",
    "snapshot": "not noticed",
    "mapped": "seen at once",
}
WITHOUT_COPY = {
    "device": ("used in place", "it is in device memory"),
    "snapshot": ("not noticed", "copied once, and again by refresh()"),
    "mapped": ("seen at once", "used in place by the device"),
    "constant": ("contents compared", "they are compiled into constant memory; other contents are compiled anew"),
    "live": ("not copied yet", "how its edits are noticed is decided then"),
    "simulated": ("used in place", "the simulator runs kernels as Python"),
}
UNUSED = ("not read", "the compiled code has no use for it")
GONE = ("nothing", "the name does not mean an array now")


def rows_of(function: Any, policies: str | Mapping[str, str] | None, codes: Sequence[Code]) -> list[NamedIn]:
    """The captured arrays of a kernel, in the order of its reading.

    Parameters
    ----------
    function
        The Python function.
    policies
        Its ``captures=`` option.
    codes
        What it was compiled to; empty if it was not.

    Returns
    -------
    list of tuple
        Each a :class:`~cuda_captures.report.Row` and the code object that names the array, or None.
    """
    discovery = discover(function)
    uses: dict[Any, list[Use]] = {}
    places: dict[Any, Place] = {}
    for code in codes:
        for use in code.uses:
            place = use.place_for(function)
            places[place.key] = place
            uses.setdefault(place.key, []).append(use)
    rows: list[NamedIn] = []
    for capture in discovery.arrays:
        used = uses.pop(capture.place.key, [])
        policy = policy_now(capture.place, capture.value, policies)
        if codes and not used and discovery.asks_for_constants:
            policy = "constant"
        rows.append((_row(capture.place, capture, policy, used, bool(codes)), capture.function.__code__))
    for key, used in uses.items():  # names that mean no array now, or were found while compiling
        place = places[key]
        known = discovery.by_place.get(key)
        policy = used[-1].signature.policy if used[-1].signature.memory == "host" else "device"
        named_in = known.function.__code__ if known is not None else None
        rows.append((_row(place, known, policy, used, True), named_in))
    return rows


def simulated_rows(discovery: Discovery) -> tuple[Row, ...]:
    """The captured arrays of a kernel in the simulator."""
    return tuple(_row(capture.place, capture, "simulated", [], False) for capture in discovery.arrays)


def policy_now(place: Place, array: Any, policies: str | Mapping[str, str] | None) -> str:
    """The policy of an array, as a report says it."""
    if not isinstance(array, np.ndarray) or hasattr(array, "__cuda_array_interface__"):
        return "device"
    return policy_of(array, place.name, policies, settings().host)


def _row(place: Place, capture: Capture | None, policy: str, uses: Sequence[Use], compiled: bool) -> Row:
    array = place.peek()
    there = form_now(array)
    form = uses[-1].signature if there is None else there
    copies = copies_of(array, policy)
    noticed, why = WITHOUT_COPY[policy]
    if there is None:
        noticed, why = GONE
    elif copies:
        noticed, why = WAYS.get(copies[0].way, copies[0].way), copies[0].why
    elif compiled and not uses and policy != "constant":
        noticed, why = UNUSED
    return Row(
        name=place.name,
        path=tuple(capture.path) if capture is not None else (),
        where=where_of(capture),
        dtype=str(form.dtype),
        shape=form.shape or (),
        strides=form.strides or (),
        nbytes=bytes_of(form),
        policy=policy,
        noticed=noticed,
        why=why,
        written=any(use.written for use in uses) if compiled else None,
        general=any(use.slot.general for use in uses) if compiled else None,
        copies=copies,
    )


def defined_at(function: Any) -> str:
    """File and line where a function begins."""
    code: CodeType = function.__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def where_of(capture: Capture | None) -> str:
    """File and line where a name is first used."""
    if capture is None:
        return ""
    code: CodeType = capture.function.__code__
    return f"{code.co_filename}:{line_naming(code, capture.place.name)}"


def form_now(array: Any) -> ArraySignature | None:
    """What an array is like; None for anything else, and for one that its library does not hand out."""
    try:
        return array_signature(array, "live") if is_array(array) else None
    except Exception:  # whatever a property of some other library raises
        return None


def bytes_of(form: ArraySignature) -> int:
    """Bytes of the elements of an array; 0 if its shape is not known."""
    return math.prod(form.shape) * form.dtype.itemsize if form.shape is not None else 0


def copies_of(array: Any, policy: str) -> tuple[Copy, ...]:
    """The device copies of an array, by device."""
    if not isinstance(array, np.ndarray) or policy not in ("live", "snapshot", "mapped"):
        return ()
    return tuple(map(_copy, mirrors.copies_of(array, policy)))


def _copy(copy: Any) -> Copy:
    users: list[str] = copy.users.names()
    return Copy(
        device=copy.device,
        nbytes=copy.nbytes,
        way=copy.way,
        why=copy.why,
        cost=copy.cost,
        kernels=tuple(sorted(set(users))),
        instances=len(users),
        uploads=copy.uploads,
        uploaded=copy.uploaded,
        downloads=copy.downloads,
        downloaded=copy.downloaded,
    )
