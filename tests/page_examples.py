"""The examples of a page of documentation: found by sybil, and run in order, in one namespace.

    python tests/page_examples.py docs/policies.md

Blocks of Python and of shell commands are run; a block of text is what the example before it printed (``...`` stands
for anything).  A block that cannot run has a comment before it that says why:
``<!-- skip: next "it needs a second GPU" -->``, or ``<!-- skip: next if(simulator, reason="...") -->``.

Run from the root of the repository, so that tracebacks and messages name the page as it is called there.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
import tempfile
import traceback
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest import SkipTest

from sybil import Document, Example, Sybil
from sybil.evaluators.python import pad
from sybil.evaluators.skip import Skipper
from sybil.parsers.markdown import CodeBlockParser, SkipParser

ROOT = Path(__file__).parent.parent
COMPILED = "<!-- examples: compiled -->"  # of a page whose examples launch nothing, so that no simulator is needed
LANGUAGES = ("python", "sh", "text")


class Page:
    """Evaluators of one page's examples, and what the last of them printed.

    Parameters
    ----------
    directory
        Where shell commands run.
    """

    def __init__(self, directory: str = "") -> None:
        self.printed = ""
        self.directory = directory

    def parsers(self) -> list[Callable[[Document], object]]:
        """What finds the examples."""
        evaluators = (self.run_python, self.run_shell, self.compare)
        blocks = [
            CodeBlockParser(language, evaluator) for language, evaluator in zip(LANGUAGES, evaluators, strict=True)
        ]
        return [*blocks, SkipParser()]

    def run_python(self, example: Example) -> None:
        # Lines as in the page, so that messages with a line of source show the right one.
        text = pad(example.parsed, example.line + example.parsed.line_offset)
        code = compile(text, os.path.relpath(example.path), "exec", dont_inherit=True)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, example.namespace)
        self.printed = printed.getvalue()

    def run_shell(self, example: Example) -> None:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", example.parsed],
            cwd=self.directory,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise AssertionError(f"exit status {done.returncode}\n{done.stdout}{done.stderr}")
        self.printed = done.stdout

    def compare(self, example: Example) -> None:
        printed = self.printed
        checker, options = doctest.OutputChecker(), doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        if not checker.check_output(example.parsed, printed, options):
            raise AssertionError(f"the page says\n{example.parsed}\nand what was printed is\n{printed}")


def examples_of(page: Path) -> list[Example]:
    """The examples of a page, in order."""
    return list(Sybil(parsers=Page().parsers()).parse(page).examples())


def skips_of(page: Path) -> list[str]:
    """What a page's comments say to its parser."""
    return re.findall(r"<!--+\s*skip:\s*(.*?)\s*--+>", page.read_text())


def run(page: Path, directory: str) -> int:
    """Run a page's examples, shell commands in some directory; returns how many failed."""
    main = types.ModuleType("__main__")  # the examples are a program; classes and functions belong to a module
    sys.modules["__main__"] = main
    document = Sybil(parsers=Page(directory).parsers()).parse(page)
    document.namespace = vars(main)
    document.namespace["simulator"] = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
    done = failed = skipped = 0
    for example in document.examples():
        try:
            example.evaluate()
            done += not isinstance(example.region.evaluator, Skipper)
        except SkipTest as reason:
            skipped += 1
            print(f"{page}:{example.line}: skipped: {reason}")
        except Exception as error:
            failed += 1
            print(f"{page}:{example.line}: failed: {type(error).__name__}: {error}")
            if not isinstance(error, AssertionError):
                traceback.print_exc(file=sys.stdout)
            break  # what comes after builds upon it
    print(f"{page}: {done} done, {skipped} skipped, {failed} failed")
    return failed


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # what compilers think of host arguments and small grids
    import cuda_captures

    warnings.simplefilter("error", cuda_captures.CaptureWarning)
    with tempfile.TemporaryDirectory() as elsewhere:
        sys.exit(1 if run(Path(sys.argv[1]), elsewhere) else 0)
