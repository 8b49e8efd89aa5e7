"""The documentation builds without a warning, and is complete where it says that it is."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cuda_captures
from cuda_captures import driver, errors

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages, built with warnings as errors."""
    for needed in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(needed, reason="needs the extra `docs`")
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    done = subprocess.run(
        [*command, "-d", str(directory / "trees"), str(DOCS), str(directory / "html")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return directory / "html"


def text_of(page: Path) -> str:
    """A built page without its markup."""
    return re.sub(r"<[^>]+>", "", page.read_text())


def test_the_pages_build_without_a_warning(site: Path) -> None:
    built = {path.stem for path in site.glob("*.html")}
    assert {path.stem for path in DOCS.glob("*.md")} <= built


def test_every_public_name_is_documented(site: Path) -> None:
    text = "".join(page.read_text() for page in site.glob("*.html"))
    missing = [name for name in cuda_captures.__all__ if f'id="cuda_captures.{name}"' not in text]
    assert not missing


def test_docstrings_are_in_the_reference(site: Path) -> None:
    text = " ".join(text_of(site / "api.html").split())
    for name in ("enable", "bind", "refresh", "snapshot"):
        first = (inspect.getdoc(getattr(cuda_captures, name)) or "").partition("\n\n")[0]
        assert " ".join(first.replace("``", "").split(":func:")[0].split()) in text, name


def test_every_room_is_in_the_tour(site: Path) -> None:
    text = (site / "design.html").read_text()
    for path in (ROOT / "src/cuda_captures").rglob("*.py"):
        assert f'<span class="pre">{path.stem}</span>' in text, path


def test_rooms_that_the_tour_tells_of_exist() -> None:
    told = re.search(r"## A launch, from top to bottom\n(.*?)\n## ", (DOCS / "design.md").read_text(), re.DOTALL)
    assert told is not None
    rooms = set(re.findall(r"`([a-z_.]+)`", told.group(1))) - {"cache", "front_end", "lowering", "library"}
    assert len(rooms) > 20
    for room in rooms:
        importlib.import_module(f"cuda_captures.{room}")


def test_constant_copies_are_never_made_unless_asked_for(site: Path) -> None:
    for page in ("index.html", "rule.html"):
        text = text_of(site / page)
        assert re.search(r"copy in constant memory is never made unless (you|it is) ask", text)
        assert "cuda.const.array_like(table)" in text
        assert "cuda_captures.constant(table)" in text


def classes() -> list[type]:
    """The package's errors and warnings."""
    found = [*vars(errors).values(), *vars(driver).values()]
    kinds = {one for one in found if isinstance(one, type) and issubclass(one, (errors.CaptureError, Warning))}
    return sorted(
        (kind for kind in kinds if kind.__module__.startswith("cuda_captures")), key=lambda kind: kind.__name__
    )


@pytest.mark.parametrize("kind", classes(), ids=lambda kind: kind.__name__)
def test_every_error_says_what_it_guarantees(kind: type) -> None:
    text = (DOCS / "errors.md").read_text()
    (section,) = re.findall(rf"^## [^\n]*`{kind.__name__}`[^\n]*\n(.*?)(?=^## )", text, re.DOTALL | re.MULTILINE)
    assert "*State*: " in section
    (row,) = re.findall(rf"^\| \[`{kind.__name__}`\]\(#\S+\) \| ([^|]+) \|", text, re.MULTILINE)
    public = [base.__name__ for base in kind.__bases__]
    assert re.findall(r"`(\w+)`", row) == public


def test_the_readme_leads_to_pages_that_exist() -> None:
    links = re.findall(r"\]\((docs/[^)#]*)", (ROOT / "README.md").read_text())
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def test_the_tests_run_with_all_that_they_would_be_skipped_without() -> None:
    (command,) = re.findall(r"^python3 .*pytest.*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    (extras,) = re.findall(r"\[([\w,-]+)\]", command)
    assert {"test", "examples", "docs"} <= set(extras.split(","))


FIGURES = [
    {"work": "gather 8 B", "version": "argument", "median": 10.0, "spread": 0.1, "ratio": None},
    {"work": "gather 8 B", "version": "captured", "median": 10.5, "spread": 0.1, "ratio": 1.05},
    {"work": "gather 1,000 B", "version": "argument", "median": 20.0, "spread": 0.1, "ratio": None},
    {"work": "gather 1,000 B", "version": "captured", "median": 20.2, "spread": 0.1, "ratio": 1.01},
    {"work": "edit of 8 B", "version": "none", "median": 1.0, "spread": 0.1, "ratio": None},
    {"work": "edit of 8 B", "version": "one element", "median": 40.0, "spread": 2.0, "ratio": 40.0},
    {"work": "factory", "version": "alone", "median": 1.0, "spread": 0.1, "ratio": None},
]


def test_plots_are_drawn_from_a_file_of_figures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `examples`")
    file = tmp_path / "figures.json"
    file.write_text(json.dumps(FIGURES))
    command = [sys.executable, str(DOCS / "plot_benchmarks.py"), str(file), "--into", str(tmp_path / "plots")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    drawn = [Path(line) for line in done.stdout.splitlines()]
    assert [path.name for path in drawn] == ["edit.png", "gather.png"]  # a reference alone is no ratio
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
