"""One compilation with captures: what stands in for arrays while a compiler works.

While a kernel is compiled, a hook of the backend hands every global and free variable that the compiler's front end
has found to :meth:`Session.stand_in`.  Arrays come back as :class:`Captured`: they know the place they were read
from, their type is an array's, and the backend lowers them to a load from a slot.  Everything else comes back as it
was.

A session belongs to the thread that compiles (:func:`current` is per thread) and is dropped when the compilation
is over; only its slots live on, in the compiled code.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cuda_captures.contents import CONSTANT_LIMIT
from cuda_captures.discovery import Discovery, Place, is_device_array
from cuda_captures.errors import CaptureTypingError, pointer
from cuda_captures.held_objects import HeldObject
from cuda_captures.key import ArraySignature, array_signature
from cuda_captures.members import has_members
from cuda_captures.policy import Policy, policy_of
from cuda_captures.seen_functions import SeenFunctions
from cuda_captures.signature import Layout
from cuda_captures.slots import Slot, new_symbol
from cuda_captures.storage import device_dtype


@dataclass(eq=False)
class Captured:
    """Stands in for one captured array during one compilation.

    Parameters
    ----------
    place
        Where the array was read, and is read again at each launch.
    value
        The array.
    signature
        What the compiled code may assume: with shape and strides (exact) or without (general).
    function
        The function that names it, to point at in an error.
    slot
        Where the compiled code finds it; None under the policy ``constant``.
    nbytes
        Bytes of its elements.
    typed
        The compiler's type of it, set by the backend.
    located
        Where it is used, once the function has been let go of.
    """

    place: Place
    value: Any
    signature: ArraySignature
    function: Any
    slot: Slot | None
    nbytes: int
    typed: Any = None
    located: str = ""

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def policy(self) -> Policy:
        return self.signature.policy

    @property
    def on_host(self) -> bool:
        return self.signature.memory == "host"

    @property
    def _numba_type_(self) -> Any:
        """What numba's ``typeof`` takes for the type of an object of a class it does not know."""
        return self.typed

    def where(self) -> str:
        """File, line and source of the use, with a caret."""
        return self.located or pointer(self.function, self.name)

    def __repr__(self) -> str:
        return f"<captured {self.name}>"


@dataclass(eq=False)
class Session:
    """One compilation of one kernel.

    Parameters
    ----------
    discovery
        What the kernel sees.
    policies
        The kernel's ``captures=`` option.
    host
        The process's policy.
    layouts
        The places whose slots hold shape and strides, each with the layout ``"C"``, ``"F"`` or ``"A"`` that the
        code may assume.
    cc
        Compute capability to compile for instead of the current device's.
    prefix
        What the symbols of slots begin with, for code that is handed to a caller; it is compiled with device functions
        of its own then.
    captured, objects
        The stand-ins of arrays and of objects.
    unseen
        What came up that the key cannot see: reasons not to share the code, each with a name.
    writers
        Functions that failed to be typed and write what they are given, with the argument's position: the argument's
        name, and where it is written.
    """

    discovery: Discovery
    policies: str | Mapping[str, str] | None = None
    host: Policy = "live"
    layouts: Mapping[Hashable, Layout] = field(default_factory=dict)
    cc: tuple[int, int] | None = None
    prefix: str | None = None
    captured: dict[Hashable, Captured] = field(default_factory=dict)
    objects: dict[Hashable, HeldObject] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)
    writers: dict[tuple[Any, int], tuple[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.seen = SeenFunctions(self.discovery)

    def stand_in(self, place: Place, value: object, function: Any) -> Any:
        """What the compiler gets to see for a captured value.

        Arrays, bare or inside tuples and named tuples, become :class:`Captured`; objects whose attributes kernels
        read become :class:`~cuda_captures.held_objects.HeldObject`; other values are returned as they are (the same
        object).

        Raises
        ------
        CaptureTypingError
            For an array that no kernel can read: it names the variable and what to write instead.
        """
        if isinstance(value, (Captured, HeldObject)):
            return value
        if is_array(value):
            return self.capture(place, value, function)
        if isinstance(value, tuple) and may_hold_array(value):
            items = [self.stand_in(place.item(index), item, function) for index, item in enumerate(value)]
            return tuple.__new__(type(value), items)  # keeps a named tuple's class, whatever its __new__ asks for
        if has_members(value):
            known = self.objects.get(place.key)
            if known is None or known.value is not value:
                known = self.objects[place.key] = HeldObject(self, place, value, function)
            return known
        return value

    def capture(self, place: Place, value: Any, function: Any, policy: Policy | None = None) -> Captured:
        """The stand-in of one array; the same for each use of one place under one policy."""
        if policy is None:
            policy = self.policy(place, value)
        key = (place.key, policy)
        known = self.captured.get(key)
        if known is not None:
            return known
        refuse_unreadable(value, place.name, function)
        signature = array_signature(value, policy)
        slot = None
        if policy == "constant":
            refuse_large_constant(value, place.name, function)
        else:
            layout = self.layouts.get(place.key)
            if layout is not None:
                signature = signature.general(layout)
            where = None if self.prefix is None else f"{self.prefix}_{len(self.captured)}"
            slot = Slot(new_symbol(place.name, where), signature.ndim, layout is not None)
        self.captured[key] = made = Captured(place, value, signature, function, slot, nbytes_of(value, signature))
        return made

    def close(self) -> None:
        """Let go of the arrays: compiled code must not keep them, though it may keep their stand-ins."""
        for captured in self.captured.values():
            if captured.slot is None and captured.function is not None:
                captured.located = captured.where()  # kernels to come may have too many constants in all
            captured.value = None
            captured.function = None
        for held in self.objects.values():
            held.close()

    def policy(self, place: Place, value: object) -> Policy:
        """The policy of an array; device arrays are always used in place."""
        if is_device_array(value):
            return "live"
        return policy_of(value, place.name, self.policies, self.host)


def nbytes_of(value: Any, signature: ArraySignature) -> int:
    """Bytes of an array's elements."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    return int(math.prod(value.__cuda_array_interface__["shape"])) * signature.dtype.itemsize


def is_array(value: object) -> bool:
    """Whether a value is an array that a slot can stand for, or one that is refused by name.

    NumPy's, and those of classes with ``__cuda_array_interface__``, whether they hand their memory out or not.
    """
    if isinstance(value, np.ndarray) or is_device_array(value):
        return True
    return not isinstance(value, type) and hasattr(type(value), "__cuda_array_interface__")


def may_hold_array(value: object) -> bool:
    """Whether a value is an array, an object with attributes, or a tuple with one of these somewhere in it."""
    if isinstance(value, tuple):
        return any(map(may_hold_array, value))
    return is_array(value) or has_members(value) or isinstance(value, HeldObject)


def refuse_unreadable(value: Any, name: str, function: Any) -> None:
    """Refuse arrays whose elements no kernel can read.

    Raises
    ------
    CaptureTypingError
        For masked arrays, object arrays and arrays of the other byte order.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise CaptureTypingError(MASKED.format(name=name, where=pointer(function, name)))
    if not isinstance(value, np.ndarray):
        try:
            interface = value.__cuda_array_interface__
        except Exception as error:  # of the library whose array it is: deleted, or with a gradient
            text = UNEXPORTED.format(name=name, kind=type(value).__name__, reason=error, where=pointer(function, name))
            raise CaptureTypingError(text) from error
        for asked, way_out in LAZY.items():
            lazy = getattr(value, asked, None)
            if callable(lazy) and lazy() is True:
                where = pointer(function, name)
                raise CaptureTypingError(LAZILY.format(name=name, asked=asked, way_out=way_out, where=where))
        if interface.get("mask") is not None:
            raise CaptureTypingError(MASKED_DEVICE.format(name=name, where=pointer(function, name)))
        dtype = device_dtype(value)
        if not dtype.isnative:
            raise CaptureTypingError(BYTE_ORDER_DEVICE.format(name=name, dtype=dtype, where=pointer(function, name)))
        return
    if value.dtype.hasobject:
        raise CaptureTypingError(OBJECTS.format(name=name, dtype=value.dtype, where=pointer(function, name)))
    if not value.dtype.isnative:
        raise CaptureTypingError(BYTE_ORDER.format(name=name, dtype=value.dtype, where=pointer(function, name)))


def refuse_large_constant(value: np.ndarray[Any, Any], name: str, function: Any) -> None:
    """Refuse an array that alone is over the limit of constant memory."""
    if value.nbytes > CONSTANT_LIMIT:
        raise CaptureTypingError(
            CONSTANT_TOO_LARGE.format(
                names=f"`{name}` ({value.nbytes:,} bytes)",
                total=value.nbytes,
                limit=CONSTANT_LIMIT,
                where=pointer(function, name),
            )
        )


def refuse_constants_over_limit(constants: Collection[Captured]) -> None:
    """Refuse a kernel whose constant arrays together are over the limit, before it is compiled."""
    total = sum(captured.nbytes for captured in constants)
    if total <= CONSTANT_LIMIT:
        return
    largest = max(constants, key=lambda captured: captured.nbytes)
    names = ", ".join(
        f"`{captured.name}` ({captured.nbytes:,} bytes)"
        for captured in sorted(constants, key=lambda captured: captured.name)
    )
    raise CaptureTypingError(
        CONSTANT_TOO_LARGE.format(names=names, total=total, limit=CONSTANT_LIMIT, where=largest.where())
    )


MASKED = """\
`{name}` is a masked array, and kernels know nothing of masks.
  {where}
Capture data and mask as two arrays: `{name}_data = {name}.filled(0)` and `{name}_mask = np.ma.getmaskarray({name})`."""

MASKED_DEVICE = """\
`{name}` is a device array with a mask in its __cuda_array_interface__, and kernels know nothing of masks.
  {where}
Capture data and mask as two arrays."""

OBJECTS = """\
`{name}` is an array of Python objects (dtype {dtype}), which a GPU cannot read.
  {where}
Give it a dtype of numbers, for example `{name} = {name}.astype(np.float64)`."""

BYTE_ORDER = """\
`{name}` has the dtype {dtype!r}, of the other byte order than this machine's, which kernels cannot read.
  {where}
Convert it once: `{name} = {name}.astype({name}.dtype.newbyteorder("="))`."""

BYTE_ORDER_DEVICE = """\
`{name}` has the dtype {dtype!r}, of the other byte order than the device's, which kernels cannot read.
  {where}
Capture a copy in the device's byte order."""

# What PyTorch does to elements only when it reads them itself: its memory holds them as they were.
LAZY = {"is_conj": "resolve_conj", "is_neg": "resolve_neg"}

LAZILY = """\
`{name}` is a tensor that `{asked}()`: its library computes its elements when they are read, and its memory, which a
kernel reads, holds others.
  {where}
Capture `{name}.{way_out}()`."""

UNEXPORTED = """\
`{name}` is a {kind} whose memory its library does not hand out: {reason}
  {where}
Capture an array that kernels may use: of PyTorch `{name}.detach()`, of JAX one that was neither deleted nor donated."""

CONSTANT_TOO_LARGE = """\
constant memory asked for: {names}; together {total:,} bytes, and a kernel has {limit:,}.
  {where}
Leave out `constant(...)`, `captures="constant"` or `cuda.const.array_like(...)`: a captured array then stays in
global memory, of any size."""


_threads = threading.local()


def current() -> Session | None:
    """The session of the compilation that this thread is in, or None."""
    return getattr(_threads, "session", None)


@contextlib.contextmanager
def compiling(session: Session | None) -> Iterator[Session | None]:
    """Make a session current in this thread; None suspends captures."""
    before = current()
    _threads.session = session
    try:
        yield session
    finally:
        _threads.session = before
