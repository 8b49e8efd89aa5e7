"""What is asked of ``explain`` and ``bind``, checked before anything is compiled: signatures, arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from cuda_captures.backends.rows import defined_at


def argument_types(normalise: Callable[[Any], tuple[Any, Any]], signature: Any, function: Any) -> tuple[Any, ...]:
    """The argument types that a signature has, which are as many as a kernel takes.

    Parameters
    ----------
    normalise
        The compiler's reading of signatures, into argument types and a return type.
    signature
        As it was given.
    function
        The kernel's Python function.

    Raises
    ------
    TypeError
        Naming the kernel and what is wrong with the signature.
    """
    name = function.__name__
    try:
        types, _ = normalise(signature)
    except Exception as error:
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise TypeError(NO_SIGNATURE.format(signature=signature, name=name, reason=reason)) from None
    check_count(function, types, f"the signature {str(signature)!r} has")
    return tuple(types)


def check_count(function: Any, arguments: Sequence[Any], who: str) -> None:
    """Refuse arguments, or their types, that a kernel does not take.

    Parameters
    ----------
    function
        The kernel's Python function.
    arguments
        The arguments, or their types.
    who
        What has them, with its verb.

    Raises
    ------
    TypeError
        Naming the kernel, where it is defined, its parameters, and how many there are.
    """
    parameters = inspect.signature(function)
    try:
        parameters.bind(*arguments)
    except TypeError:
        takes = ", ".join(map(str, parameters.parameters.values())) or "nothing"
        text = COUNT.format(
            name=function.__name__, where=defined_at(function), takes=takes, who=who, count=len(arguments)
        )
        raise TypeError(text) from None


def check_capability(cc: object) -> None:
    """Refuse what is no compute capability.

    Raises
    ------
    TypeError
        Saying how one is written.
    """
    if not (isinstance(cc, tuple) and len(cc) == 2 and all(type(part) is int for part in cc)):
        raise TypeError(f"explain(cc={cc!r}): a compute capability is a pair of integers, such as (9, 0)")


NO_SIGNATURE = """\
{signature!r} is no signature for kernel `{name}`: {reason}
Give the types of its arguments as a decorator has them, `"void(float64[:], int32)"`, or a tuple of types, such as
`(types.float64[:], types.int32)`."""

COUNT = """\
kernel `{name}` ({where}) takes `{takes}`, and {who} {count}.
Give one for each parameter; what is captured is none."""
