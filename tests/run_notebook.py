"""Runs a notebook in numba's simulator and writes it with the outputs that came.

python tests/run_notebook.py examples/tour.ipynb                 # in place: after a change of the notebook
python tests/run_notebook.py examples/tour.ipynb executed.ipynb  # elsewhere: to compare
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def run(source: Path, target: Path) -> None:
    """Execute every cell of a notebook; raises what the first cell that fails raises."""
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # the kernel's process inherits it
    notebook = nbformat.read(source, as_version=4)
    where = {"metadata": {"path": source.parent}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where, coalesce_streams=True).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran says nothing
    notebook.metadata.language_info = {"name": "python"}
    nbformat.write(notebook, target)


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[-1]))
