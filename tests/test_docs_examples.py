"""Every example of the README and of the documentation runs, each page in an interpreter of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import has_gpu
from cuda_captures import backends

pytest.importorskip("sybil", reason="needs sybil, of the extra `test`")

from page_examples import COMPILED, LANGUAGES, examples_of, skips_of

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]


def environment(page: Path) -> dict[str, str]:
    """The environment for a page: the simulator where examples are launched and there is no GPU."""
    clean = {name: value for name, value in os.environ.items() if name not in ("NUMBA_ENABLE_CUDASIM", "CUDA_CAPTURES")}
    return clean if COMPILED in page.read_text() or has_gpu() else {**clean, "NUMBA_ENABLE_CUDASIM": "1"}


def outcome(page: Path) -> subprocess.CompletedProcess[str]:
    """What running a page's examples came to."""
    program = ROOT / "tests/page_examples.py"
    name = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page
    return subprocess.run(
        [sys.executable, str(program), str(name)],
        cwd=ROOT,
        env=environment(page),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif("numba-cuda" not in backends.present(), reason="the examples are for numba-cuda")
@pytest.mark.parametrize("name", [name for name, page in zip(NAMES, PAGES, strict=True) if examples_of(page)])
def test_page(name: str) -> None:
    done = outcome(ROOT / name)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_run_has_a_reason(name: str) -> None:
    page = ROOT / name
    for skip in skips_of(page):
        assert skip == "end" or re.fullmatch(r'(next|start) (".{10,}"|if\(.+, reason=".{10,}"\))', skip), skip
    languages = re.findall(r"^ *```+([^\n`]*)$", page.read_text(), re.MULTILINE)
    directives = {language for language in languages if language and not language.startswith("{")}
    assert directives <= set(LANGUAGES), "blocks in another language would not be run"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```python\nassert 1 == 2\n```", "page.md:1: failed: AssertionError"),
        ("```python\nx = 1\n```\n\n```python\nprint(y)\n```", "page.md:5: failed: NameError: name 'y' is not defined"),
        ("```python\nprint(1)\n```\n\n```text\n2\n```", "and what was printed is\n1\n"),
        ("```sh\nexit 3\n```", "page.md:1: failed: AssertionError: exit status 3"),
        (
            "```python\nimport cuda_captures, warnings\nwarnings.warn('slow', cuda_captures.CaptureWarning)\n```",
            "failed: CaptureWarning: slow",
        ),
    ],
)
def test_a_wrong_example_is_found(text: str, said: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    done = outcome(page)
    assert done.returncode == 1, done.stdout + done.stderr
    assert said in done.stdout


def test_examples_of_a_page_share_their_names_and_a_reason_is_printed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '```python\nx = 1\n```\n\n<!-- skip: next "there is no such thing" -->\n```python\nx = 2\n```\n\n'
        "```python\nprint(x)\n```\n\n```text\n1\n```\n\n```sh\necho $((6 * 7))\n```\n\n```text\n42\n```\n"
    )
    done = outcome(page)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "page.md:6: skipped: there is no such thing\n" in done.stdout
    assert "5 done" in done.stdout
    assert "1 skipped, 0 failed" in done.stdout
