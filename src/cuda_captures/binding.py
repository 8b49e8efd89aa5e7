"""Binding compiled code to the arrays that a kernel's names mean now, and following the names from launch to launch.

``launch → do the names still mean the same? → module instance for (code, device, arrays) → launch``

A *module instance* is the compiled code loaded once more, with its own slots.  Its slots are filled when it is made
and not changed while it lives, so no launch in flight, and no captured graph, can see a pointer change; rebinding a
name takes another instance.  An instance holds what its slots point at.  Once nobody holds the instance, its module
may be filled anew for another one, see :mod:`cuda_captures.spares`.

Many kernels are launched once: those that a function makes each time it is called.  So a kernel whose code was there
already, another kernel's, has its first launch *on trial*: the module instance is let go of at once, for the next such
kernel, and small tables are sent without being watched.  With its second launch it gets what every kernel has.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from cuda_captures import device as cuda_device
from cuda_captures import mirrors
from cuda_captures.costs import warn_of_cost
from cuda_captures.discovery import Place, discover
from cuda_captures.errors import CaptureError
from cuda_captures.following import UNREADABLE, staying_predicate, unchanged_predicate
from cuda_captures.instances import Instance
from cuda_captures.ordering import LEGACY
from cuda_captures.signature import ArraySignature
from cuda_captures.specialising import ATTEMPTS, Specialisations
from cuda_captures.storage import may_have_producer
from cuda_captures.toolchain import Loaded, Toolchain
from cuda_captures.variants import Variant, roots
from cuda_captures.whereabouts import say_where, where_first_named, where_named

INSTANCES = 16  # module instances that a kernel keeps; the least recently used goes first
HELD_BYTES = 256 << 20  # of device arrays that they hold; the last two may hold more


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
        self.function = function
        self.toolchain = toolchain
        self.specialisations = Specialisations(function, toolchain, policies)
        self.launches = 0
        self._settings = self.specialisations.settings
        self._lock = self.specialisations.lock
        self._bound: dict[int, Instance] = {}  # by context
        self._instances: dict[Hashable, Instance] = {}  # the one used last at the end
        self._stays: tuple[Variant, list[Any]] | None = None  # what was captured first, where names are not followed
        self._tried = False  # whether there was a first launch, or a binding
        self._lent: Lent | None = None  # the copies that a launch on trial used

    def variant(self) -> Variant:
        """The specialisation for what the names mean now; compiled if there is none."""
        return self.specialisations.variant()

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

    def rebind(self, context: Any, stream: int | None = None, attempts: int = ATTEMPTS) -> Instance:
        """Read every name again, then find or make the module instance for what they mean now.

        Parameters
        ----------
        context
            The current context, as the backend knows it.
        stream
            Handle of the stream that the launch goes to, if there is a launch.
        attempts
            How often to try where other threads bind names to something else meanwhile.

        Raises
        ------
        NameError
            As Python would, where a captured name is gone.
        CaptureError
            Where an array cannot be bound, or names do not stay what they are; nothing is left half-bound.
        """
        with self._lock:
            variant, arrays, forms = self.specialisations.last, None, None
            if self._stays is not None:
                variant, arrays = self._stays
            elif variant is not None:
                arrays = variant.read_arrays()
            if variant is not None and arrays is not None:
                instance = self._known(context, variant, arrays)
                if instance is not None:
                    return instance
                forms = self.specialisations.forms(variant, arrays)
                if forms is None:
                    if self._stays is not None:
                        self._refuse_changed(variant, arrays)
                    arrays = None
            if stream is not None:
                refuse_in_graph(self.function, stream)
            if arrays is None:
                variant = self.specialisations.specialise()
                arrays = [place.read() for _, place in variant.arrays]
                instance = self._known(context, variant, arrays)
                if instance is not None:
                    return instance
                forms = self.specialisations.forms(variant, arrays)
                if forms is None:  # another thread has just bound a name to something else
                    if not attempts:
                        raise self.specialisations.changing()
                    return self.rebind(context, stream, attempts - 1)
            assert variant is not None
            assert forms is not None
            on_trial, self._tried = stream in LEGACY and self._may_try(variant), True
            spare = variant.spares.take(context, self.toolchain.apart) if stream in LEGACY else None
            if spare is not None and stream is not None:
                instance = self._bind(context, variant, arrays, forms, spare, stream, on_trial=on_trial)
            else:
                with cuda_device.relaxed_capture():
                    instance = self._bind(context, variant, arrays, forms, on_trial=on_trial)
            self._lent = Lent(instance.copies, self.function.__name__) if on_trial else None
            if on_trial:
                return instance
            self._instances[id(context), id(variant), *map(id, arrays)] = instance
            self._bound[id(context)] = instance
            self._let_go()
            return instance

    def forget_failed(self) -> None:
        """Let go of module instances that could not be loaded or filled; the next launch makes others."""
        with self._lock:
            for key, instance in list(self._instances.items()):
                if instance.launchable.failed:
                    instance.spares = None
                    del self._instances[key]
            for context, instance in list(self._bound.items()):
                if instance.launchable.failed:
                    del self._bound[context]

    def _may_try(self, variant: Variant) -> bool:
        """Whether this is the first launch of a kernel that another one's code serves."""
        if self._tried or not self._settings.follow or not self.toolchain.lends:
            return False
        return self.specialisations.sources.get(variant.code.number) == "process"

    def _let_go(self) -> None:
        """Forget the instances that were used longest ago, so that neither many nor large arrays are kept."""
        while len(self._instances) > INSTANCES:
            del self._instances[next(iter(self._instances))]
        held = sum(instance.held_bytes for instance in self._instances.values())
        for key, instance in list(self._instances.items())[:-2]:  # names often alternate between two arrays
            if held <= HELD_BYTES:
                break
            if instance.held_bytes and not any(instance is bound for bound in self._bound.values()):
                held -= instance.held_bytes
                del self._instances[key]

    def _known(self, context: Any, variant: Variant, arrays: Sequence[Any]) -> Instance | None:
        """The instance for these very arrays, if there is one."""
        key = (id(context), id(variant), *map(id, arrays))
        instance = self._instances.get(key)
        if instance is None:
            return None
        if instance.variant is not variant or not instance.serves(arrays) or not _unchanged(instance):
            del self._instances[key]
            return None
        self._instances[key] = self._instances.pop(key)
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
        on_trial: bool = False,
    ) -> Instance:
        here = cuda_device.current()
        device = here.device
        copies: dict[int, mirrors.Mirror] = {}
        written, held, producers, slots = [], [], [], []
        held_bytes = 0
        for (use, place), array, form in zip(variant.arrays, arrays, forms, strict=True):
            if form.memory == "host":
                try:
                    mirror = mirrors.acquire(
                        array,
                        device,
                        policy=use.signature.policy,
                        verify=self._settings.verify,
                        watched=not on_trial,
                    )
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
                held_bytes += math.prod(form.shape or ()) * form.dtype.itemsize
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
            filled = None if on_trial else here.record(stream)  # that is launched here and nowhere else
        if on_trial:
            unchanged = _never
        elif self._settings.follow:
            names = [*variant.frozen, *roots(variant.arrays, arrays)]
            parts = [array for (_, place), array in zip(variant.arrays, arrays, strict=True) if place.root is not place]
            constants = [(one.place, one.contents, one.holds) for one in variant.constants]
            unchanged = unchanged_predicate(names, constants, parts)
        else:
            self._stays = variant, list(arrays)  # whoever else lets go of them
            places = [place for _, place in variant.arrays]
            unchanged = staying_predicate(list(zip(places, arrays, strict=True)), self._refuse_moved)
        kernel = loaded.launchable
        instance = Instance(
            *(context, variant, kernel, list(copies.values()), written, held, producers, arrays, unchanged),
            held_bytes=held_bytes,
            spares=variant.spares,
            filled=filled,
        )
        for mirror in () if on_trial else copies.values():
            mirror.users.note(instance, self.function.__name__)
        return instance

    def _refuse_changed(self, variant: Variant, arrays: Sequence[Any]) -> None:
        for (use, place), array in zip(variant.arrays, arrays, strict=True):
            if self.specialisations.form(use, place, array) is None:
                self._refuse_moved(place)

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


def refuse_in_graph(function: Any, stream: int) -> None:
    """Refuse to compile, load or fill a kernel that captures arrays for a launch that goes into a graph.

    Parameters
    ----------
    function
        The kernel's Python function.
    stream
        Handle of the launch's stream.

    Raises
    ------
    CaptureError
        Before anything was done that the capture would not survive.
    """
    if cuda_device.is_capturing(stream) and discover(function).arrays:
        raise CaptureError(UNBOUND.format(kernel=function.__name__, where=where_first_named(function)))


def _never() -> bool:
    """What an instance on trial says of its names: nobody asks again."""
    return False


class Lent:
    """The device copies that a launch on trial used: they stay as long as the kernel has them to itself.

    Made and dropped by its :class:`Follower`, under that one's lock.
    """

    def __init__(self, copies: Sequence[Any], user: str) -> None:
        self.copies = copies
        for mirror in copies:
            mirror.users.note(self, user)


def _unchanged(instance: Instance) -> bool:
    try:
        return instance.unchanged()
    except UNREADABLE:
        return False


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
