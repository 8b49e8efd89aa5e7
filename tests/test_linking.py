"""Kernels compile and link for every architecture, and captured arrays leave nothing in constant memory but slots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba.cuda import LinkableCode, PTXSource, types

import linking
from cpu_lowering import lower
from cuda_captures.slots import Slot, definitions
from generated import namespace
from slot_lowering import slots_for_constants, words_of

Array = np.ndarray[Any, Any]

ARCHITECTURES = [(8, 0), (9, 0), (10, 0), (12, 0)]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"debug": True},
    {"lineinfo": True},
    {"fastmath": True},
    {"max_registers": 24},
    {"launch_bounds": (96, 2)},
]
# cuda.jit turns LTO off for debug=True; nvJitLink refuses the two together below compute capability 10.0.
COMBINATIONS = [(lto, one) for lto in (False, True) for one in OPTIONS if not (lto and "debug" in one)]

SOURCE = """
    table = np.arange(100.0)
    matrix = np.arange(12.0).reshape(3, 4)
    @cuda.jit(device=True)
    def deep(i): return matrix[i % 3, i % 4] + table[i % 7]
    def kernel(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = table[i] + deep(i) / out[i]
"""


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> dict[str, Array]:
    """Arrays by slot symbol, as kernels are lowered."""
    return slots_for_constants(monkeypatch)


def definition(slots: dict[str, Array]) -> LinkableCode:
    """The PTX that defines slots."""
    made = [Slot(symbol, array.ndim, words_of(array) > 1) for symbol, array in slots.items()]
    return PTXSource(definitions(made).encode(), name="capture_slots")


@pytest.mark.parametrize(("lto", "options"), COMBINATIONS, ids=str)
@pytest.mark.parametrize("cc", ARCHITECTURES)
def test_slots_are_all_that_captures_put_in_constant_memory(
    slots: dict[str, Array], cc: tuple[int, int], lto: bool, options: dict[str, Any]
) -> None:
    lowered = lower(namespace(SOURCE)["kernel"], (types.float64[::1],), cc=cc, lto=lto, **options)
    lowered.library.add_linking_file(definition(slots))
    cubin = linking.linked(lowered, cc)
    assert linking.compute_capability(cubin) == cc
    assert linking.user_constants(cubin) == {symbol: 8 * words_of(array) for symbol, array in slots.items()}
    assert sorted(linking.user_constants(cubin).values()) == [8, 24]
    assert all(one.visible and one.offset % 8 == 0 for one in linking.constant_symbols(cubin))
    sections = linking.sections(cubin)
    assert f".text.{lowered.entry}" in sections
    assert (".debug_info" in sections) == ("debug" in options)
    assert (".debug_line" in sections) == ("debug" in options or "lineinfo" in options)
    if "max_registers" in options:
        assert linking.registers(cubin, lowered.entry) <= 24
    assert linking.max_threads(cubin, lowered.entry) == ((96, 1, 1) if "launch_bounds" in options else None)


@pytest.mark.parametrize("cc", ARCHITECTURES)
@pytest.mark.parametrize("options", [{}, {"lto": True}, {"debug": True}], ids=str)
def test_what_upstream_puts_in_constant_memory(cc: tuple[int, int], options: dict[str, Any]) -> None:
    """So that the test above is known to see contents where there are some."""
    cubin = linking.compiled(namespace(SOURCE)["kernel"], (types.float64[::1],), cc, **options)
    assert sum(linking.user_constants(cubin).values()) >= 800 + 96
    assert not any(one.visible for one in linking.constant_symbols(cubin))


def test_undefined_slots_do_not_link(slots: dict[str, Array]) -> None:
    lowered = lower(namespace(SOURCE)["kernel"], (types.float64[::1],))
    with pytest.raises(Exception, match=r"(?i)undefined reference"):
        linking.linked(lowered)
    assert len(slots) == 2


def test_compiled_code_holds_no_contents(slots: dict[str, Array]) -> None:
    made = namespace(SOURCE.replace("100.0", "5e5").replace("12.0", "4e6").replace("(3, 4)", "(1000, 4000)"))
    lowered = lower(made["kernel"], (types.float64[::1],))
    lowered.library.add_linking_file(definition(slots))
    cubin = linking.linked(lowered)
    assert len(cubin) < 20_000
    ptx = lowered.library.get_asm_str(cc=(9, 0))
    assert ptx.count(".extern .const") == 2
    assert "ld.const" in ptx
    assert "ld.global" in ptx
    assert "\tld.f64" not in ptx
