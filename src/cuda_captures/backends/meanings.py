"""The compilations of device functions, by what their captures meant.

A compiler keeps one compilation of a device function per tuple of argument types.  With captures there may be several:
one per meaning of the names that the function, and those it calls, get from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from types import FunctionType
from typing import Any

from cuda_captures.contents import contents_of, may_be_compiled_in
from cuda_captures.discovery import Capture, Discovery, discover
from cuda_captures.key import array_signature
from cuda_captures.seen_functions import known_codes
from cuda_captures.session import current
from cuda_captures.variants import followed, value_token

PLAIN = "plain"  # the meaning of what was compiled without a session


class Meanings:
    """The compilations of one device function: by argument types, and by what its captures meant.

    Belongs to the dispatcher and goes with it; used under the compiler's lock.
    """

    def __init__(self) -> None:
        self.results: dict[tuple[Any, Hashable], Any] = {}
        self.meanings: dict[int, Hashable] = {}
        self.others: dict[int, FunctionType] = {}  # what only compiling it came to, by identity
        self.held: list[Any] = []  # objects that a meaning knows by identity

    def select(self, dispatcher: Any, types: Any) -> bool:
        """Make the compilation that means the same as now the one in use; False if there is none."""
        types = tuple(types)
        meaning, _ = meaning_now(dispatcher, self.others)
        present = dispatcher.overloads.get(types)
        if present is not None:
            was = self.meanings.get(id(present), PLAIN)
            if was == meaning:
                self.saw(dispatcher)
                return True
            self.results[types, was] = present
            self.meanings[id(present)] = was
            del dispatcher.overloads[types]
        known = self.results.get((types, meaning))
        if known is None:
            return False
        dispatcher.overloads[types] = known
        self.saw(dispatcher)
        return True

    def saw(self, dispatcher: Any) -> None:
        """Let the compilation at work know what a compilation that it uses came to."""
        session = current()
        if session is not None:
            for function in (dispatcher.py_func, *self.others.values()):
                session.seen.saw(function)

    def compiled(self, dispatcher: Any, types: Any, compile: Callable[[], Any]) -> Any:
        """Compile, and remember what the compilation means."""
        session = current()
        if session is None:
            result = compile()
            self.note(dispatcher, types, result)
            return result
        with session.seen.collecting() as seen:
            session.seen.saw(dispatcher.py_func)
            result = compile()
        known = known_codes(discover(dispatcher))
        self.others.update({key: one for key, one in seen.items() if id(one.__code__) not in known})
        self.note(dispatcher, types, result)
        return result

    def note(self, dispatcher: Any, types: Any, result: Any) -> None:
        """Remember what a compilation means."""
        meaning, held = meaning_now(dispatcher, self.others)
        self.results[tuple(types), meaning] = result
        self.meanings[id(result)] = meaning
        self.held.extend(held)

    def forget_captures(self, dispatcher: Any) -> None:
        """Leave only what was compiled without captures."""
        for types in list(dispatcher.overloads):
            if self.meanings.get(id(dispatcher.overloads[types]), PLAIN) != PLAIN:
                del dispatcher.overloads[types]
        dispatcher.overloads.update({types: r for (types, meaning), r in self.results.items() if meaning == PLAIN})


def meaning_now(dispatcher: Any, others: Mapping[int, FunctionType]) -> tuple[Hashable, list[Any]]:
    """What the captures of a device function, and of those it calls, mean now; and the objects it names by identity."""
    session = current()
    if session is None:
        return PLAIN, []
    parts: list[Hashable] = [session.prefix]
    held: list[Any] = []
    asked_for = session.discovery.asks_for_constants
    for capture in _seen_by(discover(dispatcher, others.values()), session.discovery):
        key = capture.place.key
        if capture.kind == "array":
            policy = session.policy(capture.place, capture.value)
            signature = array_signature(capture.value, policy)
            layout = session.layouts.get(key)
            parts.append((key, signature if layout is None else signature.general(layout)))
            if may_be_compiled_in(capture.value, policy, asked_for):
                parts.append((signature, contents_of(capture.value)))
        elif followed(capture):
            parts.append((key, value_token(capture)))
            held.append(capture.value)
    return tuple(parts), held


def _seen_by(own: Discovery, whole: Discovery) -> list[Capture]:
    """What a device function may see: its own captures, and of objects that it hands on what others read of them."""
    captures = list(own.captures)
    if any(capture.kind == "object" for capture in captures):
        known = own.by_place
        captures += [
            one
            for one in whole.captures
            if one.place.key not in known and any(parent.key in known for parent in one.place.parents)
        ]
    return captures
