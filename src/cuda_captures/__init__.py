"""CUDA kernels written in Python capture global and closure arrays by reference.

One line, ``cuda_captures.enable()``, and a name that a kernel captures means at launch what it means in Python.
"""

from __future__ import annotations

from cuda_captures.control import bind as bind
from cuda_captures.control import disable as disable
from cuda_captures.control import enable as enable
from cuda_captures.control import enabled as enabled
from cuda_captures.control import explain as explain
from cuda_captures.control import memory as memory
from cuda_captures.control import refresh as refresh
from cuda_captures.control import report as report
from cuda_captures.errors import CaptureError as CaptureError
from cuda_captures.errors import CapturePerformanceWarning as CapturePerformanceWarning
from cuda_captures.errors import CaptureTypingError as CaptureTypingError
from cuda_captures.errors import CaptureVersionError as CaptureVersionError
from cuda_captures.errors import CaptureWarning as CaptureWarning
from cuda_captures.policy import constant as constant
from cuda_captures.policy import live as live
from cuda_captures.policy import mapped as mapped
from cuda_captures.policy import snapshot as snapshot
from cuda_captures.slot_binding import SlotBinding as SlotBinding
from cuda_captures.slotted import SlotInfo as SlotInfo
from cuda_captures.slotted import SlottedCode as SlottedCode
from cuda_captures.slotted import compile_with_slots as compile_with_slots
from cuda_captures.startup import enable_if_asked as _enable_if_asked

__version__ = "0.1.0"

__all__ = [
    "CaptureError",
    "CapturePerformanceWarning",
    "CaptureTypingError",
    "CaptureVersionError",
    "CaptureWarning",
    "SlotBinding",
    "SlotInfo",
    "SlottedCode",
    "bind",
    "compile_with_slots",
    "constant",
    "disable",
    "enable",
    "enabled",
    "explain",
    "live",
    "mapped",
    "memory",
    "refresh",
    "report",
    "snapshot",
]

_enable_if_asked()
