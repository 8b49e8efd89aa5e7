"""Integers that are known when a kernel is compiled: literals, captured ones, and sizes of captured arrays."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

from cuda_captures.session import Captured

FLOORED = frozenset({operator.floordiv, operator.ifloordiv})  # the quotient is wanted; of others the remainder
DIVIDING = frozenset({operator.mod, operator.imod}) | FLOORED


def narrow_divisor(types: Any, dividend: Any, returned: Any, divisor: int | None) -> int | None:
    """The divisor of an integer of at most 32 bits, if it is known, positive and has at most 31.

    Parameters
    ----------
    types
        The compiler's module of types.
    dividend, returned
        Types of what is divided, and of the result.
    divisor
        As :func:`known_integer` has it.
    """
    if divisor is None or not 0 < divisor < 1 << 31 or returned != types.int64:
        return None
    return divisor if isinstance(dividend, types.Integer) and dividend.bitwidth <= 32 else None


def known_integer(
    types: Any, function: Any, variable: Any, typed: Any, captured: Callable[[Any], Iterable[Captured]]
) -> int | None:
    """What an integer is that does not change; None where that is not known.

    Parameters
    ----------
    types
        The compiler's module of types.
    function
        Its intermediate representation of the function.
    variable, typed
        The variable, and its type.
    captured
        Tells which captured arrays a variable may be; none if it may be anything else.
    """
    if isinstance(typed, types.IntegerLiteral):
        return int(typed.literal_value)
    try:
        definition = function.get_definition(variable)
    except KeyError:  # it has several
        return None
    if getattr(definition, "op", None) != "getattr" or definition.attr != "size" or typed != types.intp:
        return None
    sizes = {size_of(one) for one in captured(definition.value)}
    return sizes.pop() if len(sizes) == 1 else None


def size_of(captured: Captured) -> int | None:
    """The elements of a captured array, if its shape is compiled in."""
    general = captured.slot is not None and captured.slot.general
    return None if general else math.prod(captured.signature.shape or ())
