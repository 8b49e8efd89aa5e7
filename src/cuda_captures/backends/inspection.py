"""Explaining without a GPU, and reporting: what every backend says of a kernel."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import Any

from cuda_captures.binding import Follower, array_shape
from cuda_captures.code import Code
from cuda_captures.discovery import discover
from cuda_captures.errors import CaptureError, line_naming
from cuda_captures.report import CaptureReport, Explanation, Row, Specialisation
from cuda_captures.storage import device_dtype


def explanation_of(function: Any, code: Code, ptx: str, cubin: bytes) -> Explanation:
    """What a kernel captures, with what it was compiled to."""
    return Explanation(
        kernel=function.__name__,
        rows=rows_of(function, code),
        slots=tuple(use.slot.symbol for use in code.uses),
        constant_bytes=code.constant_bytes,
        key=code.key.text if code.key is not None else None,
        why_private=code.why_private,
        ptx=ptx,
        cubin=cubin,
    )


def report_of(function: Any, kernels: Iterable[tuple[str, Follower]]) -> CaptureReport:
    """What a kernel has captured so far.

    Parameters
    ----------
    function
        Its Python function.
    kernels
        For each tuple of argument types, as text, what follows its captures.

    Raises
    ------
    CaptureError
        If it has not been compiled with captures.
    """
    rows: dict[tuple[str, ...], Row] = {}
    specialisations = []
    for signature, follower in kernels:
        for code in follower.codes:
            for row in rows_of(function, code):
                rows[(*row.path, row.name)] = row
            digest = code.key.digest if code.key is not None else None
            specialisations.append(
                Specialisation(signature, code.source, digest, code.why_private, code.constant_bytes)
            )
    if not specialisations:
        raise CaptureError(NOT_COMPILED.format(kernel=function.__name__))
    return CaptureReport(function.__name__, tuple(rows.values()), tuple(specialisations))


def rows_of(function: Any, code: Code) -> tuple[Row, ...]:
    """The captured arrays of code, as the names mean now."""
    captures = discover(function).by_place
    rows = []
    for use in code.uses:
        place = use.place_for(function)
        array = place.read()
        capture = captures.get(place.key)
        named_in = getattr(capture.function, "__code__", None) if capture is not None else None
        where = f"{os.path.basename(named_in.co_filename)}:{line_naming(named_in, place.name)}" if named_in else ""
        dtype, shape = device_dtype(array), array_shape(array)
        rows.append(
            Row(
                name=place.name,
                path=tuple(capture.path) if capture is not None else (),
                where=where,
                dtype=str(dtype),
                shape=shape,
                nbytes=math.prod(shape) * dtype.itemsize,
                policy=use.signature.policy if use.signature.memory == "host" else "device",
                written=use.written,
                general=use.slot.general,
            )
        )
    return tuple(rows)


NOT_COMPILED = """\
kernel `{kernel}` has not been compiled with captures yet. Launch it, `cuda_captures.bind` it, or ask
`cuda_captures.explain({kernel}, signature)`, which compiles it."""
