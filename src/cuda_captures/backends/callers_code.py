"""What a backend makes for a caller that loads the code itself: code, and the slots that the caller has to fill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from cuda_captures.code import Use

Output = Literal["ptx", "ltoir", "cubin"]


@dataclass(frozen=True)
class CallersCode:
    """Code for a caller.

    Parameters
    ----------
    code
        PTX as text; LTO-IR or a cubin as bytes.  PTX and LTO-IR declare the slots; a cubin has them.
    entry
        Symbol of the kernel or of the device function.
    return_type
        The compiler's.
    uses
        The captured arrays.
    constant_bytes
        Constant memory that was asked for, in bytes.
    """

    code: str | bytes
    entry: str
    return_type: Any
    uses: tuple[Use, ...]
    constant_bytes: int


SEVERAL = """\
`{name}` is compiled to {count} PTX texts with debug=True, one for each function, and one was asked for.
Ask for output="cubin", or leave out `debug=True`."""
