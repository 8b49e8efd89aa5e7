"""What is known of a value without running the program."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from cuda_captures.check.scopes import Scope

Kind = Literal["host", "device", "scalar", "tuple", "container", "object", "code", "none", "dtype", "unknown"]


@dataclass(frozen=True)
class Value:
    """One thing that an expression may give.

    Parameters
    ----------
    kind
        ``"host"``: a NumPy array; ``"device"``: an array in device memory; ``"container"``: a list, dictionary or
        set; ``"object"``: an instance of a class; ``"code"``: a function, class or module; ``"none"``: ``None``.
    what
        For people: ``"NumPy array"``, ``"CuPy array"``, ``"list"``.
    shape
        Of an array; None if it is not known.
    dtype
        Of an array; None if it is not known.
    items
        Of a tuple; None if they are not known.
    number
        Value of a scalar, if it is written down.
    literal
        Whether it is written down as it is: then it changes only with the file.
    marked
        Policy of an array that was marked for captures.
    node, scope
        Where it was made.
    guessed
        Whether a rule of thumb was needed.
    """

    kind: Kind
    what: str = ""
    shape: tuple[int | None, ...] | None = None
    dtype: np.dtype[np.generic] | None = None
    items: tuple[tuple[Value, ...], ...] | None = None
    number: float | int | str | None = None
    literal: bool = False
    marked: str = ""
    node: ast.AST | None = None
    scope: Scope | None = None
    guessed: bool = False

    @property
    def is_array(self) -> bool:
        return self.kind in ("host", "device")

    @property
    def nbytes(self) -> int | None:
        """Bytes of an array; None if they are not known."""
        if self.shape is None or self.dtype is None or any(extent is None for extent in self.shape):
            return None
        return math.prod(extent or 0 for extent in self.shape) * self.dtype.itemsize

    def but(self, **changes: object) -> Value:
        """The same with some changes."""
        return replace(self, **changes)  # type: ignore[arg-type]


UNKNOWN = Value("unknown")
Values = tuple[Value, ...]  # what an expression may give, one of them


def scalar(number: float | int | str | bool | None = None, literal: bool = False) -> Value:
    """A number, truth value or string."""
    what = "string" if isinstance(number, str) else "scalar"
    return Value("scalar", what, number=number, literal=literal)


def host(shape: tuple[int | None, ...] | None = None, dtype: np.dtype[np.generic] | None = None) -> Value:
    """A NumPy array."""
    return Value("host", "NumPy array", shape, dtype)
