"""Generated kernels against plain Python: what once failed, some fresh programs, and whether the fuzzer notices."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
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
from fuzz import ROOT, corpus, running
from fuzz.generating import generate
from fuzz.judging import Verdict, judge
from fuzz.program import Piece, Program
from fuzz.running import Run
from fuzz.shrinking import shrink
from fuzz.state import GIVEN_UP, State
from fuzz.worlds import LAYOUTS, World, laid

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
    verdict = judge(generate(number), number)
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


def test_a_write_that_is_let_through(backend: str) -> None:
    base = program("out[i] += $p[i % 3, 1]", lay="cap.snapshot(lay('f8', (3, 4), 'C', 1))")
    forbidden = replace(base, pieces=(*base.pieces, Piece("forbidden", "$p[0, 0] = 1")), refused="p")
    assert judge(forbidden).kind == "refused as it must be"
    pieces = tuple(replace(piece, text=piece.text.replace("cap.snapshot", "")) for piece in forbidden.pieces)
    verdict = judge(replace(forbidden, pieces=pieces))
    assert (verdict.kind, verdict.outcome.kind) == ("failure", "right")


def test_a_failure_is_shrunk_and_kept(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big = program("out[i] += $p[0, 0]", "$p[i % 3, 1] += 2", "out[i] += 1", step1="alter(t, 5)")
    monkeypatch.setattr(running, "generate", lambda number: big)
    state = State(tmp_path / "state", 0)
    said: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(Instance, "copy_back", lambda self, stream, owner: None)
        Run(state, [backend], folder=tmp_path, say=said.append).go(programs=1)
        (case,) = tmp_path.glob("*.py")
        names: dict[str, Any] = {}
        exec(case.read_text(), names)
        kept = names["PROGRAM"]
        assert judge(kept).failed
    assert judge(kept).kind == "right"
    assert [piece.text for piece in kept.body()] == ["$p[i % 3, 1] += 2"]
    assert kept.steps == []
    assert state.of(backend).failures == {"failure 1: wrong": case.stem}
    assert len(said) == 1


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
    state.of("numba-cuda").count("right")
    state.of("numba-cuda").ended(2.0)
    state.save()
    assert [one.name for one in tmp_path.iterdir()] == ["state"]
    assert State(path, 4).progress == state.progress
    assert "1 programs, 0.50 a second" in state.of("numba-cuda").summary()
    with pytest.raises(ValueError, match=r"is of a run with the seed 4 \(got 5\)"):
        State(path, 5)


def test_a_program_that_ends_the_process_is_kept(tmp_path: Path) -> None:
    state = State(tmp_path / "state", 0)
    progress = state.of(INSTALLED[0])
    progress.begun = GIVEN_UP
    Run(state, INSTALLED[:1], folder=tmp_path, say=lambda text: None).go(programs=1)
    assert progress.following == 1
    assert list(progress.failures) == ["ended the process"]
    assert len(list(tmp_path.glob("*.py"))) == 1


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_is_stopped_and_resumed(tmp_path: Path, how: signal.Signals) -> None:
    path = tmp_path / "state"
    compiler = INSTALLED[0]
    command = [sys.executable, "-m", "fuzz", "--state", str(path), "--corpus", str(tmp_path), "--compiler", compiler]

    def reached() -> int:
        return json.loads(path.read_text())["progress"][compiler]["following"] if path.exists() else 0

    running_ = subprocess.Popen([*command, "--seconds", "300"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    while reached() < 2 and time.monotonic() < until:
        time.sleep(0.1)
    running_.send_signal(how)
    text, _ = running_.communicate(timeout=60)
    assert ("goes on from here" in text) == (how != signal.SIGKILL)
    before = reached()
    assert before >= 2
    ended = subprocess.run([*command, "--seconds", "4"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert reached() > before
    assert f"{compiler}: {reached()} programs" in ended.stdout
