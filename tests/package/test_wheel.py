"""The wheel that pip installs: one import package, complete, and nothing else."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from fanin import _native
from fanin.build_commit import of_checkout
from tests.support.repository import ROOT, project, repository_files

pytestmark = [pytest.mark.processes, pytest.mark.slow]


NOT_INSTALLED = (ROOT / "examples/launchers", ROOT / "examples/notebooks")
"""Folders of files to copy and to open, which nothing imports from an installation."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, from a build folder of its own: an old one would add files that the sources no longer have."""
    folder = tmp_path_factory.mktemp("wheel")
    command = ["build", "--build-lib", str(folder / "lib"), "bdist_wheel", "--dist-dir", str(folder)]
    (ROOT / "build").mkdir(exist_ok=True)
    with (ROOT / "build" / "wheel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker of pytest-xdist may build: objects lie in one folder
        subprocess.run([sys.executable, "setup.py", "--quiet", *command], cwd=ROOT, check=True, env=quiet())
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def quiet() -> dict[str, str]:
    return {**os.environ, "PYTHONWARNINGS": "ignore"}


def test_fanin_is_the_only_top_level_name(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    packages = {top for top in tops if not top.endswith(".dist-info")}
    assert packages == {"fanin"}


def test_every_source_module_is_in_it(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    for package, folder in project()["tool"]["setuptools"]["package-dir"].items():
        for path in repository_files(f"{folder}/*.py"):
            if any(path.is_relative_to(each) for each in NOT_INSTALLED):
                continue
            installed = f"{package.replace('.', '/')}/{path.relative_to(ROOT / folder)}"
            assert installed in names, f"{path} is in no package of pyproject.toml"


def test_types_the_extension_and_data_files_are_in_it(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert {"fanin/py.typed", "fanin/_native.pyi", "fanin/benchmarks/mpi_allreduce.c"} <= set(names)
    assert "fanin/emulation/report/page.html" in names
    artefacts = {
        f"fanin/p4/build/v1model-{words}.{kind}" for words in (64, 256) for kind in ("json.gz", "p4info.txtpb")
    }
    assert artefacts <= set(names), "`fanin switch --target p4` runs what was compiled"
    assert len([name for name in names if name.startswith("fanin/_native") and name.endswith(".so")]) == 1


NAMES_OF_EXTENSION = """
import sys
from importlib.util import module_from_spec, spec_from_file_location

spec = spec_from_file_location("fanin._native", sys.argv[1])
module = module_from_spec(spec)
spec.loader.exec_module(module)
print(*[name for name in dir(module) if not name.startswith("__")])
"""


def test_its_extension_has_what_this_trees_has(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    (extension,) = [name for name in wheel.namelist() if name.startswith("fanin/_native") and name.endswith(".so")]
    command = [sys.executable, "-c", NAMES_OF_EXTENSION, wheel.extract(extension, tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.split() == [name for name in dir(_native) if not name.startswith("__")]


def test_it_says_the_commit_that_it_was_made_from(wheel: zipfile.ZipFile) -> None:
    commit = of_checkout(ROOT)
    assert ("fanin/commit.txt" in wheel.namelist()) == (commit is not None)
    if commit is not None:
        assert wheel.read("fanin/commit.txt").decode() == commit


def test_it_says_its_licence_and_how_torch_finds_it(wheel: zipfile.ZipFile) -> None:
    information = {Path(name).name: name for name in wheel.namelist() if ".dist-info/" in name}
    metadata = Parser().parsestr(wheel.read(information["METADATA"]).decode())
    assert metadata["License-Expression"] == "Apache-2.0"
    assert wheel.read(information["LICENSE"]) == (ROOT / "LICENSE").read_bytes()
    assert (
        "[torch.backends]\nfanin = fanin._torch_entry:register" in wheel.read(information["entry_points.txt"]).decode()
    )


def test_the_source_distribution_has_every_native_file(tmp_path: Path) -> None:
    command = ["--quiet", "egg_info", "--egg-base", str(tmp_path), "sdist", "--dist-dir", str(tmp_path)]
    subprocess.run([sys.executable, "setup.py", *command], cwd=ROOT, check=True, env=quiet())
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    assert {str(path.relative_to(ROOT)) for path in repository_files("native/*.cpp", "native/*.hpp")} <= names
