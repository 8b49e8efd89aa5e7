"""What stands in for an object while a compiler works: a dataclass instance, a simple namespace, a class.

Its attributes are taken of it at compile time, each the stand-in of what the attribute means.  Where the object as a
whole is needed (as an argument of a device function, in a tuple that is indexed by a variable), a named tuple of those
attributes that some function reads stands for it: that is what compilers know.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, Protocol

from cuda_captures.discovery import Discovery, Place
from cuda_captures.errors import CaptureTypingError, pointer
from cuda_captures.members import why_no_member


class _Session(Protocol):
    """What is asked of the compilation."""

    @property
    def discovery(self) -> Discovery: ...

    def stand_in(self, place: Place, value: object, function: Any) -> Any: ...


class HeldObject:
    """Stands in for one object during one compilation.

    Parameters
    ----------
    session
        The compilation.
    place
        Where the object was read.
    value
        The object.
    function
        The function that names it, to point at in an error.
    """

    def __init__(self, session: _Session, place: Place, value: Any, function: Any) -> None:
        self.session = session
        self.place = place
        self.value = value
        self.function = function

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def is_class(self) -> bool:
        return isinstance(self.value, type)

    @property
    def kind(self) -> str:
        """How to call it in an error."""
        return f"class {self.value.__qualname__}" if self.is_class else f"{type(self.value).__qualname__}"

    def member(self, name: str, line: int | None = None) -> Any:
        """The stand-in of an attribute.

        Parameters
        ----------
        name
            Of the attribute.
        line
            Where it is taken, to point at in an error.

        Raises
        ------
        CaptureTypingError
            For what is no plain attribute: properties, methods, descriptors, and what is not there.
        """
        why = why_no_member(self.value, name)
        if why:
            text = (NO_MEMBER + cure_for(why)).format(
                name=self.name,
                attribute=name,
                kind=self.kind,
                why=why,
                where=pointer(self.function, name, line),
                present=", ".join(f"`{one}`" for one in self.plain()) or "none",
            )
            raise CaptureTypingError(text)
        place = self.place.member(name)
        return self.session.stand_in(place, place.read(), self.function)

    def plain(self) -> list[str]:
        """The attributes that a kernel could read."""
        names = [name for name in dir(self.value) if not name.startswith("__")]
        return [name for name in names if not why_no_member(self.value, name)]

    def as_tuple(self, takes: Callable[[Any], bool]) -> Any:
        """A named tuple of the attributes that some function reads, of those that the compiler takes as an item."""
        read = self.session.discovery.by_place
        members = {name: self.member(name) for name in self.plain() if self.place.member(name).key in read}
        members = {name: whole(member, takes) for name, member in members.items()}
        taken = {name: member for name, member in members.items() if takes(member)}
        return tuple.__new__(tuple_class(self.kind, tuple(taken)), taken.values())

    def close(self) -> None:
        """Let go of the object."""
        self.value = self.function = None
        del self.session

    def __repr__(self) -> str:
        return f"<captured object {self.name}>"


def holds_object(value: Any) -> bool:
    """Whether a stand-in is one of an object, or a tuple with one somewhere in it."""
    return isinstance(value, HeldObject) or (isinstance(value, tuple) and any(map(holds_object, value)))


def whole(value: Any, takes: Callable[[Any], bool]) -> Any:
    """A stand-in as a compiler takes it as a whole: named tuples for objects; classes as they are."""
    if isinstance(value, HeldObject):
        return value.value if value.is_class else value.as_tuple(takes)
    if holds_object(value):
        return tuple.__new__(type(value), [whole(item, takes) for item in value])
    return value


@functools.lru_cache(maxsize=512)
def tuple_class(name: str, fields: tuple[str, ...]) -> type[tuple[Any, ...]]:
    """The class of named tuples that stand for objects of one kind; fields may begin with an underscore."""
    members = {field: property(operator.itemgetter(index)) for index, field in enumerate(fields)}
    # `_asdict` is how the compilers know a named tuple.
    return type(name, (tuple,), {**members, "_fields": fields, "_asdict": _as_dict, STANDS_IN: True})


def _as_dict(self: Any) -> dict[str, Any]:
    return dict(zip(self._fields, self, strict=True))


STANDS_IN = "_stands_in_for_an_object"

NO_MEMBER = """\
`{name}.{attribute}`: attribute `{attribute}` of `{name}` (a {kind}) {why}.
  {where}
"""

ABSENT = "A kernel can read these attributes of `{name}`: {present}."

METHOD = """\
Kernels run no code of captured objects. Write it as a device function that is given what it needs:
`@cuda.jit(device=True)` before `def {attribute}(...)`, outside of the class or under `@staticmethod`."""

CODE = """\
Kernels run no code of captured objects. Compute it outside and capture the result: `value = {name}.{attribute}`, or a
field that holds it."""


def cure_for(why: str) -> str:
    """What to write instead."""
    if "not" in why.split():
        return ABSENT
    return METHOD if "method" in why else CODE
