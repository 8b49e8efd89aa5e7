"""Which captured arrays need a slot that holds shape and strides, and what layout the code may assume of them.

The first code for a kernel has shapes and strides of its arrays compiled in.  What has been seen to change since is
left open in the next, down to the layout where that has changed too.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from cuda_captures.code import Use
from cuda_captures.places import ItemPlace, MemberPlace, Place
from cuda_captures.signature import ArraySignature, Layout


def general_layouts(
    known: Iterable[tuple[Use, Place]], forms: Sequence[tuple[Place, ArraySignature]]
) -> dict[Hashable, Layout]:
    """The layouts of places that need a general slot, by the keys of the places.

    Parameters
    ----------
    known
        What existing code of the kernel takes, and where.
    forms
        The forms that captured arrays have now.
    """
    uses: dict[Hashable, list[Use]] = {}
    for use, place in known:
        uses.setdefault(place.key, []).append(use)
    layouts: dict[Hashable, Layout] = {}
    for place, now in forms:
        for use in uses.get(place.key, ()):
            if use.signature.same_kind(now) and (use.slot.general or not use.signature.accepts(now)):
                before = layouts.get(place.key, now.layout)
                layouts[place.key] = before if before == use.signature.layout else "A"
    for items in _alike(forms):
        if any(layouts.get(key, layout) != layout for key, layout in items):
            layouts.update(dict.fromkeys([key for key, _ in items], "A"))
    return layouts


def _alike(forms: Iterable[tuple[Place, ArraySignature]]) -> Iterable[Sequence[tuple[Hashable, Layout]]]:
    """Items of tuples, or the same attribute of their items, that are of one type now: keys and layout of each group.

    A tuple can be indexed by a number that is known at run time only while its items have one type, so these must
    stay alike.
    """
    groups: dict[Hashable, list[tuple[Hashable, Layout]]] = {}
    for place, form in forms:
        path = _path_in_tuple(place)
        if path is not None and form.policy != "constant":  # which has no slot
            kind = (path, form.dtype_text, form.ndim, form.layout, form.readonly, form.aligned)
            groups.setdefault(kind, []).append((place.key, form.layout))
    return groups.values()


def _path_in_tuple(place: Place) -> Hashable:
    """How a place is reached, the same for every item of a tuple; None if there is no tuple on the way."""
    steps: list[Hashable] = []
    within = False
    while isinstance(place, (ItemPlace, MemberPlace)):
        is_item = isinstance(place, ItemPlace)
        within |= is_item
        steps.append("[]" if is_item else place.step)
        place = place.parent
    return (place.key, *steps) if within else None
