"""What a program calls: enabling, binding ahead of a launch, and looking at what is captured."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import numpy as np

from cuda_captures import backends, settings
from cuda_captures.backends.asked_for import check_capability
from cuda_captures.errors import CaptureError, brief
from cuda_captures.policy import Policy
from cuda_captures.report import CaptureReport, Explanation


def enable(host: Policy = "live", follow: bool = True, verify: bool = False, peer: bool = False) -> None:
    """Let kernels capture arrays by reference, with every compiler that is installed.

    Reaches functions that were decorated before and are not compiled yet; a kernel that has been compiled is
    compiled again at its next launch.  Calling it again changes the settings, for kernels that are compiled from
    then on.

    Parameters
    ----------
    host
        Policy of NumPy arrays that neither a marker nor ``@cuda.jit(captures=...)`` says anything about: ``"live"``,
        ``"snapshot"``, ``"mapped"`` or ``"constant"``.
    follow
        Whether a launch follows names that were bound to something else; with False, what was captured first stays.
    verify
        Whether a digest checks, at each launch, every array that is thought to be unchanged.  Slow; for tests, and
        for the doubtful.
    peer
        Whether a kernel may use captured device arrays that are on another device, through peer access; without it,
        or where the devices cannot, that is an error.

    Raises
    ------
    CaptureVersionError
        If no compiler is installed, or one of another version than this package was made for.  Nothing is changed
        then.
    ValueError, TypeError
        For settings that do not exist.
    """
    wanted = settings.Settings(host, follow, verify, peer)
    backends.enable()
    settings.install(wanted)


def disable() -> None:
    """Leave the compilers as they were.

    Kernels that were compiled with captures keep working by reference; what is compiled from now on does not.
    """
    backends.disable()


@contextlib.contextmanager
def enabled(host: Policy = "live", follow: bool = True, verify: bool = False, peer: bool = False) -> Iterator[None]:
    """:func:`enable` for a ``with`` block; afterwards everything is as it was before.

    Raises
    ------
    CaptureVersionError, ValueError, TypeError
        As :func:`enable`.
    """
    were = backends.enabled()
    before = settings.current()
    enable(host, follow, verify, peer)
    try:
        yield
    finally:
        if not sys.is_finalizing():  # where the block is in a generator that nobody has closed
            settings.install(before)
            if not were:
                disable()


def bind(kernel: Any, *args: Any) -> None:
    """Compile, upload, load and fill a kernel ahead of a launch, say before a graph capture begins.

    Parameters
    ----------
    kernel
        A kernel, or a configured one: ``kernel[griddim, blockdim, stream]``.
    *args
        The arguments that it will be launched with; they say which specialisation is bound.

    Raises
    ------
    TypeError
        If it is no kernel, or takes another number of arguments.
    """
    backend = backends.backend_of(kernel)
    if isinstance(kernel, FunctionType):
        raise TypeError(NOT_DECORATED.format(name=kernel.__name__))
    try:
        backend.bind(kernel, args)
    except (CaptureError, NameError) as error:
        raise brief(error) from error.__cause__


def explain(kernel: Any, signature: Any, cc: tuple[int, int] = (9, 0)) -> Explanation:
    """What a kernel captures and what its code holds, from a real compilation; needs no GPU.

    Parameters
    ----------
    kernel
        A kernel, or the Python function of one.
    signature
        Argument types, as ``cuda.jit`` takes them: ``"void(float64[:])"`` or a tuple of types.
    cc
        Compute capability to compile for.

    Raises
    ------
    TypeError
        For what is no signature of this kernel, and for what is no compute capability.
    """
    backend = backends.backend_of(kernel)
    check_capability(cc)
    try:
        explanation: Explanation = backend.explain(kernel, signature, cc)
    except (CaptureError, NameError) as error:
        raise brief(error) from error.__cause__
    return explanation


def report(kernel: Any) -> CaptureReport:
    """What a kernel captures, where it lives, and what it has cost so far."""
    found: CaptureReport = backends.backend_of(kernel).report(kernel)
    return found


def memory() -> list[Any]:
    """The device copies of NumPy arrays that exist: array, bytes, device, and how many module instances use it."""
    from cuda_captures import mirrors

    return mirrors.memory()


def refresh(array: np.ndarray[Any, Any]) -> None:
    """Copy a ``snapshot`` again, in place; nothing is compiled.

    Done when the call returns.  If no kernel has captured the array under the policy ``snapshot`` yet, there is no
    copy and nothing to do.

    Raises
    ------
    TypeError
        If ``array`` is no NumPy array.
    """
    from cuda_captures import mirrors

    if not isinstance(array, np.ndarray):
        raise TypeError(f"refresh(...) copies a captured NumPy array again, and got a {type(array).__qualname__}")
    mirrors.refresh_snapshot(array)


NOT_DECORATED = """\
bind(...) needs what will be launched, and `{name}` is a plain function.
Decorate it with `@cuda.jit`, and give the kernel or a configured one, `kernel[griddim, blockdim]`."""
