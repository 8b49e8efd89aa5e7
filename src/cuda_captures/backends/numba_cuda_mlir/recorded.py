"""What is known of the captures in a compiled function; it travels in the compiler's own metadata of the function.

Code of device functions is cloned into their callers as text.  Two things tell the caller what it got: the symbols of
slots, which are unique in the process and lead to their :class:`~cuda_captures.code.Use`, and an attribute of each
function that lists the slots that it writes.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cuda_captures.code import Use
from cuda_captures.session import Captured
from cuda_captures.writes import Effects

KEY = "cuda_captures"  # in the metadata of a compile result


@dataclass(eq=False)
class Recorded:
    """The captures of one compiled function.

    Parameters
    ----------
    effects
        What the function does to captured arrays and to its arguments.
    uses
        The captured arrays in its code and in the code of what it calls, by the symbol of their slot.
    constants
        The captured arrays that are compiled into constant memory, by symbol.
    written
        Symbols of slots whose arrays it, or what it calls, may write.

    Belongs to the thread that compiles until the function is compiled; then it is only read.
    """

    effects: Effects
    uses: dict[str, Use] = field(default_factory=dict)
    constants: dict[str, Captured] = field(default_factory=dict)
    written: frozenset[str] = frozenset()


def recorded_in(metadata: Mapping[str, Any]) -> Recorded | None:
    """What was recorded of a function, by its metadata; None if it was compiled without captures."""
    return metadata.get(KEY)


# By symbol, for as long as some compiled function with the slot or constant lives.  Written under the compiler's lock.
USES: weakref.WeakValueDictionary[str, Use] = weakref.WeakValueDictionary()
CONSTANTS: weakref.WeakValueDictionary[str, Captured] = weakref.WeakValueDictionary()


def use_of(captured: Captured) -> Use:
    """The use of a captured array that has a slot."""
    slot = captured.slot
    assert slot is not None
    use = USES.get(slot.symbol)
    if use is None:
        USES[slot.symbol] = use = Use(slot, captured.place, captured.signature, name=captured.name)
    return use
