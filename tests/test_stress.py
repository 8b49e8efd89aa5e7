"""The stress programs, small, on a driver in memory: they run, and what they look for they find."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import cuda_captures
from conftest import needs_a_compiler
from cuda_captures import copies
from cuda_captures.watch import Watch
from memory_driver import MemoryDriver
from stress import counting, kernels, launches, sanitizing, subjects, threads
from stress.__main__ import main
from stress.counting import Grown, Held
from stress.machine import at_once
from stress.sanitizing import Absent, sanitize
from stress.subjects import Wrong
from stress.threads import CompiledOften, Turmoil
from stress_in_memory import Kernel, Memory

pytestmark = [
    pytest.mark.filterwarnings("ignore::cuda_captures.CapturePerformanceWarning"),
    needs_a_compiler,  # whose module kernels name
]

OFTEN = launches.Shares(edit=0.3, seen=0.1, new=0.3, length=0.1, check=0.05)
LAUNCHES, KERNELS = 3000, 200


@pytest.fixture
def memory(fake: MemoryDriver) -> Memory:
    return Memory(fake)


def test_launches(memory: Memory, capsys: pytest.CaptureFixture[str]) -> None:
    log = launches.launches(memory, LAUNCHES, OFTEN, large=1 << 13)
    log.check({name: bound for name, bound in launches.BOUNDS.items() if name not in ("host", "device")})
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 1 + counting.PRINTED + 1
    assert len(log.points) == counting.POINTS
    assert printed[0].split() == ["launches", "seconds", *Held.__dataclass_fields__]
    assert printed[-1].startswith("flat: ")
    assert log.points[-1].instances > 16
    assert log.points[-1].modules >= log.points[-1].instances
    assert log.points[-1].device > log.points[-1].copied > 0


def test_memory_is_flat_over_launches(memory: Memory) -> None:
    launches.launches(memory, LAUNCHES, OFTEN, large=1 << 13).check(launches.BOUNDS)


def test_launches_that_miss_an_edit_are_wrong(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies.Mirror, "_update", lambda self, ranges, stream, capturing: None)
    with pytest.raises(Wrong, match=r"global of 512 elements: (.|\n)* instead of"):
        launches.launches(memory, 10, OFTEN)


def test_launches_that_miss_a_rebinding_are_wrong(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Kernel.launch

    def stale(self: Kernel, output: Any) -> None:
        for instance in self.follower._bound.values():
            instance.unchanged = lambda: True
        real(self, output)

    monkeypatch.setattr(Kernel, "launch", stale)
    subject, output = subjects.Subject(memory, "global", 64), memory.output()
    subject.check(output)
    subject.alternate()
    with pytest.raises(Wrong):
        subject.check(output)


@pytest.mark.parametrize("name", subjects.WAYS)
def test_every_way_of_naming_an_array(memory: Memory, name: str) -> None:
    for subject in subjects.subjects(memory, 64, 4096):
        if subject.name != name:
            continue
        output = memory.output()
        for change in (subject.edit, subject.alternate, subject.edit, subject.renew, lambda: subject.renew(5)):
            change()
            subject.check(output)


LEAKS: list[Any] = []


def leak_in(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    real = subjects.Subject.renew

    def renew(self: Any, larger: int = 0) -> None:
        real(self, larger)
        if what == "blocks":
            LEAKS.append([bytearray(1) for _ in range(100)])
        elif what == "watches":
            LEAKS.append((self.table, Watch(*copies.extent(self.table), self.table, None, False)))
        else:
            LEAKS.append(self._machine.kernel(lambda out: None).__self__.toolchain.load(None, None))

    monkeypatch.setattr(subjects.Subject, "renew", renew)


@pytest.mark.parametrize("what", ["blocks", "watches", "modules"])
def test_what_stays_is_found(memory: Memory, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    leak_in(monkeypatch, what)
    try:
        log = launches.launches(memory, 400, OFTEN, large=4096)
    finally:
        LEAKS.clear()
    with pytest.raises(Grown, match=rf"{what} grew by .*at most [\d,]+ were to be expected"):
        log.check({what: launches.BOUNDS[what]})


def test_host_and_device_memory_that_stay_are_found() -> None:
    log = counting.Log(None, 10, "launches", io.StringIO())
    first = Held(**dict.fromkeys(Held.__dataclass_fields__, 0))
    log.points = [first, Held(**{**vars(first), "host": 1 << 30, "device": 1 << 30})]
    with pytest.raises(Grown, match=r"host grew by 1,073,741,824(.|\n)*device grew by 1,073,741,824"):
        log.check(launches.BOUNDS)


def test_kernels(memory: Memory) -> None:
    log = kernels.kernels(memory, KERNELS, large=4096)
    log.check(kernels.BOUNDS)
    assert len(log.points) == counting.POINTS


def test_kernels_that_stay_are_found(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    real = memory.kernel

    def kept(function: Any) -> Any:
        made = real(function)
        LEAKS.append(made)
        return made

    monkeypatch.setattr(memory, "kernel", kept)
    try:
        log = kernels.kernels(memory, 200, large=4096)
    finally:
        LEAKS.clear()
    with pytest.raises(Grown, match=r"modules grew by (.|\n)*instances grew by "):
        log.check(kernels.BOUNDS)


def test_threads(memory: Memory) -> None:
    said = io.StringIO()
    threads.threads(memory, 8, 3, different_every=2, launches=5, file=said)
    times = [int(line.split("right ")[1].split()[0]) for line in said.getvalue().splitlines()]
    assert times == [3, 3, 2, 3]


@pytest.mark.parametrize("part", [threads.one_kernel, threads.of_one_code, threads.of_different_code])
def test_compiling_twice_is_found(memory: Memory, monkeypatch: pytest.MonkeyPatch, part: Any) -> None:
    @contextmanager
    def doubled() -> Iterator[list[Any]]:
        with Memory.compilations(memory) as compiled:
            yield compiled
            compiled += compiled[:1]

    monkeypatch.setattr(memory, "compilations", doubled)
    with pytest.raises(CompiledOften, match=r"compilations for \d+ keys; of one code object each: \[2"):
        part(memory, 4)


def test_code_that_is_not_shared_is_found(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "factory", lambda machine: lambda table: kernels.factory(machine)(table))
    with pytest.raises(CompiledOften, match=r"4 compilations for 1 keys"):
        threads.of_one_code(memory, 4)


def test_an_element_out_of_place_is_found(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    turmoil = Turmoil(memory, 6, 10)
    monkeypatch.setattr(turmoil, "_rebind", lambda number: None)
    turmoil._tables[0][3] = 7.5
    with pytest.raises(Wrong, match="elements of no table"):
        turmoil.run()


def test_a_thread_that_hangs_is_an_error() -> None:
    stop = threading.Event()
    with pytest.raises(TimeoutError, match="not through after 0 s"):
        at_once([lambda: stop.wait(20)], patience=0.2)
    stop.set()


# the command


def test_the_command(fake: MemoryDriver, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def machine(compiler: str) -> Memory:
        made.append(compiler)
        return Memory(fake)

    assert main(["kernels", "--kernels", "100"], machine) == 0
    assert main(["threads", "--threads", "4", "--repeat", "1", "--compiler", "numba_cuda_mlir.cuda"], machine) == 0
    assert made == ["numba.cuda", "numba_cuda_mlir.cuda"]
    monkeypatch.setattr(copies.Mirror, "_update", lambda self, ranges, stream, capturing: None)
    capsys.readouterr()
    assert main(["launches", "--launches", "10"], machine) == 1
    assert "failed: Wrong: global of 512 elements" in capsys.readouterr().out


def test_kernels_that_upstream_keeps_are_not_made(
    fake: MemoryDriver, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Memory, "lets_go", False)
    assert main(["kernels"], lambda compiler: Memory(fake)) == 0
    assert "Nothing was run" in capsys.readouterr().out


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cuda_captures.device, "available", lambda: False)
    assert main(["launches"]) == 2
    assert "no GPU here" in capsys.readouterr().out


# compute-sanitizer

FAKE = """#!{python}
import os, subprocess, sys
words = sys.argv[1:]
if words == ["--version"]:
    print("a fake\\nVersion 1"); sys.exit()
program = words[words.index("--log-file") + 2:]
log = words[words.index("--log-file") + 1].replace("%p", str(os.getpid()))
code = subprocess.run([*program, "--collect-only"], env={{**os.environ, "PYTEST_ADDOPTS": ""}}).returncode
errors = int(os.environ.get("FAKE_ERRORS", "0"))
text = "========= ERROR SUMMARY: %d errors\\n" if "memcheck" in words else (
    "========= RACECHECK SUMMARY: 0 hazards displayed (%d errors, 0 warnings)\\n")
if os.environ.get("FAKE_REFUSES"):
    text = "========= Error: Device not supported. %d\\n"
if not os.environ.get("FAKE_SILENT"):
    open(log, "w").write(text % errors)
if os.environ.get("FAKE_HANGS"):
    import time; time.sleep(60)
sys.exit(9 if errors else code)
"""


@pytest.fixture
def fake_sanitizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program called compute-sanitizer, on PATH; it collects the tests that it is to run."""
    program = tmp_path / "bin" / "compute-sanitizer"
    program.parent.mkdir()
    program.write_text(FAKE.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "logs"


@pytest.mark.parametrize("tool", sanitizing.TOOLS)
def test_a_clean_run(fake_sanitizer: Path, tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sanitize", str(fake_sanitizer), "--tools", tool, "--shares", "spares"]) == 0
    printed = capsys.readouterr().out
    assert "Version 1" in printed
    assert f"{tool} spares: clean" in printed


@pytest.mark.parametrize(
    ("variable", "found"),
    [
        ("FAKE_ERRORS", "memcheck spares: 3 errors: "),
        ("FAKE_REFUSES", "does not support this device"),
        ("FAKE_SILENT", "nothing was checked"),
        ("FAKE_HANGS", "out of time"),
    ],
)
def test_a_run_that_is_not_clean(
    fake_sanitizer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str, found: str
) -> None:
    monkeypatch.setenv(variable, "3")
    seconds = "1" if variable == "FAKE_HANGS" else "120"
    words = ["sanitize", str(fake_sanitizer), "--tools", "memcheck", "--shares", "spares", "--seconds", seconds]
    assert main(words) == 1
    assert found in capsys.readouterr().out


def test_tests_that_fail_under_the_tool_are_not_clean(
    fake_sanitizer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sanitizing.SHARES, "spares", ("tests/test_gpu_spares.py", "-k", "there_is_no_such_test"))
    assert not sanitize(fake_sanitizer, ["memcheck"], ["spares"])
    assert "tests failed (5)" in capsys.readouterr().out


def test_where_there_is_no_sanitizer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sanitizing, "_candidates", lambda: iter(["/nowhere/compute-sanitizer"]))
    with pytest.raises(Absent):
        sanitizing.compute_sanitizer()
    assert main(["sanitize", "/nowhere"]) == 2
    assert "compute-sanitizer is not on PATH" in capsys.readouterr().out


@pytest.mark.parametrize("share", sanitizing.SHARES)
def test_every_share_has_tests(share: str) -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:xdist", *sanitizing.SHARES[share]]
    done = subprocess.run(command, cwd=sanitizing.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
