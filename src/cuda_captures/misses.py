"""Why a kernel's code had to be compiled: what differs, by name, from the nearest code that was there already."""

from __future__ import annotations

import re
from collections.abc import Iterable

from cuda_captures.key import Key, difference

SHOWN = 6  # differences; who has more is looking at another kernel
LONG = 60  # characters of a value

_FUNCTION = re.compile(r"^function (\d+) = `(.*?)`", re.MULTILINE)
_LABEL = re.compile(r"function (\d+) ?(.*)")
_PARTS_OF_CODE = frozenset({"code", "names", "variables", "parameters"})


def why_missed(key: Key, there: Iterable[Key]) -> tuple[str, ...]:
    """What differs between a key and the nearest one of a kernel of the same name.

    Parameters
    ----------
    key
        Of the code that was compiled.
    there
        Keys of the code that was there before.

    Returns
    -------
    tuple of str
        A line for each difference, the nearest code's first: ``"closure `n`: int 3 → int 4"``.  Empty if there was no
        code of a kernel of that name.
    """
    name = dict(_FUNCTION.findall(key.text)).get("0")
    found: list[str] | None = None
    for other in there:
        if other.digest == key.digest or dict(_FUNCTION.findall(other.text)).get("0") != name:
            continue
        lines = difference(other, key).splitlines()
        if found is None or len(lines) < len(found):
            found = lines
    return said(found or [], key)


def said(lines: list[str], key: Key) -> tuple[str, ...]:
    """Differences of keys, for people."""
    functions = dict(_FUNCTION.findall(key.text))
    texts: dict[str, None] = {}
    for line in lines:
        label, _, values = line.partition(": ")
        before, _, after = values.partition(" → ")
        found = _LABEL.fullmatch(label)
        number, part = found.groups() if found else ("0", label)
        owner = "" if number == "0" else f" of `{functions.get(number, 'a function')}`"
        if found and part in _PARTS_OF_CODE:
            texts[f"the code{owner or ' of the kernel'}"] = None
        else:
            texts[f"{_named(part)}{owner}: {_changed(before, after)}"] = None
    shown = list(texts)[:SHOWN]
    if len(texts) > SHOWN:
        shown.append(f"and {len(texts) - SHOWN} more")
    return tuple(shown)


def _named(part: str) -> str:
    """``closure n`` as ``closure `n```."""
    kind, _, name = part.partition(" ")
    return f"{kind} `{name}`" if name else kind


def _changed(before: str, after: str) -> str:
    """Two values without the words that both begin with."""
    one, other = before.split(" "), after.split(" ")
    same = 0
    while same < min(len(one), len(other)) - 1 and one[same] == other[same]:
        same += 1
    if same < 2:  # "int 3" and "int 4" are best read whole
        same = 0
    return " → ".join(_shortened(" ".join(words[same:])) for words in (one, other))


def _shortened(text: str) -> str:
    return text if len(text) <= LONG else text[: LONG - 1] + "…"
