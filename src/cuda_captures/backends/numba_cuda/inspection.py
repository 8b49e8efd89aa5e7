"""Binding ahead of a launch, explaining without a GPU, and reporting, for kernels of numba-cuda."""

from __future__ import annotations

import os
from typing import Any

from numba.cuda.core import sigutils
from numba.cuda.descriptor import cuda_target

from cuda_captures.binding import Follower, array_shape
from cuda_captures.code import Code
from cuda_captures.discovery import discover
from cuda_captures.errors import CaptureError, line_naming
from cuda_captures.report import CaptureReport, Explanation, Row, Specialisation
from cuda_captures.storage import device_dtype

from .kernel import CaptureKernel, NumbaCudaToolchain, dispatching
from .target import stream_handle


def bind(kernel: Any, args: tuple[Any, ...]) -> None:
    """Compile, upload, load and fill a kernel for arguments."""
    dispatcher = getattr(kernel, "dispatcher", kernel)
    stream = stream_handle(getattr(kernel, "stream", 0))
    with dispatching(dispatcher):
        compiled = dispatcher.compile(tuple(dispatcher.typeof_pyval(arg) for arg in args))
    if isinstance(compiled, CaptureKernel):
        instance = compiled.bound()
        instance.ready(stream)


def explain(kernel: Any, signature: Any, cc: tuple[int, int]) -> Explanation:
    """Compile a kernel for a compute capability and say what it captures."""
    function = getattr(kernel, "py_func", kernel)
    options = dict(getattr(kernel, "targetoptions", {}) or DEFAULTS)
    captures = options.pop("captures", None)
    cuda_target.target_context.refresh()
    argtypes, _ = sigutils.normalize_signature(signature)
    toolchain = NumbaCudaToolchain(function, argtypes, options, None)
    toolchain.cc = cc
    follower = Follower(function, toolchain, captures)
    code = follower.variant().code
    library = code.product._codelibrary
    return Explanation(
        kernel=function.__name__,
        rows=rows_of(function, code),
        slots=tuple(use.slot.symbol for use in code.uses),
        constant_bytes=code.constant_bytes,
        key=code.key.text if code.key is not None else None,
        why_private=code.why_private,
        ptx=library.get_asm_str(cc=library._ensure_cc(None)),
        cubin=bytes(library.get_cubin().code),
    )


DEFAULTS: dict[str, Any] = {"debug": False, "opt": True, "lto": True}


def report(kernel: Any) -> CaptureReport:
    """What a kernel has captured so far."""
    kernels = [one for one in kernel.overloads.values() if isinstance(one, CaptureKernel)]
    if not kernels:
        raise CaptureError(NOT_COMPILED.format(kernel=kernel.py_func.__name__))
    rows: dict[tuple[str, ...], Row] = {}
    specialisations = []
    for one in kernels:
        for code in one.follower.codes:
            for row in rows_of(kernel.py_func, code):
                rows[(*row.path, row.name)] = row
            specialisations.append(
                Specialisation(
                    str(one.argument_types),
                    code.source,
                    code.key.digest if code.key is not None else None,
                    code.why_private,
                    code.constant_bytes,
                )
            )
    return CaptureReport(kernel.py_func.__name__, tuple(rows.values()), tuple(specialisations))


def rows_of(function: Any, code: Code) -> tuple[Row, ...]:
    """The captured arrays of code, as the names mean now."""
    by_key = {capture.place.key: capture for capture in discover(function).captures}
    rows = []
    for use in code.uses:
        place = use.place_for(function)
        array = place.read()
        capture = by_key.get(place.key)
        named_in = getattr(capture.function, "__code__", None) if capture is not None else None
        where = f"{os.path.basename(named_in.co_filename)}:{line_naming(named_in, place.name)}" if named_in else ""
        dtype, shape = device_dtype(array), array_shape(array)
        count = 1
        for extent in shape:
            count *= extent
        rows.append(
            Row(
                name=place.name,
                path=tuple(capture.path) if capture is not None else (),
                where=where,
                dtype=str(dtype),
                shape=shape,
                nbytes=count * dtype.itemsize,
                policy=use.signature.policy if use.signature.memory == "host" else "device",
                written=use.written,
                general=use.slot.general,
            )
        )
    return tuple(rows)


NOT_COMPILED = """\
kernel `{kernel}` has not been compiled with captures yet. Launch it, `cuda_captures.bind` it, or ask
`cuda_captures.explain({kernel}, signature)`, which compiles it."""
