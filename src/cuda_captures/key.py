"""The one key: text that is equal only where compiled code can be shared, and its digest.

It holds the bytecode of every function reached, everything that the compiler sees of what they name, argument types,
options and target; no address, and no contents of arrays but those under the policy ``constant``.  It is the same in
every process that sees the same.  What it cannot see, it refuses.

Keys are values: immutable, free of references to what they describe.
"""

from __future__ import annotations

import hashlib
import sys
import weakref
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

from cuda_captures.discovery import Capture, Discovery, Reached
from cuda_captures.places import function_of
from cuda_captures.signature import ArraySignature, array_signature
from cuda_captures.values import Unidentifiable, named, text_of

__all__ = ["SCHEMA", "ArraySignature", "Key", "Unkeyable", "array_signature", "difference", "key_of"]

SCHEMA = 1


@dataclass(frozen=True)
class Key:
    """What compiled code depends on.

    Parameters
    ----------
    text
        One line per item, ``label = value``.
    digest
        Of the text, 40 hexadecimal digits.
    """

    text: str
    digest: str


class Unkeyable(Exception):
    """Not all that a kernel sees can be identified, so its code can be neither shared nor cached.

    Attributes
    ----------
    reasons
        Each names a variable and says why.
    """

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = list(reasons)


def key_of(
    discovery: Discovery,
    *,
    signature: str,
    options: Mapping[str, Any],
    target: Mapping[str, Any],
    forms: Mapping[Hashable, ArraySignature],
) -> Key:
    """The key of the code that a kernel is compiled to.

    Parameters
    ----------
    discovery
        What the kernel sees.
    signature
        Its argument types, as text that says everything about them.
    options, target
        Options of the compiler; compute capability and versions.
    forms
        What is assumed of each captured array, by the key of its place.

    Raises
    ------
    Unkeyable
        With a reason for each name that cannot be identified.
    """
    reasons = [f"`{one.place.name}` ({' → '.join(one.path)}): {one.why}" for one in discovery.unknown]
    debug = bool(options.get("debug")) or bool(options.get("lineinfo"))
    lines = [_HEAD, f"signature = {signature}"]
    lines += _settings("target", target, reasons)
    lines += _settings("option", options, reasons)
    numbers = {(id(one.function), id(one.dispatcher)): one.number for one in discovery.reached}
    written: dict[int, str] = {}
    for reached in discovery.reached:
        prefix = f"function {reached.number}"
        lines.append(f"{prefix} = `{reached.function.__name__}`{_compiler_of(reached)}")
        lines += [f"{prefix} {line}" for line in _code_lines(reached.function.__code__)]
        if debug:
            lines += [f"{prefix} {line}" for line in _position_lines(reached.function.__code__)]
        if reached.number:
            lines += _dispatcher_lines(prefix, reached, reasons)
        for label, number in reached.names:
            text = written.get(number)
            if text is None:
                text = _capture_text(discovery.captures[number], forms, numbers, reasons)
                written[number] = f"as {prefix} {label}"
            lines.append(f"{prefix} {label} = {text}")
    if reasons:
        raise Unkeyable(list(dict.fromkeys(reasons)))
    text = "\n".join(lines)
    return Key(text, hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest())


_HEAD = f"cuda-captures key, schema {SCHEMA}\nbytecode = {sys.implementation.cache_tag}"


def _capture_text(
    capture: Capture,
    forms: Mapping[Hashable, ArraySignature],
    numbers: Mapping[tuple[int, int], int],
    reasons: list[str],
) -> str:
    kind = capture.kind
    if kind in ("value", "library"):
        return capture.text
    if kind == "array":
        form = forms[capture.place.key]
        if form.policy != "constant":
            return str(form)
        if form.dtype.hasobject:
            reasons.append(f"`{capture.place.name}`: a constant array of Python objects")
            return ""
        return f"{form} contents {hashlib.blake2b(capture.value.tobytes(), digest_size=20).hexdigest()}"
    if kind == "function":
        function = function_of(capture.value)
        dispatcher = None if function is capture.value else capture.value
        return f"function {numbers[id(function), id(dispatcher)]}"
    if kind == "tuple":
        return f"tuple {named(type(capture.value))} of {len(capture.value)}{getattr(type(capture.value), '_fields', '')}"
    if kind == "module":
        return f"module {capture.value.__name__}"
    return kind


def _settings(label: str, settings: Mapping[str, Any], reasons: list[str]) -> Iterator[str]:
    for name in sorted(settings):
        try:
            yield f"{label} {name} = {_setting(settings[name])}"
        except Unidentifiable as why:
            reasons.append(f"{label} `{name}`: {why}")


def _setting(value: Any) -> str:
    """A value of an option: containers are read once, by the compiler, so their contents count."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_setting, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_setting(value[key])}" for key in sorted(value)) + "}"
    return text_of(value)


def _compiler_of(reached: Reached) -> str:
    if reached.dispatcher is None or not reached.number:  # a kernel and its function are the same to the compiler
        return ""
    return f", {named(type(reached.dispatcher))}"


def _dispatcher_lines(prefix: str, reached: Reached, reasons: list[str]) -> Iterator[str]:
    """Options and eager signatures of a device function."""
    dispatcher = reached.dispatcher
    if dispatcher is None:
        return
    options = getattr(dispatcher, "targetoptions", None)
    if isinstance(options, Mapping):
        found: list[str] = []
        yield from _settings(f"{prefix} option", options, found)
        reasons += [f"device function {reason.removeprefix(prefix + ' ')}" for reason in found]
    if getattr(dispatcher, "_can_compile", True) is False:
        signatures = sorted(str(getattr(one, "signature", one)) for one in dispatcher.overloads.values())
        yield f"{prefix} signatures = {', '.join(signatures)}"


def _code_lines(code: CodeType) -> list[str]:
    """What a code object does, without its names of files and numbers of lines."""
    known = _code_texts.get(id(code))
    if known is not None and known[0]() is code:
        return known[1]
    lines = list(_describe(code, ""))
    key = id(code)
    _code_texts[key] = (weakref.ref(code, lambda _: _code_texts.pop(key, None)), lines)
    return lines


# By identity, which is cheaper than comparing code; entries go with their code.
_code_texts: dict[int, tuple[weakref.ref[CodeType], list[str]]] = {}


def _describe(code: CodeType, label: str) -> Iterator[str]:
    body = hashlib.blake2b(code.co_code + b"\0" + code.co_exceptiontable, digest_size=20).hexdigest()
    yield f"{label}code = {body}"
    counts = f"{code.co_argcount} {code.co_posonlyargcount} {code.co_kwonlyargcount}"
    yield f"{label}parameters = {counts} flags {code.co_flags:#x}"
    yield f"{label}names = {' '.join(code.co_names)}"
    yield f"{label}variables = {' '.join(code.co_varnames)}; {' '.join(code.co_cellvars)}; {' '.join(code.co_freevars)}"
    for index, constant in enumerate(code.co_consts):
        if isinstance(constant, CodeType):
            yield f"{label}constant {index} = code `{constant.co_name}`"
            yield from _describe(constant, f"{label}constant {index} ")
        else:
            yield f"{label}constant {index} = {text_of(constant)}"


def _position_lines(code: CodeType, label: str = "") -> Iterator[str]:
    """File and lines of a code object, which debug information holds."""
    table = hashlib.blake2b(code.co_linetable, digest_size=20).hexdigest()
    yield f"{label}position = {code.co_filename!a} line {code.co_firstlineno} table {table}"
    for index, constant in enumerate(code.co_consts):
        if isinstance(constant, CodeType):
            yield from _position_lines(constant, f"{label}constant {index} ")


def difference(a: Key, b: Key) -> str:
    """What differs between two keys, by name: one line per item that one has and the other has not, or otherwise.

    Returns
    -------
    str
        Empty for equal keys.
    """
    first, second = _items(a), _items(b)
    lines = []
    for label in [*first, *(label for label in second if label not in first)]:
        before, after = first.get(label), second.get(label)
        if before != after:
            lines.append(f"{label}: {before or 'absent'} → {after or 'absent'}")
    return "\n".join(lines)


def _items(key: Key) -> dict[str, str]:
    found = {}
    for line in key.text.splitlines():
        label, _, value = line.partition(" = ")
        found[label] = value
    return found
