"""Mistakes that are easily made, and whether the message alone is enough to mend them."""

from __future__ import annotations

import linecache
import re
import textwrap
import traceback
import types
import warnings
from argparse import Namespace
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cuda_captures
from conftest import needs_a_compiler
from cuda_captures import backends
from cuda_captures.check import command
from cuda_captures.inspecting.command import main as inspect_command

SIGNATURE = "void(float64[::1])"


def functions(source: str, **names: Any) -> dict[str, Any]:
    """The functions that a text defines, whose lines messages can show."""
    source = textwrap.dedent(source)
    filename = f"<mistake {abs(hash(source))}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    namespace: dict[str, Any] = {"np": np, **names}
    exec(compile(source, filename, "exec"), namespace)
    return namespace


def refusal(cuda: Any, source: str, kind: type[Exception], **names: Any) -> str:
    """What is said when the kernel ``k`` of a text is compiled."""
    kernel = functions(source, cuda=cuda, **names)["k"]
    with pytest.raises(kind) as caught:
        cuda_captures.explain(kernel, SIGNATURE)
    return str(caught.value)


# captures=


BAD = {
    "'Snapshot'": "captures='Snapshot': the policy must be one of",
    "{'table': 'Snapshot'}": "the policy of `table` must be one of 'live', 'snapshot', 'mapped', 'constant'",
    "['table']": "captures=['table']: must be one of",
    "{1: 'live'}": "a name must be a str",
}


@pytest.mark.parametrize("option", BAD)
@pytest.mark.parametrize("first", ["", "'void(float64[::1])', "])
def test_a_bad_policy_is_refused_when_the_kernel_is_decorated(cuda: Any, option: str, first: str) -> None:
    with pytest.raises(ValueError, match=re.escape(BAD[option])):
        eval(f"cuda.jit({first}captures={option})(lambda out: None)", {"cuda": cuda})


def test_policies_are_of_kernels_not_of_device_functions(cuda: Any) -> None:
    with pytest.raises(ValueError, match=r"is given for a device function(.|\n)*Give it to the kernel"):
        cuda.jit(device=True, captures={"table": "snapshot"})(lambda out: None)
    cuda.jit(device=True, captures=None)(lambda out: None)


def warned(cuda: Any, option: dict[str, str], body: str, **names: Any) -> list[str]:
    """The warnings when a kernel with an option is compiled, twice."""
    kernel = functions(f"def k(out):\n    {body}\n", cuda=cuda, **names)["k"]
    kernel = cuda.jit(captures=option)(kernel)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cuda_captures.explain(kernel, SIGNATURE)
    return [str(one.message) for one in caught if issubclass(one.category, cuda_captures.CaptureWarning)]


def test_a_name_that_is_not_captured_is_warned_of(cuda: Any) -> None:
    (text,) = warned(cuda, {"tabel": "snapshot"}, "out[0] = table[0]", table=np.ones(3))
    assert "captures={'tabel': 'snapshot'}: kernel `k` captures nothing of that name" in text
    assert "the arrays that it captures are `table`.\nDid you mean `table`?" in text
    (text,) = warned(cuda, {"other": "snapshot"}, "out[0] = 1")
    assert "it captures no arrays.\nWrite the name as the kernel does, or leave it out." in text


def test_an_attribute_of_a_module_is_called_by_its_own_name(cuda: Any) -> None:
    module = types.ModuleType("settings")
    module.offset = np.ones(3)  # type: ignore[attr-defined]
    (text,) = warned(cuda, {"settings.offset": "snapshot"}, "out[0] = settings.offset[0]", settings=module)
    assert "Did you mean `offset`?" in text
    assert warned(cuda, {"offset": "snapshot"}, "out[0] = settings.offset[0]", settings=module) == []


def test_names_that_are_captured_are_not_warned_of(cuda: Any) -> None:
    Pair = namedtuple("Pair", "sin cos")
    pair = Pair(np.ones(3), np.zeros(3))
    option = {"pair": "live", "pair.sin": "snapshot", "mask": "snapshot", "mask[0]": "live"}
    assert warned(cuda, option, "out[0] = pair.sin[0] if mask is None else 0", pair=pair, mask=None) == []


# explain and bind


def kernel_of(cuda: Any) -> Any:
    @cuda.jit
    def scale(signal, factor):
        signal[0] *= factor

    return scale


WRONG = {
    "void(float64[:": r"'void\(float64\[:' is no signature for kernel `scale`: '\[' was never closed",
    "void(flot[:], int64)": "is no signature for kernel `scale`: name 'flot' is not defined",
    "void(float64[:])": r"kernel `scale` \(.*test_mistakes.py:\d+\) takes `signal, factor`, and the signature .* has 1",
    None: "None is no signature for kernel `scale`",
    (1, 2): "expected a type instance, got 1",
}


@pytest.mark.parametrize("signature", WRONG)
def test_a_wrong_signature(cuda: Any, signature: Any) -> None:
    with pytest.raises(TypeError, match=WRONG[signature]):
        cuda_captures.explain(kernel_of(cuda), signature)


@pytest.mark.parametrize("cc", ["9.0", 90, 9.0, (9,), ("9", "0")])
def test_a_wrong_compute_capability(cuda: Any, cc: Any) -> None:
    with pytest.raises(TypeError, match=r"a compute capability is a pair of integers, such as \(9, 0\)"):
        cuda_captures.explain(kernel_of(cuda), "void(float64[:], int64)", cc=cc)


def test_a_configured_kernel_is_explained(cuda: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        configured = kernel_of(cuda)[1, 32]
    assert cuda_captures.explain(configured, "void(float64[:], int64)").kernel == "scale"


def test_binding_with_other_arguments_than_a_launch(cuda: Any) -> None:
    with pytest.raises(TypeError, match=r"takes `signal, factor`, and bind\(...\) was given 1\.\nGive one for each"):
        cuda_captures.bind(kernel_of(cuda), np.ones(3))


def test_binding_a_function(cuda: Any) -> None:
    with pytest.raises(TypeError, match=r"`scale` is a plain function.\nDecorate it with `@cuda.jit`"):
        cuda_captures.bind(kernel_of(cuda).py_func, np.ones(3), 1)


# what kernels name


def test_a_name_that_is_misspelt(cuda: Any) -> None:
    text = refusal(cuda, "@cuda.jit\ndef k(out):\n    out[0] = tabel[0]\n", NameError, table=np.ones(3))
    assert text.startswith("NameError: name 'tabel' is not defined\n  <mistake")
    assert ":3, in k\n    out[0] = tabel[0]\n             ^^^^^\n" in text
    assert text.endswith("Did you mean `table`?")


def test_a_misspelt_name_of_a_device_function(cuda: Any) -> None:
    source = """
    @cuda.jit(device=True)
    def first():
        return zyx[0]

    @cuda.jit
    def k(out):
        out[0] = first()
    """
    text = refusal(cuda, source, Exception)  # the compiler's own, which says in which call
    assert "NameError: name 'zyx' is not defined" in text
    assert ":4, in first\n    return zyx[0]\n           ^^^\n" in text


@pytest.mark.parametrize(
    ("tables", "item"),
    [(([1.0], 2.0), "tables[0]"), ((np.ones(3), (1, {2: 3})), "tables[1][1]"), ((1.0, {2.0}), "tables[1]")],
)
def test_a_container_in_a_tuple(cuda: Any, tables: Any, item: str) -> None:
    text = refusal(
        cuda,
        "@cuda.jit\ndef k(out):\n    out[0] = tables[0][0]\n",
        cuda_captures.CaptureTypingError,
        tables=tables,
    )
    assert f"`{item}` is a " in text
    assert "    out[0] = tables[0][0]\n             ^^^^^^\n" in text
    assert text.endswith("where `tables` is made.")


@pytest.mark.parametrize(
    ("table", "expression", "cure"),
    [
        ([3.0, 4.0], "table[1]", "table = np.array(table)"),
        ({2, 1}, "table[1]", "table = np.array(sorted(table))"),
        ({"a": 2.0}, "table['a']", "table = types.SimpleNamespace(**table)"),
        (frozenset({1, 2}), "1 in table", "table = tuple(sorted(table))"),
    ],
)
def test_the_cure_of_a_container_can_be_followed(cuda: Any, table: Any, expression: str, cure: str) -> None:
    source = f"@cuda.jit\ndef k(out):\n    out[0] = {expression}\n"
    text = refusal(cuda, source, cuda_captures.CaptureTypingError, table=table)
    assert f"`table` is a {type(table).__name__}, " in text
    assert f"out[0] = {expression}\n" in text
    assert f"`{cure}`" in text
    names = {"np": np, "types": types, "table": table}
    exec(cure, names)
    kernel = functions(source.replace("table['a']", "table.a"), cuda=cuda, table=names["table"])["k"]
    assert cuda_captures.explain(kernel, SIGNATURE).cubin


def test_a_range(cuda: Any) -> None:
    source = "@cuda.jit\ndef k(out):\n    for i in steps:\n        out[i] = 1\n"
    text = refusal(cuda, source, cuda_captures.CaptureTypingError, steps=range(3))
    assert text.startswith("`steps` is a range, and the compiler has no type for")
    assert "    for i in steps:\n             ^^^^^\nCapture its bounds, and write `range(first, last)`" in text


THROUGH = """
@cuda.jit(device=True)
def put(array, i, value):
    array[i] = value

@cuda.jit(device=True)
def outer(value, target):
    put(target, 0, value)

@cuda.jit
def k(out):
    {call}
"""


@pytest.mark.parametrize(
    "call", ["put(table, 0, out[0])", "outer(out[0], table)", "view = table[1:]; put(view, 0, 1.0)"]
)
def test_an_array_that_a_device_function_writes(cuda: Any, call: str) -> None:
    table = cuda_captures.snapshot(np.ones(3))
    text = refusal(cuda, THROUGH.format(call=call), cuda_captures.CaptureTypingError, table=table)
    assert text.startswith("a kernel writes `table`, which is captured under the policy `snapshot`")
    assert ":4, in put\n    array[i] = value\n    ^^^^^" in text
    if cuda.__name__ == "numba.cuda":  # the other one inlines the call before it types it
        assert f"    {call}\n" in text
        assert "is handed to `" in text
        assert "written under the name `array`:\n" in text
    assert text.endswith("Write `cuda_captures.live(table)`, so that what kernels write comes back to it.")


def test_a_device_function_may_still_write_other_arrays(cuda: Any) -> None:
    kernel = functions(THROUGH.format(call="put(table, 0, out[0])"), cuda=cuda, table=np.ones(3))["k"]
    assert [row.written for row in cuda_captures.explain(kernel, SIGNATURE).rows] == [True]


# what is around a message


def test_tracebacks_have_no_frames_of_the_compiler(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_FULL_TRACEBACKS", raising=False)

    def lines() -> int:
        kernel = functions("@cuda.jit\ndef k(out):\n    out[0] = t[0]\n", cuda=cuda, t=[1.0])["k"]
        try:
            cuda_captures.explain(kernel, SIGNATURE)
        except cuda_captures.CaptureTypingError as error:
            return len(traceback.format_exception(error))
        return 0

    assert 0 < lines() <= 4
    monkeypatch.setenv("NUMBA_FULL_TRACEBACKS", "1")
    assert lines() > 10


SHAPES = """
@cuda.jit(device=True)
def first(array):
    return array[0]

@cuda.jit
def k(out):
    out[0] = table[0]
    first(out[0])
"""


def test_what_the_compiler_cannot_type_is_said_with_its_line(cuda: Any) -> None:
    kernel = functions(SHAPES, cuda=cuda, table=np.ones(3))["k"]
    with pytest.raises(Exception, match=r"getitem|__getitem__|subscript") as caught:
        cuda_captures.explain(kernel, SIGNATURE)
    said = "".join(traceback.format_exception_only(caught.value))
    assert "return array[0]" in said
    if cuda.__name__ == "numba.cuda":  # the other one inlines the call before it types it
        assert ":4, in first\n    return array[0]\n<mistake" in said
        assert said.endswith(":9, in k\n    first(out[0])\n")


@pytest.mark.skipif("numba-cuda" not in backends.present(), reason="the program is for numba-cuda")
@needs_a_compiler
def test_inspect_says_the_line_that_does_not_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wrongly_typed.py").write_text("from numba import cuda, int64\n@cuda.jit\ndef k(o):\n    o[0] = int64(1)\n")
    with cuda_captures.enabled():
        options = Namespace(
            target="wrongly_typed.py:k", signature="void(float64)", cc="9.0", max_constant_bytes=None, json=False
        )
        assert inspect_command(options) == 1
    captured = capsys.readouterr()
    assert "not compiled: it does not compile for the types that it was given" in " ".join(captured.out.split())
    assert "int64 = int64" not in captured.out
    assert captured.err.rstrip().endswith("wrongly_typed.py:4, in k\n    o[0] = int64(1)")


def test_check_says_that_the_program_enables_captures_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    program = "from numba import cuda\nimport numpy as np\nt = np.ones(9)\n@cuda.jit\ndef k(o):\n    o[0] = t[0]\n"
    Path("program.py").write_text(program)
    assert command.main(["."]) == 1
    assert "--with-captures" not in capsys.readouterr().out
    Path("program.py").write_text(f"import cuda_captures as captures\ncaptures.enable()\n{program}")
    assert command.main(["."]) == 1
    said = capsys.readouterr().out
    assert said.endswith(
        "captures are enabled at program.py:2, which mends one of these if it comes before the first launch.\n"
        "`--with-captures` leaves out what it mends.\n"
    )
    assert command.main(["."], with_captures=True) == 0
    assert "--with-captures" not in capsys.readouterr().out


def test_a_misspelt_name_is_an_error_of_the_compiler_too(cuda: Any) -> None:
    """As programs expect that were written for the compiler alone."""
    kernel = functions("@cuda.jit\ndef k(out):\n    out[0] = tabel[0]\n", cuda=cuda)["k"]
    with pytest.raises(NameError) as caught:
        cuda_captures.explain(kernel, SIGNATURE)
    assert "TypingError" in [base.__name__ for base in type(caught.value).__mro__]
