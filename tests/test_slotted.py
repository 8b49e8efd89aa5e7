"""Code with slots for callers that load it themselves: compiled and linked for real, filled on a driver in memory."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import copies_in_memory
import cuda_captures
import linking
from cuda_captures import slot_binding
from cuda_captures.discovery import discover
from cuda_captures.extents import extent
from cuda_captures.mirrors import acquire
from memory_driver import MemoryDriver

CC = (9, 0)
KERNEL, DEVICE = "void(float64[::1])", "float64(int64)"

TABLE = np.arange(6.0).reshape(2, 3)
OTHER = np.arange(4, dtype=np.int32)


def functions(cuda: Any, **names: Any) -> dict[str, Any]:
    """A kernel and a device function that capture two arrays, one of them through a device function."""
    source = """
@cuda.jit(device=True)
def get(i):
    return other[i]

@cuda.jit(device=True)
def load(i):
    return table[i // 3, i % 3] + get(i) * factor

@cuda.jit(device=True)
def alone(i):
    return table[i // 3, i % 3]

@cuda.jit
def kernel(out):
    i = cuda.grid(1)
    out[i] = table[i // 3, i % 3] + get(i) * factor

@cuda.jit
def writer(out):
    i = cuda.grid(1)
    table[i // 3, i % 3] = out[i]
"""
    namespace: dict[str, Any] = {"cuda": cuda, "table": TABLE, "other": OTHER, "factor": 2, **names}
    exec(source, namespace)
    return namespace


def compiled(cuda: Any, output: str = "ptx", device: bool = False, **options: Any) -> cuda_captures.SlottedCode:
    function = functions(cuda)["load" if device else "kernel"]
    signature = DEVICE if device else KERNEL
    return cuda_captures.compile_with_slots(function, signature, output=output, device=device, cc=CC, **options)


def linked(code: cuda_captures.SlottedCode) -> bytes:
    """The machine code of PTX or LTO-IR, linked as its caller would."""
    from cuda.core import Linker, LinkerOptions, ObjectCode

    if code.output == "cubin":
        assert isinstance(code.code, bytes)
        return code.code
    lto = code.output == "ltoir"
    objects = [ObjectCode.from_ltoir(code.code) if lto else ObjectCode.from_ptx(code.code.encode())]
    if code.definitions:
        objects.append(ObjectCode.from_ptx(code.definitions.encode()))
    options = LinkerOptions(arch="sm_90", link_time_optimization=True) if lto else LinkerOptions(arch="sm_90")
    return bytes(Linker(*objects, options=options).link("cubin").code)


@pytest.mark.parametrize("shapes", ["exact", "general"])
@pytest.mark.parametrize("output", ["ptx", "ltoir", "cubin"])
def test_a_kernel_links_with_its_slots_in_constant_memory(cuda: Any, output: str, shapes: str) -> None:
    code = compiled(cuda, output, shapes=shapes)
    assert isinstance(code.code, str if output == "ptx" else bytes)
    assert bool(code.definitions) is (output == "ltoir")
    cubin = linked(code)
    assert linking.user_constants(cubin) == {slot.symbol: slot.nbytes for slot in code.slots}
    assert linking.compute_capability(cubin) == CC
    assert code.entry.encode() in cubin
    sizes = {slot.name: slot.nbytes for slot in code.slots}
    assert sizes == ({"table": 8, "other": 8} if shapes == "exact" else {"table": 40, "other": 24})


def test_what_is_told_of_slots(cuda: Any) -> None:
    slots = {slot.name: slot for slot in compiled(cuda).slots}
    table, other = slots["table"], slots["other"]
    assert (table.path, other.path) == (("global `table`",), ("device function `get`", "global `other`"))
    assert (table.dtype, table.ndim, table.shape, table.strides) == (np.dtype("f8"), 2, (2, 3), (24, 8))
    assert (other.dtype, other.ndim, other.shape, other.strides) == (np.dtype("i4"), 1, (4,), (4,))
    assert (table.layout, table.policy, table.written, table.general) == ("C", "live", False, False)
    general = {slot.name: slot for slot in compiled(cuda, shapes="general").slots}["table"]
    assert (general.shape, general.strides, general.general) == (None, None, True)
    writer = cuda_captures.compile_with_slots(functions(cuda)["writer"], KERNEL, cc=CC)
    assert [slot.written for slot in writer.slots] == [True]


@pytest.mark.parametrize("output", ["ptx", "ltoir"])
def test_a_device_function_has_its_name_and_its_slots(cuda: Any, output: str) -> None:
    code = compiled(cuda, output, device=True)
    assert (code.entry, str(code.return_type)) == ("load", "float64")
    assert {slot.name for slot in code.slots} == {"table", "other"}
    if output == "ptx":
        assert f" {code.entry}(" in code.code
        assert ".extern .const" not in code.code
        assert all(f".visible .const .align 8 .b8 {slot.symbol}[8];" in code.code for slot in code.slots)
    named = compiled(cuda, output, device=True, abi_info={"abi_name": "loader"})
    assert named.entry == "loader"


def test_two_compilations_can_be_linked_together(cuda: Any) -> None:
    from cuda.core import Linker, LinkerOptions, ObjectCode

    codes = [compiled(cuda, device=True, abi_info={"abi_name": f"load_{number}"}) for number in range(2)]
    assert len({slot.symbol for code in codes for slot in code.slots}) == 4
    objects = [ObjectCode.from_ptx(code.code.encode()) for code in codes]
    assert Linker(*objects, options=LinkerOptions(arch="sm_90")).link("cubin").code


def test_the_same_prefix_gives_the_same_code(cuda: Any) -> None:
    one, other = (compiled(cuda, prefix="mine") for _ in range(2))
    assert {slot.symbol for slot in one.slots} == {slot.symbol for slot in other.slots}
    assert all(slot.symbol.startswith("cuda_capture_mine_") for slot in one.slots)
    random = compiled(cuda)
    assert not {slot.symbol for slot in one.slots} & {slot.symbol for slot in random.slots}


def test_launches_do_not_get_the_slots_of_code_for_callers(cuda: Any) -> None:
    names = functions(cuda)
    before = cuda_captures.explain(names["kernel"], KERNEL).slots
    code = cuda_captures.compile_with_slots(names["kernel"], KERNEL, cc=CC)
    after = cuda_captures.explain(names["kernel"], KERNEL).slots
    assert not {slot.symbol for slot in code.slots} & ({*before} | {*after})


def test_the_default_of_cuda_compile_is_unchanged(cuda: Any, compiler: str) -> None:
    function = functions(cuda)["alone"].py_func
    types = importlib.import_module("numba.cuda.types" if compiler == "numba-cuda" else "numba_cuda_mlir.types")

    def text() -> str:
        with contextlib.ExitStack() as stack:
            if compiler == "numba-cuda-mlir":  # asks for a device though it is told for what to compile
                from cuda_captures.backends.numba_cuda_mlir.target import compiling_for

                stack.enter_context(compiling_for(CC))
            return str(cuda.compile(function, types.float64(types.int64), device=True, cc=CC)[0])

    before = text()
    assert "cuda_capture" not in before
    assert {"numba-cuda": "_cudapy_cmem", "numba-cuda-mlir": "constant_array"}[compiler] in before
    slotted = cuda_captures.compile_with_slots(cuda.jit(device=True)(function), DEVICE, device=True, cc=CC)
    assert "cuda_capture" in str(slotted.code)
    assert "cuda_capture" not in text()


def test_constants_need_no_slot(cuda: Any) -> None:
    code = compiled(cuda, captures={"table": "constant", "other": "snapshot"})
    assert [(slot.name, slot.policy) for slot in code.slots] == [("other", "snapshot")]


def test_a_function_without_captures(cuda: Any) -> None:
    code = cuda_captures.compile_with_slots(cuda.jit(lambda out: None), KERNEL, output="ltoir", cc=CC)
    assert (code.slots, code.definitions) == ((), "")


# what is refused


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"output": "fatbin"}, ValueError, r"output='fatbin': must be 'ptx', 'ltoir' or 'cubin'"),
        ({"shapes": "any"}, ValueError, r"shapes='any': must be 'exact' or 'general'"),
        ({"prefix": "a-b"}, ValueError, r"prefix='a-b': must be letters"),
        ({"output": "cubin", "device": True}, ValueError, r"is for kernels: a cubin of a device function"),
        ({"abi": "numba"}, TypeError, r"no option 'abi': it follows"),
        ({"lto": True}, TypeError, r"no option 'lto'"),
        ({"captures": "lively"}, ValueError, r"captures='lively'"),
    ],
)
def test_arguments_that_do_not_exist(cuda: Any, arguments: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        cuda_captures.compile_with_slots(functions(cuda)["kernel"], KERNEL, cc=CC, **arguments)


def test_what_cannot_be_captured_is_refused_as_at_a_launch(cuda: Any) -> None:
    names = functions(cuda, other=[1, 2])
    with pytest.raises(cuda_captures.CaptureTypingError, match="`other` is a list"):
        cuda_captures.compile_with_slots(names["kernel"], KERNEL, cc=CC)


def test_captures_must_be_enabled(compiler: str) -> None:
    from conftest import module_of

    kernel = functions(module_of(compiler))["kernel"]
    with pytest.raises(cuda_captures.CaptureError, match="captures are not enabled"):
        cuda_captures.compile_with_slots(kernel, KERNEL, cc=CC)


def test_nothing_is_compiled_in_the_simulator() -> None:
    pytest.importorskip("numba.cuda")
    program = (
        "import cuda_captures\nfrom numba import cuda\ncuda_captures.enable()\n"
        "cuda_captures.compile_with_slots(cuda.jit(lambda out: None), 'void(float64[::1])')"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={"NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "CaptureError: nothing is compiled under the simulator" in done.stderr


# filling


class Library:
    """A loaded library on the driver in memory: its symbols are memory there."""

    handle = 77

    def __init__(self, driver: MemoryDriver, code: cuda_captures.SlottedCode) -> None:
        self.driver = driver
        self.code = code
        self.symbols: dict[tuple[int, str], int] = {}

    def symbol(self, library: int, symbol: str) -> int | None:
        assert library == self.handle
        sizes = {slot.symbol: slot.nbytes for slot in self.code.slots}
        if symbol not in sizes:
            return None
        context = self.driver.context_id()
        if (context, symbol) not in self.symbols:
            self.symbols[context, symbol] = self.driver.mem_alloc(sizes[symbol])
        return self.symbols[context, symbol]

    def words(self, name: str) -> list[int]:
        """What the slot of a name holds."""
        slot = next(slot for slot in self.code.slots if slot.name == name)
        address = self.symbols[self.driver.context_id(), slot.symbol]
        return list(struct.unpack(f"<{slot.nbytes // 8}q", self.driver.read(address, slot.nbytes)))

    def array(self, name: str, like: np.ndarray) -> np.ndarray:
        """What is where the slot of a name points to."""
        content = self.driver.read(self.words(name)[0], like.nbytes)
        return np.frombuffer(content, like.dtype).reshape(like.shape)


@pytest.fixture
def memory() -> Iterator[MemoryDriver]:
    yield from copies_in_memory.in_memory()


@pytest.fixture
def case(cuda: Any, memory: MemoryDriver, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Compiles a function and makes a library of it."""

    def make(which: str = "kernel", **options: Any) -> tuple[dict[str, Any], cuda_captures.SlottedCode, Library]:
        names = functions(cuda, table=TABLE.copy(), other=OTHER.copy())
        code = cuda_captures.compile_with_slots(names[which], KERNEL, cc=CC, **options)
        library = Library(memory, code)
        monkeypatch.setattr(slot_binding, "symbol_in", library.symbol)
        memory.use(0)
        return names, code, library

    return make


def test_slots_lead_to_copies(case: Any, memory: MemoryDriver) -> None:
    names, code, library = case()
    binding = code.fill(library, 0)
    with binding.launching():
        pass
    memory.finish()
    assert np.array_equal(library.array("table", TABLE), TABLE)
    assert np.array_equal(library.array("other", OTHER), OTHER)
    names["table"][1, 1] = -5
    with binding.launching():
        memory.finish()
        assert library.array("table", TABLE)[1, 1] == -5
    assert [row.nbytes for row in cuda_captures.memory()] != []


def test_general_slots_hold_shape_and_strides(case: Any, memory: MemoryDriver) -> None:
    names, code, library = case(shapes="general")
    kept = code.fill(library, 0)
    assert library.words("table")[1:] == [2, 3, 24, 8]
    names["table"] = np.arange(10.0).reshape(5, 2)
    other = code.fill(library, 0)
    assert library.words("table")[1:] == [5, 2, 16, 8]
    with other.launching():
        memory.finish()
        assert np.array_equal(library.array("table", names["table"]), names["table"])
    assert kept.arrays.keys() == other.arrays.keys()


def test_what_a_kernel_writes_comes_back(case: Any, memory: MemoryDriver) -> None:
    names, code, library = case("writer")
    binding = code.fill(library, 0)
    with binding.launching(stream=0):
        address = library.words("table")[0]
        memory.launch(0, functools.partial(memory.write, address + 8, struct.pack("<d", 42.0)))
    assert names["table"][0, 1] == 42
    assert names["table"][0, 0] == 0


def test_a_copy_that_was_replaced_is_found_again(case: Any, memory: MemoryDriver) -> None:
    whole = np.zeros((1 << 20, 3))  # so large that a view of it gets a copy of its own
    names, code, library = case()
    names["table"] = whole[:2]
    binding = code.fill(library, 0)
    with binding.launching():
        pass
    before, held = library.words("table")[0], binding._copies[code.slots[0].symbol]
    larger = acquire(whole, 0)
    assert held.superseded
    whole[0, 0] = 99
    with binding.launching():
        memory.finish()
        assert library.words("table")[0] != before
        assert library.array("table", whole[:2])[0, 0] == 99
    assert larger.covers(extent(whole))


def test_copies_live_as_long_as_the_binding(case: Any, memory: MemoryDriver) -> None:
    import gc

    names, code, library = case()
    binding = code.fill(library, 0)
    with binding.launching():
        pass
    memory.finish()
    arrays = list(binding.arrays.values())
    del names["table"], names["other"]
    gc.collect()
    with binding.launching():
        memory.finish()
    assert all(
        np.array_equal(array, library.array(name, array))
        for array, name in zip(arrays, ("table", "other"), strict=True)
    )


def test_a_binding_for_each_device(case: Any, memory: MemoryDriver) -> None:
    _, code, library = case()
    bindings = [code.fill(library, SimpleNamespace(device_id=number)) for number in range(2)]
    assert [binding.device for binding in bindings] == [0, 1]
    assert len({context for context, _ in library.symbols}) == 2
    memory.use(0)


def test_another_library_is_refused(case: Any, memory: MemoryDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    _, code, library = case()
    monkeypatch.setattr(slot_binding, "symbol_in", lambda library, symbol: None)
    with pytest.raises(
        cuda_captures.CaptureError, match=r"none of the slots of `kernel`: cuda_capture_(.|\n)*`definitions`"
    ):
        code.fill(library, 0)


def test_another_shape_is_refused_by_exact_slots(case: Any) -> None:
    names, code, library = case()
    names["table"] = np.zeros((3, 3))
    with pytest.raises(cuda_captures.CaptureError, match=r"`table`, which `kernel` captures(.|\n)*shapes=\"general\""):
        code.fill(library, 0)
    names["table"] = [1, 2]
    with pytest.raises(cuda_captures.CaptureError, match=r"for: list, and the code takes array f8 2d"):
        code.fill(library, 0)
    assert not library.symbols


def test_a_number_that_changed_is_refused(case: Any) -> None:
    names, code, library = case()
    names["factor"] = 3
    with pytest.raises(cuda_captures.CaptureError, match=r"`factor` means something else now(.|\n)*Compile it again"):
        code.fill(library, 0)
    names["factor"] = 2
    code.fill(library, 0)


def test_a_device_function_that_changed_is_refused(case: Any, cuda: Any) -> None:
    names, code, library = case()
    names["get"] = cuda.jit(device=True)(lambda i: 1)
    with pytest.raises(cuda_captures.CaptureError, match=r"`get` means something else now"):
        code.fill(library, 0)


def test_streams() -> None:
    assert slot_binding.stream_handle(0) == 0
    assert slot_binding.stream_handle(SimpleNamespace(__cuda_stream__=lambda: (0, 5))) == 5
    assert slot_binding.stream_handle(SimpleNamespace(handle=7)) == 7


def test_the_code_names_every_slot_that_it_captures(cuda: Any) -> None:
    code = compiled(cuda)
    found = discover(functions(cuda)["kernel"])
    assert {slot.name for slot in code.slots} == {capture.place.name for capture in found.arrays}


def test_the_example_of_loading_with_cuda_core() -> None:
    """Without a GPU all of it but the load; with one, the results too."""
    from conftest import has_gpu

    pytest.importorskip("numba.cuda")
    program = Path(__file__).parent.parent / "examples/load_with_cuda_core.py"
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), "--cc", "8.0"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(
        r"slot cuda_capture_\w+_table: 8 bytes for global `table`, float64 \(1048576,\), live\n", done.stdout
    )
    if has_gpu():
        assert done.stdout.endswith("launched twice, before and after an edit of the table: right\n")
    else:
        assert "compiled for compute capability 8.0" in done.stdout
        assert done.stdout.endswith("the code is not loaded, no slot is filled, and nothing is launched.\n")
