"""Names are followed: the predicate that a launch asks, and specialisations by meaning, without a GPU."""

from __future__ import annotations

import gc
import itertools
import math
import struct
import warnings
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cuda_captures
from conftest import SIMULATOR, module_of
from cuda_captures import backends
from cuda_captures.discovery import CellPlace, GlobalPlace
from cuda_captures.following import UNREADABLE, unchanged_predicate


def test_globals() -> None:
    namespace: dict[str, Any] = {"a": np.arange(3.0), "n": 5}
    places = {name: GlobalPlace(namespace, name) for name in namespace}
    unchanged = unchanged_predicate([(place, namespace[name]) for name, place in places.items()])
    assert unchanged()
    array = namespace["a"]
    for value in (None, array.copy(), array[:], 3):
        namespace["a"] = value
        assert not unchanged()
    del namespace["a"]
    with pytest.raises(UNREADABLE):
        unchanged()
    namespace["a"] = array
    assert unchanged()
    namespace["n"] = 6
    assert not unchanged()


NAMES = st.one_of(
    st.text(min_size=1, max_size=3),
    st.sampled_from(["a", "missing", "w0", "v0", "g0", "n1", "s0", "global_0", "global_1", "shape"]),
    st.sampled_from(["is", "__debug__", "σ", "ﬁ", "cell_contents", "dtype", "len", "get"]),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine draws text slowly
@given(
    spaces=st.lists(st.dictionaries(NAMES, st.booleans(), max_size=6), min_size=1, max_size=3),
    changed=st.data(),
)
def test_global_names_of_any_text_in_several_namespaces(spaces: list[dict[str, bool]], changed: st.DataObject) -> None:
    arrays = [np.arange(3.0 + number) for number in range(20)]
    namespaces: list[dict[str, Any]] = [
        {name: arrays.pop() if is_array else object() for name, is_array in space.items()} for space in spaces
    ]
    places = [GlobalPlace(namespace, name) for namespace in namespaces for name in namespace]
    unchanged = unchanged_predicate([(place, place.read()) for place in places])
    assert unchanged()
    for place in changed.draw(st.permutations(places)):
        before = place.namespace.pop(place.name)
        assert not same(unchanged)
        place.namespace[place.name] = np.arange(3.0)
        assert not unchanged()
        place.namespace[place.name] = before
        assert unchanged()


def same(unchanged: Callable[[], bool]) -> bool:
    """What a launch makes of it."""
    try:
        return unchanged()
    except UNREADABLE:
        return False


def test_builtins_until_the_module_defines_the_name() -> None:
    namespace: dict[str, Any] = {}
    unchanged = unchanged_predicate([(GlobalPlace(namespace, "len"), len)])
    assert unchanged()
    namespace["len"] = max
    assert not unchanged()


def test_an_array_changed_in_place() -> None:
    array = np.arange(6.0)
    unchanged = unchanged_predicate([(GlobalPlace({"a": array}, "a"), array)])
    array[:] = 7  # contents are the device copy's affair
    assert unchanged()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy deprecates setting a shape
        array.shape = (2, 3)
        assert not unchanged()
        array.shape = (6,)
    assert unchanged()
    array.flags.writeable = False
    assert not unchanged()


def test_an_emptied_cell() -> None:
    def make() -> Any:
        value = 3

        def get() -> int:
            return value

        def empty() -> None:
            nonlocal value
            del value

        return get, empty

    get, empty = make()
    unchanged = unchanged_predicate([(CellPlace(get.__closure__[0], "value"), get())])
    assert unchanged()
    empty()
    with pytest.raises(ValueError, match="empty"):
        unchanged()


def test_arrays_are_not_kept() -> None:
    namespace: dict[str, Any] = {"a": np.arange(3.0)}
    unchanged = unchanged_predicate([(GlobalPlace(namespace, "a"), namespace["a"])])
    namespace["a"] = None
    gc.collect()
    assert not unchanged()  # the array is gone, and None is not what it was


def test_constants_by_contents() -> None:
    array = np.arange(3.0)
    before, names = array.tobytes(), {"a": array}
    place = GlobalPlace(names, "a")
    unchanged = unchanged_predicate([], [(place, before, lambda: place.read().tobytes() == before)])
    assert unchanged()
    array[1] = 9
    assert not unchanged()
    names["a"] = np.arange(3.0)
    assert unchanged()


@pytest.fixture
def follower(compiler: str) -> Any:
    """Makes what follows the captures of a kernel, with a toolchain that needs no GPU."""
    if compiler != "numba-cuda":
        pytest.skip("the logic is the same for every compiler")
    module_of(compiler)
    with cuda_captures.enabled():
        from numba import types
        from numba.cuda.descriptor import cuda_target

        from cuda_captures.backends.numba_cuda.inspection import DEFAULTS
        from cuda_captures.backends.numba_cuda.kernel import NumbaCudaToolchain
        from cuda_captures.binding import Follower

        cuda_target.target_context.refresh()

        def make(function: Any) -> Any:
            toolchain = NumbaCudaToolchain(function, (types.float64[::1],), DEFAULTS, None)
            toolchain.cc = (9, 0)
            return Follower(function, toolchain, None)

        yield make


def kernel_of(body: str, **names: Any) -> tuple[Any, dict[str, Any]]:
    from numba import cuda

    namespace: dict[str, Any] = {"cuda": cuda, **names}
    exec(f"def kernel(out):\n    {body}\n", namespace)
    return namespace["kernel"], namespace


def test_specialisations_by_value(follower: Any) -> None:
    function, names = kernel_of("out[0] = N", N=1)
    following = follower(function)
    first = following.variant().code
    names["N"] = 2
    second = following.variant().code
    assert second is not first
    names["N"] = 1
    assert following.variant().code is first
    names["N"] = 1.0
    assert following.variant().code is not first


def test_one_general_version(follower: Any) -> None:
    function, names = kernel_of("out[0] = T[1]", T=np.arange(4.0))
    following = follower(function)
    codes = set()
    for length in range(4, 30):
        names["T"] = np.arange(float(length))
        codes.add(following.variant().code)
    assert len(codes) == 2
    names["T"] = np.arange(60.0)[::2]
    codes.add(following.variant().code)
    for array in (np.arange(60.0)[::3], np.arange(5.0), np.arange(9.0)[::-1]):
        names["T"] = array
        codes.add(following.variant().code)
    assert len(codes) == 3


@pytest.mark.parametrize("before", list(itertools.product((False, True), repeat=3)))
@pytest.mark.parametrize("wrap", [lambda array: array, lambda array: SimpleNamespace(table=array)])
def test_items_of_a_tuple_that_are_alike_stay_alike(
    follower: Any, wrap: Callable[[Any], Any], before: tuple[bool, ...]
) -> None:
    def items(contiguous: bool, *mapped: bool) -> tuple[Any, ...]:
        arrays = [np.arange(4.0) if contiguous else np.arange(8.0)[::2] for _ in mapped]
        return tuple(wrap(cuda_captures.mapped(one) if is_ else one) for one, is_ in zip(arrays, mapped, strict=True))

    item = "T[int(out[1])]" if wrap(0) == 0 else "T[int(out[1])].table"
    for after in itertools.product((False, True), repeat=3):
        function, names = kernel_of(f"out[0] = {item}[1]", T=items(*before))
        following = follower(function)
        following.variant()
        names["T"] = items(*after)
        now = following.variant()  # no compiler indexes a tuple of several types at run time
        assert len({use.signature.layout for use in now.code.uses}) == 1
        names["T"] = items(*before)
        following.variant()


CONSTANT_SHAPES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "constant in a tuple": (
        "out[0] = T[0][1]; out[1] = T[1].shape[0] + T[1][1, 0]",
        lambda array: (np.arange(2.0 + array.shape[0]), cuda_captures.constant(array)),
    ),
    "constant copy of an array that a slot is for too": (
        "out[0] = T[1, 0]; out[1] = cuda.const.array_like(T).shape[0]",
        lambda array: array,
    ),
    "constant copy of an item": (
        "out[0] = T[0][1, 0]; out[1] = cuda.const.array_like(T[1]).shape[0]",
        lambda array: (array, array),
    ),
}


@pytest.mark.parametrize("name", CONSTANT_SHAPES)
def test_a_constant_has_its_shape_whatever_slots_leave_open(follower: Any, name: str) -> None:
    body, table = CONSTANT_SHAPES[name]
    function, names = kernel_of(body, T=None)
    following, codes = follower(function), dict[Any, Any]()
    for shape in ((2, 3), (3, 2), (6, 1), (2, 3), (3, 2)):  # with the same contents
        names["T"] = table(np.arange(6.0).reshape(shape).copy())
        now = following.variant()
        assert all(one.holds() for one in now.constants)
        assert codes.setdefault(now.code, shape) == shape
    fresh, names = kernel_of(body, T=table(np.arange(6.0).reshape(3, 2).copy()))
    assert codes.get(follower(fresh).variant().code, (3, 2)) == (3, 2)


def holds(code: Any, value: float) -> bool:
    """Whether the machine code has a number in it."""
    word = struct.unpack("<Q", struct.pack("<d", value))[0]
    text = code.product._codelibrary.get_asm_str(cc=(9, 0))
    return str(word) in text or f"0d{word:016X}" in text.upper().replace("0D", "0d")


def device(source: str, **names: Any) -> Any:
    """A device function called `dev`."""
    from numba import cuda

    namespace = {"cuda": cuda, **names}
    exec(f"@cuda.jit(device=True)\n{source}", namespace)
    return namespace["dev"]


def test_constant_copies_in_device_functions_follow_the_contents(follower: Any) -> None:
    table = np.array([1.5])
    dev = device("def dev():\n    return cuda.const.array_like(T)[0]", T=table)
    function, _ = kernel_of("out[0] = dev()", dev=dev)
    following = follower(function)
    assert holds(following.variant().code, 1.5)
    table[0] = 2.75
    assert holds(following.variant().code, 2.75)
    dev.py_func.__globals__["T"] = np.array([3.25])
    assert holds(following.variant().code, 3.25)
    another, _ = kernel_of("out[0] = dev() + 1.0", dev=dev)
    assert holds(follower(another).variant().code, 4.25) or holds(follower(another).variant().code, 3.25)


@pytest.mark.parametrize("source", ["def dev():\n    return held", "def dev():\n    return inner()"])
def test_what_callers_read_of_an_object_that_a_device_function_returns(follower: Any, source: str) -> None:
    held = SimpleNamespace(scale=1.5, table=np.arange(3.0))
    inner = device("def dev():\n    return held", held=held)
    function, _ = kernel_of("out[0] = dev().scale", dev=device(source, held=held, inner=inner))
    following = follower(function)
    assert holds(following.variant().code, 1.5)
    held.scale = 2.75
    assert holds(following.variant().code, 2.75)
    reading, _ = kernel_of("out[0] = dev().table[1]", dev=device(source, held=held, inner=inner))
    following = follower(reading)
    following.variant()
    held.table = np.arange(5.0)
    now = following.variant()
    assert following.specialisations.forms(now, now.read_arrays()) is not None


def test_what_a_module_of_ones_own_has_from_a_library_is_followed(follower: Any) -> None:
    own = ModuleType("own")
    own.real, own.xp = np.float32, math  # type: ignore[attr-defined]
    body = "out[0] = own.real(out[1]) + own.xp.sqrt(out[2])"
    function, _ = kernel_of(body, own=own)
    following = follower(function)
    codes = [following.variant().code]
    for name, value in (("real", np.float64), ("xp", SimpleNamespace(sqrt=math.fabs)), ("real", np.float32)):
        setattr(own, name, value)
        assert following.specialisations.last.read_arrays() is None
        codes.append(following.variant().code)
    assert len({code.number for code in codes}) == 4
    through = device("def dev(x):\n    return own.real(x)", own=own)
    texts = []
    for real in (np.float32, np.float64):
        own.real = real  # type: ignore[attr-defined]
        again, _ = kernel_of("out[0] = dev(out[1])", dev=through)
        texts.append(follower(again).variant().code.product._codelibrary.get_asm_str(cc=(9, 0)))
    assert ".f32" in texts[0]
    assert ".f32" not in texts[1]


def test_enumerations_that_are_called_alike(follower: Any) -> None:
    source = "import enum\nclass Colour(enum.IntEnum):\n    RED = 1\n    BLUE = 2\n"
    made: list[dict[str, Any]] = [{"__name__": "cell"}, {"__name__": "cell"}]
    for namespace in made:
        exec(source, namespace)
    old, new = (namespace["Colour"] for namespace in made)
    body = "out[0] = 1.5 if MODE is Colour.RED else 2.75"
    function, names = kernel_of(body, Colour=old, MODE=old.RED)
    following = follower(function)
    first = following.variant().code
    names["Colour"] = new
    second = following.variant().code
    assert second is not first
    names["MODE"] = new.RED
    assert following.variant().code is first
    another, _ = kernel_of(body, Colour=new, MODE=old.RED)
    assert follower(another).variant().code.key.digest == second.key.digest != first.key.digest


def test_binding_gives_up_where_code_never_fits(follower: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    function, _ = kernel_of("out[0] = T[1]", T=np.arange(3.0))
    following = follower(function)
    monkeypatch.setattr(following.specialisations, "forms", lambda variant, arrays: None)
    with pytest.raises(cuda_captures.CaptureError, match="`T` was bound to something else, or edited, while kernel"):
        following.rebind(object())


@pytest.mark.parametrize("body", ["out[0] = C[1]", "out[0] = cuda.const.array_like(C)[1]"])
def test_constants_are_compiled_in_again(follower: Any, body: str) -> None:
    values = np.arange(4.0)
    marked = values if "array_like" in body else cuda_captures.constant(values)
    function, names = kernel_of(body, C=marked)
    following = follower(function)
    first = following.variant()
    assert first.code.constant_bytes == 32
    assert first.read_arrays() == []
    values[1] = 50.0
    assert first.read_arrays() is None
    second = following.variant()
    assert second.code is not first.code
    values[1] = 1.0
    assert following.variant().code is first.code
    names["C"] = marked.copy()  # the same contents in another array
    assert following.variant().code is first.code
    names["C"] = 3.0
    assert second.read_arrays() is None


def test_a_library_is_not_asked_again(follower: Any) -> None:
    import math

    function, _ = kernel_of("out[0] = math.sqrt(out[1])", math=math)
    frozen = [place.name for place, _ in follower(function).variant().frozen]
    assert "sqrt" not in frozen
    assert "math" in frozen


@pytest.mark.skipif(SIMULATOR, reason="asks about a compiler")
def test_code_is_shared_and_let_go_of(follower: Any) -> None:
    from cuda_captures.specialising import CODES

    def make(table: Any) -> Any:
        def kernel(out):  # type: ignore[no-untyped-def]
            out[0] = table[1]

        return kernel

    followers = [follower(make(np.arange(8.0) * factor)) for factor in range(5)]
    codes = {one.variant().code for one in followers}
    assert len(codes) == 1
    key = next(iter(codes)).key
    assert CODES.get(key) in codes
    del followers, codes
    gc.collect()
    assert CODES.get(key) is None
    assert backends.enabled()
