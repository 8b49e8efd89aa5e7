"""`cuda-captures check` as its users run it: files, output, exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_captures.check import check, command
from cuda_captures.check.sources import find

BAD = "import numpy as np\nfrom numba import cuda\ntable = np.zeros(9)\n@cuda.jit\ndef k(out): out[0] = table[1]\n"
UNSURE = BAD.replace("np.zeros(9)", "np.load('x')")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with programs, in which the test runs."""
    monkeypatch.chdir(tmp_path)
    texts = {
        "bad.py": BAD,
        "good.py": "x = 1\n",
        "broken.py": "x = (\n",
        "latin.py": b"# -*- coding: latin-1 -*-\nx = '\xe4'\n",
        "binary.py": b"x = '\xff\xfe'\n",
        "notes.txt": BAD,
        "package/__init__.py": "",
        "package/unsure.py": UNSURE,
        ".hidden/bad.py": BAD,
        "env/pyvenv.cfg": "",
        "env/bad.py": BAD,
        "__pycache__/bad.py": BAD,
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    return tmp_path


def test_which_files_are_checked(tree: Path) -> None:
    wanted = ["bad.py", "binary.py", "broken.py", "good.py", "latin.py", "package/__init__.py", "package/unsure.py"]
    assert list(find(["."])) == wanted
    assert list(find([".hidden/bad.py", "notes.txt", ".hidden"])) == [".hidden/bad.py", "notes.txt"]
    (tree / "linked.py").symlink_to("bad.py")
    assert list(find(["linked.py", "bad.py"])) == ["linked.py"]  # once, by whichever name comes first


def test_text_and_status(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["."]) == 1
    said = capsys.readouterr()
    assert said.out.startswith(
        "bad.py:5:22: host-array [certain]: kernel `k` captures `table`, a NumPy array of 72 bytes\n"
    )
    assert "package/unsure.py:5:22: host-array [likely]: " in said.out
    assert said.out.endswith("\n2 findings (2 host-array) in 5 files, 2 kernels; 2 files not checked\n")
    assert "broken.py:1:5: not checked: it is no Python 3" in said.err
    assert "'(' was never closed" in said.err
    assert "binary.py: not checked: it cannot be decoded: " in said.err
    assert command.main(["good.py", "latin.py"]) == 0
    assert capsys.readouterr().out == "0 findings in 2 files, no kernel or device function\n"
    assert command.main(["broken.py"]) == 0
    assert capsys.readouterr().out == "0 findings in 0 files, no kernel or device function; 1 file not checked\n"


def test_only_what_is_certain(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["package"], certain=True) == 0
    assert command.main(["."], certain=True) == 1
    assert "1 finding (1 host-array)" in capsys.readouterr().out


def test_only_what_captures_do_not_mend(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["."], with_captures=True) == 0
    (tree / "listed.py").write_text(BAD.replace("np.zeros(9)", "[1, 2]"))
    assert command.main(["."], with_captures=True) == 1
    assert "1 finding (1 container)" in capsys.readouterr().out


def test_json(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["bad.py", "broken.py"], as_json=True) == 1
    said = json.loads(capsys.readouterr().out)
    (found,) = said["findings"]
    assert found["kind"] == "host-array"
    assert [found[name] for name in ("path", "line", "column", "end_column")] == ["bad.py", 5, 22, 27]
    assert [found[name] for name in ("name", "function", "certainty")] == ["table", "k", "certain"]
    assert found["reasons"]
    assert found["fix"].startswith("pass `table` to `k` as an argument")
    assert found["related"] == [{"path": "bad.py", "line": 3, "column": 1, "end_column": 6, "what": "made"}]
    (unread,) = said["unread"]
    assert (unread["path"], unread["line"], unread["column"]) == ("broken.py", 1, 5)
    assert (said["files"], said["functions"]) == (1, {"kernel": 1})


def test_a_path_that_is_not_there(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["absent"]) == 2
    assert capsys.readouterr().err == "cuda-captures check: there is no file or directory 'absent'\n"


def test_a_file_that_may_not_be_read(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "dangling.py").symlink_to("absent.py")
    result = check(["."])
    assert ("dangling.py", "it cannot be read: No such file or directory", 0, 0) in result.unread


def test_nothing_of_the_program_and_no_compiler_is_imported(tree: Path) -> None:
    (tree / "bad.py").write_text(BAD + "raise SystemExit('it was run')\n")
    program = (
        "import sys\nfrom cuda_captures import cli\nstatus = cli.main(['check', '.'])\n"
        "print(status, sorted({'numba', 'numba_cuda', 'numba_cuda_mlir', 'bad', 'package'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "CUDA_CAPTURES": "0"},
    )
    assert done.stdout.splitlines()[-1] == "1 []"


def test_a_program_of_any_depth_comes_to_an_end(tmp_path: Path) -> None:
    lines = ["from numba import cuda", "import numpy as np", "v0 = np.zeros(9)"]
    lines += [f"v{i + 1} = v{i} + v{i}" for i in range(400)]
    lines += [
        "def f(n): return g(n) + f(n)",
        "def g(n): return f(n), g(n)",
        "w = w0 = f(1)",
        "w0 = w",
        "w = [w for w in w]",
    ]
    lines += ["@cuda.jit", "def k(out): out[0] = v400[0] + w[0]"]
    (tmp_path / "deep.py").write_text("\n".join(lines))
    found = check([str(tmp_path)]).findings
    assert {one.name for one in found} <= {"v400", "w"}
    assert any(one.name == "v400" for one in found)
