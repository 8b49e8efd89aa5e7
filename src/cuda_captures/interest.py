"""What one watch asks of the book of pages, and what others have to tell it."""

from __future__ import annotations

from cuda_captures.pages import Scan
from cuda_captures.spans import Spans


class Interest:
    """The pages that one watch asks about.

    Attributes
    ----------
    low, high
        Addresses of the first page, and of the one after the last.
    scan
        Of these pages.
    told
        What others found written among them, and this watch does not know yet.
    near
        Those interests that share pages with this one.
    refused
        Why these pages must not be watched any longer; empty as long as they may.

    Notes
    -----
    Everything in it belongs to the holder of the book's lock.
    """

    __slots__ = ("high", "low", "near", "refused", "scan", "told")

    def __init__(self, low: int, high: int, scan: Scan) -> None:
        self.low, self.high, self.scan = low, high, scan
        self.told = Spans()
        self.near: tuple[Interest, ...] = ()
        self.refused = ""

    def doubt(self) -> None:
        """Count everything as written."""
        self.told.add(self.low, self.high)
