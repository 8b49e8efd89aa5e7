"""What a backend does for one kernel and one tuple of argument types."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

from cuda_captures.code import Code
from cuda_captures.discovery import Discovery
from cuda_captures.key import Key
from cuda_captures.session import Session


class Loaded(Protocol):
    """A module loaded into the current context."""

    @property
    def apart(self) -> Hashable:
        """Of the toolchain that loaded it."""

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

    @property
    def apart(self) -> Hashable:
        """What tells modules of the same code apart, because it is no part of the code; their own if nobody else's."""

    @property
    def lends(self) -> bool:
        """Whether kernels of the same code can launch each other's modules."""

    def likeness(self) -> Hashable:
        """Equal only where :meth:`identity` is and no launch matters; cheap.  None where only that can tell."""

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
