"""Binding compiled code to the arrays that a kernel's names mean now, and following the names from launch to launch.

``launch → do the names still mean the same? → module instance for (code, device, arrays) → launch``

A *module instance* is the compiled code loaded once more, with its own slots.  Its slots are filled when it is made
and not changed while it lives, so no launch in flight, and no captured graph, can see a pointer change; rebinding a
name takes another instance.  An instance holds what its slots point at.  Once nobody holds the instance, its module
may be filled anew for another one, see :mod:`cuda_captures.spares`.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Protocol

import numpy as np

from cuda_captures import device as cuda_device
from cuda_captures import mirrors
from cuda_captures.code import Code, CodeTable, Use
from cuda_captures.copies import WRITTEN_IN_GRAPH
from cuda_captures.costs import warn_of_cost
from cuda_captures.discovery import MISSING, Capture, Discovery, Place, discover, is_device_array
from cuda_captures.errors import CaptureError, CapturePerformanceWarning, about, line_naming, pointer, warn_at
from cuda_captures.extents import extent
from cuda_captures.following import staying_predicate, unchanged_predicate
from cuda_captures.key import ArraySignature, Key, Unkeyable, array_signature, key_of
from cuda_captures.ordering import LEGACY, wait_for_producer
from cuda_captures.policy import Policy, check_policies, policy_of
from cuda_captures.seen_functions import why_not_shared
from cuda_captures.session import CONSTANT_LIMIT, Session, is_array, refuse_unreadable
from cuda_captures.settings import current as settings
from cuda_captures.signature import Layout
from cuda_captures.spares import Spares
from cuda_captures.storage import may_have_producer, of_numba, producer_stream
from cuda_captures.whereabouts import say_where, where_first_named, where_named

INSTANCES = 16  # module instances that a kernel keeps; the least recently used goes first
VARIANTS = 64  # meanings of its names that a kernel remembers; the code for others is found again by its key
MANY_VALUES = 8  # specialisations for values of one name, after which a warning names it

# What the predicate raises for an emptied closure cell, and for a constant that is no array any more.  Reading the
# names one by one then raises what Python does.
UNREADABLE = (ValueError, AttributeError)

CODES = CodeTable()

# Module instances that graphs launch.  Nobody tells when a graph is gone, and replaying one whose module has been
# unloaded is a crash.  Only ever added to, by launches.
IN_GRAPHS: list[Instance] = []


class Loaded(Protocol):
    """A module loaded into the current context."""

    @property
    def launchable(self) -> Any:
        """The backend's kernel."""

    def fill(self, slots: Sequence[tuple[str, bytes]]) -> None:
        """Write the slots, each by its symbol, before the first launch."""

    def refill(self, slots: Sequence[tuple[str, bytes]], stream: int) -> None:
        """Enqueue writing them again on a stream."""


class Toolchain(Protocol):
    """What a backend does for one kernel and one tuple of argument types."""

    @property
    def lock(self) -> Any:
        """The compiler's own lock, which may be taken again by the thread that has it."""

    def identity(self) -> tuple[str, Mapping[str, Any], Mapping[str, Any]]:
        """Signature, options and target, for the key; raises Unkeyable."""

    def unseen(self, discovery: Discovery) -> list[str]:
        """What else the code depends on, that the key cannot see: reasons, each with a name."""

    def compile(self, session: Session) -> Code:
        """Compile for what the names mean now."""

    def load(self, code: Code, context: Any) -> Loaded:
        """Load code into the current context once more."""

    def fetch(self, key: Key) -> Code | None:
        """The code of a key from the disk cache."""

    def store(self, code: Code) -> None:
        """Put code into the disk cache."""


@dataclass(eq=False)
class Variant:
    """One specialisation: code, and what the names that are no slots meant when it was compiled.

    Parameters
    ----------
    frozen
        Places with the objects they held: scalars, functions, modules, tuples.  They are held here, so that an
        identity test can never be fooled by another object at the same address.
    arrays
        The captured arrays, each with its place.
    constants
        Arrays whose contents were compiled in, as they were then.
    """

    code: Code
    frozen: tuple[tuple[Place, Any], ...]
    arrays: tuple[tuple[Use, Place], ...]
    constants: tuple[Constant, ...] = ()

    def read_arrays(self) -> list[Any] | None:
        """What the names of arrays mean now; None if another name means something that the code was not made for."""
        for place, value in self.frozen:
            now = place.peek()
            if now is not value:
                if now is MISSING:
                    place.read()  # raises what Python does
                return None
        if not all(constant.holds() for constant in self.constants):
            return None
        return [place.read() for _, place in self.arrays]


@dataclass(eq=False)
class Constant:
    """An array whose contents may be compiled in: at most as large as constant memory.

    Parameters
    ----------
    place
        Where it is.
    form
        What it was like, and under which policy.
    contents
        The bytes of its elements then.
    signature
        Gives the form that a name's array has now.
    """

    place: Place
    form: ArraySignature
    contents: bytes
    signature: Callable[[str, Any], ArraySignature]

    def holds(self) -> bool:
        """Whether the array of this name still has the contents that were compiled in."""
        array = self.place.read()
        if not isinstance(array, np.ndarray) or self.signature(self.place.name, array) != self.form:
            return False
        return array.tobytes() == self.contents


class Instance:
    """A loaded module whose slots are filled, and what they point at.

    Parameters
    ----------
    context, variant
        What it was made in and for; held, so that their identities stay theirs.
    launchable
        The backend's kernel.
    copies
        Device copies of NumPy arrays, each once.
    written
        Copies that the kernel writes, each with its array.
    held
        Device arrays.
    producers
        Device arrays whose library works on a stream of its own.

    Notes
    -----
    What it is bound to never changes, so any thread may use it.  The loaded module and the copies go when the last
    launch that holds the instance is over and the kernel's table has let go of it; a module that was launched on
    nothing but the legacy default stream then becomes a spare one.
    """

    __slots__ = (
        "__weakref__",
        "arrays",
        "context",
        "copies",
        "elsewhere",
        "filled",
        "held",
        "in_graph",
        "launchable",
        "plain",
        "producers",
        "spares",
        "unchanged",
        "variant",
        "writes",
        "written",
    )

    def __init__(
        self,
        context: Any,
        variant: Variant,
        launchable: Any,
        copies: Sequence[mirrors.Mirror],
        written: Sequence[tuple[mirrors.Mirror, np.ndarray[Any, Any]]],
        held: Sequence[Any],
        producers: Sequence[Any],
        arrays: Sequence[Any],
        unchanged: Callable[[], bool],
        spares: Spares | None = None,
        filled: cuda_device.Event | None = None,
    ) -> None:
        self.spares: Spares | None = None
        self.elsewhere = self.in_graph = False
        self.filled = filled
        self.context = context
        self.variant = variant
        self.launchable = launchable
        self.copies = tuple(copies)
        self.written = tuple((mirror, weakref.ref(array)) for mirror, array in written)
        self.writes = tuple({id(mirror): mirror for mirror, _ in written}.values())
        self.held = tuple(held)
        self.producers = tuple(producers)
        self.arrays = tuple(weakref.ref(array) if isinstance(array, np.ndarray) else None for array in arrays)
        self.unchanged = unchanged
        self.plain = not self.copies and not self.producers
        self.spares = spares

    def __del__(self) -> None:
        if self.spares is not None and not self.elsewhere:
            self.spares.give(self.context, self.variant.code, self.launchable)

    def launched_elsewhere(self, stream: int) -> None:
        """Make ready for a launch on another stream than the legacy default one.

        It must come after the slots were filled; and if it goes into a graph, which may be replayed when the kernel
        is gone, the instance stays for the life of the process.
        """
        self.elsewhere = True
        if self.in_graph and self.filled is None:
            return
        capturing = cuda_device.is_capturing(stream)
        if capturing and not self.in_graph:
            self.in_graph = True
            IN_GRAPHS.append(self)
        filled = self.filled
        if filled is None:
            return
        with cuda_device.relaxed_capture():
            if filled.done():
                self.filled = None
            elif capturing:
                filled.synchronize()  # a graph cannot wait for what is outside of it
            else:
                filled.hold(stream)

    def ready(self, stream: int) -> bool:
        """Bring the copies up to date for a launch on a stream; False if the instance must be replaced first.

        Raises
        ------
        CaptureError
            If something could not be sent, or the stream is capturing and something would have to be copied back.
        """
        if self.written and stream not in LEGACY and cuda_device.is_capturing(stream):
            self._refuse_in_graph()
        for mirror in self.copies:
            if mirror.superseded:
                return False
            mirror.refresh(stream, writes=mirror in self.writes)
        for array in self.producers:
            producer = producer_stream(array)
            if producer is not None:
                wait_for_producer(producer, stream)
        return not any(mirror.superseded for mirror in self.copies)

    def _refuse_in_graph(self) -> None:
        for mirror, reference in self.written:
            array = reference()
            if array is not None and mirror.policy != "mapped":
                raise about(extent(array)[0], CaptureError(WRITTEN_IN_GRAPH))

    def launched(self, stream: int, owner: Any) -> None:
        """Note that a launch on a stream uses the copies."""
        for mirror in self.copies:
            mirror.used(stream, owner, writes=self._written_in(mirror))

    def _written_in(self, mirror: mirrors.Mirror) -> Sequence[np.ndarray[Any, Any]]:
        if not self.written:
            return ()
        return [array for one, reference in self.written if one is mirror and (array := reference()) is not None]

    def copy_back(self, stream: int, owner: Any) -> None:
        """Put what the kernel wrote into the NumPy arrays; waits for the stream if there is any."""
        for mirror, reference in self.written:
            array = reference()
            if array is not None:
                mirror.copy_back(array, stream, owner)

    def copied(self) -> list[tuple[Place, np.ndarray[Any, Any], mirrors.Mirror]]:
        """The captured NumPy arrays that are still there, each with its place and its device copy."""
        found = []
        for (_, place), reference in zip(self.variant.arrays, self.arrays, strict=True):
            array = reference() if reference is not None else None
            if array is not None:
                found += [(place, array, copy) for copy in self.copies if copy.covers(extent(array))]
        return found

    def serves(self, arrays: Sequence[Any]) -> bool:
        """Whether this instance was made for these very arrays, and its copies of them are current."""
        for array, reference in zip(arrays, self.arrays, strict=True):
            if reference is not None and reference() is not array:
                return False
        return not any(mirror.superseded for mirror in self.copies)


class Follower:
    """One kernel and one tuple of argument types: its specialisations and its module instances.

    Parameters
    ----------
    function
        The kernel's Python function.
    toolchain
        The backend's part.
    policies
        The kernel's ``captures=`` option.

    Notes
    -----
    Any thread may launch.  The common case, nothing changed, takes no lock; everything else holds this object's.
    It goes with its kernel; instances go with it, unless a launch still holds one.
    """

    def __init__(self, function: Any, toolchain: Toolchain, policies: str | Mapping[str, str] | None) -> None:
        check_policies(policies)
        self.function = function
        self.toolchain = toolchain
        self.policies = policies
        self._settings = settings()
        self._lock = threading.RLock()
        self._variants: OrderedDict[Hashable, Variant] = OrderedDict()
        self._codes: dict[str, Code] = {}
        self._current: Variant | None = None
        self._bound: dict[int, Instance] = {}  # by context
        self._instances: OrderedDict[Hashable, Instance] = OrderedDict()
        self._values: dict[Hashable, set[Hashable]] = {}
        self._pinned: list[Any] = []
        self._also: list[FunctionType] = []  # what only compiling has come to, such as implementations of overloads
        self._spares = Spares()
        self.launches = 0
        self.kept = 0  # times that a new meaning of the names had its specialisation already
        self.sources: weakref.WeakKeyDictionary[Code, str] = weakref.WeakKeyDictionary()

    # specialisations

    def variant(self) -> Variant:
        """The specialisation for what the names mean now; compiled if there is none."""
        with self._lock:
            return self._specialise()

    def adopt(self, code: Code, discovery: Discovery | None = None) -> Variant:
        """Take code that the disk cache had as the specialisation for what the names mean now."""
        with self._lock:
            discovery = discovery or discover(self.function)
            layouts = self._layouts(discovery)
            self.sources.setdefault(code, code.source)
            return self._add(self._token(discovery, layouts), code, discovery)

    @property
    def codes(self) -> tuple[Code, ...]:
        """The code of all specialisations, each once, in the order of their making."""
        with self._lock:
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

    def _specialise(self) -> Variant:
        discovery = discover(self.function, self._also)
        layouts = self._layouts(discovery)
        token = self._token(discovery, layouts)
        variant = self._variants.get(token)
        if variant is not None:
            self._variants.move_to_end(token)
            self.kept += 1
            variant.frozen = frozen_of(discovery, variant.arrays)  # equal ones may be other objects now
        else:
            known = len(self._also)
            code = self._code(discovery, layouts)
            if len(self._also) > known:
                discovery = discover(self.function, self._also)
                token = self._token(discovery, layouts)
            variant = self._add(token, code, discovery)
            self._warn_of_many_values(discovery)
        self._current = variant
        return variant

    def _add(self, token: Hashable, code: Code, discovery: Discovery) -> Variant:
        arrays = tuple((use, use.place_for(self.function)) for use in code.uses)
        constants = tuple(
            Constant(capture.place, self._signature(capture), contents, self._form)
            for capture in discovery.arrays
            if (contents := self._contents(discovery, capture)) is not None
        )
        variant = Variant(code, frozen_of(discovery, arrays), arrays, constants)
        self._variants[token] = variant
        while len(self._variants) > VARIANTS:
            self._variants.popitem(last=False)
        if code.key is not None:
            self._codes[code.key.digest] = code  # kept: coming back to a value compiles nothing
        self._current = variant
        return variant

    def _code(self, discovery: Discovery, layouts: Mapping[Hashable, Layout]) -> Code:
        """The code for what the names mean now: another kernel's, the disk cache's, or compiled."""
        try:
            key = self._key(discovery, layouts)
        except Unkeyable as unkeyable:
            code = self._compile(discovery, layouts)
            finish(code, None, unkeyable.reasons, discovery)
            self.sources[code] = "compiled"
            return code
        shared = CODES.get(key)
        if shared is not None:
            self.sources.setdefault(shared, "process")
            return shared
        with self.toolchain.lock:
            found = CODES.get(key)
            source = "process" if found is not None else "disk"
            found = found or self.toolchain.fetch(key)
            if found is not None:
                code = found
            else:
                source = "compiled"
                code = self._compile(discovery, layouts)
                finish(code, key, (), discovery)
                if code.key is not None:
                    self.toolchain.store(code)
            if code.key is not None and not code.single:
                CODES.add(code)
            self.sources.setdefault(code, source)
        return code

    def _compile(self, discovery: Discovery, layouts: Mapping[Hashable, Layout]) -> Code:
        session = self._session(discovery, layouts)
        code = self.toolchain.compile(session)
        if session.seen.others:  # found by nothing else; followed from now on
            self._also += session.seen.others
            code.why_private = (*code.why_private, *map(why_not_shared, session.seen.others))
        return code

    def _session(self, discovery: Discovery, layouts: Mapping[Hashable, Layout]) -> Session:
        return Session(discovery, self.policies, self._settings.host, layouts)

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
        if not isinstance(array, np.ndarray) or array.nbytes > CONSTANT_LIMIT or array.dtype.hasobject:
            return None
        if discovery.asks_for_constants or self._policy(capture.place.name, array) == "constant":
            return array.tobytes()
        return None

    def _policy(self, name: str, array: Any) -> Policy:
        if is_device_array(array):  # mapped and managed arrays too, which are NumPy arrays as well
            return "live"
        return policy_of(array, name, self.policies, self._settings.host)

    def _forms(self, variant: Variant, arrays: Sequence[Any]) -> list[ArraySignature] | None:
        """The forms of arrays that the code of a specialisation can take; None if it cannot take one of them."""
        forms = []
        for (use, place), array in zip(variant.arrays, arrays, strict=True):
            if not is_array(array):
                return None
            if not of_numba(array) or not array.dtype.isnative:
                refuse_unreadable(array, place.name, self.function)
            form = self._form(place.name, array)
            if not use.signature.accepts(form):
                return None
            forms.append(form)
        return forms

    def _layouts(self, discovery: Discovery) -> dict[Hashable, Layout]:
        """Which places need a general slot: those whose shape or strides have been seen to change."""
        layouts: dict[Hashable, Layout] = {}
        if not self._variants:
            return layouts
        known = [(use, place.key) for variant in self._variants.values() for use, place in variant.arrays]
        for capture in discovery.arrays:
            now = self._signature(capture)
            for use, key in known:
                if key != capture.place.key or not use.signature.same_kind(now):
                    continue
                if use.slot.general or not use.signature.accepts(now):
                    before = layouts.get(key, now.layout)
                    layouts[key] = before if before == use.signature.layout else "A"
        return layouts

    def _token(self, discovery: Discovery, layouts: Mapping[Hashable, Layout]) -> Hashable:
        """What tells specialisations of this kernel apart, cheaply."""
        parts: list[Hashable] = []
        for capture in discovery.captures:
            if capture.kind == "array":
                form = self._signature(capture)
                layout = layouts.get(capture.place.key)
                parts.append((capture.place.key, form if layout is None else form.general(layout)))
                parts.append(self._contents(discovery, capture))
            elif followed(capture):
                parts.append((capture.place.key, value_token(capture)))
        return tuple(parts)

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

    # instances

    def current(self, context: Any) -> Instance | None:
        """The module instance of the last launch in a context, if no name means anything else now.

        Otherwise :meth:`rebind` must follow.
        """
        self.launches += 1
        instance = self._bound.get(id(context))
        if instance is not None:
            try:
                if instance.unchanged():
                    return instance
            except UNREADABLE:
                pass
        return None

    def rebind(self, context: Any, stream: int | None = None) -> Instance:
        """Read every name again, then find or make the module instance for what they mean now.

        Parameters
        ----------
        context
            The current context, as the backend knows it.
        stream
            Handle of the stream that the launch goes to, if there is a launch.

        Raises
        ------
        NameError
            As Python would, where a captured name is gone.
        CaptureError
            Where an array cannot be bound; nothing is left half-bound.
        """
        with self._lock:
            variant, arrays, forms = self._current, None, None
            if variant is not None:
                arrays = variant.read_arrays()
                if arrays is not None:
                    instance = self._known(context, variant, arrays)
                    if instance is not None:
                        return instance
                    forms = self._forms(variant, arrays)
                    if forms is None:
                        arrays = None
            if stream is not None and cuda_device.is_capturing(stream):
                raise CaptureError(
                    UNBOUND.format(kernel=self.function.__name__, where=where_first_named(self.function))
                )
            if arrays is None:
                variant = self._specialise()
                arrays = [place.read() for _, place in variant.arrays]
                instance = self._known(context, variant, arrays)
                if instance is not None:
                    return instance
                forms = self._forms(variant, arrays)
                if forms is None:  # another thread has just bound a name to something else
                    return self.rebind(context, stream)
            assert variant is not None
            assert forms is not None
            spare = self._spares.take(context, variant.code) if stream in LEGACY else None
            if spare is not None and stream is not None:
                instance = self._bind(context, variant, arrays, forms, spare, stream)
            else:
                with cuda_device.relaxed_capture():
                    instance = self._bind(context, variant, arrays, forms)
            self._instances[id(context), id(variant), *map(id, arrays)] = instance
            while len(self._instances) > INSTANCES:
                self._instances.popitem(last=False)
            self._bound[id(context)] = instance
            return instance

    def _known(self, context: Any, variant: Variant, arrays: Sequence[Any]) -> Instance | None:
        """The instance for these very arrays, if there is one."""
        key = (id(context), id(variant), *map(id, arrays))
        instance = self._instances.get(key)
        if instance is None:
            return None
        if instance.variant is not variant or not instance.serves(arrays) or not _unchanged(instance):
            del self._instances[key]
            return None
        self._instances.move_to_end(key)
        self._bound[id(context)] = instance
        return instance

    def _bind(
        self,
        context: Any,
        variant: Variant,
        arrays: Sequence[Any],
        forms: Sequence[ArraySignature],
        spare: Loaded | None = None,
        stream: int = 0,
    ) -> Instance:
        here = cuda_device.current()
        device = here.device
        copies: dict[int, mirrors.Mirror] = {}
        written, held, producers, slots = [], [], [], []
        for (use, place), array, form in zip(variant.arrays, arrays, forms, strict=True):
            if form.memory == "host":
                try:
                    mirror = mirrors.acquire(array, device, policy=use.signature.policy, verify=self._settings.verify)
                    address = mirror.address_of(array)
                except CaptureError as error:
                    say_where(error, self.function, place)
                    raise
                copies[id(mirror)] = mirror
                warn_of_cost(mirror, array, self.function, place, use.written)
                if use.written:
                    written.append((mirror, array))
            else:
                held.append(array)
                interface = array.__cuda_array_interface__
                address = int(interface["data"][0] or 0)
                if may_have_producer(array, interface):
                    producers.append(array)
                self._refuse_other_device(address, place, device)
            slots.append((use.slot.symbol, use.slot.pack(address, form.shape or (), form.strides or ())))
        if spare is None:
            filled = None
            loaded = self.toolchain.load(variant.code, context)
            loaded.fill(slots)
        else:
            loaded = spare
            loaded.refill(slots, stream)
            filled = here.record(stream)
        if self._settings.follow:
            names = [*variant.frozen, *roots(variant.arrays, arrays)]
            parts = [array for (_, place), array in zip(variant.arrays, arrays, strict=True) if place.root is not place]
            unchanged = unchanged_predicate(names, [(one.place, one.contents) for one in variant.constants], parts)
        else:
            self._pinned.extend(arrays)  # what was captured first stays, whoever else lets go of it
            places = [place for _, place in variant.arrays]
            unchanged = staying_predicate(list(zip(places, arrays, strict=True)), self._refuse_moved)
        kernel = loaded.launchable
        instance = Instance(
            *(context, variant, kernel, list(copies.values()), written, held, producers, arrays, unchanged),
            spares=self._spares,
            filled=filled,
        )
        for mirror in copies.values():
            mirror.users[instance] = self.function.__name__
        return instance

    def _refuse_moved(self, place: Place) -> None:
        raise CaptureError(
            MOVED.format(name=place.name, kernel=self.function.__name__, where=where_named(self.function, place))
        )

    def _refuse_other_device(self, address: int, place: Place, device: int) -> None:
        if not address or cuda_device.ordinal_of(address) == device:
            return
        home = cuda_device.pointer_device(address)
        if home is None or home == device:
            return
        if self._settings.peer and cuda_device.enable_peer_access(device, home):
            return
        raise CaptureError(
            OTHER_DEVICE.format(
                name=place.name,
                kernel=self.function.__name__,
                where=where_named(self.function, place),
                home=home,
                device=device,
                peer=(NO_PEER if self._settings.peer else ASK_FOR_PEER).format(home=home, device=device),
            )
        )


def array_shape(array: Any) -> tuple[int, ...]:
    """Shape of a NumPy or device array."""
    if isinstance(array, np.ndarray):
        return tuple(array.shape)
    return tuple(map(int, array.__cuda_array_interface__["shape"]))


def _unchanged(instance: Instance) -> bool:
    try:
        return instance.unchanged()
    except UNREADABLE:
        return False


def followed(capture: Capture) -> bool:
    """Whether a launch looks again at what a captured name means.

    Attributes of library modules are not followed: they are taken to stay what their version says.
    """
    return capture.kind != "array" and not (capture.kind == "library" and capture.place.is_attribute)


def frozen_of(discovery: Discovery, arrays: Sequence[tuple[Use, Place]]) -> tuple[tuple[Place, Any], ...]:
    """Places with what they hold that the code was compiled from, each once; a tuple stands for its items."""
    bare = {place.key for _, place in arrays if place.root is place}
    found: dict[Hashable, tuple[Place, Any]] = {}
    for capture in discovery.captures:
        root = capture.place.root
        if root.key in bare or (capture.kind == "array" and root is capture.place):
            continue
        if followed(capture) or root is not capture.place:
            found.setdefault(root.key, (root, root.peek()))
    return tuple(found.values())


def roots(arrays: Sequence[tuple[Use, Place]], values: Sequence[Any]) -> list[tuple[Place, Any]]:
    """Bare arrays, each place once; those inside tuples are covered by their tuple."""
    found = {place.key: (place, value) for (_, place), value in zip(arrays, values, strict=True) if place.root is place}
    return list(found.values())


def value_token(capture: Capture) -> Hashable:
    """A hashable that is equal for meanings for which the same code is right.

    Values by their text, which tells types, signs of zeros and bits of NaNs apart; tuples and objects by their
    class, as what is in them are captures of their own; others by identity, which is safe while a specialisation
    holds them.
    """
    if capture.kind in ("value", "library"):
        return capture.text
    if capture.kind == "tuple":
        return type(capture.value), len(capture.value)
    if capture.kind == "object" and not isinstance(capture.value, type):
        return (type(capture.value),)
    return type(capture.value), id(capture.value)


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


MANY = """\
`{name}` has had {count} values, and kernel `{kernel}` was compiled for each of them.
  {where}
Pass it as an argument, or capture a 0-d array (`{name} = np.array({name})`, read as `{name}[()]`), which is followed
without compiling."""

UNBOUND = """\
kernel `{kernel}` is launched on a stream that is being captured into a graph, and its captured arrays are not bound.
  {where}
Bind it before the capture begins: `cuda_captures.bind({kernel}[griddim, blockdim], *args)`."""

MOVED = """\
`{name}`, which kernel `{kernel}` captures, has got other memory, shape or dtype in place since it was captured, and
names are not followed here (`follow=False`).
  {where}
Follow them, `cuda_captures.enable()`, or capture an array that keeps its memory."""

OTHER_DEVICE = """\
`{name}`, which kernel `{kernel}` captures, is on device {home}, and the launch is on device {device}.
  {where}
Launch there (`with cuda.gpus[{home}]: ...`), or bind the name to a copy on device {device}{peer}"""

ASK_FOR_PEER = """,
or let devices use each other's memory: `cuda_captures.enable(peer=True)`."""

NO_PEER = """.
Device {device} cannot use memory of device {home}, as `enable(peer=True)` asks for."""
