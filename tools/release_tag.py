"""Checks whether a tag may become a release: `python tools/release_tag.py v0.3.0` fails with the reason if it may not.

The tag must be `v` and the version of fanin/__init__.py, and CHANGELOG.md must have a section for that version, and
nothing under "Unreleased".
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def why_not(tag: str, version: str, changelog: str) -> str | None:
    """Reason why `tag` cannot be the release of a checkout with this version and changelog; None if it can."""
    if tag != f"v{version}":
        return f"tag {tag}: fanin/__init__.py says {version}. Remedy: tag v{version}, or change the version first"
    sections = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
    if not any(section.startswith(f"{version} (") for section in sections):
        return f"tag {tag}: CHANGELOG.md has no section {version}. Remedy: name the one of unreleased changes so"
    if any(section.startswith("Unreleased") and "\n- " in section for section in sections):
        return f"tag {tag}: CHANGELOG.md has unreleased changes. Remedy: move them into the section {version}"
    return None


def main() -> None:
    """Check the tag of the command line against this checkout."""
    version = re.search(r'^__version__ = "(.*)"$', (ROOT / "fanin/__init__.py").read_text(), re.MULTILINE)
    assert version is not None
    reason = why_not(sys.argv[1], version[1], (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    if reason is not None:
        sys.exit(reason)


if __name__ == "__main__":
    main()
