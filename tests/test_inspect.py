"""`cuda-captures inspect`: what a program's kernels capture, compiled without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from conftest import COMPILERS, SIMULATOR, has_gpu
from cuda_captures import backends
from cuda_captures.inspecting import importing, targets

pytestmark = pytest.mark.skipif(SIMULATOR, reason="needs a compiler, not its simulator")

PROGRAM = """
    import numpy as np
    from {package} import cuda

    print("said on import")
    TABLE = np.arange(1000.0)
    SMALL = np.arange(8, dtype=np.float32)
    SCALE = 2.5


    @cuda.jit("void(float64[::1])")
    def look_up(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = TABLE[i] * SCALE


    @cuda.jit(device=True)
    def inner(x):
        return x + TABLE[0]


    @cuda.jit
    def later(out):
        out[0] = inner(out[1])


    @cuda.jit("void(float32[::1])")
    def constants(out):
        out[0] = cuda.const.array_like(SMALL)[cuda.threadIdx.x]


    def make(n):
        @cuda.jit
        def hidden(out):
            out[0] = n
        return hidden
"""


@pytest.fixture
def program(tmp_path: Path, compiler: str) -> Path:
    """A program with kernels for each compiler."""
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PROGRAM.format(package=COMPILERS[compiler].rpartition(".")[0])))
    return path


def command(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``cuda-captures inspect``."""
    return subprocess.run(
        [str(Path(sys.executable).with_name("cuda-captures")), "inspect", *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_everything_of_a_file(program: Path) -> None:
    done = command("program.py", cwd=program.parent)
    assert done.returncode == 0, done.stderr
    assert "said on import" in done.stderr
    assert "said on import" not in done.stdout
    heads = [line.partition(" · ") for line in done.stdout.splitlines() if line.startswith("captures of")]
    assert [(head.split("  ")[0], note) for head, _, note in heads] == [
        ("captures of kernel look_up", ""),
        ("captures of device function inner", "compiled with the kernels that call it"),
        ("captures of kernel later", "not compiled: name its argument types with --signature"),
        ("captures of kernel constants", ""),
    ]
    assert "float64, 1,000" in done.stdout
    assert "program.py:15" in done.stdout
    assert "compiled in, and followed: SCALE = 2.5\n" in done.stdout
    assert "device function `inner` → global `TABLE`" in done.stdout
    assert done.stdout.count("slots: cuda_capture_") == 1  # of look_up
    assert "slots: none\n" in done.stdout  # of constants


def test_json_of_one_kernel(program: Path) -> None:
    done = command("program:look_up", "--json", "--cc", "10.0", cwd=program.parent)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    (kernel,) = said["kernels"]
    assert (kernel["name"], kernel["kind"], kernel["values"]) == ("look_up", "kernel", {"SCALE": "2.5"})
    (report,) = kernel["reports"]
    (row,) = report["captures"]
    assert [row[name] for name in ("name", "path", "dtype", "shape", "nbytes", "policy", "written")] == [
        "TABLE", ["global `TABLE`"], "float64", [1000], 8000, "live", False,
    ]  # fmt: skip
    assert row["where"] == f"{program}:15"
    assert len(report["slots"]) == 1
    assert report["constant_bytes"] == 0
    assert kernel["constant_bytes"] == report["constant_memory"] == 8  # the address
    assert any(text in report["key"] for text in ("cc = str '10.0'", "sm_100"))
    assert said["errors"] == []


def test_a_signature(program: Path) -> None:
    done = command("program.py:later", "--signature", "void(float64[::1])", "--json", cwd=program.parent)
    assert done.returncode == 0, done.stderr
    (report,) = json.loads(done.stdout)["kernels"][0]["reports"]
    assert len(report["slots"]) == len(report["specialisations"]) == 1


def test_a_kernel_that_does_not_compile(program: Path) -> None:
    done = command("program.py:later", "--signature", "void(float64)", cwd=program.parent)
    assert done.returncode == 1
    assert "kernel `later` does not compile for void(float64):\n" in done.stderr
    assert "getitem" in done.stderr
    assert "Traceback" not in done.stderr
    assert "captures of kernel later" in done.stdout
    done = command("program.py:later", "--signature", "void(float64)", "--json", cwd=program.parent)
    (error,) = json.loads(done.stdout)["errors"]
    assert (error["name"], error["signature"]) == ("later", "void(float64)")


def test_too_much_constant_memory(program: Path) -> None:
    def run(target: str, limit: int, *more: str) -> tuple[int, list[str]]:
        done = command(target, "--max-constant-bytes", str(limit), *more, cwd=program.parent)
        return done.returncode, [line for line in done.stderr.splitlines() if line.startswith("kernel `")]

    assert run("program.py:constants", 32) == (0, [])
    assert run("program.py:constants", 31) == (
        1,
        ["kernel `constants`: its captures take 32 bytes of constant memory, and --max-constant-bytes allows 31"],
    )
    status, said = run("program.py", 31)
    assert status == 2
    assert said == [
        "kernel `later` was not compiled, so that its constant memory is not known: name its argument types with"
        " --signature",
        "kernel `constants`: its captures take 32 bytes of constant memory, and --max-constant-bytes allows 31",
    ]


BAD = {
    ("absent.py",): "there is no file 'absent.py'",
    ("absent_module",): "there is no module 'absent_module', neither installed nor in ",
    ("program.absent",): "there is no module 'program.absent', neither installed nor in ",
    ("not-a-module",): "'not-a-module' is neither a file that is there nor the name of a module",
    ("program.py:absent",): "there is no kernel 'absent' in program.py; there are: look_up, inner, later, constants",
    ("program.py:hidden",): "there is no kernel 'hidden' in program.py; there are: look_up, inner, later, constants",
    (":look_up",): "':look_up' should be a module or a file, or one with a kernel: `module:kernel`",
    ("plain.py",): "there is no kernel or device function in plain.py: only what is made when it is imported",
    ("plain.py:f",): "there is no kernel 'f' in plain.py: there is no kernel or device function in plain.py",
    ("raising.py",): "raising.py cannot be imported:\n  File \"{here}/raising.py\", line 1, in <module>\n"
    "    1 / 0\n    ~~^~~\nZeroDivisionError: division by zero\n",
    ("needing.py",): "needing.py cannot be imported:\n  File \"{here}/needing.py\", line 1, in <module>\n"
    "    import absent_module\nModuleNotFoundError: No module named 'absent_module'\n",
    ("leaving.py",): "leaving.py cannot be imported:\n  File \"{here}/leaving.py\", line 1, in <module>\n"
    "    raise SystemExit(\"enough\")\nSystemExit: enough\n",
    ("skipping.py",): "skipping.py cannot be imported:\n  File \"{here}/skipping.py\", line 3, in <module>\n"
    "    raise Skipped(\"no\")\nskipping.Skipped: no\n",
    ("broken.py",): "broken.py cannot be imported:\n  File \"{here}/broken.py\", line 1\n    x = (\n        ^\n"
    "SyntaxError: '(' was never closed\n",
    ("a_directory/",): "'a_directory/' is a directory; name a file in it, or a package by its dotted name",
    ("program.py", "--cc", "9"): "--cc 9: a compute capability is written as two numbers, such as 9.0",
    ("program.py:later", "--signature", "void(float64[:"): "--signature 'void(float64[:' does not parse: '[' was never"
    " closed\n"
    'Write the types of the arguments as in a decorator: "void(float64[:], int32)".',
    ("program.py:later", "--signature", "void(flot[:])"): "does not parse: name 'flot' is not defined",
    ("program.py:later", "--signature", "float64[:]"): "does not parse: it is the type array(float64, 1d, A), not a",
    ("program.py:later", "--signature", "3"): "does not parse: it is the type 3, not a list of argument types",
}  # fmt: skip


def test_bad_input(program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from cuda_captures import cli

    here = program.parent
    (here / "plain.py").write_text("def f(x):\n    return x\n")
    (here / "raising.py").write_text("1 / 0\n")
    (here / "needing.py").write_text("import absent_module\n")
    (here / "leaving.py").write_text('raise SystemExit("enough")\n')
    (here / "skipping.py").write_text('class Skipped(BaseException):\n    pass\nraise Skipped("no")\n')
    (here / "broken.py").write_text("x = (\n")
    (here / "a_directory").mkdir()
    monkeypatch.chdir(here)
    for arguments, text in BAD.items():
        forget(monkeypatch)
        enabled = backends.enabled()
        try:
            assert cli.main(["inspect", *arguments]) == 2
        finally:
            if not enabled:
                backends.disable()
        said = capsys.readouterr().err.removeprefix("said on import\n")
        assert said.startswith("cuda-captures inspect: "), said
        assert text.format(here=here) in said, said


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next import be the first."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("program", "plain", "raising", "needing", "leaving", "broken", "skipping"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_a_file_of_a_package_is_imported_by_its_dotted_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "outer_of_test" / "inner"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "beside.py").write_text("VALUE = 3\n")
    (package / "kernels.py").write_text("from .beside import VALUE\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    module = importing.imported(str(package / "kernels.py")).module
    assert module.__name__ == "outer_of_test.inner.kernels"
    assert module.VALUE == 3


def test_kernels_of_classes_and_of_other_modules(cuda: Any, compiler: str, module: Any) -> None:
    def function(x: Any) -> None:
        x[0] = 1

    function.__module__ = module.__name__
    kernel = cuda.jit(function)
    other = cuda.jit(lambda x: None)
    held = type("Held", (), {"kernel": staticmethod(kernel), "__module__": module.__name__})
    top = COMPILERS[compiler].partition(".")[0]
    module.other = other
    assert list(targets.kernels_in(module, (top,))) == ["other"]
    module.Held = held
    assert list(targets.kernels_in(module, (top,))) == ["Held.kernel"]


@pytest.mark.skipif(has_gpu(), reason="the device array is made where there is a GPU")
def test_a_program_that_needs_a_gpu_to_be_imported(tmp_path: Path, compiler: str) -> None:
    package = COMPILERS[compiler].rpartition(".")[0]
    (tmp_path / "program.py").write_text(f"from {package} import cuda\n\ntable = cuda.device_array(3)\n")
    done = command("program.py", cwd=tmp_path)
    assert done.returncode == 2
    assert f'  File "{tmp_path}/program.py", line 3, in <module>\n    table = cuda.device_array(3)\n' in done.stderr
    assert "CudaSupportError: " in done.stderr
    assert done.stderr.endswith(
        "What the program does when it is imported needs a GPU. `cuda-captures check` looks through it without"
        " importing it.\n"
    )


@pytest.mark.skipif(has_gpu(), reason="the kernel is launched where there is a GPU")
def test_a_program_that_launches_when_it_is_imported(program: Path) -> None:
    program.write_text(program.read_text() + "\nlater[1, 1](TABLE)\nSCALE = None\n")
    done = command("program.py:look_up", cwd=program.parent)
    assert done.returncode == 0, done.stderr
    assert "program.py was imported up to where it needs a GPU; what it had made by then is shown.\n" in done.stderr
    assert "    later[1, 1](TABLE)\n" in done.stderr
    assert "compiled in, and followed: SCALE = 2.5\n" in done.stdout
    done = command("program.py:absent", cwd=program.parent)
    assert done.returncode == 2
    assert "cuda-captures inspect: program.py cannot be imported:\n" in done.stderr


@pytest.mark.skipif("numba-cuda" not in backends.present(), reason="the simulator is a part of numba-cuda")
def test_in_the_simulator(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM.format(package="numba")))
    done = command("program.py:look_up", "--signature", "void(float64[:])", cwd=tmp_path, NUMBA_ENABLE_CUDASIM="1")
    assert done.returncode == 1
    assert "simulated (NUMBA_ENABLE_CUDASIM=1)" in done.stdout
    assert "Unset the variable: `explain` needs no GPU." in done.stderr
