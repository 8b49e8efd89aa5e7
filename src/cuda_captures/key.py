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

from cuda_captures.contents import contents_of, may_be_compiled_in
from cuda_captures.discovery import Capture, Discovery, Reached
from cuda_captures.option_text import has_positions, options_text
from cuda_captures.signature import ArraySignature, array_signature
from cuda_captures.values import Unidentifiable, enum_class, named, one_line, text_of

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
    debug = has_positions(options)
    lines = [_HEAD, f"signature = {signature}"]
    lines += filter(None, (options_text("target", target, reasons), options_text("option", options, reasons)))
    constants = discovery.asks_for_constants
    written: dict[int, str] = {}
    enumerations: dict[str, list[type]] = {}
    for reached, names in zip(discovery.reached, discovery.names, strict=True):
        code, prefix = reached.function.__code__, f"function {reached.number}"
        lines.append(f"{prefix} = `{code.co_name}`{_compiler_of(reached)}")
        try:
            lines.append(_code_text(code, reached.number))
        except Unidentifiable as why:
            reasons.append(f"`{code.co_name}` has a constant: {why}")
        if debug or has_positions(getattr(reached.dispatcher, "targetoptions", None)):
            lines += [f"{prefix} {line}" for line in _position_lines(code)]
        if reached.dispatcher is not None and reached.number:  # a kernel's options are given
            lines += _dispatcher_texts(prefix, reached, reasons)
        for label, capture in names.items():
            if capture.kind != "array":
                text = _capture_text(capture) + _which(enum_class(capture.value), enumerations)
            elif id(capture) in written:
                text = written[id(capture)]
            else:
                text = _array_text(capture, forms[capture.place.key], constants, reasons)
                written[id(capture)] = f"as {prefix} {label}"  # one place has one slot, whoever names it
            lines.append(f"{prefix} {label} = {text}")
    if reasons:
        raise Unkeyable(list(dict.fromkeys(reasons)))
    text = "\n".join(lines)
    return Key(text, hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest())


_HEAD = f"cuda-captures key, schema {SCHEMA}\nbytecode = {sys.implementation.cache_tag}"


def _which(kind: type | None, known: dict[str, list[type]]) -> str:
    """Tells apart enumerations that are called alike, such as those of a cell of a notebook that was run twice."""
    if kind is None:
        return ""
    alike = known.setdefault(named(kind), [])
    number = next((number for number, one in enumerate(alike) if one is kind), len(alike))
    if number == len(alike):
        alike.append(kind)
    return f" of class {number + 1}" if number else ""


def _array_text(capture: Capture, form: ArraySignature, constants: bool, reasons: list[str]) -> str:
    """What the key says of an array; its contents too if they are, or may be, compiled into constant memory."""
    if form.dtype.hasobject and (form.policy == "constant" or constants):
        reasons.append(f"`{capture.place.name}`: it is a constant array of Python objects")
        return ""
    if not may_be_compiled_in(capture.value, form.policy, constants):
        return str(form)
    digest = hashlib.blake2b(contents_of(capture.value), digest_size=20).hexdigest()
    # What is compiled in has its shape, whatever shapes the slot of the same array takes.
    shaped = "" if form.exact else f" of {array_signature(capture.value, form.policy)}"
    return f"{form} contents {digest}{shaped}"


def _capture_text(capture: Capture) -> str:
    """What the key says of a capture that is no array; unknown ones have their reasons already."""
    kind = capture.kind
    if kind == "function":
        return f"function {capture.number}"
    if kind == "tuple":
        fields = getattr(type(capture.value), "_fields", "")
        return f"tuple {named(type(capture.value))} of {len(capture.value)}{fields}"
    if kind == "object":
        value = capture.value
        return f"class {named(value)}" if isinstance(value, type) else f"object {named(type(value))}"
    return "unknown" if kind == "unknown" else one_line(capture.text)


def _compiler_of(reached: Reached) -> str:
    if reached.dispatcher is None or not reached.number:  # a kernel and its function are the same to the compiler
        return ""
    return f", {named(type(reached.dispatcher))}"


def _dispatcher_texts(prefix: str, reached: Reached, reasons: list[str]) -> list[str]:
    """Options, types of variables and eager signatures of a device function."""
    dispatcher = reached.dispatcher
    found: list[str] = []
    texts = []
    for label, attribute in (("option", "targetoptions"), ("variable", "locals")):
        options = getattr(dispatcher, attribute, None)
        if options and isinstance(options, Mapping):
            texts.append(options_text(f"{prefix} {label}", options, found))
    if getattr(dispatcher, "_can_compile", True) is False:
        signatures = sorted(str(getattr(one, "signature", one)) for one in dispatcher.overloads.values())
        texts.append(f"{prefix} signatures = {', '.join(signatures)}")
    if found:
        name = reached.function.__code__.co_name
        reasons += [f"device function `{name}`: {reason.removeprefix(prefix + ' ')}" for reason in found]
    return texts


def _code_text(code: CodeType, number: int) -> str:
    """What a code object does, without its names of files and numbers of lines, as lines of one function."""
    known = _code_texts.get(id(code))
    if known is None or known[0]() is not code:
        key = id(code)
        known = _code_texts[key] = (weakref.ref(code, lambda _: _code_texts.pop(key, None)), {})
    text = known[1].get(number)
    if text is None:
        text = known[1][number] = "\n".join(_describe(code, f"function {number} "))
    return text


# By identity, which is cheaper than comparing code; entries go with their code.  Any thread may add one, since all
# write the same.
_code_texts: dict[int, tuple[weakref.ref[CodeType], dict[int, str]]] = {}


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
