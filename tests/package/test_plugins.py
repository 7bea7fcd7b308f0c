"""Packages that register a codec and a policy by entry points: installed for real, used by name, named when broken."""

from __future__ import annotations

import dataclasses
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from fanin import plugins
from fanin.addresses import SwitchAddress
from fanin.benchmarks.rivals import check_rivals, named
from fanin.cli import ending, run
from fanin.emulation.simulator.scenario import JobPlan, Scenario
from fanin.emulation.simulator.simulation import simulate
from fanin.errors import ConfigurationError, FaninError
from fanin.host import codecs
from fanin.host.stale.policies import make_policy, policy_class
from fanin.schemes import SCHEMES

MODULE = """
from fanin.host.codecs.lanes_codec import {base} as Base
from fanin.host.stale.policies.skip import Skip


class Halves(Base):
    name = "halves"


class Strict(Skip):
    name = "strict"


class Broken(Skip):
    name = "broken"

    def __init__(self):
        raise OSError(5, "Input/output error")

    def default_quorum(workers):
        return 1 // 0


def opens_nothing(host, port):
    return None


def taken(host, port):
    raise OSError(98, "Address already in use")


def divides(host, port):
    return 1 // 0


def of_nobody():
    pass
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
broken = "{module}:Broken"

[project.entry-points."fanin.rivals"]
tiny = "{module}:tiny"
unnamed = "{module}"

[project.entry-points."fanin.targets"]
empty = "{module}:opens_nothing"
taken = "{module}:taken"
divides = "{module}:divides"
of_nobody = "{module}:of_nobody"
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
@pytest.mark.parametrize(
    ("target", "status", "said"),
    [
        ("taken", 1, " failed: Address already in use. Remedy: stop what uses it"),
        ("divides", 2, " cannot be used: ZeroDivisionError: .*. Remedy: install a version of it that fits"),
        ("of_nobody", 2, " cannot be used: TypeError: .*. Remedy: install a version of it that fits"),
    ],
)
def test_a_target_that_raises_is_named_with_its_package(
    target: str, status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["switch", "--target", target, "--bind", "127.0.0.1:0"]) == status
    errors = capsys.readouterr().err
    assert re.search(rf"^fanin: '{target}' of package tiny-codec 1\.5 \(entry point of group [\w.]+\){said}", errors)
    assert errors.count("\n") == 1


@pytest.mark.usefixtures("installed")
def test_what_a_package_raises_anywhere_is_named_and_is_no_bug_of_fanins(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FaninError, match=r"'broken' of package tiny-codec 1\.5 .* failed: Input/output error\. Remedy"):
        make_policy("broken")
    assert ending.run(lambda: policy_class("broken").default_quorum(2)) == 1
    errors = capsys.readouterr().err
    assert re.search(r"package tiny-codec 1\.5 .* failed at \S+tiny_codec\.py:\d+: ZeroDivisionError: .*Remedy", errors)
    assert errors.count("\n") == 1


@pytest.mark.usefixtures("installed")
def test_a_rival_that_a_rank_cannot_use_is_named_with_its_package() -> None:
    refused = str(plugins.rival_refused("tiny_codec:tiny", "no backend"))
    assert refused.startswith("'tiny' of package tiny-codec 1.5 (entry point of group fanin.rivals) cannot be used: no")
    assert "rival 'a.b:c' cannot be used: no backend. Remedy: install or correct a.b" in str(
        plugins.rival_refused("a.b:c", "no backend")
    )


def test_a_scheme_of_a_package_that_raises_is_named_with_it(installed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    row = dataclasses.replace(SCHEMES["zmq"], name="odd", worker="tiny_codec:of_nobody", switch="tiny_codec:nothing")
    monkeypatch.setattr(
        plugins, "_entries", lambda group: {"odd": (metadata.EntryPoint("odd", "tiny_codec:ODD", group),)}
    )
    for opened in (row.open_worker, row.open_switch):
        with pytest.raises(ConfigurationError, match=r"'odd' of .* cannot be used: (TypeError|AttributeError): "):
            opened(None)  # type: ignore[arg-type]


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
