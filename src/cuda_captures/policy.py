"""Which policy a captured NumPy array is under, and the markers that set it.

A marker belongs to memory: views and copies of a marked array are marked, results of computations are plain arrays.

Nothing here has state of its own; a marked array may be used from any thread, like any array.
"""

from __future__ import annotations

import copy as _copy
import weakref
from collections.abc import Mapping
from typing import Any, Literal, cast, get_args

import numpy as np

Policy = Literal["live", "snapshot", "mapped", "constant"]

POLICIES: tuple[Policy, ...] = get_args(Policy)


class MarkedArray(np.ndarray[Any, Any]):
    """A view of an array's memory that carries a policy; in all else an ndarray.

    Made by :func:`live`, :func:`snapshot`, :func:`mapped` and :func:`constant`.  Slices, reshapes, transposes and
    copies (``copy``, ``deepcopy``, pickles) keep the policy.  Whatever is computed (ufuncs, ``argmax``, ``dot``) has
    none.

    Attributes
    ----------
    capture_policy
        The policy; None for what was computed.
    """

    capture_policy: Policy | None = None

    def __array_finalize__(self, source: Any) -> None:
        policy = getattr(source, "capture_policy", None)
        if policy is not None and self.base is not None and _same_memory(self, source):
            self.capture_policy = policy  # a view; an array with memory of its own was computed

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        outputs = options.get("out")
        if outputs is not None:
            options["out"] = tuple(map(_plain, outputs))
        if "where" in options:
            options["where"] = _plain(options["where"])
        result = getattr(ufunc, method)(*map(_plain, inputs), **options)
        if outputs is None or result is NotImplemented:
            return result
        if isinstance(result, tuple):
            return tuple(given if given is not None else made for given, made in zip(outputs, result, strict=True))
        return outputs[0] if outputs[0] is not None else result

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        result = super().__array_function__(func, types, args, kwargs)
        if isinstance(result, MarkedArray) and not any(
            _same_memory(result, given) for given in (*args, *kwargs.values()) if isinstance(given, MarkedArray)
        ):
            return result.view(np.ndarray)
        return result

    def __copy__(self) -> MarkedArray:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any] | None) -> MarkedArray:
        return _mark(_copy.deepcopy(self.view(np.ndarray), memo), self.capture_policy)

    def copy(self, order: Any = "C") -> MarkedArray:
        return _mark(self.view(np.ndarray).copy(order), self.capture_policy)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The plain array pickles itself, with protocol 5 as a buffer out of band.
        return _mark, (unmarked(self), self.capture_policy)


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, MarkedArray) else value


def _same_memory(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    return one.size == 0 or np.may_share_memory(one.view(np.ndarray), other.view(np.ndarray))


def _mark(array: np.ndarray[Any, Any], policy: Policy | None) -> MarkedArray:
    marked = array.view(MarkedArray)
    marked.capture_policy = policy
    return marked


_views: dict[int, tuple[weakref.ref[MarkedArray], np.ndarray[Any, Any]]] = {}  # by the identity of the marked array


def unmarked(array: MarkedArray) -> np.ndarray[Any, Any]:
    """An array without its marker: the one that was marked, if that is the same, or else always the same view.

    Picklers tell arrays apart by identity, and shall send one that is marked and used plainly once.
    """
    base = array.base
    if type(base) is np.ndarray and _form(base) == _form(array):
        return base
    known = _views.get(id(array))
    if known is not None and known[0]() is array and _form(known[1]) == _form(array):
        return known[1]
    number, view = id(array), array.view(np.ndarray)

    def gone(reference: weakref.ref[MarkedArray], views: dict[int, Any] = _views) -> None:
        if views.get(number, (None,))[0] is reference:
            views.pop(number, None)

    _views[number] = weakref.ref(array, gone), view
    return view


def _form(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    return array.__array_interface__["data"][0], array.shape, array.strides, array.dtype


def live(array: np.ndarray[Any, Any]) -> MarkedArray:
    """Mark an array: edits on the host are seen by the next launch, and what kernels write comes back.

    Parameters
    ----------
    array
        A NumPy array of any shape.

    Returns
    -------
    MarkedArray
        A view of the same memory.

    Raises
    ------
    TypeError
        For anything but a NumPy array, for masked arrays, and for arrays that the device already uses in place.
    """
    return _mark(_markable(array, "live"), "live")


def snapshot(array: np.ndarray[Any, Any]) -> MarkedArray:
    """Mark an array: copied once; edits are seen after :func:`cuda_captures.refresh`; kernels cannot write it.

    Parameters, result and errors are those of :func:`live`.
    """
    return _mark(_markable(array, "snapshot"), "snapshot")


def mapped(array: np.ndarray[Any, Any]) -> MarkedArray:
    """Mark an array: page-locked, and used in place by the device.

    Parameters, result and errors are those of :func:`live`.
    """
    return _mark(_markable(array, "mapped"), "mapped")


def constant(array: np.ndarray[Any, Any]) -> MarkedArray:
    """Mark an array: compiled into constant memory, for tiny tables that all threads read alike.

    Parameters, result and errors are those of :func:`live`.
    """
    return _mark(_markable(array, "constant"), "constant")


def _markable(array: object, policy: Policy) -> np.ndarray[Any, Any]:
    kind = f"{type(array).__module__}.{type(array).__qualname__}"
    if hasattr(array, "__cuda_array_interface__"):
        raise TypeError(DEVICE.format(policy=policy, kind=kind))
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(MASKED.format(policy=policy))
    if not isinstance(array, np.ndarray):
        raise TypeError(NO_ARRAY.format(policy=policy, kind=kind))
    return array


def policy_of(array: object, name: str, kernel: str | Mapping[str, str] | None, process: str) -> Policy:
    """The policy that an array is captured under; the narrower rule wins.

    Parameters
    ----------
    array
        The array.
    name
        The captured name; ``"tables[0]"`` and ``"tables.sin"`` for items of tuples, for which an entry of the
        tuple's name counts too.
    kernel
        The kernel's ``captures=`` option.
    process
        The process's policy.

    Returns
    -------
    Policy
        Of the marker, else the kernel's entry for the name, else the kernel's policy, else the process's.
    """
    marker = getattr(array, "capture_policy", None) if isinstance(array, MarkedArray) else None
    if marker is not None:
        return cast(Policy, marker)
    if isinstance(kernel, str):
        return cast(Policy, kernel)
    if kernel:
        chosen = kernel.get(name)
        while chosen is None and (cut := max(name.rfind("["), name.rfind("."))) > 0:
            name = name[:cut]
            chosen = kernel.get(name)
        if chosen is not None:
            return cast(Policy, chosen)
    return cast(Policy, process)


def check_policies(captures: object) -> None:
    """Check the option of ``@cuda.jit(captures=...)``.

    Raises
    ------
    ValueError
        Unless it is None, a policy, or a mapping from names to policies.
    """
    if captures is None:
        return
    if isinstance(captures, str):
        if captures not in POLICIES:
            raise ValueError(NO_POLICY.format(captures=captures, choice=_CHOICE))
        return
    if not isinstance(captures, Mapping):
        raise ValueError(NO_MAPPING.format(captures=captures, choice=_CHOICE))
    for name, policy in captures.items():
        if not isinstance(name, str):
            raise ValueError(NO_NAME.format(name=name))
        if policy not in POLICIES:
            raise ValueError(NO_POLICY_OF_NAME.format(name=name, policy=policy, choice=_CHOICE))


def check_options(options: Mapping[str, Any]) -> None:
    """Check the options of ``@cuda.jit``, of which ``captures`` is ours.

    Raises
    ------
    ValueError
        As :func:`check_policies`, and for policies of a device function: the kernel that calls it has them.
    """
    captures = options.get("captures")
    check_policies(captures)
    if captures is not None and options.get("device"):
        raise ValueError(FOR_KERNELS.format(captures=captures))


_CHOICE = ", ".join(map(repr, POLICIES))

FOR_KERNELS = """\
captures={captures!r} is given for a device function: what that captures has the policy that the calling kernel says.
Give it to the kernel, `@cuda.jit(captures={captures!r})`, or mark the array, as in
`table = cuda_captures.snapshot(table)`."""

NO_POLICY = "captures={captures!r}: the policy must be one of {choice}"
NO_MAPPING = "captures={captures!r}: must be one of {choice}, or a mapping from names to these"
NO_NAME = "captures={{{name!r}: ...}}: a name must be a str, the captured variable's"
NO_POLICY_OF_NAME = "captures={{{name!r}: {policy!r}}}: the policy of `{name}` must be one of {choice}"

DEVICE = """\
{policy}(...) marks NumPy arrays, and got a {kind}, which the device uses in place.
Capture it as it is: device arrays need no policy."""

MASKED = """\
{policy}(...) marks NumPy arrays, and got a masked array, whose mask a kernel would not see.
Mark data and mask as two arrays: `{policy}(array.filled(0))` and `{policy}(np.ma.getmaskarray(array))`."""

NO_ARRAY = """\
{policy}(...) marks NumPy arrays, and got a {kind}.
Make it an array first: `{policy}(np.array(...))`, and keep it: the marked array is a view of that memory."""
