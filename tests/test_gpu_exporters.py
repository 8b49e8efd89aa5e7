"""On the GPU: captured arrays of CuPy, PyTorch, JAX, RMM and numba's own kinds of memory, by reference, never stale."""

from __future__ import annotations

import gc
import os
import pickle
import warnings
from typing import Any

import numpy as np
import pytest

import cuda_captures

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX shares the device with others here

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::cuda_captures.CapturePerformanceWarning"),  # where pages cannot be watched
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the libraries' own
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

SIZE = 64
OWN = "thread_local"  # a graph capture is not to be broken by the threads of libraries that other tests have used
VALUES = np.arange(SIZE, dtype=np.float32) * 0.5


class Library:
    """How one library makes arrays in device memory."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.module = pytest.importorskip({"jax": "jax.numpy"}.get(name, name))

    def array(self, values: Any) -> Any:
        if self.name == "torch":
            return self.module.tensor(values, device="cuda")
        made = self.module.asarray(values)
        return made.block_until_ready() if self.name == "jax" else made

    def host(self, array: Any) -> Any:
        """Its elements, when all that is under way is done."""
        if self.name == "torch":
            return array.cpu().numpy()
        return array.get() if self.name == "cupy" else np.asarray(array)

    def wait(self) -> None:
        if self.name == "torch":
            self.module.cuda.synchronize()
        elif self.name == "cupy":
            self.module.cuda.Device().synchronize()


@pytest.fixture(params=["cupy", "torch", "jax"])
def library(request: pytest.FixtureRequest) -> Library:
    found = Library(str(request.param))
    if found.name == "jax":
        jax = pytest.importorskip("jax")
        if jax.default_backend() != "gpu":
            pytest.skip("this JAX has no GPU")
    return found


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture
def cupy() -> Any:
    return pytest.importorskip("cupy")


def kernel_of(cuda: Any, body: str, **names: Any) -> tuple[Any, dict[str, Any]]:
    """A kernel ``kernel(out)`` whose loop body is given, and the namespace of its globals."""
    namespace: dict[str, Any] = {"cuda": cuda, "np": np, **names}
    source = f"def kernel(out):\n    i = cuda.grid(1)\n    if i < out.size:\n        {body}\n"
    exec(compile(source, "<test>", "exec"), namespace)
    return cuda.jit(namespace["kernel"]), namespace


def run(kernel: Any, size: int = SIZE, dtype: Any = np.float32, stream: Any = 0) -> np.ndarray:
    out = np.zeros(size, dtype)
    kernel[1, 256, stream](out)
    return out


def compilations(kernel: Any) -> int:
    return len(cuda_captures.report(kernel).specialisations)


# by reference


def test_arrays_are_read_in_place(cuda: Any, library: Library) -> None:
    array = library.array(VALUES)
    gc.collect()  # an earlier test's copies are not counted
    kernel, _ = kernel_of(cuda, "out[i] = T[i]", T=array)
    copies = len(cuda_captures.memory())
    assert np.array_equal(run(kernel), VALUES)
    (row,) = cuda_captures.report(kernel).rows
    assert (row.policy, row.written) == ("device", False)
    assert len(cuda_captures.memory()) <= copies


def test_arrays_are_read_inside_of_tuples_and_functions(cuda: Any, library: Library) -> None:
    first, second = library.array(VALUES), library.array(VALUES + 1)
    space: dict[str, Any] = {"B": second}
    exec("def value(i):\n    return B[i]\n", space)
    kernel, _ = kernel_of(
        cuda, "out[i] = T[1][i] - f(i) + T[0][0]", T=(second, first), f=cuda.jit(device=True)(space["value"])
    )
    assert np.array_equal(run(kernel), VALUES - (VALUES + 1) + 1)


def test_what_kernels_write_is_there(cuda: Any, library: Library) -> None:
    array = library.array(VALUES)
    kernel, _ = kernel_of(cuda, "T[i] += out[i] + 1", T=array)
    if array.__cuda_array_interface__["data"][1]:
        with pytest.raises(cuda_captures.CaptureTypingError, match="a kernel writes `T`, which is not writeable"):
            run(kernel)
        assert np.array_equal(library.host(array), VALUES)
        return
    run(kernel)
    run(kernel)
    cuda.synchronize()
    assert np.array_equal(library.host(array), VALUES + 2)


def test_rebinding_compiles_nothing(cuda: Any, library: Library) -> None:
    kernel, names = kernel_of(cuda, "out[i] = T[i]", T=library.array(VALUES))
    for step in range(10):
        names["T"] = library.array(VALUES + step)
        assert np.array_equal(run(kernel), VALUES + step)
    assert compilations(kernel) == 1


@pytest.mark.parametrize("view", ["table[::2]", "table[3:]", "table.reshape(8, 8).T[1]", "table[10:11]"])
def test_strides_are_respected(cuda: Any, view: str) -> None:
    for name in ("cupy", "torch"):
        library = Library(name)
        expected = eval(view, {"table": VALUES})
        kernel, _ = kernel_of(cuda, "out[i] = T[i]", T=eval(view, {"table": library.array(VALUES)}))
        assert np.array_equal(run(kernel, expected.size), expected)


def test_negative_and_zero_strides(cuda: Any, cupy: Any) -> None:
    table = cupy.asarray(VALUES)
    kernel, names = kernel_of(cuda, "out[i] = T[i]", T=table[::-1])
    assert np.array_equal(run(kernel), VALUES[::-1])
    names["T"] = cupy.broadcast_to(table[5:6], (SIZE,))
    assert np.array_equal(run(kernel), np.full(SIZE, VALUES[5]))


def test_an_empty_array(cuda: Any, library: Library) -> None:
    kernel, _ = kernel_of(cuda, "out[i] = T.size + T.shape[0]", T=library.array(VALUES[:0]))
    assert np.array_equal(run(kernel, 3), np.zeros(3))


# memory that is replaced in place


@pytest.mark.parametrize("inside", [False, True])
def test_a_tensor_that_gets_other_memory(cuda: Any, torch: Any, inside: bool) -> None:
    tensor = torch.tensor(VALUES, device="cuda")
    kernel, _ = kernel_of(cuda, "out[i] = T[0][i]" if inside else "out[i] = T[i]", T=(tensor,) if inside else tensor)
    assert np.array_equal(run(kernel), VALUES)
    tensor.set_(torch.tensor(VALUES + 1, device="cuda"))
    assert np.array_equal(run(kernel), VALUES + 1)
    tensor.resize_(1 << 20)
    tensor.fill_(7)
    torch.cuda.synchronize()
    assert np.array_equal(run(kernel), np.full(SIZE, 7))
    tensor.data = torch.tensor(VALUES + 2, device="cuda")
    assert np.array_equal(run(kernel), VALUES + 2)
    held = torch.tensor(VALUES + 3, device="cuda")
    tensor.data = held[::2]
    assert np.array_equal(run(kernel, SIZE // 2), (VALUES + 3)[::2])
    bits = held.view(torch.int32)
    tensor.data = held
    assert np.array_equal(run(kernel), VALUES + 3)
    tensor.data = bits  # the same memory and shape, another dtype
    assert np.array_equal(run(kernel, dtype=np.int32), (VALUES + 3).view(np.int32))


def test_an_array_of_cupy_that_is_reshaped_in_place(cuda: Any, cupy: Any) -> None:
    array = cupy.asarray(VALUES)
    kernel, _ = kernel_of(cuda, "out[i] = T[i] + T.size", T=array)
    run(kernel)
    array.shape = (SIZE, 1)
    kernel2, _ = kernel_of(cuda, "out[i] = T[i, 0] + T.shape[1]", T=array)
    assert np.array_equal(run(kernel2), VALUES + 1)
    array.shape = (SIZE,)
    assert np.array_equal(run(kernel), VALUES + SIZE)


def test_a_buffer_of_rmm_that_is_resized(cuda: Any) -> None:
    rmm = pytest.importorskip("rmm")
    buffer = rmm.DeviceBuffer.to_device(bytes(range(SIZE)))
    kernel, _ = kernel_of(cuda, "out[i] = B[i]", B=buffer)
    assert np.array_equal(run(kernel, dtype=np.uint8), np.arange(SIZE))
    buffer.resize(1 << 24)
    assert np.array_equal(run(kernel, dtype=np.uint8), np.arange(SIZE))


def test_an_array_of_jax_that_is_deleted(cuda: Any) -> None:
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    array = jax.numpy.asarray(VALUES)
    kernel, names = kernel_of(cuda, "out[i] = T[i]", T=array)
    assert np.array_equal(run(kernel), VALUES)
    array.delete()
    with pytest.raises(cuda_captures.CaptureTypingError, match=r"`T` is a \w+ whose memory its library does not hand"):
        run(kernel)
    names["T"] = jax.numpy.asarray(VALUES + 1)
    assert np.array_equal(run(kernel), VALUES + 1)


def test_a_tensor_with_a_gradient_is_refused_until_it_is_detached(cuda: Any, torch: Any) -> None:
    tensor = torch.tensor(VALUES, device="cuda", requires_grad=True)
    kernel, names = kernel_of(cuda, "out[i] = T[i]", T=tensor)
    with pytest.raises(cuda_captures.CaptureTypingError, match=r"`T` is a Tensor(.|\n)*`T.detach\(\)`"):
        run(kernel)
    names["T"] = tensor.detach()
    assert np.array_equal(run(kernel), VALUES)
    names["T"].requires_grad_(True)
    with pytest.raises(cuda_captures.CaptureTypingError, match=r"`T` is a Tensor(.|\n)*`T.detach\(\)`"):
        run(kernel)


# streams


def test_a_launch_waits_for_the_stream_of_cupy(cuda: Any, cupy: Any) -> None:
    table = cupy.zeros(SIZE, cupy.float32)
    large = cupy.ones((5000, 5000), cupy.float32)
    kernel, _ = kernel_of(cuda, "out[i] = T[i]", T=table)
    run(kernel)
    mine, out = cuda.stream(), cuda.to_device(np.zeros(SIZE, np.float32))
    for step in range(1, 4):
        with cupy.cuda.Stream(non_blocking=True):
            for _ in range(100):
                cupy.sqrt(large, out=large)  # takes a while
            table[...] = step * large[0, 0]
            kernel[1, 256, mine](out)  # CuPy tells the current stream as the producer's
        mine.synchronize()
        assert np.array_equal(out.copy_to_host(), np.full(SIZE, step))


# graphs


def external(cuda: Any, stream: Any) -> Any:
    """PyTorch's stream for a launch."""
    return cuda.external_stream(stream.cuda_stream)


def test_a_graph_of_pytorch(cuda: Any, torch: Any) -> None:
    table = torch.tensor(VALUES, device="cuda")
    gains = VALUES + 1  # a NumPy array, of which the graph reads the copy
    out = torch.zeros(SIZE, device="cuda")
    kernel, _ = kernel_of(cuda, "out[i] = T[i] * G[i]", T=table, G=gains)
    stream = torch.cuda.Stream()
    configured = kernel[1, 256, external(cuda, stream)]
    result = cuda.as_cuda_array(out)
    cuda_captures.bind(configured, result)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode=OWN):
        configured(result)
    for step in range(3):
        out.zero_()
        table.copy_(torch.tensor(VALUES + step, device="cuda"))
        graph.replay()
        torch.cuda.synchronize()
        assert np.array_equal(out.cpu().numpy(), (VALUES + step) * gains)


def test_a_kernel_that_is_not_bound_is_refused_in_a_graph_of_pytorch(cuda: Any, torch: Any) -> None:
    table = torch.tensor(VALUES, device="cuda")
    out = torch.zeros(SIZE, device="cuda")
    kernel, names = kernel_of(cuda, "out[i] = T[i]", T=table)
    stream = torch.cuda.Stream()
    configured = kernel[1, 256, external(cuda, stream)]
    result = cuda.as_cuda_array(out)
    torch.cuda.synchronize()

    def captured() -> Any:
        graph = torch.cuda.CUDAGraph()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the graph is empty where the launch is refused
            with torch.cuda.graph(graph, stream=stream, capture_error_mode=OWN):
                configured(result)
        return graph

    with pytest.raises(cuda_captures.CaptureError, match=r"Bind it before the capture begins: `cuda_captures\.bind\("):
        captured()
    torch.cuda.synchronize()
    cuda_captures.bind(configured, result)
    graph = captured()
    graph.replay()
    torch.cuda.synchronize()
    assert np.array_equal(out.cpu().numpy(), VALUES)
    names["T"] = torch.tensor(VALUES + 1, device="cuda")  # bound anew, and so not bound ahead of the capture
    torch.cuda.synchronize()
    with pytest.raises(cuda_captures.CaptureError, match="Bind it before the capture begins"):
        captured()
    torch.cuda.synchronize()
    graph.replay()  # what was captured before stays what it was
    torch.cuda.synchronize()
    assert np.array_equal(out.cpu().numpy(), VALUES)


@pytest.mark.parametrize("inside", [True, False])
def test_a_graph_of_cupy(cuda: Any, cupy: Any, inside: bool) -> None:
    table, out = cupy.asarray(VALUES), cupy.zeros(SIZE, cupy.float32)
    kernel, _ = kernel_of(cuda, "out[i] = T[i]", T=table)
    stream = cupy.cuda.Stream(non_blocking=True)
    configured = kernel[1, 256, cuda.external_stream(stream.ptr)]
    result = cuda.as_cuda_array(out)
    cuda_captures.bind(configured, result)
    cupy.cuda.Device().synchronize()
    with stream if inside else cupy.cuda.Stream.null:  # the stream that CuPy tells as the table's producer's
        stream.begin_capture()
        configured(result)
        graph = stream.end_capture()
    for step in range(3):
        table[...] = cupy.asarray(VALUES + step)
        out[...] = 0
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        assert np.array_equal(out.get(), VALUES + step)


# numba's own kinds of memory


@pytest.mark.parametrize("kind", ["mapped_array", "managed_array"])
def test_memory_that_host_and_device_share_is_used_in_place(cuda: Any, kind: str) -> None:
    array = getattr(cuda, kind)(SIZE, np.float32)
    array[:] = VALUES
    kernel, _ = kernel_of(cuda, "T[i] += 1", T=array)
    copies = len(cuda_captures.memory())
    for step in range(1, 4):
        run(kernel)
        cuda.synchronize()
        assert np.array_equal(np.asarray(array), VALUES + step)
    array[3] = -5
    run(kernel)
    cuda.synchronize()
    assert array[3] == -4
    assert len(cuda_captures.memory()) <= copies


def test_page_locked_memory_is_copied_like_other(cuda: Any) -> None:
    array = cuda.pinned_array(SIZE, np.float32)
    array[:] = VALUES
    kernel, _ = kernel_of(cuda, "out[i] = T[i]", T=array)
    for step in range(3):
        array[:] = VALUES + step
        assert np.array_equal(run(kernel), VALUES + step)


# other processes


def test_device_arrays_travel_as_host_copies_and_are_copied_once_where_they_arrive(cuda: Any, library: Library) -> None:
    values = np.linspace(0, 1, 100_000, dtype=np.float32)
    table = library.array(values)
    kernel, _ = kernel_of(cuda, "out[i] = T[i]", T=table)
    other, _ = kernel_of(cuda, "out[i] = 2 * T[i]", T=table)
    assert np.array_equal(run(kernel), values[:SIZE])
    first, second = (pickle.loads(pickle.dumps(one)) for one in (kernel, other))
    assert np.array_equal(run(first), values[:SIZE])
    assert np.array_equal(run(second), 2 * values[:SIZE])
    assert [copy.nbytes for copy in cuda_captures.memory()].count(values.nbytes) == 1
    buffers: list[Any] = []
    pickle.dumps([kernel, other], protocol=5, buffer_callback=buffers.append)
    assert [buffer.raw().nbytes for buffer in buffers] == [values.nbytes]


def test_what_arrives_twice_has_one_device_copy(cuda: Any) -> None:
    table = np.linspace(3, 4, 70_000)
    kernel, _ = kernel_of(cuda, "out[i] = T[i]", T=table)
    kernels = [pickle.loads(pickle.dumps(kernel)) for _ in range(3)]
    for one in kernels:
        assert np.array_equal(run(one, dtype=np.float64), table[:SIZE])
    (row,) = [copy for copy in cuda_captures.memory() if copy.nbytes == table.nbytes]
    assert "unwritable" in row.way
    state = cuda_captures.live(np.zeros(SIZE, np.float32))
    add, _ = kernel_of(cuda, "S[i] += T[i]", S=state, T=table)
    one, another = (pickle.loads(pickle.dumps(add)) for _ in range(2))
    run(one)
    run(one)
    run(another)
    expected = [2 * table[:SIZE], table[:SIZE], np.zeros(SIZE)]
    for arrived, values in zip((one, another, add), expected, strict=True):
        assert np.allclose(arrived.py_func.__globals__["S"], values, rtol=1e-6)
