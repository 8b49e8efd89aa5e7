"""Code with capture slots for those who load it themselves: authors of libraries on top of the compilers.

``cuda.compile`` and its likes know nothing of slots, because their caller would not fill them.  Here the caller asks
for them, gets their list with the code, and fills them by :meth:`SlottedCode.fill`, or by means of its own.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from cuda_captures import slots
from cuda_captures.backends import backend_of
from cuda_captures.backends.callers_code import CallersCode, Output
from cuda_captures.code import Use
from cuda_captures.discovery import Discovery, Place, discover
from cuda_captures.errors import CaptureError
from cuda_captures.policy import check_policies
from cuda_captures.session import Session
from cuda_captures.settings import current as settings
from cuda_captures.signature import Layout, array_signature
from cuda_captures.slot_binding import Filling, SlotBinding, bind
from cuda_captures.variants import followed, value_token

Shapes = Literal["exact", "general"]
# A name, what is equal for equal meanings, and the meaning, held because the token may know it by identity.
Frozen = tuple[str, Hashable, Any]


@dataclass(frozen=True)
class SlotInfo:
    """One slot of compiled code: a symbol in constant memory through which the code finds a captured array.

    Parameters
    ----------
    symbol
        Its name in the linked code.
    name, path
        The captured name, and how the function reaches it: ``("device function `get`", "global `table`")``.
    dtype, ndim
        Of the array.
    general
        Whether the slot holds shape and strides beside the address.  If not, they are compiled in.
    shape, strides
        What is compiled in, in items and in bytes; None in the general form.
    layout
        ``"C"``, ``"F"`` or ``"A"`` (any): what the code assumes.
    policy
        Of the array: ``"live"``, ``"snapshot"`` or ``"mapped"``; ``"device"`` for a device array.
    written
        Whether the code may write the array.
    nbytes
        Size of the slot: 8, or ``8 * (1 + 2 * ndim)``: address, shape, strides in bytes, each a word of 8 bytes.
    """

    symbol: str
    name: str
    path: tuple[str, ...]
    dtype: np.dtype[Any]
    ndim: int
    general: bool
    shape: tuple[int, ...] | None
    strides: tuple[int, ...] | None
    layout: Layout
    policy: str
    written: bool
    nbytes: int


@dataclass(frozen=True, eq=False)
class SlottedCode:
    """Code with slots, as :func:`compile_with_slots` makes it.

    Parameters
    ----------
    code
        PTX as text; LTO-IR or a cubin as bytes.
    output
        ``"ptx"``, ``"ltoir"`` or ``"cubin"``.
    entry
        Symbol of the kernel or device function.
    return_type
        The compiler's type of what a device function returns.
    slots
        One per captured array that the code uses.
    definitions
        For LTO-IR: PTX that defines the slots, to be added to the link.  Empty for PTX and cubins, which have them.
    """

    code: str | bytes
    output: Output
    entry: str
    return_type: Any
    slots: tuple[SlotInfo, ...]
    definitions: str
    _function: Any = field(repr=False)
    _uses: tuple[tuple[Use, Place], ...] = field(repr=False)
    _frozen: Mapping[Hashable, Frozen] = field(repr=False)
    _also: tuple[Any, ...] = field(repr=False)

    def fill(self, library: Any, device: Any = None) -> SlotBinding:
        """Write the slots of loaded code, for what the captured names mean now.

        Parameters
        ----------
        library
            The loaded code, linked with ``definitions`` if there are any: a ``cuda.core.ObjectCode``, a
            ``CUlibrary`` of ``cuda.bindings``, or its handle.
        device
            Where it is launched: an ordinal or a ``cuda.core.Device``; the current one by default.

        Returns
        -------
        SlotBinding
            Holds the device copies of the captured arrays: keep it as long as the code is launched.

        Raises
        ------
        CaptureError
            Where a name means something that the code was not compiled for, where an array is on another device, and
            where the library has none of the slots.  Nothing is written then.
        """
        now = frozen_tokens(discover(self._function, self._also))
        for key, (name, token, _) in self._frozen.items():
            if key not in now or now[key][1] != token:
                raise CaptureError(CHANGED.format(name=name, function=self._function.__name__))
        return bind(Filling(self._function.__name__, self._uses, settings().verify), library, device)


def compile_with_slots(
    function: Any,
    signature: Any,
    *,
    output: Output = "ptx",
    cc: tuple[int, int] | None = None,
    device: bool = False,
    shapes: Shapes = "exact",
    captures: str | Mapping[str, str] | None = None,
    prefix: str | None = None,
    **options: Any,
) -> SlottedCode:
    """Compile a function whose captured arrays are slots, for a caller that loads the code and fills them.

    Captures must be enabled.  Needs no GPU if ``cc`` is given.

    Parameters
    ----------
    function
        A Python function, or what ``cuda.jit`` made of it.  What that was given as options does not count here.
    signature
        As ``cuda.compile`` takes it, in any form of the compiler's.
    output
        ``"ptx"``, ``"ltoir"``, or for kernels ``"cubin"``.
    cc
        Compute capability; that of the current device by default.
    device
        Whether it is a device function, of the C ABI, and not a kernel.
    shapes
        ``"exact"``: shapes and strides are compiled in, and :meth:`SlottedCode.fill` takes arrays of these only.
        ``"general"``: one code for every shape; slots hold them.
    captures
        Policies, as ``@cuda.jit(captures=...)`` takes them.  The policy ``"constant"`` needs no slot.
    prefix
        What the slots' symbols hold after ``cuda_capture_``: letters, digits and underscores.  Random by default, so
        that code compiled in several calls, or processes, can be linked together; give it for reproducible output.
    options
        More of what ``cuda.compile`` takes: ``debug``, ``lineinfo``, ``fastmath``, ``opt``, ``abi_info``,
        ``launch_bounds``, ...

    Returns
    -------
    SlottedCode
        The code, its slots, and :meth:`SlottedCode.fill`.

    Raises
    ------
    CaptureError
        If captures are not enabled, or nothing is compiled here: in the simulator.
    CaptureTypingError
        For captured values that no kernel can use, as at a launch.
    ValueError, TypeError
        For arguments that do not exist or do not go together.
    """
    check(output, device, shapes, prefix, options)
    check_policies(captures)
    backend = backend_of(function)
    if not hasattr(backend, "compile_with_slots"):
        raise CaptureError(SIMULATED)
    python = getattr(function, "py_func", function)
    found = discover(python)
    session = Session(found, captures, settings().host, cc=cc, prefix=prefix or secrets.token_hex(4))
    if shapes == "general":
        layouts = {
            one.place.key: array_signature(one.value, session.policy(one.place, one.value)) for one in found.arrays
        }
        session.layouts = {key: signature.layout for key, signature in layouts.items()}
    made: CallersCode = backend.compile_with_slots(python, session, signature, output, device, options)
    uses = tuple((use, use.place_for(python)) for use in made.uses)
    also = tuple(session.seen.others)
    found = discover(python, also)
    code, definitions = made.code, ""
    if isinstance(code, str):
        code = defining(code, [use.slot for use, _ in uses])
    elif output == "ltoir":
        definitions = slots.definitions(use.slot for use, _ in uses) if uses else ""
    infos = tuple(described(use, place, found) for use, place in uses)
    return SlottedCode(
        code, output, made.entry, made.return_type, infos, definitions, python, uses, frozen_tokens(found), also
    )


def check(output: str, device: bool, shapes: str, prefix: str | None, options: Mapping[str, Any]) -> None:
    """Refuse arguments that do not exist or do not go together."""
    if output not in get_args(Output):
        raise ValueError(f"output={output!r}: must be 'ptx', 'ltoir' or 'cubin'")
    if shapes not in get_args(Shapes):
        raise ValueError(f"shapes={shapes!r}: must be 'exact' or 'general'")
    if device and output == "cubin":
        raise ValueError(NO_CUBIN)
    if prefix is not None and not re.fullmatch(r"[A-Za-z0-9_]+", prefix):
        raise ValueError(f"prefix={prefix!r}: must be letters of ASCII, digits and underscores")
    for name in ("abi", "lto"):
        if name in options:
            raise TypeError(f"compile_with_slots() has no option {name!r}: it follows from `device` and `output`")


def defining(ptx: str, defined: list[slots.Slot]) -> str:
    """PTX whose slots are defined where it declares them; it is not optimised at the link, so they stay visible."""
    for slot in defined:
        declared = rf"(?m)^\.extern (\.const [^;\n]*\b{slot.symbol}\b)"
        ptx = re.sub(declared, r".visible \1", ptx)
    return ptx


def described(use: Use, place: Place, found: Discovery) -> SlotInfo:
    """What a caller is told of a slot."""
    signature, capture = use.signature, found.by_place.get(place.key)
    return SlotInfo(
        symbol=use.slot.symbol,
        name=place.name,
        path=capture.path if capture is not None else (),
        dtype=signature.dtype,
        ndim=signature.ndim,
        general=use.slot.general,
        shape=signature.shape,
        strides=signature.strides,
        layout=signature.layout,
        policy=signature.policy if signature.memory == "host" else "device",
        written=use.written,
        nbytes=8 * use.slot.words,
    )


def frozen_tokens(found: Discovery) -> dict[Hashable, Frozen]:
    """What the code is compiled from besides arrays, by place."""
    return {one.place.key: (one.place.name, value_token(one), one.value) for one in found.captures if followed(one)}


SIMULATED = """\
nothing is compiled under the simulator (NUMBA_ENABLE_CUDASIM=1), so there is no code to hand out.
Unset the variable: with `cc=` no GPU is needed."""

NO_CUBIN = """\
output="cubin" is for kernels: a cubin of a device function alone cannot be launched.
Ask for "ptx" or "ltoir" and link it with the kernel that calls it."""

CHANGED = """\
`{name}` means something else now than when `{function}` was compiled, and its meaning then is in the code.
Compile it again (`cuda_captures.compile_with_slots({function}, ...)`), or bind the name to what it was."""
