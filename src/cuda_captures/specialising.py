"""The specialisations of one kernel: which code the names call for, and where that comes from.

``what do the names mean? → the same as before → another kernel's code → the disk cache's → compile``

A kernel that a factory makes is told by its siblings, where these can tell: see :mod:`cuda_captures.siblings`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from cuda_captures.code import Code, CodeTable, Use
from cuda_captures.contents import contents_of, may_be_compiled_in
from cuda_captures.default_arrays import warn_of_default_arrays
from cuda_captures.discovery import Capture, Discovery, Place, discover, is_device_array
from cuda_captures.errors import CaptureError, CapturePerformanceWarning, line_naming, pointer, warn_at
from cuda_captures.key import ArraySignature, Key, Unkeyable, array_signature, key_of
from cuda_captures.layouts import general_layouts
from cuda_captures.policy import Policy, check_policies, policy_of
from cuda_captures.seen_functions import why_not_shared
from cuda_captures.session import Session, is_array, refuse_unreadable
from cuda_captures.settings import current as settings
from cuda_captures.siblings import Siblings, moved
from cuda_captures.signature import Layout
from cuda_captures.storage import of_numba
from cuda_captures.toolchain import Toolchain
from cuda_captures.unused_policies import warn_of_unused
from cuda_captures.variants import Constant, Variant, followed, frozen_of, value_token

VARIANTS = 64  # meanings of its names that a kernel remembers; the code for others is found again by its key
MANY_VALUES = 8  # specialisations for values of one name, after which a warning names it

ATTEMPTS = 8  # times that a kernel is compiled because its names were bound to something else meanwhile

CODES = CodeTable()
SIBLINGS = Siblings()


AS_A_SIBLING = "as a sibling"  # in place of a token: nothing was looked at that it could be made of


class _Changed(Exception):
    """While code was made, another thread changed what it is made from."""


class Specialisations:
    """Those of one kernel, for one tuple of argument types.

    Parameters
    ----------
    function
        The kernel's Python function.
    toolchain
        The backend's part.
    policies
        The kernel's ``captures=`` option.

    Attributes
    ----------
    lock
        Held while anything in here is read or changed; reentrant.
    last
        The specialisation that was used last.
    likeness
        The toolchain's, when the code was first asked for.
    kept, sources
        For reports: how often a specialisation was there already, and where the code came from.
    """

    def __init__(self, function: Any, toolchain: Toolchain, policies: str | Mapping[str, str] | None) -> None:
        check_policies(policies)
        self.function = function
        self.toolchain = toolchain
        self.policies = policies
        self.settings = settings()
        self.lock = threading.RLock()
        self.last: Variant | None = None
        self.likeness: Hashable = None
        self._variants: dict[Hashable, Variant] = {}  # the one used last at the end
        self._codes: dict[str, Code] = {}
        self._values: dict[Hashable, set[Hashable]] = {}
        self._also: tuple[FunctionType, ...] = ()  # what only compiling has come to, such as overloads
        self._checked_names = False
        self.kept = 0  # times that a new meaning of the names had its specialisation already
        self.sources: dict[int, str] = {}  # by the code's number, so that no code is kept

    def variant(self) -> Variant:
        """The specialisation for what the names mean now; compiled if there is none."""
        with self.lock:
            return self.specialise()

    def adopt(self, code: Code, discovery: Discovery | None = None) -> Variant:
        """Take code that the disk cache had as the specialisation for what the names mean now."""
        with self.lock:
            discovery = discovery or discover(self.function)
            layouts, contents = self._layouts(discovery), self._constants(discovery)
            self.sources.setdefault(code.number, code.source)
            return self._add(self._token(discovery, layouts, contents), code, discovery, contents)

    @property
    def codes(self) -> tuple[Code, ...]:
        """The code of all specialisations, each once, in the order of their making."""
        with self.lock:
            private = [variant.code for variant in self._variants.values() if variant.code.key is None]
            return (*self._codes.values(), *private)

    def key(self, discovery: Discovery | None = None) -> Key:
        """The key of the code that the kernel needs now.

        Raises
        ------
        Unkeyable
            With the reasons, each with a name.
        """
        discovery = discovery or discover(self.function)
        return self._key(discovery, self._layouts(discovery))

    def specialise(self) -> Variant:
        """As :meth:`variant`, for who holds the lock."""
        if not self._variants:
            self.likeness = self.toolchain.likeness()
            variant = self._as_a_sibling()
            if variant is not None:
                return variant
        for _ in range(ATTEMPTS):
            discovery = discover(self.function, self._also)
            try:
                return self._specialised(discovery)
            except _Changed:  # by another thread; compiling takes long
                continue
        raise CaptureError(self._changing(discovery))

    def _as_a_sibling(self) -> Variant | None:
        """The first specialisation, if a kernel made from the same code object tells what it is."""
        if self.likeness is None or self.policies is not None:
            return None
        sibling: Specialisations | None = SIBLINGS.of(self.function, self.likeness)
        if sibling is None or sibling is self or sibling.policies is not None or sibling.settings != self.settings:
            return None
        last = sibling.last
        variant = moved(last, sibling.function, self.function) if last is not None else None
        if variant is None or variant.code.key is None:
            return None
        if any(self.form(use, place, place.peek()) is None for use, place in variant.arrays):
            return None
        self.likeness = sibling.likeness  # which is equal, and so is not held twice
        self._keep(AS_A_SIBLING, variant)
        self.sources.setdefault(variant.code.number, "process")
        SIBLINGS.tell(self)
        return variant

    def _specialised(self, discovery: Discovery) -> Variant:
        layouts, contents = self._layouts(discovery), self._constants(discovery)
        token = self._token(discovery, layouts, contents)
        variant = self._variants.get(token)
        if variant is not None:
            self._variants[token] = self._variants.pop(token)
            self.kept += 1
            variant.frozen = frozen_of(discovery, variant.arrays)  # equal ones may be other objects now
        else:
            known = len(self._also)

            def check(compiled: bool = True) -> None:
                """Raise unless names still mean what the code was to be made for; contents alone are read late."""
                now = discover(self.function, self._also[:known]) if compiled else discovery
                if (compiled or contents) and self._token(now, layouts, self._constants(now)) != token:
                    raise _Changed

            code = self._code(discovery, layouts, check)
            if len(self._also) > known:
                discovery = discover(self.function, self._also)
                contents = self._constants(discovery)
                token = self._token(discovery, layouts, contents)
            variant = self._add(token, code, discovery, contents)
            self._warn_of_many_values(discovery)
            if not self._checked_names:
                self._checked_names = True
                warn_of_unused(self.function, self.policies, discovery)
        self.last = variant
        return variant

    def _add(self, token: Hashable, code: Code, discovery: Discovery, contents: Mapping[Hashable, bytes]) -> Variant:
        arrays = tuple((use, use.place_for(self.function)) for use in code.uses)
        constants = tuple(
            Constant(capture.place, self._signature(capture), contents[capture.place.key], self._form)
            for capture in discovery.arrays
            if capture.place.key in contents
        )
        plain = (
            code.key is not None
            and not code.single
            and not (constants or discovery.fixed or discovery.plain_functions or self._also)
        )
        variant = Variant(code, frozen_of(discovery, arrays), arrays, constants, plain)
        self._keep(token, variant)
        if plain and self.likeness is not None:
            SIBLINGS.tell(self)
        return variant

    def _keep(self, token: Hashable, variant: Variant) -> None:
        self._variants[token] = variant
        while len(self._variants) > VARIANTS:
            del self._variants[next(iter(self._variants))]
        code = variant.code
        if code.key is not None:
            self._codes[code.key.digest] = code  # kept: coming back to a value compiles nothing
        self.last = variant

    def _code(self, discovery: Discovery, layouts: Mapping[Hashable, Layout], check: Callable[..., None]) -> Code:
        """The code for what the names mean now: another kernel's, the disk cache's, or compiled."""
        try:
            key = self._key(discovery, layouts)
        except Unkeyable as unkeyable:
            code = self._compile(discovery, layouts)
            check()
            finish(code, None, unkeyable.reasons, discovery)
            self.sources[code.number] = "compiled"
            return code
        shared = CODES.get(key)
        if shared is not None:
            check(compiled=False)
            self.sources.setdefault(shared.number, "process")
            return shared
        with self.toolchain.lock:
            found = CODES.get(key)
            source = "process" if found is not None else "disk"
            found = found or self.toolchain.fetch(key)
            if found is not None:
                code = found
                check(compiled=False)
            else:
                source = "compiled"
                code = self._compile(discovery, layouts)
                check()
                finish(code, key, (), discovery)
                if code.key is not None:
                    self.toolchain.store(code)
            if code.key is not None and not code.single:
                CODES.add(code)
            self.sources.setdefault(code.number, source)
        return code

    def _compile(self, discovery: Discovery, layouts: Mapping[Hashable, Layout]) -> Code:
        session = self._session(discovery, layouts)
        warn_of_default_arrays(discovery)
        code = self.toolchain.compile(session)
        if session.seen.others:  # found by nothing else; followed from now on
            self._also = (*self._also, *session.seen.others)
            code.why_private = (*code.why_private, *map(why_not_shared, session.seen.others))
        return code

    def _session(self, discovery: Discovery, layouts: Mapping[Hashable, Layout]) -> Session:
        return Session(discovery, self.policies, self.settings.host, layouts)

    def _key(self, discovery: Discovery, layouts: Mapping[Hashable, Layout]) -> Key:
        unseen = [*self.toolchain.unseen(discovery), *map(why_not_shared, self._also)]
        if unseen:
            raise Unkeyable(unseen)
        signature, options, target = self.toolchain.identity()
        forms = {}
        for capture in discovery.arrays:
            form = self._signature(capture)
            layout = layouts.get(capture.place.key)
            forms[capture.place.key] = form if layout is None else form.general(layout)
        return key_of(discovery, signature=signature, options=options, target=target, forms=forms)

    def _signature(self, capture: Capture) -> Any:
        return self._form(capture.place.name, capture.value)

    def _form(self, name: str, array: Any) -> ArraySignature:
        return array_signature(array, self._policy(name, array))

    def _contents(self, discovery: Discovery, capture: Capture) -> bytes | None:
        """The contents of an array that may be compiled in; None for one that is captured by reference."""
        array = capture.value
        policy = self._policy(capture.place.name, array) if isinstance(array, np.ndarray) else "live"
        return contents_of(array) if may_be_compiled_in(array, policy, discovery.asks_for_constants) else None

    def _policy(self, name: str, array: Any) -> Policy:
        if is_device_array(array):  # mapped and managed arrays too, which are NumPy arrays as well
            return "live"
        return policy_of(array, name, self.policies, self.settings.host)

    def forms(self, variant: Variant, arrays: Sequence[Any]) -> list[ArraySignature] | None:
        """The forms of arrays that the code of a specialisation can take; None if it cannot take one of them."""
        forms = []
        for (use, place), array in zip(variant.arrays, arrays, strict=True):
            form = self.form(use, place, array)
            if form is None:
                return None
            forms.append(form)
        return forms

    def form(self, use: Use, place: Place, array: Any) -> ArraySignature | None:
        """The form of one array; None if code that uses it so cannot take it."""
        if not is_array(array):
            return None
        if not of_numba(array) or not array.dtype.isnative:
            refuse_unreadable(array, place.name, self.function)
        form = self._form(place.name, array)
        return form if use.signature.accepts(form) else None

    def _layouts(self, discovery: Discovery) -> dict[Hashable, Layout]:
        """Which places need a general slot, and of what layout."""
        if not self._variants:
            return {}
        known = [variant.arrays for variant in self._variants.values()]
        return general_layouts(known, [(one.place, self._signature(one)) for one in discovery.arrays])

    def _constants(self, discovery: Discovery) -> dict[Hashable, bytes]:
        """The contents of the arrays that may be compiled in, by the keys of their places."""
        return {
            capture.place.key: contents
            for capture in discovery.arrays
            if (contents := self._contents(discovery, capture)) is not None
        }

    def _token(
        self, discovery: Discovery, layouts: Mapping[Hashable, Layout], contents: Mapping[Hashable, bytes]
    ) -> Hashable:
        """What tells specialisations of this kernel apart, cheaply."""
        parts: list[Hashable] = []
        for capture in discovery.captures:
            if capture.kind == "array":
                form = self._signature(capture)
                layout = layouts.get(capture.place.key)
                parts.append((capture.place.key, form if layout is None else form.general(layout)))
                held = contents.get(capture.place.key)
                parts.append(None if held is None else (held, form))  # with their shape, which a slot may leave open
            elif followed(capture):
                parts.append((capture.place.key, value_token(capture)))
        return tuple(parts)

    def changing(self) -> CaptureError:
        """What to raise where the names never stay what they are while code is made for them."""
        return CaptureError(self._changing(discover(self.function, self._also)))

    def _changing(self, discovery: Discovery) -> str:
        now = discover(self.function, self._also)
        captures = discovery.captures
        changed = [one for one in captures if one.place.key in now.by_place and one.place.peek() is not one.value]
        named = next(iter(changed or [one for one in captures if one.kind == "array"] or captures))
        return CHANGING.format(
            name=named.place.name,
            kernel=self.function.__name__,
            count=ATTEMPTS,
            where=pointer(named.function, named.place.name),
        )

    def _warn_of_many_values(self, discovery: Discovery) -> None:
        for capture in discovery.captures:
            if capture.kind != "value":
                continue
            seen = self._values.setdefault(capture.place.key, set())
            seen.add(value_token(capture))
            if len(seen) == MANY_VALUES + 1:
                name = capture.place.name
                where = pointer(capture.function, name)
                text = MANY.format(name=name, kernel=self.function.__name__, count=len(seen), where=where)
                line = line_naming(capture.function.__code__, name)
                warn_at(capture.function, line, text, CapturePerformanceWarning)


def finish(code: Code, key: Key | None, reasons: Sequence[str], discovery: Discovery) -> None:
    """Make code shareable: recipes instead of places; or say why it stays private."""
    lost = []
    for use in code.uses:
        assert use.place is not None
        capture = discovery.by_place.get(use.place.key)
        use.name = use.place.name
        if capture is None:
            lost.append(f"`{use.name}` was found while compiling, on no path from the kernel")
        else:
            use.recipe = capture.recipe
    if key is None or lost or code.why_private:
        code.why_private = (*reasons, *lost, *code.why_private)
        return
    for use in code.uses:
        use.place = None
    code.key = key


CHANGING = """\
`{name}` was bound to something else, or edited, while kernel `{kernel}` was compiled for what it meant, {count} times.
  {where}
Bind the kernel before other threads change it (`cuda_captures.bind(...)`), or pass it as an argument."""

MANY = """\
`{name}` has had {count} values, and kernel `{kernel}` was compiled for each of them.
  {where}
Pass it as an argument, or capture a 0-d array (`{name} = np.array({name})`, read as `{name}[()]`), which is followed
without compiling."""
