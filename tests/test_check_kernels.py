"""Which functions of a program are compiled for a GPU, in whatever way they are given to the compiler."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from cuda_captures.check import kernels
from cuda_captures.check.program import Program
from cuda_captures.check.sources import find, load


def found(directory: Path, **files: str) -> list[str]:
    """The functions for a GPU in files, as people see them."""
    for name, text in files.items():
        path = directory / (name.replace("__", "/").replace("INIT", "__init__") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    program = Program([load(path) for path in find([str(directory)])])
    assert [source.problem for source in program.sources if source.problem] == []
    return [str(one) for one in kernels.find(program)]


IMPORTS = {
    "from numba import cuda": "cuda.jit",
    "from numba import cuda as gpu": "gpu.jit",
    "import numba.cuda": "numba.cuda.jit",
    "import numba.cuda as nc": "nc.jit",
    "import numba as nb": "nb.cuda.jit",
    "from numba.cuda import jit": "jit",
    "from numba.cuda import jit as compiled": "compiled",
    "from numba.cuda import *": "jit",
    "from numba_cuda_mlir import cuda": "cuda.jit",
    "import numba_cuda_mlir.cuda as cuda": "cuda.jit",
    "try:\n    from numba_cuda_mlir import cuda\nexcept ImportError:\n    cuda = None": "cuda.jit",
    "from numba import cuda\njit = cuda.jit": "jit",
    "from numba import cuda\njit = cuda.jit if cuda else None": "jit",
    "from numba import cuda\nimport functools\njit = functools.partial(cuda.jit, cache=True)": "jit",
    "from numba import cuda\ndef jit(*a, **k):\n    return cuda.jit(*a, **k)": "jit()",
    "from numba import cuda\ndef jit(f):\n    return cuda.jit(f)": "jit",
    "from numba import cuda\ndef jit(**k):\n    def wrap(f):\n        return cuda.jit(**k)(f)\n"
    "    return wrap": "jit(x=1)",
    "from numba import cuda\nclass jit:\n    def __init__(self, f):\n        self.f = f\n"
    "    def __call__(self, *a):\n        cuda.jit(self.f)[1, 1](*a)": "jit",
}


@pytest.mark.parametrize("imports", IMPORTS)
def test_whatever_it_is_imported_as(tmp_path: Path, imports: str) -> None:
    assert found(tmp_path, program=f"{imports}\n@{IMPORTS[imports]}\ndef k(x):\n    pass\n") == ["kernel `k`"]


FORMS = {
    "@cuda.jit\ndef k(x): pass": "kernel `k`",
    "@cuda.jit()\ndef k(x): pass": "kernel `k`",
    "@cuda.jit('void(float64)')\ndef k(x): pass": "kernel `k`",
    "@cuda.jit(['void(float64)'], fastmath=True)\ndef k(x): pass": "kernel `k`",
    "@cuda.jit(device=True)\ndef k(x): pass": "device function `k`",
    "device = cuda.jit(device=True)\n@device\ndef k(x): pass": "device function `k`",
    "def k(x): pass\nkernel = cuda.jit(k)": "kernel `k`",
    "def k(x): pass\nkernel = cuda.jit(k, device=True)": "device function `k`",
    "def k(x): pass\nkernel = cuda.jit('void(float64)')(k)": "kernel `k`",
    "kernel = cuda.jit(lambda x: None)": "kernel (a lambda)",
    "kernel = cuda.jit(device=True)(lambda x: x)": "device function (a lambda)",
    "def make(n):\n    @cuda.jit\n    def k(x): pass\n    return k": "kernel `k`",
    "def make(f):\n    return cuda.jit(f)\ndef k(x): pass\nmake(k)": "kernel `k`",
    "class A:\n    @staticmethod\n    @cuda.jit\n    def k(x): pass": "kernel `k`",
    "class A:\n    def build(self, f):\n        return cuda.jit(f)": "",
    "@cuda.reduce\ndef k(a, b): return a + b": "reduction `k`",
    "k = cuda.Reduce(lambda a, b: a + b)": "reduction (a lambda)",
    "def k(x): return x\ncuda.compile_ptx(k, 'float64(float64)')": "compiled function `k`",
    "@numba.vectorize(['f8(f8)'], target='cuda')\ndef k(x): return x": "ufunc `k`",
    "@numba.guvectorize(['void(f8[:])'], '(n)', target='cuda')\ndef k(x): pass": "ufunc `k`",
    "@numba.vectorize(['f8(f8)'])\ndef k(x): return x": "",
    "@numba.vectorize\ndef k(x): return x": "",
    "@numba.njit\ndef k(x): return x": "",
    "@cuda.grid\ndef k(x): return x": "",
    "def k(x): return x": "",
}


@pytest.mark.parametrize("form", FORMS)
def test_whatever_form_it_has(tmp_path: Path, form: str) -> None:
    assert found(tmp_path, program=f"import numba\nfrom numba import cuda\n{form}\n") == (
        [FORMS[form]] if FORMS[form] else []
    )


def test_functions_for_the_cpu_that_a_kernel_calls(tmp_path: Path) -> None:
    program = """
        import numba
        from numba import cuda
        @numba.njit
        def deeper(x): return x
        @numba.njit(inline="always")
        def called(x): return deeper(x)
        @numba.njit
        def not_called(x): return x
        @cuda.jit
        def k(x): x[0] = called(x[1])
    """
    assert found(tmp_path, program=program) == ["function `deeper`", "function `called`", "kernel `k`"]


def test_imports_within_the_checked_tree(tmp_path: Path) -> None:
    assert found(
        tmp_path,
        package__INIT="",
        package__compat="from numba import cuda\njit = cuda.jit",
        package__sub__INIT="from ..compat import jit as compiled",
        package__sub__kernels="from . import compiled\nfrom ..compat import cuda\nfrom package import compat\n"
        "@compiled\ndef a(x): pass\n@cuda.jit\ndef b(x): pass\n@compat.jit\ndef c(x): pass\n",
        script="from package.compat import *\n@jit\ndef d(x): pass\n",
    ) == ["kernel `d`", "kernel `a`", "kernel `b`", "kernel `c`"]


def test_a_directory_named_as_a_library_is_not_the_library(tmp_path: Path) -> None:
    inside = {"package__INIT": "", "package__numba__INIT": "cuda = None"}
    kernel = "from numba import cuda\n@cuda.jit\ndef k(x): pass\n"
    assert found(tmp_path, package__numba__kernels=kernel, **inside) == ["kernel `k`"]


def test_imports_in_a_circle_come_to_an_end(tmp_path: Path) -> None:
    text = "from {} import jit\n@jit\ndef k(x): pass\n"
    assert found(tmp_path, a=text.format("b"), b=text.format("a")) == []
    assert (
        found(tmp_path, a="jit = jit\njit = (jit or jit)\n@jit\ndef k(x): pass", b="from b import *\n@jit\ndef k(): 0")
        == []
    )
