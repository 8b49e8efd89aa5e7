"""What the process asked for with :func:`cuda_captures.enable`.

One immutable :class:`Settings` at a time.  It is replaced whole, under the lock of ``backends``, so that a launch in
another thread sees the old or the new one and never half of each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from cuda_captures.policy import Policy

HOST_POLICIES: tuple[str, ...] = ("live", "snapshot", "mapped", "constant")

NO_HOST_POLICY = "enable(host={host!r}): host must be one of {choice}"
NO_SWITCH = "enable({name}={value!r}): {name} must be True or False"


@dataclass(frozen=True)
class Settings:
    """The process's choice.

    Parameters
    ----------
    host
        Policy of NumPy arrays that neither a marker nor their kernel says anything about.
    follow
        Whether a rebound name is followed at the next launch.
    verify
        Whether every "unchanged" is checked against a digest of the bytes.
    peer
        Whether kernels may use captured device arrays of another device, where the two devices can.
    """

    host: Policy = "live"
    follow: bool = True
    verify: bool = False
    peer: bool = False

    def __post_init__(self) -> None:
        if self.host not in HOST_POLICIES:
            raise ValueError(NO_HOST_POLICY.format(host=self.host, choice=", ".join(map(repr, HOST_POLICIES))))
        for name in ("follow", "verify", "peer"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise TypeError(NO_SWITCH.format(name=name, value=value))


_current = Settings()


def current() -> Settings:
    """The settings in force."""
    return _current


def install(settings: Settings) -> Settings:
    """Put settings in force; returns those that were."""
    global _current
    before, _current = _current, settings
    return before


def changed(**changes: Any) -> Settings:
    """The settings in force with some of them changed."""
    return replace(_current, **changes)
