"""Kernels without a compiler, launched on a driver that lives in memory.

The toolchain here gives every captured array a slot and "compiles" to nothing; keys, specialisations, binding, device
copies, launching and what is said of them are the real ones.
"""

from __future__ import annotations

import linecache
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import FunctionType
from typing import Any

from cuda_captures import device
from cuda_captures.backends.inspection import Kernel as Inspected
from cuda_captures.backends.inspection import report_of
from cuda_captures.backends.launching import launch_with_copies, make_ready
from cuda_captures.binding import Follower
from cuda_captures.code import Code, Use
from cuda_captures.discovery import Discovery
from cuda_captures.instances import Instance
from cuda_captures.key import Key
from cuda_captures.ordering import LEGACY
from cuda_captures.report import CaptureReport
from cuda_captures.session import Session


def kernel_of(body: str, **names: Any) -> Any:
    """A function of one line whose names from outside are these."""
    namespace: dict[str, Any] = dict(names)
    exec(f"def kernel(out):\n    {body}\n", namespace)
    return namespace["kernel"]


def written(source: str, **names: Any) -> Any:
    """The function ``kernel`` of some source that messages can show."""
    filename = f"<source {abs(hash(source))}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    namespace: dict[str, Any] = dict(names)
    exec(compile(source, filename, "exec"), namespace)
    return namespace["kernel"]


class DeviceArray:
    """A device array as any library has one."""

    def __init__(self, address: int) -> None:
        self.__cuda_array_interface__ = {"shape": (4,), "typestr": "<f8", "data": (address, False), "version": 3}


class Toolchain:
    """Takes the place of a backend's.

    Parameters
    ----------
    written
        Names of the arrays that the kernel writes.
    disk
        Stands for the disk cache: code by digest; None for a kernel without one.
    """

    def __init__(self, written: Sequence[str] = (), disk: dict[str, Code] | None = None) -> None:
        self.lock = threading.RLock()
        self.written = written
        self.disk = disk
        self.compilations = 0

    apart = None
    lends = True

    def likeness(self) -> Hashable:
        return tuple(self.written)

    def identity(self) -> tuple[str, Mapping[str, Any], Mapping[str, Any]]:
        return "()", {"written": tuple(self.written)}, {"backend": "memory"}

    def unseen(self, discovery: Discovery) -> list[str]:
        return []

    def compile(self, session: Session) -> Code:
        self.compilations += 1
        uses, constant_bytes = [], 0
        for capture in session.discovery.arrays:
            captured = session.capture(capture.place, capture.value, capture.function)
            if captured.slot is None:
                constant_bytes += captured.nbytes
            else:
                written = captured.name in self.written
                uses.append(Use(captured.slot, captured.place, captured.signature, name=captured.name, written=written))
        return Code(tuple(uses), None, constant_bytes=constant_bytes)

    def load(self, code: Code, context: Any) -> Loaded:
        return Loaded(code)

    def fetch(self, key: Key) -> Code | None:
        return (self.disk or {}).get(key.digest)

    def store(self, code: Code) -> None:
        if self.disk is not None and code.key is not None:
            uses = tuple(Use(one.slot, None, one.signature, one.recipe, one.name, one.written) for one in code.uses)
            self.disk[code.key.digest] = Code(uses, None, code.key, source="disk")


class Loaded:
    apart = None

    def __init__(self, code: Code) -> None:
        self.code = code

    @property
    def launchable(self) -> Loaded:
        return self

    def fill(self, slots: Any) -> None:
        """Nothing is launched that would look at them."""

    def refill(self, slots: Any, stream: int) -> None:
        """Nothing is launched that would look at them."""


class Kernel:
    """A kernel for no arguments."""

    def __init__(
        self,
        function: FunctionType,
        written: Sequence[str] = (),
        captures: Any = None,
        disk: dict[str, Code] | None = None,
    ) -> None:
        self.function = function
        self.captures = captures
        self.toolchain = Toolchain(written, disk)
        self.follower = Follower(function, self.toolchain, captures)

    def launch(self, stream: int = 0, run: Callable[[], object] = lambda: None) -> None:
        """Launch; what the kernel does on the host meanwhile is ``run``."""
        context = device.current()
        follower = self.follower
        instance = follower.current(context) or follower.rebind(context, stream)
        if stream not in LEGACY:
            instance.launched_elsewhere(stream)
        launch_with_copies(
            instance, stream, None, lambda loaded: run(), lambda: follower.rebind(context, stream), self.function
        )

    def bind(self, stream: int = 0) -> None:
        """Do all that a launch does, but the launch."""
        context = device.current()
        make_ready(self.follower.rebind(context), stream, lambda: self.follower.rebind(context), self.function)

    @property
    def instance(self) -> Instance:
        """What the last launch in this context used, unless that was the first of a kernel with another one's code."""
        return self.follower._bound[id(device.current())]

    @property
    def copies(self) -> Sequence[Any]:
        """The device copies that the last launch in this context used."""
        lent = self.follower._lent
        return lent.copies if lent is not None else self.instance.copies

    def report(self) -> CaptureReport:
        disk = self.toolchain.disk
        keys = None if disk is None else [code.key for code in disk.values() if code.key is not None]
        return report_of(Inspected(self.function, self.captures, [("", self.follower)], keys))
