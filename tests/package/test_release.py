"""One version everywhere, and a commit beside it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import fanin
from fanin import build_commit
from tests.support.repository import ROOT, project
from tools.release_tag import why_not


def test_the_newest_release_of_the_changelog_is_this_version() -> None:
    releases = re.findall(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert releases[0] == fanin.__version__
    assert releases == sorted(releases, key=lambda text: tuple(map(int, text.split("."))), reverse=True)


def test_the_citation_names_this_version() -> None:
    assert f"\nversion: {fanin.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_a_wheel_names_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "commit.txt"
    file.write_text("0a1b2c3\n", encoding="ascii")
    monkeypatch.setattr(build_commit, "FILE", file)
    assert build_commit.build_commit() == "0a1b2c3"


def test_a_checkout_names_its_commit_and_whether_files_differ(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    file = tmp_path / "file"
    file.write_text("one")
    for words in (["init", "--quiet"], ["add", "file"], ["commit", "--quiet", "--message", "one"]):
        subprocess.run([*git, *words], check=True)
    commit = build_commit.of_checkout(tmp_path)
    assert commit is not None
    assert re.fullmatch(r"[0-9a-f]{7,}", commit)
    file.write_text("two")
    assert build_commit.of_checkout(tmp_path) == f"{commit}-dirty"


def test_a_folder_without_git_names_none(tmp_path: Path) -> None:
    assert build_commit.of_checkout(tmp_path) is None


@pytest.mark.processes
def test_the_command_prints_both() -> None:
    done = subprocess.run([sys.executable, "-m", "fanin", "--version"], capture_output=True, text=True, check=True)
    commit = build_commit.build_commit()
    assert done.stdout == f"fanin {fanin.__version__}" + (f", commit {commit}" if commit else "") + "\n"


def test_a_tag_is_refused_that_is_not_the_version_or_leaves_changes_behind() -> None:
    released = "# Changelog\n\n## Unreleased\n\n## 0.3.0 (2026-12-01)\n\n- A change.\n"
    assert why_not("v0.3.0", "0.3.0", released) is None
    assert "says 0.3.0" in str(why_not("v0.4.0", "0.3.0", released))
    assert "no section 0.4.0" in str(why_not("v0.4.0", "0.4.0", released))
    left = released.replace("## Unreleased\n", "## Unreleased\n\n- Another change.\n")
    assert "unreleased changes" in str(why_not("v0.3.0", "0.3.0", left))


def test_both_architectures_are_built_for_every_python_from_the_oldest_that_is_supported() -> None:
    settings = project()["tool"]["cibuildwheel"]
    oldest = int(project()["project"]["requires-python"].removeprefix(">=3."))
    assert settings["build"] == [f"cp3{minor}-*" for minor in range(oldest, oldest + len(settings["build"]))]
    workflow = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    for architecture in ("x86_64", "aarch64"):
        assert f"manylinux-{architecture}-image" in settings
        assert f"arch: {architecture}," in workflow
