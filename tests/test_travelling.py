"""Kernels on their way to another process: each array once, shared there, and nobody's task edits another's."""

from __future__ import annotations

import contextlib
import copy
import gc
import multiprocessing
import os
import pickle
import sys
import textwrap
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import cuda_captures
from conftest import module_of
from copies_in_memory import in_memory
from cuda_captures import arrivals, backends, driver, host_copies, mirrors, travelling, unpacking
from cuda_captures.device import DeviceBuffer
from interpreters import python
from memory_driver import MemoryDriver
from processes import run
from reading_kernels import reading

SIGNATURE = "void(float64[:])"


def through_a_function(cuda: Any, table: Any) -> Any:
    @cuda.jit(device=True)
    def value(i):
        return table[i]

    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = value(i)

    return kernel


def writing(cuda: Any, state: Any) -> Any:
    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        if i < out.size:
            state[i] += out[i]

    return kernel


def captured(kernel: Any) -> Any:
    """The array of a kernel's closure."""
    (cell,) = [one for one in kernel.py_func.__closure__ if isinstance(one.cell_contents, np.ndarray)]
    return cell.cell_contents


def sent(thing: Any) -> tuple[bytes, list[bytes]]:
    """A pickle whose buffers are out of band, as bytes that share nothing with this process's arrays."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(thing, protocol=5, buffer_callback=buffers.append)
    return data, [bytes(buffer.raw()) for buffer in buffers]


def arrived(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


def table_of(number: float, size: int = 50_000) -> Any:
    return np.linspace(0.0, number, size)


# what is sent


def test_kernels_that_share_an_array_send_it_once(cuda: Any) -> None:
    table = table_of(1.5)
    kernels = [reading(cuda, table), through_a_function(cuda, table), reading(cuda, table)]
    data, buffers = sent(kernels)
    assert [len(buffer) for buffer in buffers] == [table.nbytes]
    assert len(data) < 20_000
    assert table.nbytes < len(pickle.dumps(kernels)) < table.nbytes + 40_000


def test_cloudpickle_does_as_pickle_does(cuda: Any) -> None:
    cloudpickle = pytest.importorskip("cloudpickle", reason="needs cloudpickle, of the extra `test`")
    table = table_of(25.5)
    one, other = reading(cuda, table), through_a_function(cuda, table)

    def task(out):
        one[1, 32](out)
        return other, table

    data = cloudpickle.dumps([task, one])
    assert table.nbytes < len(data) < table.nbytes + 40_000
    there, kernel = cloudpickle.loads(data)
    cells = dict(zip(there.__code__.co_freevars, there.__closure__, strict=True))
    assert cells["one"].cell_contents is kernel
    assert captured(kernel) is captured(arrived(reading(cuda, table)))
    assert not cells["table"].cell_contents.flags.writeable


def test_a_marked_array_and_the_array_are_sent_once(cuda: Any) -> None:
    table = table_of(2.5)
    part = cuda_captures.snapshot(table)[10:]  # not the whole array, so marked views of it have no array of their own
    _, buffers = sent([reading(cuda, table), reading(cuda, cuda_captures.snapshot(table))])
    assert len(buffers) == 1
    _, buffers = sent([reading(cuda, part), reading(cuda, part)])
    assert len(buffers) == 1
    _, buffers = sent([table, cuda_captures.snapshot(table), reading(cuda, table), part, part])
    assert len(buffers) == 2


def test_a_marker_alone_is_pickled_like_any_array() -> None:
    table = table_of(23.5)
    marked = cuda_captures.snapshot(table)
    one, other, plain = arrived([marked, cuda_captures.live(table), table])
    assert (one.capture_policy, other.capture_policy) == ("snapshot", "live")
    assert plain.flags.writeable
    plain[0] = 7
    assert one[0] == other[0] == 7
    assert table[0] == 0


def test_a_configured_kernel_goes_with_its_kernel(compiler: str) -> None:
    if compiler == "numba-cuda-mlir":
        pytest.skip("this compiler's configured kernels cannot be pickled")
    table = table_of(24.5)
    with cuda_captures.enabled():
        kernel = reading(module_of(compiler), table)
        configured, there = arrived([kernel[2, 32], kernel])
    assert configured.dispatcher is there
    assert (configured.griddim, configured.blockdim) == ((2, 1, 1), (32, 1, 1))


def test_what_a_kernel_names_in_tuples_and_functions_and_modules_goes_along(cuda: Any) -> None:
    pair = namedtuple("Pair", "low high")
    table, other = table_of(3.5), table_of(4.5)
    made = ModuleType("made_by_hand")
    made.table = table  # type: ignore[attr-defined]
    tables = (table, pair(other, table))

    @cuda.jit
    def kernel(out):
        out[0] = tables[1].high[3] + tables[0][1] + made.table[2]

    data, buffers = sent(kernel)
    assert [len(buffer) for buffer in buffers] == [table.nbytes, other.nbytes]
    there = pickle.loads(data, buffers=buffers)
    cells = dict(zip(there.py_func.__code__.co_freevars, there.py_func.__closure__, strict=True))
    found = cells["tables"].cell_contents
    assert found[0] is found[1].high is cells["made"].cell_contents.table
    assert np.array_equal(found[1].low, other)


def test_kernels_of_importable_modules_go_by_value_and_plain_functions_by_name(
    cuda: Any, compiler: str, module: Any
) -> None:
    """As the compilers do it, with captures or without."""
    source = """
        table = np.linspace(0.0, 26.5, 50_000)

        def plain(i):
            return table[i]

        @cuda.jit(device=True)
        def inner(i):
            return plain(i) + table[i]

        @cuda.jit
        def kernel(out):
            out[0] = inner(1)
    """
    vars(module).update(cuda=cuda, np=np)
    exec(textwrap.dedent(source), vars(module))
    with_captures = arrived(module.kernel)
    with disabled():
        without = arrived(module.kernel)
    if compiler == "numba-cuda-mlir":
        assert without is module.kernel  # it knows by a number what came from this process
        without = with_captures
    for there in (with_captures, without):
        space = there.py_func.__globals__
        assert space is not vars(module)
        assert space["inner"].py_func is not module.inner.py_func
        assert space["inner"].py_func.__globals__["plain"] is module.plain
    table = with_captures.py_func.__globals__["inner"].py_func.__globals__["table"]
    assert arrivals.arrived(table)
    assert np.array_equal(table, module.table)


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Without captures meanwhile."""
    cuda_captures.disable()
    try:
        yield
    finally:
        cuda_captures.enable()


def test_a_function_that_calls_itself_can_be_sent(cuda: Any) -> None:
    table = table_of(5.5)
    namespace: dict[str, Any] = {"table": table, "cuda": cuda}
    exec("def f(n):\n    return table[n] if n < 1 else f(n - 1)\n", namespace)
    namespace["f"] = cuda.jit(device=True)(namespace["f"])
    there = arrived(namespace["f"]).py_func.__globals__
    assert there["f"].py_func.__globals__ is there
    assert np.array_equal(there["table"], table)


# what arrives


def test_equal_arrays_are_one_array_in_whatever_pickles_they_come(cuda: Any) -> None:
    table = table_of(6.5)
    first, second = arrived(reading(cuda, table)), arrived([through_a_function(cuda, table), reading(cuda, table)])[1]
    assert captured(first) is captured(second)
    assert captured(first) is not table
    assert not captured(first).flags.writeable
    assert isinstance(captured(first).base, bytes)
    assert np.array_equal(captured(first), table)
    marked = [arrived(reading(cuda, cuda_captures.snapshot(table))) for _ in range(2)]
    assert captured(marked[0]) is captured(marked[1])
    assert captured(marked[0]).capture_policy == "snapshot"
    assert captured(marked[0]).base is captured(first)


@pytest.mark.parametrize(
    "other", [table_of(7.5) + 1, table_of(7.5).reshape(-1, 2), table_of(7.5).view(np.int64), table_of(7.5)[:-1]]
)
def test_arrays_of_other_contents_or_form_are_others(cuda: Any, other: Any) -> None:
    here, there = arrived(reading(cuda, table_of(7.5))), arrived(reading(cuda, other))
    assert captured(here) is not captured(there)
    assert np.array_equal(captured(there), other)
    assert captured(there).dtype == other.dtype


@pytest.mark.parametrize(
    "table",
    [
        np.asfortranarray(table_of(8.5).reshape(100, -1)),
        table_of(8.5)[::-3],
        np.array(2.5),
        np.zeros((0, 3)),
        np.zeros(5, [("a", "i1"), ("b", "f8")]),
        np.zeros(5, np.dtype([("a", "i1"), ("b", "f8")], align=True)),
        np.arange(6).astype("M8[s]"),
        np.array(["ab", "c"]),
        np.rec.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i4"), ("b", "f8")]),
    ],
    ids=["fortran", "strided", "scalar", "empty", "record", "aligned", "dates", "strings", "recarray"],
)
def test_any_form_of_array_arrives_as_it_was(cuda: Any, table: Any) -> None:
    found, again = captured(arrived(reading(cuda, table))), captured(arrived(reading(cuda, table)))
    assert found is again
    assert (found.dtype, found.shape, type(found)) == (table.dtype, table.shape, type(table))
    assert not found.flags.writeable
    assert np.array_equal(found, table)
    assert found.flags.f_contiguous == (table.flags.f_contiguous or table.ndim < 2)


def test_the_last_kernels_that_came_are_held(cuda: Any) -> None:
    """Tasks that come one after the other find their table, though none of them is there all the time."""
    table = table_of(20.5)
    assert arrived(reading(cuda, table)) is not None
    held = arrivals.present(arrivals.content_key(table))
    gc.collect()
    assert captured(arrived(reading(cuda, table))) is held


def test_what_is_held_is_limited(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "_held", type(unpacking._held)())
    monkeypatch.setattr(unpacking, "HELD_KERNELS", 3)
    for number in range(5):
        arrived(reading(cuda, table_of(number)))
    assert len(unpacking._held) == 3
    monkeypatch.setattr(unpacking, "HELD_BYTES", table_of(1).nbytes)
    arrived(reading(cuda, table_of(7)))
    assert len(unpacking._held) == 1
    arrived(reading(cuda, cuda_captures.live(table_of(8))))
    assert len(unpacking._held) == 1


def test_what_is_held_makes_room_for_other_copies(cuda: Any) -> None:
    arrived(reading(cuda, table_of(21.5)))
    assert unpacking._held
    for made in in_memory(capacity=1 << 20):
        made.use(0)
        table = np.zeros(1 << 20)
        with pytest.raises(cuda_captures.CaptureError, match="no room on device 0"):
            mirrors.acquire(table, 0)
    assert not unpacking._held


def test_a_process_without_compilers_passes_kernels_on(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(22.5)
    data = pickle.dumps(reading(cuda, table))
    with monkeypatch.context() as scheduler:
        scheduler.setattr(backends, "COMPILERS", ())
        waiting = pickle.loads(data)
        assert isinstance(waiting, unpacking.Waiting)
        passed_on = pickle.dumps(waiting)
        with pytest.raises(cuda_captures.CaptureVersionError, match="no compiler is installed"):
            waiting[1, 32]
    assert abs(len(passed_on) - len(data)) < 100
    assert np.array_equal(captured(pickle.loads(passed_on)), table)
    assert captured(waiting) is captured(pickle.loads(data))


def test_what_arrived_goes_when_its_kernels_do(cuda: Any, compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "HELD_KERNELS", 0)
    if compiler == "numba-cuda-mlir":
        pytest.skip("this compiler never lets go of a dispatcher")
    table = table_of(9.5)
    kernels = [arrived(reading(cuda, table)) for _ in range(3)]
    key = arrivals.content_key(table)
    assert arrivals.present(key) is captured(kernels[0])
    del kernels
    gc.collect()
    assert arrivals.present(key) is None


def test_a_later_edit_arrives_with_the_next_pickle(cuda: Any) -> None:
    table = table_of(10.5)
    kernel = reading(cuda, table)
    before = arrived(kernel)
    table[7] = -1
    after = arrived(kernel)
    assert captured(before)[7] != -1
    assert captured(after)[7] == -1


def test_the_same_kernel_arrives_as_the_compiler_makes_it(cuda: Any, compiler: str) -> None:
    table = table_of(19.5)
    kernel = reading(cuda, table)
    first, second = arrived(kernel), arrived(kernel)
    assert (first is second) == (compiler == "numba-cuda-mlir")
    table[3] = 2
    assert arrived(kernel) is not first
    private = writing(cuda, cuda_captures.live(table))
    assert arrived(private) is not arrived(private)


def test_pickling_leaves_the_senders_arrays_alone(cuda: Any) -> None:
    table = table_of(11.5)
    kernel = reading(cuda, table)
    arrived(kernel)
    for same in (copy.copy(kernel), copy.deepcopy(kernel)):
        assert same is not kernel
        assert same.py_func is kernel.py_func
    assert table.flags.writeable
    table[0] = 3


def test_what_is_pickled_along_with_a_kernel_is_read_only_too(cuda: Any) -> None:
    """A task that names the table as well would be the only one to see its edits: it is told instead."""
    table = table_of(12.5)
    for _ in range(2):
        _, there = arrived((reading(cuda, table), table))
        with pytest.raises(ValueError, match="read-only"):
            there[0] = 1


# who may write


def test_what_is_marked_live_or_mapped_is_private_and_writeable(cuda: Any) -> None:
    state = table_of(13.5)
    for mark in (cuda_captures.live, cuda_captures.mapped):
        one, other = arrived(writing(cuda, mark(state))), arrived(writing(cuda, mark(state)))
        captured(one)[0] = 5
        assert captured(other)[0] == state[0] == 0
        assert captured(one).capture_policy == mark(state).capture_policy
    writer, reader = arrived([writing(cuda, cuda_captures.live(state)), reading(cuda, cuda_captures.live(state))])
    captured(writer)[0] = 5
    assert captured(reader)[0] == 5


def test_the_kernels_own_policy_counts_as_a_marker_does(cuda: Any) -> None:
    state = table_of(14.5)

    @cuda.jit(captures={"state": "live"})
    def kernel(out):
        state[0] += out[0]

    captured(arrived(kernel))[0] = 5
    assert captured(arrived(kernel))[0] == 0


def test_a_kernel_that_writes_what_others_share_is_refused_by_name(cuda: Any) -> None:
    kernel = writing(cuda, table_of(15.5))
    cuda_captures.explain(kernel, SIGNATURE)
    with pytest.raises(cuda_captures.CaptureTypingError) as refused:
        cuda_captures.explain(arrived(kernel), SIGNATURE)
    text = str(refused.value)
    assert "a kernel writes `state`, which came with the kernel from another process, and is read-only" in text
    assert "state[i] += out[i]" in text
    assert "Write `cuda_captures.live(state)` where the kernel is sent from" in text
    assert "float64" in cuda_captures.explain(arrived(writing(cuda, cuda_captures.live(table_of(1)))), SIGNATURE).key


# device memory


class OnDevice:
    """A device array: what it holds is told by a stand-in for the copy."""

    def __init__(self, content: Any) -> None:
        self.content = content

    @property
    def __cuda_array_interface__(self) -> Any:
        made = self.content
        return {"shape": made.shape, "typestr": made.dtype.str, "data": (1 << 20, False), "version": 3}


def test_device_arrays_travel_as_host_copies(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(travelling, "host_copy", lambda array: array.content.copy())
    table = OnDevice(table_of(16.5))
    _, buffers = sent([reading(cuda, table), through_a_function(cuda, table)])
    assert len(buffers) == 1
    assert np.array_equal(captured(arrived(reading(cuda, table))), table.content)


def test_a_host_copy_has_the_elements_in_their_order() -> None:
    fake = MemoryDriver()
    before, driver.calls = driver.calls, fake  # type: ignore[assignment]
    try:
        held = np.arange(24.0)
        buffer = DeviceBuffer(held.nbytes)
        fake.write(buffer.address, held.tobytes())
        whole = held.reshape(4, 6)
        for view in (whole, whole.T, whole[::-1, ::2], whole[1:2, 3], whole[:0]):
            offset = view.__array_interface__["data"][0] - held.__array_interface__["data"][0]
            copied = host_copies.host_copy(View(buffer.address + offset, view))
            assert np.array_equal(copied, view)
            assert copied.flags.writeable
    finally:
        del buffer
        gc.collect()
        driver.calls = before


class View:
    """A device array of a given address, laid out as a NumPy array is."""

    def __init__(self, address: int, like: Any) -> None:
        self.__cuda_array_interface__ = {
            "shape": like.shape,
            "strides": like.strides,
            "typestr": like.dtype.str,
            "data": (address if like.size else 0, False),
            "version": 3,
        }


# other processes


PROGRAM = """
import multiprocessing, os, pickle, sys
import numpy as np
import cuda_captures
from {module} import cuda

table = np.linspace(0.0, 1.0, 50_000)

@cuda.jit
def look_up(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = table[i]

@cuda.jit
def twice(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 2 * table[i]

def used(kernels):
    first, second = kernels
    one, other = (kernel.py_func.__globals__["table"] for kernel in kernels)
    assert one is other and not one.flags.writeable
    if os.environ.get("NUMBA_ENABLE_CUDASIM"):
        out = np.zeros(8)
        first[1, 8](out)
        assert np.array_equal(out, one[:8])
        return id(one), float(out.sum())
    return id(one), cuda_captures.explain(second, "void(float64[:])").key

if __name__ == "__main__":
    cuda_captures.enable()
    context = multiprocessing.get_context(sys.argv[1])
    with context.Pool(1) as pool:
        found = pool.map(used, [(look_up, twice)] * 3, chunksize=1)
    assert len(set(found)) == 1, found
    if os.environ.get("NUMBA_ENABLE_CUDASIM"):
        assert found[0][1] == table[:8].sum()
    else:
        assert "array f8 1d C " in found[0][1], found[0][1]
        assert "50000" in found[0][1]
    print("well")
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_processes_of_multiprocessing_simulated(tmp_path: Path, method: str) -> None:
    run(tmp_path, PROGRAM.format(module="numba"), method, NUMBA_ENABLE_CUDASIM="1")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_of_multiprocessing_compile(tmp_path: Path, compiler: str, method: str) -> None:
    run(tmp_path, PROGRAM.format(module=module_of(compiler).__name__.rpartition(".")[0]), method)


JOBLIB = """
import numpy as np
import joblib
import cuda_captures
from numba import cuda

cuda_captures.enable()
table = np.linspace(0.0, 1.0, 400_000)  # over joblib's limit: it comes in a file that is mapped

def make(table):
    @cuda.jit
    def look_up(out, start):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = table[start + i]
    return look_up

look_up = make(table)

def task(kernel, start):
    out = np.zeros(4)
    kernel[1, 4](out, start)
    held = kernel.py_func.__closure__[0].cell_contents
    return id(held), out

found = joblib.Parallel(n_jobs=1 + 1, backend="loky")(
    joblib.delayed(task)(look_up, start) for start in range(20)
)
assert len({number for number, _ in found}) <= 2
assert all(np.array_equal(out, table[start:start + 4]) for start, (_, out) in enumerate(found))
print("well")
"""


def test_joblib(tmp_path: Path) -> None:
    pytest.importorskip("joblib")
    run(tmp_path, JOBLIB, NUMBA_ENABLE_CUDASIM="1")


RAY = """
import warnings
warnings.simplefilter("ignore")
import numpy as np
import ray
import cuda_captures
from numba import cuda

cuda_captures.enable()
table = np.linspace(0.0, 1.0, 400_000)

@cuda.jit
def look_up(out, start):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = table[start + i]

@ray.remote(num_cpus=1)
def task(kernel, start):
    out = np.zeros(4)
    kernel[1, 4](out, start)
    return id(kernel.py_func.__globals__["table"]), out

ray.init(num_cpus=1, include_dashboard=False, logging_level="error", log_to_driver=False)
kernel = ray.put(look_up)  # once to each machine, however many tasks
found = ray.get([task.remote(kernel, start) for start in range(5)])
assert len({number for number, _ in found}) == 1
assert all(np.array_equal(out, table[start:start + 4]) for start, (_, out) in enumerate(found))
print("well")
"""


def test_ray(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    run(tmp_path, RAY, NUMBA_ENABLE_CUDASIM="1")


def test_a_process_that_knows_no_captures_gets_them_with_the_senders_settings(tmp_path: Path, compiler: str) -> None:
    cuda = module_of(compiler)
    with cuda_captures.enabled(host="snapshot"):
        (tmp_path / "kernel").write_bytes(pickle.dumps(reading(cuda, table_of(17.5))))
    program = f"""
        import pickle, sys
        from cuda_captures import backends, explain, settings
        kernel = pickle.load(open({str(tmp_path / "kernel")!r}, "rb"))
        print(backends.enabled() != [], settings.current().host)
        assert " host snapshot " in explain(kernel, "void(float64[:])").key
    """
    assert python(program, "-W", "ignore") == "True snapshot"


def test_without_captures_kernels_are_pickled_as_the_compiler_does_it(compiler: str) -> None:
    cuda = module_of(compiler)
    table = table_of(18.5)
    with cuda_captures.enabled():
        kernel = reading(cuda, table)
    there = pickle.loads(pickle.dumps(kernel))
    assert captured(there).flags.writeable
    assert not arrivals.arrived(captured(there))
    assert "cuda_captures" not in sys.modules[type(there).__reduce__.__module__].__name__


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is a Unix thing")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_of_a_process_that_never_used_the_driver_does_not_wait_for_threads_that_it_has_not_got() -> None:
    def child() -> None:
        arrivals.shared(np.arange(3.0))
        unpacking._let_go()

    before = driver.calls
    driver.install(driver.closed())
    process = multiprocessing.get_context("fork").Process(target=child)
    try:
        with arrivals._lock, unpacking._lock:  # as another thread may, at the fork
            process.start()
            process.join(20)
        assert process.exitcode == 0
    finally:
        process.kill()
        driver.install(before)
