"""p4/build/ is what p4/ compiles to: by the hashes in its manifest, and, where p4c is at hand, by compiling again."""

import json
import re
import shutil
from pathlib import Path

import pytest

from fanin.switch.p4.program_file import read_program, write_program
from tools import p4_artefacts

ROOT = Path(__file__).resolve().parents[2]


def test_sources_and_artefacts_are_those_of_the_manifest() -> None:
    assert list(p4_artefacts.drift()) == []


def test_a_changed_source_is_drift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "p4", tmp_path / "p4")
    monkeypatch.setattr(p4_artefacts, "P4", tmp_path / "p4")
    assert list(p4_artefacts.drift()) == []
    changed = tmp_path / "p4" / "shared" / "sizes.p4"
    changed.write_text(changed.read_text(encoding="utf-8").replace("4096", "4097"), encoding="utf-8")
    (tmp_path / "p4" / "build" / "v1model-64.json.gz").unlink()
    found = list(p4_artefacts.drift())
    assert any("sources changed" in line and line.startswith("v1model-256") for line in found)
    assert "v1model-64: build/v1model-64.json.gz is missing" in found


def test_a_comment_is_no_drift_unless_it_moves_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "p4", tmp_path / "p4")
    monkeypatch.setattr(p4_artefacts, "P4", tmp_path / "p4")
    commented = tmp_path / "p4" / "shared" / "sizes.p4"
    text = commented.read_text(encoding="utf-8")
    commented.write_text(text.replace("#endif\n", "#endif  /* FANIN_SIZES_P4 */\n"), encoding="utf-8")
    assert commented.read_text(encoding="utf-8") != text
    assert list(p4_artefacts.drift()) == []
    commented.write_text("/* The programs quote the lines of their sources. */\n" + text, encoding="utf-8")
    assert any("sources changed" in line for line in p4_artefacts.drift())


def test_programs_are_compared_without_the_source_text_that_they_quote(tmp_path: Path) -> None:
    compiled, again = ROOT / "p4" / "build" / "v1model-64.json.gz", tmp_path / "again.json.gz"
    program = read_program(compiled)
    requoted = re.sub(rb'"source_fragment" : "[^\n]*"', rb'"source_fragment" : "x; /* a comment */ ..."', program)
    assert requoted != program
    write_program(again, requoted)
    assert p4_artefacts.digest(again) == p4_artefacts.digest(compiled)
    write_program(again, program.replace(b'"op" : "=="', b'"op" : "!="', 1))
    assert p4_artefacts.digest(again) != p4_artefacts.digest(compiled)


@pytest.mark.parametrize("configuration", p4_artefacts.CONFIGURATIONS, ids=lambda one: str(one.name))
def test_artefacts_name_no_path_outside_the_repository(configuration: p4_artefacts.Configuration) -> None:
    assert not any(word.startswith("/") for word in _words(configuration.artefacts[1]))
    if configuration.target != "bmv2":
        return
    program = json.loads(read_program(ROOT / "p4" / configuration.artefacts[0]))
    assert program["program"] == configuration.main
    assert not any(str(part).startswith("/") for part in _strings(program))


@pytest.mark.timeout(1200)  # a Tofino build takes minutes
@pytest.mark.parametrize("configuration", p4_artefacts.CONFIGURATIONS, ids=lambda one: str(one.name))
def test_the_compiler_makes_the_same_artefacts_again(
    configuration: p4_artefacts.Configuration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not configuration.buildable:
        pytest.skip(f"needs {' and '.join(p4_artefacts.COMPILERS[configuration.target])} on PATH")
    shutil.copytree(ROOT / "p4", tmp_path / "p4")
    monkeypatch.setattr(p4_artefacts, "P4", tmp_path / "p4")
    for name in configuration.artefacts:
        (tmp_path / "p4" / name).unlink()
    p4_artefacts.compile_one(configuration)
    for name in configuration.artefacts:
        assert p4_artefacts.content(tmp_path / "p4" / name) == p4_artefacts.content(ROOT / "p4" / name)


def _words(name: str) -> list[str]:
    return (ROOT / "p4" / name).read_text(encoding="utf-8").replace('"', " ").split()


def _strings(node: object) -> list[str]:
    if isinstance(node, str):
        return [node]
    if isinstance(node, dict):
        return [text for value in node.values() for text in _strings(value)]
    if isinstance(node, list):
        return [text for value in node for text in _strings(value)]
    return []
