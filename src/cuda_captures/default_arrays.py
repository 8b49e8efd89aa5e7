"""Arrays that are default values of parameters: compilers copy them into the code, and nobody looks at them again."""

from __future__ import annotations

import numpy as np

from cuda_captures.captures import Capture
from cuda_captures.discovery import Discovery
from cuda_captures.errors import CaptureWarning, pointer, warn_at


def warn_of_default_arrays(discovery: Discovery) -> None:
    """Warn of each array that is a default value and that somebody can edit, because no launch sees the edits."""
    for capture in discovery.fixed:
        if isinstance(capture.value, np.ndarray) and capture.value.flags.writeable:
            _warn(capture)


def _warn(capture: Capture) -> None:
    function = capture.function
    line = function.__code__.co_firstlineno
    text = DEFAULT.format(
        name=capture.place.name, function=function.__name__, where=pointer(function, function.__name__)
    )
    warn_at(function, line, text, CaptureWarning)


DEFAULT = """\
`{name}` is an array as a default value of `{function}`: its contents are compiled in, and edits of it are not seen.
  {where}
Name the array in the body instead of a parameter: it is captured by reference then, and followed. Or make it
read-only (`flags.writeable = False`), if it never changes."""
