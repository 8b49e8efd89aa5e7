"""What is said of one captured name."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from cuda_captures.check import texts
from cuda_captures.check.captured import Captured
from cuda_captures.check.changes import Change, Changes
from cuda_captures.check.findings import LIMIT, Certainty, Finding, Place, joined, place
from cuda_captures.check.kernels import CudaFunction
from cuda_captures.check.program import Program
from cuda_captures.check.scopes import Scope
from cuda_captures.check.values import Value


class Judge:
    """What is to be said of the captures of one function."""

    def __init__(
        self, function: CudaFunction, changes: Changes, cached: list[CudaFunction], typed: set[ast.AST]
    ) -> None:
        self.function = function
        self.changes = changes
        self.cached = cached
        self.typed = typed

    def findings(self, captured: Captured) -> Iterator[Finding]:
        """The findings of one captured name."""
        kinds = captured.of_kind
        host = [one for one in kinds.get("host", []) if not one.marked]
        if host and (found := self.host(captured, host)) is not None:
            yield found
        elif kinds.get("device"):
            yield self.device(captured, kinds["device"])
        elif holding := [one for one in kinds.get("tuple", []) if _arrays_in(one)]:
            yield self.tuple(captured, holding)
        elif kinds.get("container"):
            yield self.container(captured, kinds["container"])
        elif objects := self.untyped(captured):
            yield self.object(captured, objects)
        elif set(kinds) == {"unknown"} and captured.is_indexed and not captured.is_called:
            yield self.unknown(captured)
        data = {"host", "device", "scalar", "tuple", "unknown", "none"}
        if kinds and set(kinds) <= data and not captured.is_called and set(kinds) != {"none"}:
            yield from self.rebound(captured)
        if kinds and set(kinds) <= {"scalar", "tuple"}:
            yield from self.kept(captured)

    def made(
        self,
        kind: str,
        captured: Captured,
        values: list[Value],
        message: str,
        reasons: list[str],
        fix: str,
        related: list[Place],
        cured: bool = True,
    ) -> Finding:
        certainty, doubt = self.certainty(captured, values)
        if self.function.kind == "compiled function" and cured:
            fix, cured = texts.COMPILED_FIX, False
        return Finding(
            kind,
            certainty,
            place(self.function.scope.source, captured.uses[0]),
            captured.name,
            self.function.name,
            message,
            tuple(reasons),
            fix.format(name=captured.name, last=captured.name.rpartition(".")[2], function=self.function.name),
            doubt,
            (*_origins(values), *related),
            cured,
        )

    def certainty(self, captured: Captured, values: list[Value]) -> tuple[Certainty, str]:
        """How sure it is that a name is what it is taken for, and why no surer."""
        others = [one for one in captured.values if one not in values]
        parameter = next((one for one in values if one.guessed), None)
        if any(one.kind == "unknown" for one in others):
            return "possible", texts.OTHER_ORIGINS.format(name=captured.name)
        if others:
            what = joined(
                list(dict.fromkeys(f"a {one.what or one.kind}" for one in others if one.kind != "none")) or ["None"]
            )
            return "likely", texts.OTHER_VALUES.format(name=captured.name, what=what)
        if parameter is not None:
            return "likely", texts.BY_CALLS.format(name=captured.name)
        return "certain", ""

    def host(self, captured: Captured, values: list[Value]) -> Finding | None:
        """A NumPy array: a copy in constant memory."""
        sizes = [one.nbytes for one in values]
        known = max((size for size in sizes if size is not None), default=None)
        asked = captured.arguments_of("const.array_like")
        edits = self.changes.edits_of(captured)
        written = captured.written
        if captured.only_measured:
            return None
        if len(asked) == len(captured.uses) and (known is None or known <= LIMIT):
            return None  # constant memory was asked for
        size = "" if known is None else f" of {known:,} bytes"
        reasons = []
        if known is not None and known > LIMIT:
            reasons.append(texts.OVER_LIMIT)
        elif known is None:
            reasons.append(texts.UNKNOWN_SIZE)
        else:
            reasons.append(texts.SMALL)
        if written:
            reasons.append(texts.ATOMIC if captured.only_atomic else texts.READONLY)
        if edits:
            reasons.append(texts.EDITED)
        if self.cached and captured.is_global:
            reasons.append(texts.CACHED_HOST.format(kernel=self._kernels()))
        if captured.is_attribute:
            reasons.append(texts.ATTRIBUTE)
        fix = texts.ARGUMENT_OR_CAPTURES
        if known is not None and known <= 1024 and not edits and not written:
            fix += texts.OR_ASK
        message = f"{self.function} captures `{captured.name}`, a NumPy array{size}"
        related = [*_places(edits, "edited"), *self._writes(captured)]
        return self.made("host-array", captured, values, message, reasons, fix, related)

    def device(self, captured: Captured, values: list[Value]) -> Finding:
        """A device array: its address is compiled in."""
        reasons = [texts.ADDRESS]
        if self.cached:
            reasons.append(texts.CACHED_DEVICE.format(kernel=self._kernels()))
        if captured.is_attribute:
            reasons.append(texts.ATTRIBUTE)
        message = f"{self.function} captures `{captured.name}`, a {values[0].what}"
        return self.made("device-array", captured, values, message, reasons, texts.ARGUMENT_OR_CAPTURES, [])

    def tuple(self, captured: Captured, values: list[Value]) -> Finding:
        """A tuple that holds arrays."""
        arrays = [one for value in values for one in _arrays_in(value)]
        host = [one for one in arrays if one.kind == "host"]
        reasons = [texts.TUPLE_HOST if host else texts.TUPLE_DEVICE]
        sizes = [one.nbytes for one in host]
        total = sum(size or 0 for size in sizes)
        if host and total > LIMIT:
            reasons.append(texts.OVER_LIMIT)
        if captured.written:
            reasons.append(texts.TUPLE_READONLY)
        if self.cached and (captured.is_global or not host):
            text = texts.CACHED_HOST if host else texts.CACHED_DEVICE
            reasons.append(text.format(kernel=self._kernels()))
        counts = Counter(one.what for one in arrays)
        held = joined([f"{count} {what}{'s' if count > 1 else ''}" for what, count in counts.items()])
        what = f"a {values[0].what} with {held}"
        message = f"{self.function} captures `{captured.name}`, {what}"
        return self.made(
            "array-in-tuple", captured, values, message, reasons, texts.ARGUMENT_OR_CAPTURES, self._writes(captured)
        )

    def container(self, captured: Captured, values: list[Value]) -> Finding:
        """A list, dictionary or set."""
        what = values[0].what
        message = f"{self.function} captures `{captured.name}`, a {what}"
        return self.made(
            "container", captured, values, message, [texts.CONTAINER[what]], texts.CONTAINER_FIX[what], [], cured=False
        )

    def object(self, captured: Captured, values: list[Value]) -> Finding:
        """An object that is no array, number or tuple; or a class."""
        what = values[0].what
        if what == "class":
            message = f"{self.function} captures `{captured.name}`, a class"
        elif what == "object":
            message = f"{self.function} captures `{captured.name}`, an object"
        else:
            message = f"{self.function} captures `{captured.name}`, {'an' if what[0] in 'aeio' else 'a'} {what}"
        above = self.function.scope.source.parents[captured.uses[0]]
        attribute = above.attr if isinstance(above, ast.Attribute) else "table"
        cured = what in ("class", "simple namespace") or "dataclass" in what
        fix = (texts.MEMBERS_FIX if cured else texts.OBJECT_FIX).replace("{attribute}", attribute)
        return self.made("object", captured, values, message, [texts.OBJECT], fix, [], cured)

    def untyped(self, captured: Captured) -> list[Value]:
        """Objects, and classes whose attributes are used, that the compiler cannot type."""
        found = [one for one in captured.of_kind.get("object", []) if not self._is_typed(one)]
        if found or not all(isinstance(above, ast.Attribute) for _, above in captured.parents()):
            return found
        if any(self._is_method(above) for _, above in captured.parents()):
            return []
        return [
            one
            for one in captured.of_kind.get("code", [])
            if one.what == "class" and isinstance(one.node, ast.ClassDef) and not self._is_typed(one)
        ]

    def _is_method(self, above: ast.AST) -> bool:
        """Whether what is taken of a class is called, as only kernels and device functions in it can be."""
        outer = self.function.scope.source.parents[above]
        return isinstance(outer, ast.Call) and outer.func is above

    def unknown(self, captured: Captured) -> Finding:
        """Something that is indexed and whose origin cannot be told."""
        what = texts.PARAMETER if not captured.elsewhere else texts.ELSEWHERE.format(dotted=captured.elsewhere[0])
        message = f"{self.function} captures `{captured.name}` and takes it for an array"
        found = self.made("unknown", captured, list(captured.values), message, [texts.IF_ARRAY], texts.IF_ARRAY_FIX, [])
        return Finding(**{**vars(found), "certainty": "possible", "doubt": what.format(name=captured.name)})

    def rebound(self, captured: Captured) -> Iterator[Finding]:
        """A name that is bound anew."""
        changes = self.changes.rebindings_of(captured)
        if not changes:
            return
        is_array = bool({"host", "device"} & set(captured.of_kind))
        what = "array" if is_array else "value"
        message = (
            f"{self.function} captures `{captured.name}`, which is bound anew after the {self.function.kind} is made"
        )
        related = _places(changes, "bound anew")
        found = self.made(
            "rebound",
            captured,
            list(captured.values),
            message,
            [texts.REBOUND.format(what=what)],
            texts.REBOUND_FIX,
            related,
        )
        sure = any(one.sure for one in changes)
        certainty: Certainty = "likely" if sure else "possible"
        yield Finding(
            **{
                **vars(found),
                "certainty": certainty,
                "doubt": texts.REBOUND_LATER if sure else texts.REBOUND_IN_FUNCTION,
                "related": tuple(related),
            }
        )

    def kept(self, captured: Captured) -> Iterator[Finding]:
        """A scalar, string or tuple that code in the disk cache keeps."""
        values = [one for one in captured.values if not _arrays_in(one)]
        for kernel in self.cached:
            if not captured.is_global and kernel is self.function:
                continue  # cells of the kernel itself are part of what numba looks up
            source = kernel.scope.source
            other = [one for one in values if one.scope is not None and one.scope.source is not source]
            if all(one.literal for one in values) and not other:
                continue  # changes with the file, which numba notices
            what = "is written in another file" if other else "is computed"
            where = other[0].scope.source.path if other and other[0].scope is not None else ""
            message = f"`{captured.name}` is compiled into cached kernel `{kernel.name}`, and {what}"
            reason = (texts.CACHED_ELSEWHERE if other else texts.CACHED_VALUE).format(
                kernel=kernel.name, path=source.path, where=where
            )
            related = [] if kernel is self.function else [place(source, kernel.scope.node, "the cached kernel")]
            found = self.made("cached", captured, values, message, [reason], texts.CACHED_FIX, related)
            if not other and found.certainty == "certain":
                found = Finding(
                    **{**vars(found), "certainty": "likely", "doubt": texts.COMPUTED.format(name=captured.name)}
                )
            yield found
            return

    def _kernels(self) -> str:
        return joined([f"`{one.name}`" for one in self.cached])

    def _writes(self, captured: Captured) -> list[Place]:
        return [place(self.function.scope.source, one, "written") for one in captured.written[:3]]

    def _is_typed(self, value: Value) -> bool:
        """Whether the compiler may know the class of an object, or a class."""
        if value.what in ("simple namespace", "numpy.random.Generator") or value.what.startswith("PyTorch"):
            return False
        made = _class_of(value, self.changes.program)
        if made is None:
            return True
        decorated = [one for one in made.decorator_list if "dataclass" not in ast.unparse(one)]
        named = any(isinstance(one, ast.Name) and one.id == "_numba_type_" for one in ast.walk(made))
        return made in self.typed or bool(decorated) or bool(made.bases) or named  # bases may be the compiler's


def _class_of(value: Value, program: Program) -> ast.ClassDef | None:
    """The class of an object of the program, or the class itself."""
    scope, node = value.scope, value.node
    if isinstance(node, ast.ClassDef):
        return node
    if isinstance(node, ast.arg) and scope is not None and scope.parent is not None:
        return scope.parent.node if isinstance(scope.parent.node, ast.ClassDef) else None
    name = value.what.rpartition(" ")[2]
    return next((one for one in program.scope_of if isinstance(one, ast.ClassDef) and one.name == name), None)


def _arrays_in(value: Value) -> list[Value]:
    """Arrays in a tuple and the tuples in it."""
    found = []
    for item in value.items or ():
        for one in item:
            found += [one] if one.is_array else _arrays_in(one)
    return found


def _places(changes: list[Change], what: str) -> list[Place]:
    return [place(one.scope.source, one.node, what) for one in changes[:4]]


def _origins(values: list[Value]) -> list[Place]:
    """Where values are made."""
    found = []
    for one in values[:3]:
        scope: Scope | None = one.scope
        if one.node is not None and scope is not None:
            what = "parameter" if isinstance(one.node, ast.arg) else "made"
            found.append(place(scope.source, one.node, what))
    return list(dict.fromkeys(found))
