"""The documentation's site: every document has a place in it, and the pages of the API name what there is."""

from __future__ import annotations

import importlib
import re
import subprocess
from pathlib import Path

import pytest

from fanin import __version__
from tests.support.repository import ROOT, repository_files
from tools import site

NAVIGATION = (ROOT / "mkdocs.yml").read_text()


@pytest.mark.parametrize("document", repository_files("docs/*.md"), ids=lambda path: path.name)
def test_every_document_is_in_the_navigation(document: Path) -> None:
    assert f"- docs/{document.name}\n" in NAVIGATION


def test_every_page_of_the_navigation_is_staged_with_the_files_that_it_links_to(tmp_path: Path) -> None:
    site.stage(tmp_path)
    for record in site.REPORTS:  # their pages are drawn by `make docs`, and below
        site.page_of(tmp_path / record).parent.mkdir(parents=True, exist_ok=True)
        site.page_of(tmp_path / record).touch()
    for page in re.findall(r"([\w/-]+\.md)$", NAVIGATION, re.MULTILINE):
        if page != "files.md":
            assert (tmp_path / page).is_file(), page
    for page in tmp_path.rglob("*.md"):
        for target in site.LINK.findall(page.read_text()):
            if "://" not in target and not target.startswith("mailto:"):
                assert (page.parent / target).is_file(), f"{page.relative_to(tmp_path)} links to {target}"


@pytest.mark.parametrize("page", site.pages())
def test_names_of_the_api_exist(page: str) -> None:
    for name in site.pages()[page][1]:
        module, _, attribute = name.rpartition(".")
        if attribute != "ProcessGroupFanin":  # whose base class is torchft's
            assert getattr(importlib.import_module(module), attribute).__doc__, name


def test_a_release_makes_its_documentation_a_version_of_the_site() -> None:
    """`make docs-version` names what would run; mike itself needs a built site."""
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert "make docs-version ARGS=--push" in workflow
    shown = subprocess.run(
        ["make", "--dry-run", "docs-version", "ARGS=--push"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    major, minor, _ = __version__.split(".")
    assert f"mike deploy --update-aliases --push {major}.{minor} latest" in shown
    assert "mike set-default --push latest" in shown
    assert "provider: mike" in NAVIGATION


def test_documents_link_to_every_report_of_the_gallery() -> None:
    linked = {(ROOT / "docs" / target).resolve() for target in site.LINK.findall((ROOT / "docs/report.md").read_text())}
    assert {ROOT / record for record in site.REPORTS} <= linked


@pytest.mark.thorough
def test_reports_of_the_gallery_are_drawn(tmp_path: Path) -> None:
    site.draw(tmp_path, ROOT / "build" / "site" / "tree")
    for record in site.REPORTS:
        assert "</svg>" in site.page_of(tmp_path / record).read_text()
