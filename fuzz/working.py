"""A process of a run: ``python -m fuzz.working COMPILER FOLDER RESULTS [gpu] [others]``.

It is told of programs in lines of its standard input, and says what became of each in lines of the file descriptor
``RESULTS``.  When its input ends, so does it; after a program that left the GPU of no more use, too.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import asdict
from pathlib import Path

from fuzz.judging import Outcome
from fuzz.runner import ready


def main(arguments: list[str]) -> None:
    """Run programs until there are no more."""
    compiler, folder, results, *options = arguments
    warnings.simplefilter("ignore")
    with (
        open(int(results), "w", buffering=1) as said,
        ready(compiler, "gpu" in options, Path(folder), "others" not in options) as runner,
    ):
        for line in sys.stdin:
            order = json.loads(line)
            fatal = order.get("fatal")
            ended = runner.one(order["number"], Outcome("error", fatal) if fatal else None)
            said.write(json.dumps(asdict(ended)) + "\n")
            if runner.spent:
                break
    os._exit(0)  # what compilers do on the way out is no part of a program


if __name__ == "__main__":
    main(sys.argv[1:])
