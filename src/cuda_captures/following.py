"""Does every captured name still mean what it meant?  A predicate that answers in well under a microsecond.

The predicate is generated as source text: one chain of identity tests, so that a launch pays about 40 ns per name
(a loop over objects costs five times that).  NumPy arrays are referred to weakly: a kernel that is never launched
again must not keep them.  Other values are held; they are what the compiled code was made from.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cuda_captures.contents import contents_of
from cuda_captures.discovery import MISSING, AttributePlace, CellPlace, GlobalPlace, MemberPlace, Place
from cuda_captures.storage import storage_check


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
    The function may be called from any thread.  It raises ValueError where a closure cell has been emptied.
    """
    names: dict[str, object] = {"missing": MISSING}
    tests: list[str] = []
    for number, (place, value) in enumerate(expected):
        read = _reading(place, str(number), names)
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
    return _maker(tuple(names), " and ".join(tests) or "True")(*names.values())


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


@functools.lru_cache(maxsize=512)
def _maker(parameters: tuple[str, ...], test: str) -> Callable[..., Callable[[], bool]]:
    """Makes predicates that are alike but for the objects in them; the text holds no name or value of the user's."""
    source = f"def make({', '.join(parameters)}):\n    return lambda: {test}\n"
    namespace: dict[str, Callable[..., Callable[[], bool]]] = {}
    exec(compile(source, "<captured names>", "exec"), namespace)
    return namespace["make"]


def _reading(place: Place, number: str, names: dict[str, object]) -> str:
    """An expression that reads a place."""
    if isinstance(place, GlobalPlace):
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
        return f"a{number}({_reading(place.parent, f'{number}_', names)})"
    names[f"p{number}"] = place.peek  # the rarer kinds of place
    return f"p{number}()"
