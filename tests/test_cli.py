"""The command line, as its users run it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import cuda_captures
from conftest import COMPILERS, SIMULATOR, has_gpu
from cuda_captures import backends, cli


def command(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``cuda-captures``."""
    return subprocess.run(
        [str(Path(sys.executable).with_name("cuda-captures")), *arguments],
        env={**os.environ, **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(SIMULATOR, reason="the simulator's demonstration is part of this one")
def test_demo() -> None:
    done = command("demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a kernel reads a global NumPy array of 800,000 bytes" in done.stdout
    if has_gpu():
        assert "Ran on the GPU. The kernel read 1.0, and 2.0 after" in done.stdout
    else:
        assert "There is no GPU here" in done.stdout
        assert "constant memory: 8 of 65,536 bytes (less than 0.1%), no contents of arrays" in done.stdout
        assert "Not run on a GPU" in done.stdout or "Not run: compiled for a GPU" in done.stdout


@pytest.mark.skipif("numba-cuda" not in backends.present(), reason="the simulator is a part of numba-cuda")
def test_demo_in_the_simulator() -> None:
    done = command("demo", NUMBA_ENABLE_CUDASIM="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "In the simulator the kernel read 1.0, and 2.0 after `TABLE[:] = 2.0` on the host.\n"


def program(directory: Path, text: str, name: str = "program.py") -> str:
    """A program in a directory; its path."""
    path = directory / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return str(path)


SHOWN = """\
    import beside, importlib, os, sys
    importlib.import_module(sys.argv[1])
    from cuda_captures import backends
    print(__name__, os.path.basename(__file__), sys.argv[1:], backends.enabled()[0], beside.HERE)
    print(os.path.realpath(sys.path[0]) == os.path.realpath(os.path.dirname(beside.__file__)))
    sys.exit(3)
"""


@pytest.mark.parametrize("way", ["file", "relative", "directory", "module", "package"])
def test_run(tmp_path: Path, way: str) -> None:
    distribution = backends.present()[0]
    program(tmp_path, SHOWN)
    program(tmp_path, SHOWN, "__main__.py")
    program(tmp_path, SHOWN, "package/__main__.py")
    program(tmp_path, "HERE = 'found'", "beside.py")
    target = {
        "file": [str(tmp_path / "program.py")],
        "relative": ["program.py"],
        "directory": [str(tmp_path)],
        "module": ["-m", "program"],
        "package": ["-m", "package"],
    }[way]
    arguments = [COMPILERS[distribution], "--", "--help", "-m", "--flag=1"]
    done = command("run", *target, *arguments, cwd=None if way == "file" else tmp_path)
    name = "program.py" if way in ("file", "relative", "module") else "__main__.py"
    assert done.stdout.splitlines() == [f"__main__ {name} {arguments} {distribution} found", "True"], done.stderr
    assert done.returncode == 3


def test_run_reaches_child_processes(tmp_path: Path) -> None:
    path = program(
        tmp_path,
        """
        import multiprocessing, subprocess, sys

        class Mine:
            pass

        def seen(mine):
            return "_cuda_captures_startup" in sys.modules, type(mine).__name__

        if __name__ == "__main__":
            child = "import sys; print('_cuda_captures_startup' in sys.modules)"
            print(subprocess.check_output([sys.executable, "-c", child], text=True).strip())
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(*pool.map(seen, [Mine()]))
        """,
    )
    done = command("run", path)
    assert done.stdout.splitlines() == ["True", "(True, 'Mine')"], done.stderr


@pytest.mark.parametrize(
    ("text", "status", "error"),
    [
        ("raise KeyError('mine')", 1, "KeyError: 'mine'"),
        ("raise SystemExit('what went wrong')", 1, "what went wrong"),
        ("raise SystemExit", 0, ""),
        ("import os; os._exit(7)", 7, ""),
        ("x = (", 1, "SyntaxError: '(' was never closed"),
    ],
)
def test_run_ends_as_the_program_does(tmp_path: Path, text: str, status: int, error: str) -> None:
    done = command("run", program(tmp_path, text))
    assert done.returncode == status
    assert error in done.stderr
    assert error or not done.stderr


def test_run_of_what_is_not_there(tmp_path: Path) -> None:
    done = command("run", str(tmp_path / "absent.py"))
    assert done.returncode == 2
    assert f"there is no file '{tmp_path / 'absent.py'}'" in done.stderr
    for name in ("no_such_module", "json.no_such_module", "os.path.no_such_module"):
        done = command("run", "-m", name)
        assert done.returncode == 2
        assert done.stderr == f"cuda-captures run: there is no module {name!r}\n"


def test_run_of_a_package_that_imports_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text("import no_such_module")
    (tmp_path / "package/program.py").write_text("")
    done = command("run", "-m", "package.program")
    assert done.returncode == 1
    assert "No module named 'no_such_module'" in done.stderr


@pytest.mark.parametrize("arguments", [[], ["run"], ["run", "-m"], ["walk"], ["check"], ["check", "--x"], ["inspect"]])
def test_usage(arguments: list[str]) -> None:
    done = command(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: cuda-captures")


def test_help_and_version() -> None:
    assert "an unmodified program" in command("--help").stdout
    assert "cuda-captures run [-m] SCRIPT [ARGUMENTS ...]" in command("run", "--help").stdout
    assert "without running them" in command("check", "--help").stdout
    assert "MODULE_OR_FILE[:KERNEL]" in command("inspect", "--help").stdout
    assert command("--version").stdout == f"cuda-captures {cuda_captures.__version__}\n"


def test_check(tmp_path: Path) -> None:
    text = "from numba import cuda\nlisted = [1]\n@cuda.jit\ndef k(out): out[0] = listed[0]\n"
    path = program(tmp_path, text)
    done = command("check", path)
    assert done.returncode == 1, done.stderr
    assert f"{path}:4:22: container [certain]: kernel `k` captures `listed`, a list\n" in done.stdout
    assert command("check", "--with-captures", "--certain", "--json", path).returncode == 1
    assert command("check", program(tmp_path, "x = 1", "good.py")).returncode == 0
    assert command("check", str(tmp_path / "absent")).returncode == 2


def test_inspect(tmp_path: Path) -> None:
    package = COMPILERS[backends.present()[0]].rpartition(".")[0]
    text = f"from {package} import cuda\nVALUE = 3\n@cuda.jit\ndef k(out): out[0] = VALUE\n"
    done = command("inspect", "program.py:k", cwd=Path(program(tmp_path, text)).parent)
    assert done.returncode == 0, done.stderr
    assert "compiled in, and followed: VALUE = 3" in done.stdout
    assert command("inspect", str(tmp_path / "absent.py")).returncode == 2


def test_check_needs_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(backends, "COMPILERS", ())
    assert cli.main(["check", program(tmp_path, "x = 1")]) == 0


def test_no_compiler_is_said_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(backends, "COMPILERS", ())
    assert cli.main(["demo"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("cuda-captures: no compiler is installed that captures could be joined to.")
    assert 'pip install "cuda-captures[cu13]"' in said
