"""Doing something as soon as a module has been imported, without importing it."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class Arrival(importlib.abc.MetaPathFinder):
    """A finder that lets others find a module, and calls something back once the module has been executed.

    It stands first on ``sys.meta_path`` from :meth:`wait` until the module has arrived or :meth:`forget`.  Whatever
    the callback raises, the import raises.
    """

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self.name = name
        self.callback = callback
        self._looking = False

    def wait(self) -> None:
        """Begin to wait."""
        sys.meta_path.insert(0, self)

    def forget(self) -> None:
        """Wait no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders have, with a loader that calls back."""
        if fullname != self.name or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader(importlib.abc.Loader):
    """Another loader, and a callback after it."""

    def __init__(self, loader: importlib.abc.Loader, arrival: Arrival) -> None:
        self._loader = loader
        self._arrival = arrival

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)  # resources and source are the other loader's

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """What the other loader makes."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module as the other loader does, then call back."""
        self._loader.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._arrival.forget()
        self._arrival.callback()
