"""p4/build/: the P4 programs compiled, with a manifest of what they were compiled from.

`python tools/p4_artefacts.py build` compiles every configuration with the p4c that is on PATH (`make p4`);
`python tools/p4_artefacts.py check` compares sources and artefacts with the manifest and needs no compiler. Whoever
changes a program without compiling it again is told so by tests/p4_programs/test_artefacts.py.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
P4 = ROOT / "p4"
MANIFEST = "build/manifest.json"


@dataclass(frozen=True, slots=True)
class Configuration:
    """One program with one set of sizes."""

    name: str
    main: str
    """The program's file, relative to p4/."""
    defines: tuple[str, ...]
    """What is set in place of the defaults of p4/shared/sizes.p4."""

    @property
    def artefacts(self) -> tuple[str, str]:
        """BMv2 JSON and P4Info, relative to p4/."""
        return f"build/{self.name}.json", f"build/{self.name}.p4info.txtpb"


CONFIGURATIONS = (
    Configuration("v1model-256", "v1model/fanin.p4", ("WORDS_PER_PACKET=256",)),
    Configuration("v1model-64", "v1model/fanin.p4", ("WORDS_PER_PACKET=64",)),
    Configuration("tna-model", "tna/model.p4", ("WORDS=8", "RING_BITS=2")),
    Configuration("tna-model-synchronous", "tna/model.p4", ("WORDS=8", "RING_BITS=1")),
)


def sources(main: str) -> Iterator[Path]:
    """Every file that a program is made of, found through its #include "..." lines."""
    todo, seen = [P4 / main], set[Path]()
    while todo:
        path = todo.pop().resolve()
        if path in seen:
            continue
        seen.add(path)
        lines = path.read_text(encoding="utf-8").splitlines()
        todo += [path.parent / line.split('"')[1] for line in lines if line.startswith('#include "')]
    yield from sorted(seen)


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def record(configuration: Configuration, compiler: str) -> dict[str, Any]:
    """What the manifest says of a configuration whose artefacts are there."""
    return {
        "compiler": compiler,
        "main": configuration.main,
        "defines": list(configuration.defines),
        "sources": {str(path.relative_to(P4)): digest(path) for path in sources(configuration.main)},
        "artefacts": {name: digest(P4 / name) for name in configuration.artefacts},
    }


def manifest() -> dict[str, Any]:
    """The committed manifest."""
    loaded: dict[str, Any] = json.loads((P4 / MANIFEST).read_text(encoding="utf-8"))
    return loaded


def drift() -> Iterator[str]:
    """What does not agree with the manifest, one line each."""
    committed = manifest()
    for configuration in CONFIGURATIONS:
        if configuration.name not in committed:
            yield f"{configuration.name}: not in {MANIFEST}"
            continue
        entry = committed[configuration.name]
        missing = [name for name in configuration.artefacts if not (P4 / name).exists()]
        yield from (f"{configuration.name}: {name} is missing" for name in missing)
        if not missing:
            now = record(configuration, entry["compiler"])
            for key in ("main", "defines", "sources", "artefacts"):
                if now[key] != entry[key]:
                    yield f"{configuration.name}: {key} changed since it was compiled; run `make p4` with p4c on PATH"
    for name in sorted(set(committed) - {configuration.name for configuration in CONFIGURATIONS}):
        yield f"{name}: in {MANIFEST}, but no configuration of tools/p4_artefacts.py"


def build() -> None:
    """Compile every configuration and write the manifest."""
    compiler = shutil.which("p4c-bm2-ss")
    if compiler is None:
        sys.exit("p4c-bm2-ss is not on PATH: install p4c (https://github.com/p4lang/p4c) and try again")
    said = subprocess.run(
        [compiler, "--version"], check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    stamp = next(line.removeprefix("Version ") for line in said.stdout.splitlines() if line.startswith("Version "))
    records = {}
    for configuration in CONFIGURATIONS:
        program, info = configuration.artefacts
        defines = [f"-D{define}" for define in configuration.defines]
        files = ["-o", program, "--p4runtime-files", info, configuration.main]
        # From inside p4/, so that no path of this machine gets into the artefacts.
        subprocess.run([compiler, "--arch", "v1model", "--Werror", *defines, *files], check=True, cwd=P4)
        records[configuration.name] = record(configuration, f"p4c-bm2-ss {stamp.split(' (')[0]}")
    (P4 / MANIFEST).write_text(json.dumps(records, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Run one of the two verbs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("build", "check"))
    if parser.parse_args().verb == "build":
        build()
        return
    found = list(drift())
    for line in found:
        print(line, file=sys.stderr)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
