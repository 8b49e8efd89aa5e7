"""Every way in which a function can become a kernel, or be called by one: captures by the same rule in each.

Compiled for real and executed on the CPU, with each compiler in turn; what a compiler does not have is skipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import backends_under_test
import cuda_captures
from backends_under_test import INSTALLED, current, using
from captured_kernels import CapturedKernel, launch, types_of
from conftest import needs_a_compiler
from generated import namespace

Array = np.ndarray[Any, Any]
SIX = np.arange(6.0)


@pytest.fixture(autouse=True, scope="module", params=INSTALLED)
def captures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Captures, with each compiler in turn."""
    with using(request.param), cuda_captures.enabled():
        yield


def only(name: str) -> None:
    if current().name != name:
        pytest.skip(f"{current().name} has no such thing")


def device_to_compile_for() -> Any:
    """Lets a compiler find a device to compile for: both ask for one where a signature is given."""
    if current().name == "numba-cuda":
        from cpu_lowering import pretended_device

        return pretended_device((9, 0))
    from cuda_captures.backends.numba_cuda_mlir.target import compiling_for

    return compiling_for((9, 0))


def made_of(source: str, **names: Any) -> tuple[CapturedKernel, dict[str, Any]]:
    """The function ``kernel(out)`` of source text, and its globals."""
    names = namespace(source, **names)
    return CapturedKernel(names["kernel"], types_of(SIX)), names


def result(kernel: CapturedKernel) -> list[float]:
    out = np.zeros(6)
    kernel.launch(out, block=6)
    return out.tolist()


def is_followed(kernel: CapturedKernel, names: dict[str, Any], shared: bool = True) -> None:
    """``table[i] * factor``, computed in whatever way, is that at every launch, with the fewest compilations."""
    names["table"], names["factor"] = SIX, 2.0
    assert result(kernel) == (2 * SIX).tolist()
    first = kernel.code()
    assert [use.slot.general for use in first.uses] == [False]
    names["table"] = SIX + 1
    assert result(kernel) == (2 * SIX + 2).tolist()
    assert kernel.code() is first
    names["factor"] = 3.0
    assert result(kernel) == (3 * SIX + 3).tolist()
    names["factor"] = 2.0
    assert result(kernel) == (2 * SIX + 2).tolist()
    assert kernel.code() is first
    names["table"] = np.arange(9.0)
    assert result(kernel) == (2 * SIX).tolist()
    names["table"] = np.arange(12.0) * 2
    assert result(kernel) == (4 * SIX).tolist()
    assert kernel.compilations <= 3
    assert (first.key is not None) is shared, first.why_private


KERNEL = "def kernel(out):\n    i = cuda.grid(1)\n    out[i] = get(i)\n"
BODY = "    return table[i] * factor\n"

DECORATORS = {
    "called": "@cuda.jit(device=True)",
    "inlined": '@cuda.jit(device=True, inline="always")',
    "never inlined": '@cuda.jit(device=True, inline="never")',
    "forced inline": "@cuda.jit(device=True, forceinline=True)",
    "bare": "@cuda.jit",
    "with a signature": '@cuda.jit("float64(int64)", device=True)',
    "with signatures": '@cuda.jit(["float64(int64)", "float64(int32)"], device=True)',
    "with a signature, inlined": '@cuda.jit("float64(int64)", device=True, inline="always")',
    "fast": "@cuda.jit(device=True, fastmath=True)",
}


@pytest.mark.parametrize("form", DECORATORS)
@needs_a_compiler
def test_device_functions(form: str) -> None:
    with device_to_compile_for() if "signature" in form else nullcontext():
        kernel, names = made_of(f"{DECORATORS[form]}\ndef get(i):\n{BODY}\n{KERNEL}", table=SIX, factor=2.0)
        is_followed(kernel, names)


def test_a_device_function_made_by_a_call() -> None:
    kernel, names = made_of(f"def get(i):\n{BODY}\nget = cuda.jit(get, device=True)\n{KERNEL}", table=SIX, factor=2.0)
    is_followed(kernel, names)


def test_a_device_function_under_another_name_and_by_keyword() -> None:
    source = f"@cuda.jit(device=True)\ndef look(i):\n{BODY}\nget = look\n"
    kernel, names = made_of(source + KERNEL.replace("get(i)", "get(i=i)"), table=SIX, factor=2.0)
    is_followed(kernel, names)


def test_a_device_function_that_is_compiled_eagerly_does_not_hold_the_table() -> None:
    large = np.arange(float(1 << 20))
    with device_to_compile_for():
        began = time.perf_counter()
        source = f'@cuda.jit("float64(int64)", device=True)\ndef get(i):\n{BODY}'
        names = namespace(source, table=large, factor=2.0)
        assert time.perf_counter() - began < 10  # 24 s with the table as a constant
        (overload,) = names["get"].overloads.values()
        if current().name == "numba-cuda":
            assert "cuda_capture_" in overload.library.get_llvm_str()
            assert len(overload.library.get_llvm_str()) < 100_000


def test_constants_of_eager_device_functions_that_are_too_many_together() -> None:
    source = """
        @cuda.jit("float64(int64)", device=True)
        def first(i):
            return one[i]

        @cuda.jit("float64(int64)", device=True)
        def second(i):
            return other[i]

        def kernel(out):
            out[0] = first(0) + second(0)
    """
    one, other = (cuda_captures.constant(np.zeros(5000)) for _ in range(2))
    with device_to_compile_for():
        kernel, _ = made_of(source, one=one, other=other)
        text = r"`one` \(40,000 bytes\), `other` \(40,000 bytes\); together 80,000(.|\n)*return \w+\[i\]\n +\^+"
        with pytest.raises(cuda_captures.CaptureTypingError, match=text):
            kernel.code()


def test_a_device_function_behind_another() -> None:
    inner = f"@cuda.jit(device=True)\ndef inner(i):\n{BODY}"
    outer = "@cuda.jit(device=True)\ndef get(i):\n    return inner(i)\n"
    kernel, names = made_of(f"{inner}\n{outer}\n{KERNEL}", table=SIX, factor=2.0)
    is_followed(kernel, names)


# kernels made in other ways


def test_kernels_made_by_exec() -> None:
    source = KERNEL.replace("get(i)", "table[i] * factor")
    names: dict[str, Any] = {"cuda": backends_under_test.cuda(), "table": SIX, "factor": 2.0}
    exec("@cuda.jit\n" + source, names)
    is_followed(CapturedKernel(names["kernel"], types_of(SIX)), names)


def test_kernels_made_by_a_factory_share_their_code() -> None:
    source = """
        def make(table, factor):
            @cuda.jit
            def kernel(out):
                i = cuda.grid(1)
                out[i] = table[i] * factor
            return kernel
    """
    make = namespace(source)["make"]
    kernels = [CapturedKernel(make(SIX * n, 2.0), types_of(SIX)) for n in (1, 3)]
    assert [result(kernel) for kernel in kernels] == [(2 * SIX).tolist(), (6 * SIX).tolist()]
    assert kernels[0].code() is kernels[1].code()
    assert CapturedKernel(make(SIX, 4.0), types_of(SIX)).code() is not kernels[0].code()


def test_a_lambda() -> None:
    kernel, names = made_of(
        "get = cuda.jit(device=True)(lambda i: table[i] * factor)\n" + KERNEL, table=SIX, factor=2.0
    )
    is_followed(kernel, names)


def test_static_methods_and_class_attributes() -> None:
    source = """
        class Solver:
            table = None
            factor = None

            @staticmethod
            @cuda.jit(device=True)
            def get(i):
                return Solver.table[i] * Solver.factor

            @staticmethod
            @cuda.jit
            def kernel(out):
                i = cuda.grid(1)
                out[i] = Solver.get(i)

        class Derived(Solver):
            pass
    """
    solver = namespace(source)["Solver"]

    class Names(dict):  # the class's attributes, as is_followed() binds names
        def __setitem__(self, name: str, value: Any) -> None:
            setattr(solver, name, value)

    names = Names()
    names["table"], names["factor"] = SIX, 2.0
    is_followed(CapturedKernel(solver.kernel, types_of(SIX)), names)


def test_class_attributes_that_are_inherited() -> None:
    source = """
        class Solver:
            table = np.arange(6.0)

        class Derived(Solver):
            factor = 2.0

        def kernel(out):
            i = cuda.grid(1)
            out[i] = Derived.table[i] * Derived.factor
    """
    kernel, names = made_of(source)
    assert result(kernel) == (2 * SIX).tolist()
    names["Solver"].table = SIX + 1
    assert result(kernel) == (2 * SIX + 2).tolist()
    names["Derived"].table = SIX + 2
    assert result(kernel) == (2 * SIX + 4).tolist()


def test_a_kernel_made_by_a_method_from_what_the_object_holds() -> None:
    source = """
        class Solver:
            def __init__(self, table):
                self.table = table

            def kernel(self):
                table = self.table
                @cuda.jit
                def kernel(out):
                    i = cuda.grid(1)
                    out[i] = table[i]
                return kernel
    """
    solver = namespace(source)["Solver"]
    assert result(CapturedKernel(solver(SIX).kernel(), types_of(SIX))) == SIX.tolist()


def test_an_object_of_just_any_class_is_refused_by_name() -> None:
    source = """
        class Solver:
            table = np.arange(6.0)

        def make(self):
            def kernel(out):
                out[0] = self.table[0]
            return kernel
        kernel = make(Solver())
    """
    text = r"^`self` is an object of class Solver(.|\n)*out\[0\] = self.table\[0\]\n +\^{4}\n(.|\n)*`part = self.part`"
    with pytest.raises(cuda_captures.CaptureTypingError, match=text):
        made_of(source)[0].code()


# what is registered with a compiler


def overloading(function: Callable[..., Any]) -> Any:
    """The decorator that registers an implementation of a function."""
    if current().name == "numba-cuda":
        from numba.cuda.extending import overload

        return overload(function, target="cuda")
    from numba_cuda_mlir.extending import overload, typing_registry

    return overload(function, typing_registry=typing_registry)


OVERLOAD = """
def get(i):
    raise NotImplementedError

@overloading(get)
def overload_of_get(i):
    def implementation(i):
        return table[i] * factor
    return implementation
"""


def test_overloads() -> None:
    kernel, names = made_of(OVERLOAD + KERNEL, table=SIX, factor=2.0, overloading=overloading)
    is_followed(kernel, names, shared=False)
    assert any("implementation" in reason for reason in kernel.code().why_private)


def test_overloads_that_device_functions_call() -> None:
    source = OVERLOAD + "@cuda.jit(device=True)\ndef inner(i):\n    return get(i)\n" + KERNEL.replace("get(", "inner(")
    kernel, names = made_of(source, table=SIX, factor=2.0, overloading=overloading)
    is_followed(kernel, names, shared=False)
    # Another kernel that calls the device function, once what it was compiled for has changed.
    names["factor"], names["table"] = 5.0, SIX
    exec(KERNEL.replace("get(", "inner(").replace("kernel", "another"), names)
    another = CapturedKernel(names["another"], types_of(SIX))
    assert result(another) == (5 * SIX).tolist()
    names["factor"] = 6.0
    assert result(another) == (6 * SIX).tolist()


def test_overloaded_methods() -> None:
    only("numba-cuda")
    from numba.cuda import types
    from numba.cuda.extending import overload_method

    source = """
        @overload_method(types.Array, "looked_up_by_captures", target="cuda")
        def overload_of_method(array, i):
            def implementation(array, i):
                return table[i] * factor
            return implementation
    """
    names = namespace(source, table=SIX, factor=2.0, overload_method=overload_method, types=types)
    exec(KERNEL.replace("get(i)", "out.looked_up_by_captures(i)"), names)
    is_followed(CapturedKernel(names["kernel"], types_of(SIX)), names, shared=False)


def test_jitable_functions() -> None:
    if current().name == "numba-cuda":
        from numba.cuda.extending import register_jitable

        decorate: Any = register_jitable
    else:
        from numba_cuda_mlir.extending import register_jitable, typing_registry

        decorate = register_jitable(typing_registry=typing_registry)
    kernel, names = made_of(f"@decorate\ndef get(i):\n{BODY}\n{KERNEL}", table=SIX, factor=2.0, decorate=decorate)
    is_followed(kernel, names, shared=False)


def test_intrinsics_are_given_what_is_captured() -> None:
    if current().name == "numba-cuda":
        from numba.cuda import types
        from numba.cuda.extending import intrinsic

        def twice(context: Any, x: Any) -> Any:
            return types.float64(types.float64), lambda context, builder, sig, args: builder.fadd(args[0], args[0])

    else:
        from numba_cuda_mlir import types
        from numba_cuda_mlir._mlir.dialects import arith
        from numba_cuda_mlir.extending import intrinsic

        def twice(context: Any, x: Any) -> Any:
            def build(builder: Any, target: Any, args: Any, kws: Any) -> None:
                value = builder.load_var(args[0])
                builder.store_var(target, arith.addf(value, value))

            return types.float64(types.float64), build

    made = intrinsic(twice)
    if current().name == "numba-cuda-mlir":
        from numba_cuda_mlir.extending import refresh_registries

        refresh_registries()
    source = KERNEL.replace("get(i)", "twice(table[i]) * factor / 2.0")
    kernel, names = made_of(source, table=SIX, factor=2.0, twice=made)
    is_followed(kernel, names, shared=False)


def test_declared_functions_are_given_what_is_captured() -> None:
    cuda = backends_under_test.cuda()
    foreign = cuda.declare_device("foreign", "float64(float64)")
    kernel, _ = made_of(KERNEL.replace("get(i)", "foreign(table[i])"), table=SIX, foreign=foreign)
    kernel.toolchain.options["link"] = [cuda.PTXSource(FOREIGN)]
    code = kernel.code()
    assert [use.name for use in code.uses] == ["table"]
    assert any("foreign" in reason for reason in code.why_private)


FOREIGN = b"""
.version 7.0
.target sm_50
.address_size 64
.visible .func (.param .b32 status) foreign(.param .b64 result, .param .b64 x)
{
    .reg .f64 %value;
    .reg .b64 %pointer;
    ld.param.b64 %pointer, [result];
    ld.param.f64 %value, [x];
    st.f64 [%pointer], %value;
    st.param.b32 [status], 0;
    ret;
}
"""


def test_struct_models_of_the_compiler() -> None:
    source = KERNEL.replace("out[i] = get(i)", "pair = cuda.float64x2(table[i], factor)\n    out[i] = pair.x * pair.y")
    kernel, names = made_of(source, table=SIX, factor=2.0)
    is_followed(kernel, names, shared=True)


@needs_a_compiler
def test_struct_models_of_the_user() -> None:
    only("numba-cuda")
    from numba.cuda import cgutils, types
    from numba.cuda.cudaimpl import lower
    from numba.cuda.extending import make_attribute_wrapper, models, register_model, type_callable, typeof_impl

    class Interval:
        def __init__(self, low: float, high: float) -> None:
            self.low, self.high = low, high

    class IntervalType(types.Type):
        def __init__(self) -> None:
            super().__init__(name="Interval")

    kind = IntervalType()
    typeof_impl.register(Interval)(lambda value, context: kind)

    @type_callable(Interval)
    def type_of_interval(context: Any) -> Any:
        return lambda low, high: kind if isinstance(low, types.Float) and isinstance(high, types.Float) else None

    @register_model(IntervalType)
    class IntervalModel(models.StructModel):
        def __init__(self, manager: Any, fe_type: Any) -> None:
            super().__init__(manager, fe_type, [("low", types.float64), ("high", types.float64)])

    make_attribute_wrapper(IntervalType, "low", "low")
    make_attribute_wrapper(IntervalType, "high", "high")

    @lower(Interval, types.Float, types.Float)
    def make_interval(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        made = cgutils.create_struct_proxy(sig.return_type)(context, builder)
        made.low, made.high = args
        return made._getvalue()

    source = KERNEL.replace("out[i] = get(i)", "span = Interval(table[i], factor)\n    out[i] = span.low * span.high")
    kernel, names = made_of(source, table=SIX, factor=2.0, Interval=Interval)
    is_followed(kernel, names, shared=False)


def test_dataclasses_with_a_type_registered_by_their_author_are_left_to_it() -> None:
    only("numba-cuda")
    from dataclasses import dataclass

    from numba.cuda import types
    from numba.cuda.extending import core_models, overload, register_model, typeof_impl

    @dataclass(frozen=True)
    class Material:
        table: Any

    class MaterialType(types.Dummy):
        pass

    register_model(MaterialType)(core_models.OpaqueModel)
    kind = MaterialType("Material")
    typeof_impl.register(Material)(lambda value, context: kind)

    source = """
def get(material, i):
    raise NotImplementedError

@overload(get, target="cuda")
def overload_of_get(material, i):
    return (lambda material, i: 2.0 * i) if material is kind else None
"""
    names = {"material": Material(SIX), "kind": kind, "overload": overload}
    kernel, _ = made_of(source + KERNEL.replace("get(i)", "get(material, i)"), **names)
    assert result(kernel) == (2 * SIX).tolist()
    assert not kernel.code().uses
    assert any("`material` is of a type that was registered" in reason for reason in kernel.code().why_private)


# ufuncs and reductions, which numba-cuda has


def ufunc(source: str, **names: Any) -> tuple[Any, dict[str, Any]]:
    from numba import vectorize

    with device_to_compile_for():
        names = namespace(source, vectorize=vectorize, **names)
    ((_, kernel),) = names["get"].functions.values()
    return kernel, names


VECTORIZED = f'@vectorize(["float64(int64)"], target="cuda")\ndef get(i):\n{BODY}'


def test_ufuncs() -> None:
    only("numba-cuda")
    kernel, names = ufunc(VECTORIZED, table=SIX, factor=2.0)
    where = np.array([5, 0, 3])
    out = np.zeros(3)
    launched = launch(kernel, where, out, block=3)
    assert out.tolist() == [10.0, 0.0, 6.0]
    names["table"], names["factor"] = SIX + 1, 3.0
    launched.launch(where, out, block=3)
    assert out.tolist() == [18.0, 3.0, 12.0]
    assert [(use.name, use.slot is not None) for use in launched.code().uses] == [("table", True)]
    assert launched.code().key is not None


def test_a_ufunc_over_a_large_table_is_made_at_once() -> None:
    only("numba-cuda")
    large = np.arange(float(1 << 20))
    began = time.perf_counter()
    kernel, _ = ufunc(VECTORIZED, table=large, factor=2.0)
    where, out = np.array([7, (1 << 20) - 1]), np.zeros(2)
    launch(kernel, where, out, block=2)
    assert out.tolist() == [14.0, 2.0 * ((1 << 20) - 1)]
    assert time.perf_counter() - began < 15  # 24 s with the table as a constant


def test_generated_ufuncs() -> None:
    only("numba-cuda")
    for factor in (2.0, 3.0):
        source = VECTORIZED.replace("factor", repr(factor))
        kernel, _ = ufunc(source, table=SIX)
        out = np.zeros(2)
        launch(kernel, np.array([1, 5]), out, block=2)
        assert out.tolist() == [factor, 5 * factor]


def test_generalized_ufuncs() -> None:
    only("numba-cuda")
    from numba.cuda.vectorizers import CUDAGUFuncVectorize

    class Lazy(CUDAGUFuncVectorize):
        """Compiles its kernel when it is launched: without a GPU it cannot be compiled before."""

        def _compile_kernel(self, fnobj: Any, sig: Any) -> Any:
            return backends_under_test.cuda().jit(fnobj)

    names = namespace("def get(i, out):\n    for k in range(i.shape[0]):\n        out[k] = table[i[k]] * factor\n")
    names.update(table=SIX, factor=2.0)
    with device_to_compile_for():
        made = Lazy(names["get"], "(n)->(n)")
        made.add("void(int64[:], float64[:])")
    ((_, kernel),) = made.build_ufunc().engine and made.kernelmap.values()
    where, out = np.array([[0, 1, 2], [3, 4, 5]]), np.zeros((2, 3))
    launched = launch(kernel, where, out, block=2)
    assert out.tolist() == [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]
    names["table"], names["factor"] = SIX + 1, 3.0
    launched.launch(where, out, block=2)
    assert out.tolist() == [[3.0, 6.0, 9.0], [12.0, 15.0, 18.0]]
    assert launched.code().key is not None


@needs_a_compiler
def test_reductions() -> None:
    only("numba-cuda")  # numba-cuda-mlir's is built on a copy of numba-cuda's dispatcher, not on its own
    from numba.cuda import types
    from numba.cuda.kernels.reduction import _gpu_reduce_factory

    names = namespace("def get(a, b):\n    return a + b * table[1] * factor\n", table=SIX, factor=2.0)
    kernel = _gpu_reduce_factory(names["get"], types.float64)
    explained = cuda_captures.explain(kernel, "void(float64[::1], float64[::1], float64, boolean)")
    assert [(row.name, row.path) for row in explained.rows] == [
        ("table", ("device function `reduce_op`", "global `table`"))
    ]
    assert len(explained.slots) == 1
    assert explained.key is not None
