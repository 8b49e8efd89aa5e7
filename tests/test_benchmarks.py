"""The benchmarks without a GPU: every version compiles, versions are compared before they are timed, figures."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import kernels, pieces, sass, timing, versions
from benchmarks.pieces import PIECES, Piece
from conftest import needs_a_compiler


class OnDevice(np.ndarray):  # type: ignore[type-arg]
    """What stands for a device array."""

    def copy_to_device(self, array: Any) -> None:
        self[...] = array

    def copy_to_host(self) -> Any:
        return np.array(self)


class Interpreted:
    """What stands for a compiler: its kernels are run in Python, one thread after the other."""

    def __init__(self) -> None:
        self._thread = 0
        self._ticks = itertools.count()
        self.atomic = SimpleNamespace(add=self._add)

    def jit(self, function: Any) -> Any:
        def configured(grid_and_block: Any) -> Any:
            grid, block = grid_and_block

            def launch(*args: Any) -> None:
                for self._thread in range(grid * block):
                    function(*args)

            return launch

        return _Kernel(configured)

    def grid(self, dimensions: int) -> int:
        assert dimensions == 1
        return self._thread

    def to_device(self, array: Any) -> Any:
        return np.array(array).view(OnDevice)

    def synchronize(self) -> None:
        pass

    def event(self) -> Any:
        event = SimpleNamespace(at=0, synchronize=lambda: None)
        event.record = lambda: setattr(event, "at", next(self._ticks))
        return event

    def event_elapsed_time(self, start: Any, stop: Any) -> float:
        return float(stop.at - start.at)

    @staticmethod
    def _add(array: Any, index: Any, value: Any) -> None:
        array[index] += value


class _Kernel:
    def __init__(self, configured: Any) -> None:
        self._configured = configured

    def __getitem__(self, grid_and_block: Any) -> Any:
        return self._configured(grid_and_block)


def small(**changes: Any) -> Piece:
    where, table = np.array([5, 0, 99, 7], np.int32), np.arange(10.0)
    piece = Piece(
        "gather", kernels.gather, {"where": where, "out": np.zeros(4)}, {"table": table}, 4, 2, 3, {"size": table.size}
    )
    return replace(piece, **changes)


def test_all_versions_that_can_be_made_are_timed_and_the_rest_say_why() -> None:
    figures = {figure.version: figure for figure in versions.measured(Interpreted(), small(), rounds=3)}
    assert figures[versions.ARGUMENT].ratio is None  # the reference where there is no CUDA C++
    for version in (versions.CAPTURED, versions.UPSTREAM):
        assert figures[version].ratio == 1  # both events are one tick apart
    for version in (versions.CPP, versions.JIT):
        assert figures[version].median is None
        assert "Error" in figures[version].note


def test_results_are_compared_before_anything_is_timed() -> None:
    class Wrong(Piece):
        def argument_form(self, cuda: Any) -> Any:
            return cuda.jit(self.form(cuda, passed=list(self.tables), size=9))

    wrong = Wrong(**vars(small()))
    with pytest.raises(versions.Different, match="`argument` gives something else"):
        versions.measured(Interpreted(), wrong, rounds=1)


def test_results_in_captured_arrays_start_from_zero_for_each_version() -> None:
    values = np.array([1, 1, 2, 5], np.int32)
    piece = Piece(
        "histogram",
        kernels.histogram,
        {"values": values},
        {"bins": np.zeros(3, np.int32)},
        4,
        1,
        4,
        {"size": 3},
        result="bins",
        on_device=True,
    )
    ready = versions.Ready(Interpreted(), piece)
    ready.make("captured", ready.captured)
    ready.make("argument", ready.argument)
    assert set(ready.launches) == {"captured", "argument"}
    assert ready._expected.tolist() == [0, 2, 2]


def test_what_does_not_fit_into_constant_memory_is_not_compiled() -> None:
    figures = versions.measured(Interpreted(), small(tables={"table": np.arange(9000.0)}), rounds=1)
    (upstream,) = (figure for figure in figures if figure.version == versions.UPSTREAM)
    assert upstream.median is None
    assert "72,000 B do not fit into constant memory" in upstream.note


@needs_a_compiler
@pytest.mark.parametrize("name", PIECES)
def test_every_version_compiles(cuda: Any, name: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    piece = next(iter(PIECES[name](True)))
    found = {version: (ptx, cubin) for version, ptx, cubin in sass.versions(cuda, piece)}
    assert {"captured", "argument", "cpp"} <= set(found)
    assert all(cubin.startswith(b"\x7fELF") for _, cubin in found.values())
    assert ("ld.global.nc" in found["captured"][0]) is not piece.on_device


@needs_a_compiler
def test_code_is_written_side_by_side(cuda: Any, tmp_path: Any) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    table = sass.write_all(cuda, ["coefficients"], tmp_path)
    assert table.row_count == 5
    written = {path.name for path in tmp_path.iterdir()}
    kinds = ("captured", "captured_constant", "argument", "cpp", "cpp_compiled_in")
    assert {f"coefficients.{version}.{kind}" for version in kinds for kind in ("ptx", "cubin")} <= written


def test_instructions_are_counted() -> None:
    text = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   LDG.E.64.CONSTANT R4, desc[UR4][R4.64] ;
        /*0020*/                   IMAD.WIDE.U32 R4, R9, 0x8, R4 ;
        /*0030*/               @P0 EXIT ;
        /*0040*/                   NOP;
    """
    counts = dict(zip(sass.KINDS, sass.counted(text), strict=True))
    assert counts["instructions"] == "4"
    assert (counts["LDG"], counts["LDG.CONSTANT"], counts["LDC"]) == ("0", "1", "1")
    assert (counts["IMAD.WIDE"], counts["IMAD"], counts["branches"]) == ("1", "0", "1")


def test_ratios_are_between_medians() -> None:
    figures = timing.compared("work", {"a": [1.0, 2.0, 30.0], "b": [4.0, 3.0, 5.0]}, "a", notes={"b": "slower"})
    assert [(figure.median, figure.ratio, figure.note) for figure in figures] == [(2.0, None, ""), (4.0, 2.0, "slower")]


def test_tables_compiled_in_are_exact() -> None:
    table = np.array([1 / 3, -2.5], np.float32)
    text = pieces.constexpr("taps", table)
    values = text[text.index("{") + 1 : text.index("}")].split(", ")
    assert [np.float32(float.fromhex(value.removesuffix("f"))) for value in values] == table.tolist()


def test_figures_of_two_compilers_become_plots_and_tables(tmp_path: Any) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `examples`")
    figures = timing.compared("gather 8 B", {"CUDA C++": [1.0, 1.0], "captured": [1.02, 1.02]}, "CUDA C++")
    figures.append(timing.Figure("gather 8 B", "upstream capture", None, note="does not fit"))
    figures.append(timing.Figure("held per kernel, host", "one table", 512.0, unit="B"))
    for compiler in ("numba-cuda", "numba-cuda-mlir"):
        content = {"compiler": compiler, "figures": [vars(figure) for figure in figures]}
        (tmp_path / f"{compiler}.json").write_text(json.dumps(content))
    files = [str(tmp_path / name) for name in ("numba-cuda.json", "numba-cuda-mlir.json")]
    script = Path(__file__).parents[1] / "docs" / "plot_benchmarks.py"
    subprocess.run([sys.executable, str(script), *files, "--into", str(tmp_path)], check=True, capture_output=True)
    assert [path.name for path in tmp_path.glob("*.png")] == ["gather.png"]
    lines = (tmp_path / "tables.txt").read_text().splitlines()
    ratio = "**1.020** (1.0 ± 0.0 us)"
    assert "| | | numba-cuda | numba-cuda-mlir |" in lines
    assert f"| gather 8 B | captured | {ratio} | {ratio} |" in lines
    assert "| gather 8 B | upstream capture | none: does not fit | none: does not fit |" in lines
    assert "| held per kernel, host | one table | 512.0 ± 0.0 B | 512.0 ± 0.0 B |" in lines
