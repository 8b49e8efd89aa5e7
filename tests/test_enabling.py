"""Enabling and disabling: what is joined, when, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import cuda_captures
from conftest import SIMULATOR
from cuda_captures import backends, settings
from interpreters import python


def test_enabling_imports_no_compiler() -> None:
    program = """
        import sys, cuda_captures
        cuda_captures.enable()
        print([name for name in ("numba", "numba.cuda", "numba_cuda_mlir") if name in sys.modules])
        cuda_captures.disable()
        import importlib
        print(any(type(finder).__name__ == "Arrival" for finder in sys.meta_path))
    """
    assert python(program).splitlines() == ["[]", "False"]


def test_a_compiler_is_joined_when_it_is_imported() -> None:
    program = """
        import cuda_captures
        from cuda_captures import backends
        cuda_captures.enable()
        from numba import cuda
        print(list(backends._joined), cuda.__spec__.loader is cuda.__loader__)
        cuda_captures.disable()
        print(list(backends._joined), backends.enabled())
    """
    assert python(program).splitlines() == ["['numba-cuda'] True", "[] []"]


@pytest.mark.parametrize("seed", range(3))
def test_disabling_restores_every_attribute(compiler: str, seed: int) -> None:
    program = f"""
        import random, cuda_captures, importlib
        from cuda_captures import backends
        module = {{"numba-cuda": "numba.cuda", "numba-cuda-mlir": "numba_cuda_mlir.cuda"}}["{compiler}"]
        importlib.import_module(module)
        from cuda_captures.backends import patching
        seen = {{}}
        replace = patching.Patches.replace
        def recording(self, owner, name, new):
            seen.setdefault((id(owner), name), (owner, name, vars(owner).get(name, None)))
            return replace(self, owner, name, new)
        patching.Patches.replace = recording
        for _ in range(random.Random({seed}).randint(1, 4)):
            cuda_captures.enable()
            cuda_captures.enable()
            cuda_captures.disable()
        print(len(seen) > 5, all(vars(owner).get(name, None) is before for owner, name, before in seen.values()))
    """
    assert python(program) == "True True"


def test_enabled_leaves_things_as_they_were() -> None:
    before = backends.enabled()
    with cuda_captures.enabled(host="snapshot", follow=False, verify=True):
        assert settings.current() == settings.Settings("snapshot", False, True)
        with cuda_captures.enabled():
            assert settings.current() == settings.Settings()
        assert settings.current().host == "snapshot"
        assert backends.enabled()
    assert backends.enabled() == before
    assert settings.current() == settings.Settings()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"host": "lively"}, ValueError, r"enable\(host='lively'\): host must be one of 'live', 'snapshot'"),
        ({"follow": 1}, TypeError, r"enable\(follow=1\): follow must be True or False"),
        ({"verify": None}, TypeError, r"enable\(verify=None\): verify must be True or False"),
    ],
)
def test_settings_that_do_not_exist(options: dict[str, Any], error: type[Exception], text: str) -> None:
    before = settings.current(), backends.enabled()
    with pytest.raises(error, match=text):
        cuda_captures.enable(**options)
    assert (settings.current(), backends.enabled()) == before


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "COMPILERS", ())
    with pytest.raises(cuda_captures.CaptureVersionError, match=r'pip install "cuda-captures\[cu13\]"'):
        cuda_captures.enable()


def test_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.99.1")
    monkeypatch.setattr(backends, "_joined", {})
    monkeypatch.setattr(backends, "_awaited", {})
    text = r"numba-cuda 0.99.1 is installed, and cuda-captures works with numba-cuda >=0.30,<0.31.(.|\n)*pip install"
    with pytest.raises(cuda_captures.CaptureVersionError, match=text):
        cuda_captures.enable()
    assert backends.enabled() == []


@pytest.mark.skipif(SIMULATOR, reason="the simulator has no joints")
def test_a_joint_that_is_missing() -> None:
    from cuda_captures.backends.joining import check_joints

    strange = (
        ("numba.cuda.dispatcher", "CUDADispatcher.no_such_method", ()),
        ("numba.cuda.dispatcher", "CUDADispatcher.compile", ("self", "flavour")),
        ("numba.cuda.no_such_module", "anything", None),
    )
    text = (
        r"numba-cuda \d+\.\d+\.\d+ is not built as cuda-captures expects(.|\n)*no_such_method is missing\n"
        r".*CUDADispatcher.compile.* has no parameter flavour\n.*no_such_module cannot be imported"
    )
    with pytest.raises(cuda_captures.CaptureVersionError, match=text):
        check_joints("numba-cuda", strange)


@pytest.mark.skipif(SIMULATOR, reason="asks about a compiler")
def test_what_is_no_kernel() -> None:
    text = "a kernel or a function is needed, and this is neither: 3, of type int"
    with cuda_captures.enabled(), pytest.raises(TypeError, match=text):
        cuda_captures.report(3)
