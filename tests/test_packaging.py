"""What is installed: exactly the six roots, their data, nothing of the tests. Needs no network."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

setuptools = pytest.importorskip("setuptools")

ROOT = Path(__file__).resolve().parent.parent
ROOTS = {"arch_configs", "compiler", "eventsim", "workloads", "dse", "studies"}
BUILD = """
import sys
from setuptools import build_meta
print(build_meta.build_wheel(sys.argv[1]))
"""


def project() -> dict[str, dict]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built in a copy of the sources by the setuptools that is installed."""
    # setuptools 77 is the first that reads a license expression
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("package")
    source = folder / "source"
    source.mkdir()
    for name in sorted(ROOTS | {"tests"}):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", source)
    for name in ("README.md", "LICENSE"):
        (source / name).write_text((ROOT / name).read_text() if (ROOT / name).is_file() else "missing\n")
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder)], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return zipfile.ZipFile(folder / done.stdout.splitlines()[-1])


def test_top_level_is_exactly_the_six_roots(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == ROOTS


def test_every_module_of_the_sources_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    modules = {str(path.relative_to(ROOT)) for root in ROOTS for path in (ROOT / root).rglob("*.py")}
    assert modules <= names, sorted(modules - names)


def test_data_files_are_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    data = [*(ROOT / "arch_configs").glob("*.yaml"), *(ROOT / "workloads" / "configs").glob("*.json")]
    data += [
        path for path in (ROOT / "studies/validation").rglob("*") if path.is_file() and path.suffix != ".pyc"
    ]
    assert data
    assert {str(path.relative_to(ROOT)) for path in data} <= names


def test_the_console_script_is_dse(wheel: zipfile.ZipFile) -> None:
    (entry,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert "dse = dse.cli:main" in wheel.read(entry).decode()


def test_found_packages_are_the_six_roots_and_all_their_folders() -> None:
    """The same rule without building: setuptools of any age finds what pyproject asks for."""
    found = set(
        setuptools.find_packages(
            str(ROOT), include=project()["tool"]["setuptools"]["packages"]["find"]["include"]
        )
    )
    assert {name.split(".")[0] for name in found} == ROOTS
    folders = {path.parent.relative_to(ROOT) for root in ROOTS for path in (ROOT / root).rglob("*.py")}
    assert found == {".".join(folder.parts) for folder in folders}, "a folder with modules has no __init__.py"


def test_every_data_file_is_named_in_pyproject() -> None:
    """A file beside the modules that no pattern names would be missing after installation."""
    patterns = project()["tool"]["setuptools"]["package-data"]
    for root in ROOTS:
        named = {path for pattern in patterns.get(root, []) for path in (ROOT / root).glob(pattern)}
        data = {path for end in ("*.yaml", "*.json", "*.csv") for path in (ROOT / root).rglob(end)}
        assert data <= named, sorted(data - named)


def test_the_distribution_cannot_be_uploaded_by_mistake() -> None:
    assert "Private :: Do Not Upload" in project()["project"]["classifiers"]
    include = project()["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {name.split(".")[0] for name in include} == ROOTS
    assert not any(name.endswith("*") and not name.endswith(".*") for name in include)
