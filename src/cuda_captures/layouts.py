"""Which captured arrays need a slot that holds shape and strides, and what layout the code may assume of them.

The first code for a kernel has shapes and strides of its arrays compiled in.  What has been seen to change since is
left open in the next, down to the layout where that has changed too.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from cuda_captures.code import Use
from cuda_captures.places import ItemPlace, Place
from cuda_captures.signature import ArraySignature, Layout


def general_layouts(
    known: Iterable[Sequence[tuple[Use, Place]]], forms: Sequence[tuple[Place, ArraySignature]]
) -> dict[Hashable, Layout]:
    """The layouts of places that need a general slot, by the keys of the places.

    Parameters
    ----------
    known
        What each existing code of the kernel takes, and where.
    forms
        The forms that captured arrays have now.
    """
    known = list(known)
    uses: dict[Hashable, list[Use]] = {}
    for code in known:
        for use, place in code:
            uses.setdefault(place.key, []).append(use)
    layouts: dict[Hashable, Layout] = {}
    for place, now in forms:
        for use in uses.get(place.key, ()):
            if use.signature.same_kind(now) and (use.slot.general or not use.signature.accepts(now)):
                before = layouts.get(place.key, now.layout)
                layouts[place.key] = before if before == use.signature.layout else "A"
    _keep_alike([*([(place, use.signature) for use, place in code] for code in known), forms], layouts)
    return layouts


def _keep_alike(seen: Sequence[Sequence[tuple[Place, ArraySignature]]], layouts: dict[Hashable, Layout]) -> None:
    """Give items of tuples, or the same attribute of their items, one layout where they have had one type.

    A tuple can be indexed by a number that is known at run time only while its items have one type.  So what was alike
    once, in existing code or now, which is the last of what was seen, has to stay so.
    """
    now = {place.key: form for place, form in seen[-1]}
    groups = {tuple(keys): None for forms in seen for keys in _alike(forms)}
    changed = True
    while changed:  # an item may be in several groups
        changed = False
        for group in groups:
            for keys in _by_kind([key for key in group if key in now], now):
                if len({layouts.get(key, now[key].layout) for key in keys}) > 1:
                    layouts.update(dict.fromkeys(keys, "A"))
                    changed = True


def _alike(forms: Iterable[tuple[Place, ArraySignature]]) -> Iterable[list[Hashable]]:
    """The keys of items that are of one type, by groups of several."""
    groups: dict[Hashable, list[Hashable]] = {}
    for place, form in forms:
        path = _path_in_tuple(place)
        if path is not None:
            groups.setdefault((path, _kind(form), form.layout), []).append(place.key)
    return [keys for keys in groups.values() if len(keys) > 1]


def _by_kind(keys: Iterable[Hashable], forms: dict[Hashable, ArraySignature]) -> Iterable[list[Hashable]]:
    """Keys by groups of those whose arrays can have one type, whatever their layouts; constants have no slot."""
    groups: dict[Hashable, list[Hashable]] = {}
    for key in keys:
        if forms[key].policy != "constant":
            groups.setdefault(_kind(forms[key]), []).append(key)
    return groups.values()


def _kind(form: ArraySignature) -> Hashable:
    """What the type of an array says beside its layout."""
    return form.dtype_text, form.ndim, form.readonly, form.aligned


def _path_in_tuple(place: Place) -> Hashable:
    """How a place is reached, the same for every item of a tuple; None if there is no tuple on the way."""
    way = [place, *place.parents]
    steps = ["[]" if isinstance(one, ItemPlace) else one.step for one in way[:-1]]
    return (way[-1].key, *steps) if "[]" in steps else None
