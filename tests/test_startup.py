"""CUDA_CAPTURES=1: programs that are not edited get captures, and interpreters that use no compiler feel nothing."""

from __future__ import annotations

import importlib.metadata
import shutil
from pathlib import Path

import pytest

from conftest import COMPILERS
from cuda_captures import backends
from interpreters import python, started

STARTUP = Path(__file__).parent.parent / "src/startup"
LOADED = "print(sorted(name for name in sys.modules if name.partition('.')[0] in {names}))"
OURS = LOADED.format(names=("cuda_captures", "_cuda_captures_startup", "numpy", "rich", "numba", "numba_cuda_mlir"))
ASKED = {"CUDA_CAPTURES": "1"}


def joined(module: str) -> str:
    """A program that imports a compiler and says what captures are joined to then."""
    return f"""
        import importlib
        importlib.import_module("{module}")
        from cuda_captures import backends
        print(list(backends._joined))
    """


@pytest.mark.parametrize("value", [None, "", "0", "true"])
def test_nothing_is_loaded_unless_asked_for(value: str | None) -> None:
    environment = {} if value is None else {"CUDA_CAPTURES": value}
    assert python(f"import sys; {OURS}", **environment) == "[]"


def test_an_interpreter_without_a_compiler_loads_next_to_nothing() -> None:
    assert python(f"import sys; {OURS}", **ASKED) == "['_cuda_captures_startup']"


@pytest.mark.parametrize("distribution", backends.present())
def test_the_compiler_that_a_program_imports_is_joined(distribution: str) -> None:
    assert python(joined(COMPILERS[distribution]), **ASKED) == f"['{distribution}']"


def test_child_processes_are_reached() -> None:
    child = joined("numba.cuda")
    program = f"""
        import multiprocessing, subprocess, sys, textwrap
        print(subprocess.check_output([sys.executable, "-c", textwrap.dedent({child!r})], text=True).strip())
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.apply(eval, ("'_cuda_captures_startup' in __import__('sys').modules",)))
    """
    assert python(program, **ASKED).splitlines() == ["['numba-cuda']", "True"]


def test_one_finder_however_often_the_line_is_read() -> None:
    program = f"""
        import site, sys
        site.addsitedir({str(STARTUP)!r})
        site.addsitedir({str(STARTUP)!r})
        print(sum(type(finder).__name__ == "Summons" for finder in sys.meta_path))
    """
    assert python(program, **ASKED) == "1"


def test_behind_the_finder_that_redirects_to_numba_cuda() -> None:
    program = """
        import sys
        front = next(finder for finder in sys.meta_path if type(finder).__name__ == "NumbaCudaFinder")
        sys.meta_path.remove(front)
        sys.meta_path.insert(0, front)
    """
    assert python(program + joined("numba.cuda"), **ASKED) == "['numba-cuda']"


def test_what_the_program_says_wins() -> None:
    program = """
        import cuda_captures
        from cuda_captures import backends, settings
        cuda_captures.enable(host="snapshot")
        from numba import cuda
        print(settings.current().host, list(backends._joined))
    """
    assert python(program, **ASKED) == "snapshot ['numba-cuda']"
    program = """
        import cuda_captures
        from cuda_captures import backends
        print(bool(backends.enabled()))
        cuda_captures.disable()
        from numba import cuda
        print(backends.enabled())
    """
    assert python(program, **ASKED).splitlines() == ["True", "[]"]


def test_looking_for_a_compiler_does_not_import_it() -> None:
    program = """
        import importlib.util, sys
        print(importlib.util.find_spec("numba.cuda").name, "numba.cuda" in sys.modules)
        from numba import cuda
        from cuda_captures import backends
        print(list(backends._joined))
    """
    assert python(program, **ASKED).splitlines() == ["numba.cuda False", "['numba-cuda']"]


def unsupported(directory: Path) -> dict[str, str]:
    """An environment in which another version of numba-cuda seems to be installed."""
    metadata = directory / "numba_cuda-0.99.1.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: numba-cuda\nVersion: 0.99.1\n")
    return {**ASKED, "PYTHONPATH": str(directory)}


def test_an_unsupported_compiler_is_refused_where_it_is_imported(tmp_path: Path) -> None:
    environment = unsupported(tmp_path)
    bystander = started("import numpy; print('fine')", **environment)
    assert (bystander.returncode, bystander.stdout, bystander.stderr) == (0, "fine\n", "")
    done = started("from numba import cuda", **environment)
    assert done.returncode == 1
    assert "numba-cuda 0.99.1 is installed, and cuda-captures works with numba-cuda >=0.30,<0.31" in done.stderr
    assert "Captures were asked for by CUDA_CAPTURES=1; unset it to run without them." in done.stderr


def test_a_broken_package_is_reported_where_a_compiler_is_imported(tmp_path: Path) -> None:
    (tmp_path / "cuda_captures.py").write_text("raise ImportError('no such luck')\n")
    environment = {**ASKED, "PYTHONPATH": str(tmp_path)}
    bystander = started("print('fine')", **environment)
    assert (bystander.returncode, bystander.stdout, bystander.stderr) == (0, "fine\n", "")
    done = started("from numba import cuda", **environment)
    assert done.returncode == 1
    assert "ImportError: no such luck\nCaptures were asked for by CUDA_CAPTURES=1" in done.stderr


def test_a_line_that_is_left_behind_kills_no_interpreter(tmp_path: Path) -> None:
    shutil.copy(STARTUP / "cuda_captures.pth", tmp_path)
    done = started(f"import site; site.addsitedir({str(tmp_path)!r}); print('fine')", "-S", **ASKED)
    assert (done.returncode, done.stdout) == (0, "fine\n")
    assert "No module named '_cuda_captures_startup'" in done.stderr


def test_what_is_installed_is_what_stands_here() -> None:
    installed = {file.name: file for file in importlib.metadata.files("cuda-captures") or []}
    for source in STARTUP.iterdir():
        if source.is_file():
            assert installed[source.name].locate().read_text() == source.read_text()  # type: ignore[attr-defined]
