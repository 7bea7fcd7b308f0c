"""Packages that register a codec and a policy by entry points: installed for real, used by name, named when broken."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanin import plugins
from fanin.addresses import SwitchAddress
from fanin.benchmarks.rivals import check_rivals, named
from fanin.cli import run
from fanin.emulation.simulator.scenario import JobPlan, Scenario
from fanin.emulation.simulator.simulation import simulate
from fanin.errors import ConfigurationError
from fanin.host import codecs
from fanin.host.stale.policies import policy_class

MODULE = """
from fanin.host.codecs.lanes_codec import {base} as Base
from fanin.host.stale.policies.skip import Skip


class Halves(Base):
    name = "halves"


class Strict(Skip):
    name = "strict"


def opens_nothing(host, port):
    return None
"""
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "1.5"

[tool.setuptools]
py-modules = ["{module}"]

[project.entry-points."fanin.codecs"]
halves = "{module}:Halves"
lost = "{module}_that_is_not_there:Lost"
claimed = "{module}:Halves"
ends = "{module}_that_ends:Halves"

[project.entry-points."fanin.policies"]
strict = "{module}:Strict"
wrong = "{module}:Halves"

[project.entry-points."fanin.rivals"]
tiny = "{module}:tiny"
unnamed = "{module}"

[project.entry-points."fanin.targets"]
empty = "{module}:opens_nothing"
"""
OTHER = """Metadata-Version: 2.1
Name: other-package
Version: 2.0
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed a package with entry points."""
    folder, source = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("source")
    (source / "tiny_codec.py").write_text(MODULE.format(base=codecs.table()["lanes"].__name__))
    (source / "pyproject.toml").write_text(PROJECT.format(name="tiny-codec", module="tiny_codec"))
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-build-isolation", "--no-deps"]
    done = subprocess.run([*install, "--target", str(folder), str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (folder / "tiny_codec_that_ends.py").write_text("raise SystemExit(3)")
    (folder / "other_package-2.0.dist-info").mkdir()
    (folder / "other_package-2.0.dist-info" / "METADATA").write_text(OTHER)
    (folder / "other_package-2.0.dist-info" / "entry_points.txt").write_text("[fanin.codecs]\nclaimed = other:Thing\n")
    return folder


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(site))
    importlib.invalidate_caches()
    plugins.forget()
    yield
    monkeypatch.undo()
    plugins.forget()
    sys.modules.pop("tiny_codec", None)


@pytest.mark.usefixtures("installed")
def test_a_codec_and_a_policy_of_a_package_are_taken_by_their_names() -> None:
    made = codecs.make("halves:16")
    assert made.name == "halves"
    assert type(made).__module__ == "tiny_codec"
    assert policy_class("strict").name == "strict"
    plan = JobPlan(workers=3, quorum=2, staleness=2, think_s=0.001, slow=(1.0, 1.0, 5.0), policy="strict")
    assert simulate(Scenario(jobs=(plan,)), 1, kind="python").attempts == 1
    assert named(["gloo", "tiny"]) == ["gloo", "tiny_codec:tiny"]


@pytest.mark.usefixtures("installed")
def test_a_broken_one_is_named_with_its_package_and_breaks_no_other() -> None:
    with pytest.raises(ConfigurationError) as broken:
        codecs.make("lost:16")
    assert str(broken.value).startswith(
        "'lost' of package tiny-codec 1.5 (entry point of group fanin.codecs) cannot be used: ModuleNotFoundError: "
    )
    assert "\n" not in str(broken.value)
    with pytest.raises(
        ConfigurationError, match=r"'wrong' of package tiny-codec 1\.5 .* is not a class of round policy"
    ):
        policy_class("wrong")
    with pytest.raises(ConfigurationError) as claimed:
        codecs.make("claimed:16")
    assert "package tiny-codec 1.5" in str(claimed.value)
    assert "package other-package 2.0" in str(claimed.value)
    assert codecs.make("halves:16").name == "halves"
    assert codecs.make("lanes:16").name == "lanes"


@pytest.mark.usefixtures("installed")
def test_a_package_that_ends_the_program_or_opens_nothing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"'ends' of package tiny-codec 1\.5 .* SystemExit: 3\. Remedy"):
        codecs.make("ends:16")
    assert run(["switch", "--target", "empty", "--bind", "127.0.0.1:0"]) == 2
    assert "'empty' of package tiny-codec 1.5" in capsys.readouterr().err
    with pytest.raises(ConfigurationError, match=r"'unnamed' of package tiny-codec 1\.5 .* is not MODULE:BACKEND"):
        check_rivals([], ["unnamed"])


@pytest.mark.usefixtures("installed")
def test_an_unknown_name_is_answered_with_those_of_packages_too() -> None:
    with pytest.raises(ConfigurationError, match=r"there is no 'nothing', but .*halves.*lanes"):
        codecs.make("nothing:16")
    with pytest.raises(ConfigurationError, match=r"skip, .*strict, wrong"):
        policy_class("nothing")


def test_without_packages_unknown_schemes_and_targets_are_refused_as_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ConfigurationError, match="expected udp://host:port or zmq://host:port"):
        SwitchAddress.parse("unix://here:1")
    assert run(["switch", "--target", "nothing"]) == 2
    assert "--target 'nothing' is no target. Remedy: software or p4" in capsys.readouterr().err
