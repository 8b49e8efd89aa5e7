"""What is installed: its metadata, what stands in its wheel and sdist, and what importing it brings along."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

import cuda_captures
from interpreters import python

ROOT = Path(__file__).parent.parent
METADATA = importlib.metadata.metadata("cuda-captures")


def test_metadata() -> None:
    assert METADATA["Version"] == cuda_captures.__version__
    assert METADATA["License-Expression"] == "BSD-2-Clause"
    assert METADATA["Requires-Python"] == ">=3.11"
    extras = {"cu12", "cu13", "dask", "docs", "examples", "mlir-cu12", "mlir-cu13", "test"}
    assert set(METADATA.get_all("Provides-Extra")) == extras


@pytest.mark.parametrize("extra", ["cu12", "cu13", "mlir-cu12", "mlir-cu13"])
def test_extras_ask_for_the_versions_that_are_supported(extra: str) -> None:
    from packaging.requirements import Requirement
    from packaging.version import Version

    from cuda_captures.backends import COMPILERS

    wanted = [Requirement(text) for text in METADATA.get_all("Requires-Dist")]
    wanted = [one for one in wanted if one.marker is not None and one.marker.evaluate({"extra": extra})]
    for compiler in COMPILERS:
        for one in wanted:
            if one.name == compiler.distribution:
                low, high = (".".join(map(str, bound)) for bound in compiler.supported)
                assert one.extras == {extra.removeprefix("mlir-")}
                assert Version(high) not in one.specifier
                assert Version(f"{high}.1") not in one.specifier
                assert Version(f"{low}.9") in one.specifier
                assert all(Version(bound.version) >= Version(low) for bound in one.specifier)
                return
    pytest.fail(f"the extra {extra} brings no compiler")


def test_every_name_is_public_on_purpose() -> None:
    assert all(hasattr(cuda_captures, name) for name in cuda_captures.__all__)
    assert (Path(cuda_captures.__file__).parent / "py.typed").exists()


def test_the_package_alone_can_be_imported() -> None:
    program = """
        import sys

        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in ("numba", "numba_cuda_mlir", "llvmlite", "cuda"):
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        sys.meta_path.insert(0, Absent())
        import cuda_captures
        print(cuda_captures.memory(), cuda_captures.snapshot(__import__("numpy").ones(3)).capture_policy)
    """
    assert python(program, "-W", "error") == "[] snapshot"


def test_the_readme_names_extras_that_exist() -> None:
    named = re.findall(r'"(?:\.|cuda-captures)\[([\w,-]+)\]"', (ROOT / "README.md").read_text())
    assert named
    extras = set(METADATA.get_all("Provides-Extra"))
    assert {name for group in named for name in group.split(",")} <= extras


def test_the_test_command_of_the_readme_is_what_is_checked() -> None:
    text = (ROOT / "README.md").read_text()
    commands = re.findall(r"^```sh\n(.+)\n```$", text, re.MULTILINE)
    assert [command.startswith("python3 -m venv .venv && ") for command in commands] == [True, True]
    check = (ROOT / ".ci/run").read_text()
    (begin,) = re.findall(r"^command=.*$", check, re.MULTILINE)
    found = subprocess.run(
        ["bash", "-c", f'{begin}\necho "$command"'], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == commands[1]
    assert "pytest" in commands[1]
    assert "pytest" not in commands[0]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a wheel and an sdist."""
    pytest.importorskip("hatchling", reason="needs hatchling, of the extra `test`")
    directory = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(directory)], cwd=ROOT, check=True)
    return directory


def names_in(wheel: Path) -> set[str]:
    """The files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_the_package_and_what_starts_it(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = names_in(wheel)
    assert {"cuda_captures.pth", "_cuda_captures_startup.py", "cuda_captures/py.typed"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    source = ROOT / "src/cuda_captures"
    modules = {f"cuda_captures/{path.relative_to(source).as_posix()}" for path in source.rglob("*.py")}
    assert {name for name in names if name.startswith("cuda_captures/")} == modules | {"cuda_captures/py.typed"}
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"cuda_captures", "cuda_captures.pth", "_cuda_captures_startup.py"}


def test_the_sdist_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    assert {"README.md", "CHANGELOG.md", "LICENSE", "conda", "tests", "examples"} <= {
        path.name for path in unpacked.iterdir()
    }
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel"], cwd=unpacked, check=True)
    (again,) = unpacked.glob("dist/*.whl")
    (wheel,) = built.glob("*.whl")
    assert names_in(again) == names_in(wheel)


def test_an_installed_wheel_waits_for_a_compiler(built: Path, tmp_path: Path) -> None:
    venv.create(tmp_path, with_pip=False)
    (packages,) = tmp_path.glob("lib/python*/site-packages")
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    program = "import sys; print([type(finder).__name__ for finder in sys.meta_path if hasattr(finder, 'answered')])"
    clean = {name: value for name, value in os.environ.items() if name not in ("CUDA_CAPTURES", "PYTHONPATH")}
    for asked, finders in (({}, "[]"), ({"CUDA_CAPTURES": "1"}, "['Summons']")):
        done = subprocess.run(
            [str(tmp_path / "bin/python"), "-c", program],
            env={**clean, **asked},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.stdout.strip(), done.stderr) == (finders, "")


def called(*command: str, **environment: str) -> str:
    """What a command prints; it must end well."""
    clean = {name: value for name, value in os.environ.items() if name not in ("CUDA_CAPTURES", "PYTHONPATH")}
    done = subprocess.run(list(command), env={**clean, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_wheel_and_sdist_can_be_published(built: Path) -> None:
    pytest.importorskip("twine", reason="needs twine, of the extra `test`")
    files = sorted(map(str, built.iterdir()))
    assert len(files) == 2
    said = called(sys.executable, "-m", "twine", "check", "--strict", *files)
    assert said.count("PASSED") == 2, said


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new virtual environment into which pip has installed the wheel with an extra.

    Links make it have what this environment has, so that pip downloads nothing and still checks every requirement.
    """
    pytest.importorskip("pip", reason="needs pip, of the extra `test`")
    from cuda_captures import backends

    if "numba-cuda" not in backends.present():
        pytest.skip("needs numba-cuda")
    directory = tmp_path_factory.mktemp("venv")
    venv.create(directory, with_pip=False)
    (packages,) = directory.glob("lib/python*/site-packages")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "cuda_captures" not in path.name:
            (packages / path.name).symlink_to(path)
    (wheel,) = built.glob("*.whl")
    python_there = str(directory / "bin/python")
    bundle = "cu13" if _has("cuda-toolkit", "13") else "cu12"
    called(python_there, "-m", "pip", "install", "--no-index", "--no-cache-dir", f"{wheel}[{bundle}]")
    return directory


def _has(distribution: str, begin: str) -> bool:
    try:
        return importlib.metadata.version(distribution).startswith(begin)
    except importlib.metadata.PackageNotFoundError:
        return False


def test_the_installed_wheel_is_what_is_imported(installed: Path) -> None:
    python_there = str(installed / "bin/python")
    program = "import cuda_captures, sys; print(cuda_captures.__file__); print(cuda_captures.__version__)"
    file, version = called(python_there, "-c", program).split()
    assert Path(file).is_relative_to(installed)
    assert version == METADATA["Version"]
    listed = called(python_there, "-m", "pip", "show", "-f", "cuda-captures")
    assert "../../../bin/cuda-captures" in listed
    assert "cuda_captures.pth" in listed


def test_its_requirements_are_there_and_agree(installed: Path) -> None:
    assert "No broken requirements found" in called(str(installed / "bin/python"), "-m", "pip", "check")


def test_its_demo_runs(installed: Path) -> None:
    said = called(str(installed / "bin/cuda-captures"), "demo")
    assert "TABLE" in said
    assert "read 1.0, and 2.0 after" in said, said


# conda


@pytest.fixture(scope="module")
def recipe() -> Any:
    """The recipe for conda."""
    yaml = pytest.importorskip("yaml", reason="needs PyYAML, which comes with dask, of the extra `test`")
    return yaml.safe_load((ROOT / "conda/recipe.yaml").read_text())


def test_the_recipe_says_what_the_project_says(recipe: Any) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    about = project["project"]
    assert recipe["context"]["version"] == about["version"] == cuda_captures.__version__
    assert recipe["package"] == {"name": about["name"], "version": "${{ version }}"}
    assert recipe["about"]["license"] == about["license"]
    assert recipe["about"]["summary"] == about["description"]
    assert [recipe["about"]["license_file"]] == about["license-files"]
    (script,) = about["scripts"].items()
    assert recipe["build"]["python"]["entry_points"] == [" = ".join(script)]


def test_the_recipe_asks_for_what_the_wheel_asks_for(recipe: Any) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    python_there = f"python {project['project']['requires-python']}"
    needed = [conda_name(text) for text in project["project"]["dependencies"]]
    assert recipe["requirements"]["run"] == [python_there, *needed]
    build = [conda_name(text) for text in project["build-system"]["requires"]]
    assert recipe["requirements"]["host"] == [python_there, "pip", *build]
    extras = project["project"]["optional-dependencies"]
    optional = {conda_name(text) for name in ("cu13", "mlir-cu13", "dask") for text in extras[name]}
    assert set(recipe["requirements"]["run_constraints"]) <= optional
    assert {text.partition(" ")[0] for text in recipe["requirements"]["run_constraints"]} >= {
        "numba-cuda",
        "numba-cuda-mlir",
        "distributed",
    }


def conda_name(text: str) -> str:
    """A requirement as conda spells it."""
    from packaging.requirements import Requirement

    requirement = Requirement(text)
    name = {"xxhash": "python-xxhash", "dask": "dask-core"}.get(requirement.name, requirement.name)
    bounds = sorted(str(requirement.specifier).split(","), key=lambda bound: bound.startswith("<"))
    return f"{name} {','.join(bounds)}"
