"""Does every captured name still mean what it meant?  A predicate that answers in well under a microsecond.

The predicate is generated as source text: one chain of identity tests (a loop over objects costs many times that).  It
is given the kernel's own namespace for its globals, so that it reads a global name as the kernel's code would in
Python, in a quarter of the time that asking the namespace by a call takes.  NumPy arrays are referred to weakly: a
kernel that is never launched again must not keep them.  Other values are held; they are what the compiled code was
made from.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from cuda_captures.contents import contents_of
from cuda_captures.discovery import MISSING, AttributePlace, CellPlace, GlobalPlace, MemberPlace, Place
from cuda_captures.storage import storage_check

# What a predicate raises for a global name that is gone, an emptied closure cell, and a constant that is no array any
# more.  Reading the names one by one then raises what Python does.
UNREADABLE = (NameError, ValueError, AttributeError)


def unchanged_predicate(
    expected: Sequence[tuple[Place, object]],
    constants: Sequence[tuple[Place, bytes, Callable[[], bool]]] = (),
    parts: Sequence[object] = (),
) -> Callable[[], bool]:
    """A function that tells whether each place still holds the object that it held.

    Parameters
    ----------
    expected
        Places with what they hold now.  Places inside tuples are covered by the tuple's.
    constants
        Places of arrays whose contents were compiled in, each with these, and with what tells whether the array that
        is there now has them and the form that was compiled in.  They are small; comparing takes microseconds.
    parts
        Arrays inside of what is expected.  They are the same while that is, but may get another form or other memory.

    Notes
    -----
    The function may be called from any thread.  It raises :data:`UNREADABLE` where a global name is gone, a closure
    cell has been emptied, or a constant is no array any more.
    """
    names: dict[str, object] = {"missing": MISSING}
    tests: list[str] = []
    own = _Globals(one for place, _ in expected for one in (place, *place.parents))
    for number, (place, value) in enumerate(expected):
        read = _reading(place, str(number), names, own)
        if isinstance(value, np.ndarray):
            tests.append(f"(a := {read}) is not None and a is w{number}() and {_form(value, str(number), names)}")
            continue
        names[f"v{number}"] = value
        tests.append(f"{read} is v{number}")
        check = storage_check(value)
        if check is not None:
            names[f"c{number}"] = check
            tests.append(f"c{number}()")
    for number, value in enumerate(parts):
        if isinstance(value, np.ndarray):
            tests.append(f"(a := wp{number}()) is not None and {_form(value, f'p{number}', names)}")
            continue
        check = storage_check(value)
        if check is not None:
            names[f"cp{number}"] = check
            tests.append(f"cp{number}()")
    for number, (place, contents, holds) in enumerate(constants):
        names[f"h{number}"] = holds
        array = place.peek()
        if isinstance(array, np.ndarray):
            form = _form(array, f"c{number}", names)
            if holds():  # else another thread has just bound something else, or changed the form
                names["contents_of"] = contents_of
                names[f"r{number}"] = place.read
                names[f"b_{number}"] = contents
                same = f"(a := r{number}()) is wc{number}() and {form} and contents_of(a) == b_{number}"
                tests.append(f"({same} or h{number}())")
                continue
        tests.append(f"h{number}()")
    code = _code(tuple(names), " and ".join(tests) or "True", tuple(own.names))
    make: Callable[..., Callable[[], bool]] = FunctionType(code, own.namespace)
    return make(*names.values())


def staying_predicate(arrays: Sequence[tuple[Place, object]], moved: Callable[[Place], object]) -> Callable[[], bool]:
    """A predicate for names that are not followed: true, but for device arrays whose memory was replaced in place.

    Parameters
    ----------
    arrays
        Places with the arrays that they held, which stay.
    moved
        Called with the place of such an array; it raises.
    """
    checks = [(place, check) for place, array in arrays if (check := storage_check(array)) is not None]

    def unchanged() -> bool:
        for place, check in checks:
            if not check():
                moved(place)
        return True

    return unchanged


def _form(array: np.ndarray[Any, Any], number: str, names: dict[str, object]) -> str:
    """An expression that tells whether the NumPy array ``a`` has the form that an array has now."""
    names[f"w{number}"] = weakref.ref(array)
    names[f"s{number}"], names[f"t{number}"] = array.shape, array.strides
    names[f"d{number}"], names[f"f{number}"] = array.dtype, array.flags.writeable
    test = (
        f"a.shape == s{number} and a.strides == t{number} and a.dtype is d{number} and a.flags.writeable is f{number}"
    )
    if array.dtype.names is None:
        return test
    names[f"m{number}"] = array.dtype.names  # fields of a record can be given other names in place
    return f"{test} and a.dtype.names == m{number}"


class _Globals:
    """The global names that a predicate reads as its own.

    Parameters
    ----------
    places
        Whatever is read; the namespace in which most names are is the predicate's.
    """

    def __init__(self, places: Iterable[Place]) -> None:
        spaces = [
            place.namespace
            for place in places
            if isinstance(place, GlobalPlace) and type(place.namespace) is dict and type(place.builtins) is dict
        ]  # of other kinds, reading may run code of their own
        counted = Counter(map(id, spaces))
        self.namespace: dict[str, Any] = max(spaces, key=lambda space: counted[id(space)], default={})
        self.names: list[str] = []

    def reading(self, place: GlobalPlace) -> str | None:
        """A placeholder for a name, which :func:`_code` gives its own; None if the name is not in the namespace."""
        if place.namespace is not self.namespace or place.name not in place.namespace:
            return None
        self.names.append(place.name)
        return f"global_{len(self.names) - 1}"


@functools.lru_cache(maxsize=512)
def _code(parameters: tuple[str, ...], test: str, names: tuple[str, ...]) -> CodeType:
    """The code of a function that makes predicates which are alike but for the objects in them.

    Names of the user's are not in the text, where they could mean something else: they replace their placeholders in
    what was compiled.
    """
    maker = _maker(parameters, test)
    own = {f"global_{number}": name for number, name in enumerate(names)}

    def renamed(constant: Any) -> Any:
        if not isinstance(constant, CodeType):
            return constant
        return constant.replace(co_names=tuple(own.get(name, name) for name in constant.co_names))

    return maker.replace(co_consts=tuple(map(renamed, maker.co_consts)))


@functools.lru_cache(maxsize=512)
def _maker(parameters: tuple[str, ...], test: str) -> CodeType:
    """The same, with placeholders for global names."""
    source = f"def make({', '.join(parameters)}):\n    return lambda: {test}\n"
    namespace: dict[str, FunctionType] = {}
    exec(compile(source, "<captured names>", "exec"), namespace)
    return namespace["make"].__code__


def _reading(place: Place, number: str, names: dict[str, object], own: _Globals) -> str:
    """An expression that reads a place."""
    if isinstance(place, GlobalPlace):
        read = own.reading(place)
        if read is not None:
            return read
        names[f"g{number}"] = place.namespace.get
        names[f"n{number}"] = place.name
        if place.name not in place.namespace:  # a builtin, until the module defines the name itself
            names[f"b{number}"] = place.builtins.get
            return f"g{number}(n{number}, b{number}(n{number}, missing))"
        return f"g{number}(n{number}, missing)"
    if isinstance(place, CellPlace):
        names[f"k{number}"] = place.cell
        return f"k{number}.cell_contents"
    if isinstance(place, AttributePlace) and place.name in vars(place.module):  # else its __getattr__ makes it
        names[f"g{number}"] = vars(place.module).get
        names[f"n{number}"] = place.name
        return f"g{number}(n{number}, missing)"
    if isinstance(place, MemberPlace):
        names[f"a{number}"] = operator.attrgetter(place.attribute)
        return f"a{number}({_reading(place.parent, f'{number}_', names, own)})"
    names[f"p{number}"] = place.peek  # the rarer kinds of place
    return f"p{number}()"
