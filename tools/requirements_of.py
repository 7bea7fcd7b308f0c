"""Prints the packages that building and running fanin with some extras needs, one per line: `requirements_of.py demo`.

Only pyproject.toml is read. The container image installs these in a layer that does not change with the sources,
`make wheels` fetches them for a build without a package index, and `make` installs them while it compiles.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):  # noqa: UP036 - `make demo` must work with 3.10, too
    import tomllib
else:
    from pip._vendor import tomli as tomllib

OWN_EXTRAS = re.compile(r"^fanin\[([^\]]+)\]$")


def requirements_of(extras: list[str], path: Path = Path("pyproject.toml")) -> list[str]:
    """Build requirements, dependencies and those of `extras`, `fanin[...]` resolved; KeyError for an unknown extra."""
    body = tomllib.loads(path.read_text(encoding="utf-8"))
    optional: dict[str, list[str]] = body["project"]["optional-dependencies"]
    wanted: list[str] = [*body["build-system"]["requires"], *body["project"]["dependencies"]]
    pending = list(extras)
    seen: set[str] = set()
    while pending:
        extra = pending.pop()
        if extra in seen:
            continue
        seen.add(extra)
        for requirement in optional[extra]:
            own = OWN_EXTRAS.match(requirement)
            if own:
                pending += own[1].split(",")
            else:
                wanted.append(requirement)
    return sorted(set(wanted))


if __name__ == "__main__":
    print("\n".join(requirements_of(sys.argv[1:])))
