"""Generated kernels against plain Python: what once failed, some fresh programs, and whether the fuzzer notices."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cuda_captures
from backends_under_test import INSTALLED, using
from cuda_captures import binding
from cuda_captures.code import Use
from cuda_captures.copies import Mirror
from cuda_captures.instances import Instance
from cuda_captures.signature import ArraySignature
from cuda_captures.slots import Slot
from fuzz import ROOT, corpus, runner, running
from fuzz.generating import generate
from fuzz.judging import Outcome, Verdict, judge, judge_after_fatal
from fuzz.lacking import LACKING, NOTHING
from fuzz.lean import remembering, without_machine_code
from fuzz.on_gpu import OnDevice, is_fatal
from fuzz.program import Piece, Program
from fuzz.runner import ALL, Runner, program_of, ready
from fuzz.running import Run
from fuzz.shrinking import shrink
from fuzz.state import Ended, State
from fuzz.worlds import LAYOUTS, Pair, World, laid

FRESH = int(os.environ.get("CUDA_CAPTURES_PROGRAMS", "12"))  # a second each, or two
GOOD = {"right", "right in part", "refused as it must be", "compiler lacks"}

pytestmark = pytest.mark.filterwarnings("ignore")  # programs capture what they like


@pytest.fixture(params=INSTALLED)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each compiler in turn, with captures."""
    with using(request.param), cuda_captures.enabled():
        yield request.param


@pytest.mark.parametrize("name", corpus.cases())
def test_what_once_failed(backend: str, name: str) -> None:
    verdict = judge(corpus.load(name))
    assert verdict.kind in GOOD, verdict.outcome.detail


@pytest.mark.parametrize("number", range(FRESH))
def test_fresh_programs(backend: str, number: int) -> None:
    verdict = judge(program_of(number, backend, False), number)
    assert verdict.kind in GOOD, verdict.outcome.detail


# Whether the fuzzer notices


def program(*statements: str, lay: str = "lay('f8', (3, 4), 'C', 1)", **steps: str) -> Program:
    """A program on one global array with the path ``p``."""
    pieces = [Piece("module", f"t = {lay}\nother = lay('f8', (3, 4), 'C', 2)"), Piece("path", "t", "p")]
    pieces += [Piece("kernel", text) for text in statements]
    pieces += [Piece(section, text) for section, text in steps.items()]
    return Program(tuple(pieces))


READS = program("out[i] += $p[i % 3, (i + 1) % 4]")
WRITES = program("$p[i % 3, 1] += 2")
EDITED = program("out[i] += $p[i % 3, 1]", step1="alter(t, 5)")
REBOUND = program("out[i] += $p[i % 3, 1]", step1="t = other")
GAPPED = "lay('f8', (3, 4), 'gapped', 1)"
RESHAPED = program("out[i] += $p[i % 3, i % 2]", lay=GAPPED, step1="t = lay('f8', (5, 2), 'gapped', 7)")
SCALAR = program("out[i] += $p * 2", lay="3", step1="t = 4")


def test_the_programs_are_right(backend: str) -> None:
    for one in (READS, WRITES, EDITED, REBOUND, RESHAPED, SCALAR):
        assert judge(one) == Verdict("right", judge(one).outcome)


def failed(one: Program) -> str:
    """How a program failed that arguments have right."""
    verdict = judge(one)
    assert verdict.kind == "failure", verdict
    assert verdict.argument is not None
    assert verdict.argument.kind == "right"
    return verdict.outcome.kind


def test_an_address_that_is_off_by_one_element(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = Slot.pack
    monkeypatch.setattr(Slot, "pack", lambda self, address, *rest: pack(self, address + 8, *rest))
    assert failed(READS) in ("wrong", "bad access")
    assert failed(WRITES) in ("wrong", "bad access")


def test_swapped_strides(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = Slot.pack
    monkeypatch.setattr(Slot, "pack", lambda self, at, shape, strides: pack(self, at, shape, strides[::-1]))
    assert failed(RESHAPED) in ("wrong", "bad access")


def test_a_shape_that_is_taken_for_another(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ArraySignature, "accepts", ArraySignature.same_kind)
    assert failed(RESHAPED) in ("wrong", "bad access")


def test_what_is_written_does_not_come_back(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Instance, "copy_back", lambda self, stream, owner: None)
    assert failed(WRITES) == "wrong"


def test_writes_that_are_not_noticed(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Use, "written", property(lambda self: False, lambda self, value: None), raising=False)
    assert failed(WRITES) == "bad access"


def test_edits_that_are_not_sent(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, refresh = set(), Mirror.refresh

    def once(self: Any, *rest: Any, **options: Any) -> None:
        if id(self) not in seen:
            seen.add(id(self))
            refresh(self, *rest, **options)

    monkeypatch.setattr(Mirror, "refresh", once)
    assert failed(EDITED) == "wrong"


def test_names_that_are_not_followed(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "unchanged_predicate", lambda *rest: lambda: True)
    assert failed(REBOUND) == "wrong"
    assert failed(SCALAR) == "wrong"


def test_a_wrong_result_where_arguments_do_not_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Odd(World):
        def __init__(self, form: str) -> None:
            super().__init__()
            self.form = form

        def launch(self, kernel: Any, threads: int, out: Any, *rest: Any) -> None:
            if self.form == "argument":
                raise TypeError("no implementation")
            out[0] = -1

    assert judge(READS, gpu=Odd).kind == "failure"


def test_a_write_that_is_let_through(backend: str) -> None:
    base = program("out[i] += $p[i % 3, 1]", lay="cap.snapshot(lay('f8', (3, 4), 'C', 1))")
    forbidden = replace(base, pieces=(*base.pieces, Piece("forbidden", "$p[0, 0] = 1")), refused="p")
    assert judge(forbidden).kind == "refused as it must be"
    pieces = tuple(replace(piece, text=piece.text.replace("cap.snapshot", "")) for piece in forbidden.pieces)
    verdict = judge(replace(forbidden, pieces=pieces))
    assert (verdict.kind, verdict.outcome.kind) == ("failure", "right")


def test_a_failure_is_shrunk_and_kept(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big = program("out[i] += $p[0, 0]", "$p[i % 3, 1] += 2", "out[i] += 1", step1="alter(t, 5)")
    monkeypatch.setattr(runner, "generate", lambda number, lacking: big)
    with monkeypatch.context() as patched:
        patched.setattr(Instance, "copy_back", lambda self, stream, owner: None)
        ended = Runner(backend, folder=tmp_path).one(1)
        (case,) = tmp_path.glob("*.py")
        names: dict[str, Any] = {}
        exec(case.read_text(), names)
        kept = names["PROGRAM"]
        assert judge(kept).failed
    assert judge(kept).kind == "right"
    assert [piece.text for piece in kept.body()] == ["$p[i % 3, 1] += 2"]
    assert kept.steps == []
    assert (ended.number, ended.kind, ended.reason, ended.case) == (1, "failure", "wrong", case.stem)
    assert kept.source() in ended.text


def test_a_gpu_of_no_more_use_is_not_asked_about_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []

    class Broken(World):
        def __init__(self, form: str) -> None:
            super().__init__()
            asked.append(form)

        def launch(self, *rest: Any) -> None:
            raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS" if asked[-1] == "captured" else "no such implementation")

    monkeypatch.setattr(runner, "GpuWorld", Broken)
    monkeypatch.setattr(runner, "generate", lambda number, lacking: READS)
    first = Runner("numba-cuda", True, tmp_path)
    ended = first.one(5)
    assert (ended.kind, asked, first.spent) == ("fatal", ["captured"], True)
    second = Runner("numba-cuda", True, tmp_path)
    ended = second.one(5, Outcome("error", ended.text))
    assert (ended.kind, asked, second.spent) == ("compiler lacks", ["captured", "argument"], False)
    assert judge_after_fatal(READS, Outcome("error"), lambda form: World()).kind == "failure"


def test_what_leaves_a_gpu_of_no_more_use() -> None:
    for text in ("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered", "misaligned address"):
        assert is_fatal(f"RuntimeError: {text}")
    for text in ("CUDA_ERROR_INVALID_VALUE", "No implementation of function", "out of memory"):
        assert not is_fatal(f"RuntimeError: {text}")


class Memory:
    """Of a device that is the host."""

    def __init__(self, content: Any) -> None:
        self.content = content.copy()
        self.__cuda_array_interface__ = self.content.__array_interface__

    def copy_to_host(self) -> Any:
        return self.content


def as_cuda_array(laid_out: Any) -> Any:
    known = laid_out.__cuda_array_interface__
    parts = {**known, "typestr": np.dtype(known["typestr"]).str}
    return np.asarray(SimpleNamespace(__array_interface__=parts, held=laid_out)).view(np.dtype(known["typestr"]))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["f8", "record", "M8[D]"])
def test_arguments_on_a_device_are_laid_out_as_on_the_host(layout: str, dtype: str) -> None:
    array = laid(dtype, (4, 3), layout, 1)
    other = laid(dtype, (2,), "C", 2)
    device = OnDevice(SimpleNamespace(to_device=Memory, as_cuda_array=as_cuda_array))
    first, (second, number), pair = map(device.put, (array, (array[1:], 3), Pair(other, 2.5)))
    assert (first.dtype, first.strides, first.shape) == (array.dtype, array.strides, array.shape)
    assert first.tolist() == array.tolist()
    assert (number, pair.second, pair.first.tolist()) == (3, 2.5, other.tolist())
    before = array[0].copy()
    second[...] = laid(dtype, (3, 3), "C", 3)
    assert array[0].tolist() == before.tolist() == first[0].tolist() or layout == "repeated"
    assert first[1:].tolist() == second.tolist() != array[1:].tolist()
    device.fetch()
    assert array.tolist() == first.tolist()


@pytest.mark.parametrize("compiler", INSTALLED)
def test_less_is_compiled_and_nothing_else_comes_of_it(compiler: str) -> None:
    with ready(compiler):
        before = judge(WRITES, 1)
        with remembering(compiler), without_machine_code(compiler):
            for seed in (1, 2):
                assert judge(replace(WRITES, threads=seed), seed) == before
        assert judge(replace(WRITES, threads=3), 1) == before


# The parts


def test_a_program_is_a_function_of_its_number() -> None:
    ask = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom fuzz.generating import generate\nprint(generate(77))"
    texts = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True, env=environment)
        texts.add(done.stdout)
    assert texts == {f"{generate(77)}\n"}
    assert generate(77) != generate(78)


@pytest.mark.parametrize("compiler", LACKING)
def test_what_a_compiler_lacks_is_not_generated(compiler: str) -> None:
    lacking = LACKING[compiler]
    for number in range(300):
        made = program_of(number, compiler, True)
        for piece in made.body():
            assert not lacking.has(piece.text, 1), piece.text
        assert not any(f"'{dtype}'" in made.source() for dtype in lacking.dtypes)
    assert program_of(ALL - 1, compiler, False) == generate(ALL - 1, NOTHING)
    assert program_of(ALL, compiler, False) == generate(ALL, lacking)


def test_every_program_runs_as_plain_python() -> None:
    for number in range(300):
        made = generate(number)
        if not made.refused:
            assert World().run(made) == World().run(made)
            assert made.source("argument").count("a_") > 0 or not made.paths()


def test_programs_vary() -> None:
    texts = "\n".join(generate(number).source() for number in range(400))
    for word in (
        *LAYOUTS,
        "record",
        "M8[D]",
        "cap.snapshot",
        "cap.constant",
        "cap.mapped",
        "on_device",
        "Frozen",
        "Open",
    ):
        assert word in texts, word
    for word in (
        "SimpleNamespace",
        "ModuleType",
        "Pair",
        "Open",
        "type('Holder'",
        "atomic.add",
        "atomic.max",
        "inline=",
        ".T",
    ):
        assert word in texts, word
    for word in ("nonlocal", "global", "def second", "def step2", "alter(", "for k_", "for x_", "::-1", ".ndim"):
        assert word in texts, word
    assert any(generate(number).policies for number in range(400))
    assert any(generate(number).refused for number in range(400))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str) -> None:
    for shape in ((), (3,), (0,), (2, 3), (2, 3, 4)):
        for dtype in ("f8", "bool", "record"):
            made = laid(dtype, shape, layout, 1)
            assert made.shape == shape
            assert made.flags.aligned or layout == "unaligned"
    assert laid("f8", (2, 3), layout, 1).tobytes() == laid("f8", (2, 3), layout, 1).tobytes()


def test_a_snapshot_in_plain_python() -> None:
    world = World()
    array = laid("i4", (3, 2), "unaligned", 1)
    copy = world.snapshot(array)
    before = array.copy()
    world.alter(array, 2)
    assert np.array_equal(copy, before)
    assert (copy.strides, copy.flags.aligned, copy.flags.writeable) == (array.strides, False, False)
    world.refresh(copy)
    assert np.array_equal(copy, array)


def test_shrinking_without_a_compiler() -> None:
    big = generate(3)
    small = shrink(big, lambda one: any("out[i]" in text for text in one.section("kernel")))
    assert len(small.body()) == 1
    assert small.size == 2


def test_the_state_is_whole_and_of_one_seed(tmp_path: Path) -> None:
    path = tmp_path / "state"
    state = State(path, 4)
    state.of("numba-cuda").count(Ended(0, "right", 2.0))
    state.of("numba-cuda").count(Ended(1, "failure", 1.0, "wrong", "numba_cuda_1"))
    state.of("numba-cuda").pending.append(2)
    state.save()
    assert [one.name for one in tmp_path.iterdir()] == ["state"]
    assert State(path, 4).progress == state.progress
    assert "2 programs, 1 failures, 1.50 s each" in state.of("numba-cuda").summary()
    assert "failure numba_cuda_1: failure 1: wrong" in state.of("numba-cuda").summary()
    with pytest.raises(ValueError, match=r"is of a run with the seed 4 \(got 5\)"):
        State(path, 5)


# Processes that stand for those of a run: what they do at program 3, and that every other program is right.
PRETENDED = """
import json, os, signal, sys, time
said = open(int(sys.argv[3]), "w", buffering=1)
for line in sys.stdin:
    number, fatal = json.loads(line).values()
    kind = "compiler lacks" if fatal else "right"
    if number == 3:
        {}
    said.write(json.dumps({{"number": number, "kind": kind, "text": "illegal address"}}) + "\\n")
"""


def pretended_run(at_three: str, tmp_path: Path, **options: Any) -> tuple[Run, list[str]]:
    """A run of ten programs with two processes."""
    said: list[str] = []
    worker = [sys.executable, "-c", PRETENDED.format(at_three)]
    state = State(tmp_path / "state", 0)
    run = Run(state, INSTALLED[:1], folder=tmp_path, say=said.append, workers=2, worker=worker, **options)
    run.go(programs=10)
    return run, said


@pytest.mark.parametrize(("death", "how"), [("os.abort()", "SIGABRT"), ("os._exit(7)", "status 7")])
def test_a_program_that_ends_its_process(tmp_path: Path, death: str, how: str) -> None:
    run, said = pretended_run(death, tmp_path)
    progress = run.progress(INSTALLED[0])
    assert progress.kinds == {"right": 9, "ended the process": 1}
    assert progress.pending == []
    name = f"{INSTALLED[0].replace('-', '_')}_3"
    assert progress.failures == {f"ended the process 1: {how}": name}
    assert (tmp_path / f"{name}.py").exists()
    assert len(said) == 1
    assert f"{how}, as program" in said[0]
    assert State(tmp_path / "state", 0).progress == run.state.progress


def test_a_program_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "LATEST", 2.0)
    run, _ = pretended_run("time.sleep(600)", tmp_path)
    assert run.progress(INSTALLED[0]).kinds == {"right": 9, "took too long": 1}


def test_a_gpu_of_no_more_use_is_another_process_affair(tmp_path: Path) -> None:
    first = 'kind = kind if fatal else "fatal"'
    run, _ = pretended_run(first, tmp_path, gpu=True)
    assert run.progress(INSTALLED[0]).kinds == {"right": 9, "compiler lacks": 1}


def test_processes_do_not_live_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "LIFE", 3)
    run, _ = pretended_run("pass", tmp_path)
    assert run.progress(INSTALLED[0]).kinds == {"right": 10}


def test_what_a_process_leaves_behind_is_not_for_one_that_was_told_to_end(tmp_path: Path) -> None:
    run, _ = pretended_run("time.sleep(1), os.abort()", tmp_path)  # when the other has nothing to do any more
    assert run.progress(INSTALLED[0]).kinds == {"right": 9, "ended the process": 1}


def test_programs_that_had_not_ended_come_first(tmp_path: Path) -> None:
    state = State(tmp_path / "state", 0)
    progress = state.of(INSTALLED[0])
    progress.following, progress.pending = 40, [5, 9]
    state.save()
    run, _ = pretended_run("pass", tmp_path)
    assert run.progress(INSTALLED[0]).kinds == {"right": 12}
    assert (run.progress(INSTALLED[0]).following, run.progress(INSTALLED[0]).pending) == (50, [])


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_is_stopped_and_resumed(tmp_path: Path, how: signal.Signals) -> None:
    path = tmp_path / "state"
    compiler = INSTALLED[0]
    command = [sys.executable, "-m", "fuzz", "--state", str(path), "--corpus", str(tmp_path), "--compiler", compiler]

    def reached() -> int:
        return State(path, 0).of(compiler).done if path.exists() else 0

    running_ = subprocess.Popen([*command, "--seconds", "300"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    while reached() < 2 and time.monotonic() < until:
        time.sleep(0.1)
    running_.send_signal(how)
    text, _ = running_.communicate(timeout=60)
    assert ("goes on from here" in text) == (how != signal.SIGKILL)
    before = reached()
    assert before >= 2
    ended = subprocess.run([*command, "--programs", "4"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert reached() >= before + 4
    assert State(path, 0).of(compiler).pending == []
    assert f"{compiler}: {reached()} programs" in ended.stdout
