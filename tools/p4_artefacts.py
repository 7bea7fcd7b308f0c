"""Compiles the P4 programs into p4/build/, with a manifest of the sources that they were compiled from.

`python -m tools.p4_artefacts build` compiles every configuration with the p4c that is on PATH (`make p4`): with
p4c-bm2-ss for BMv2, with p4c-barefoot and its assembler bfas for Tofino. Without these two, Tofino's artefacts stay.
`python -m tools.p4_artefacts check` compares sources and artefacts with the manifest and needs no compiler;
tests/p4_programs/test_artefacts.py does so, too, and fails if a program was changed and not compiled again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fanin.switch.p4.program_file import read_program, write_program
from tools import tofino_resources

ROOT = Path(__file__).resolve().parent.parent
COMMENT = re.compile(rb"[ \t]*(?:/\*.*?\*/|//[^\n]*)", re.DOTALL)
"""A comment of a P4 source, with the blanks before it."""
QUOTED_SOURCE = re.compile(rb',\n *"source_fragment" : "[^\n]*"')
"""Source text that BMv2 JSON quotes for people beside file and line; it can hold comments."""
P4 = ROOT / "p4"
MANIFEST = "build/manifest.json"
ARCHITECTURES = {"bmv2": "v1model", "tofino": "tna", "tofino2": "t2na"}
COMPILERS = {"bmv2": ("p4c-bm2-ss",), "tofino": ("p4c-barefoot", "bfas"), "tofino2": ("p4c-barefoot", "bfas")}
"""By target, commands that must be on PATH, the compiler first."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One program, compiled with one set of sizes for one target."""

    name: str
    main: str
    """The program's file, relative to p4/."""
    defines: tuple[str, ...]
    """Definitions that replace defaults of p4/shared/sizes.p4 and p4/tna/types.p4."""
    target: Literal["bmv2", "tofino", "tofino2"] = "bmv2"

    @property
    def artefacts(self) -> tuple[str, str]:
        """Paths relative to p4/: compressed BMv2 JSON or, for a Tofino, the page of resources; and P4Info."""
        kind = "json.gz" if self.target == "bmv2" else "resources.md"
        return f"build/{self.name}.{kind}", f"build/{self.name}.p4info.txtpb"

    @property
    def buildable(self) -> bool:
        """Whether its compiler is on PATH."""
        return all(map(shutil.which, COMPILERS[self.target]))


CONFIGURATIONS = (
    Configuration("v1model-256", "v1model/fanin.p4", ("WORDS_PER_PACKET=256",)),
    Configuration("v1model-64", "v1model/fanin.p4", ("WORDS_PER_PACKET=64",)),
    Configuration("tna-model", "tna/model.p4", ("WORDS=8", "RING_BITS=2")),
    Configuration("tna-model-synchronous", "tna/model.p4", ("WORDS=8", "RING_BITS=1")),
    Configuration("tna-model-pairs", "tna/model.p4", ("WORDS=8", "RING_BITS=2", "PAIRS=1")),
    Configuration("tna-model-pairs-synchronous", "tna/model.p4", ("WORDS=8", "RING_BITS=1", "PAIRS=1")),
    Configuration("tna-model-pairs-synchronous-leaf", "tna/model.p4", ("WORDS=16", "RING_BITS=1", "PAIRS=1", "LEAF=1")),
    Configuration("tofino-16", "tna/fanin.p4", ("WORDS=16", "RING_BITS=2"), "tofino"),
    Configuration("tofino-32-synchronous", "tna/fanin.p4", ("WORDS=32", "RING_BITS=1"), "tofino"),
    Configuration("tofino-32", "tna/fanin.p4", ("WORDS=32", "RING_BITS=2", "PAIRS=1"), "tofino"),
    Configuration("tofino-40", "tna/fanin.p4", ("WORDS=40", "RING_BITS=2", "PAIRS=1"), "tofino"),
    Configuration("tofino-56-synchronous", "tna/fanin.p4", ("WORDS=56", "RING_BITS=1", "PAIRS=1"), "tofino"),
    Configuration(
        "tofino-48-synchronous-leaf", "tna/fanin.p4", ("WORDS=48", "RING_BITS=1", "PAIRS=1", "LEAF=1"), "tofino"
    ),
    Configuration("tofino2-48", "tna/fanin.p4", ("WORDS=48", "RING_BITS=2"), "tofino2"),
)


def sources(main: str) -> Iterator[Path]:
    """Yield every file of a program, found through its #include "..." lines."""
    todo, seen = [P4 / main], set[Path]()
    while todo:
        path = todo.pop().resolve()
        if path in seen:
            continue
        seen.add(path)
        lines = path.read_text(encoding="utf-8").splitlines()
        todo += [path.parent / line.split('"')[1] for line in lines if line.startswith('#include "')]
    yield from sorted(seen)


def content(path: Path) -> bytes:
    """The bytes of a file that affect a switch: of a P4 source all but comments, whose line ends stay.

    A program is decompressed, because versions of zlib may compress differently.
    """
    if path.suffix == ".gz":
        return QUOTED_SOURCE.sub(b"", read_program(path))
    if path.suffix == ".p4":
        return COMMENT.sub(lambda comment: b"\n" * comment[0].count(b"\n"), path.read_bytes())
    return path.read_bytes()


def digest(path: Path) -> str:
    """SHA-256 of a file's `content`."""
    return hashlib.sha256(content(path)).hexdigest()


def record(configuration: Configuration, compiler: str) -> dict[str, Any]:
    """The manifest's entry of a configuration whose artefacts exist."""
    return {
        "compiler": compiler,
        "main": configuration.main,
        "defines": list(configuration.defines),
        "sources": {str(path.relative_to(P4)): digest(path) for path in sources(configuration.main)},
        "artefacts": {name: digest(P4 / name) for name in configuration.artefacts},
    }


def manifest() -> dict[str, Any]:
    """Read the committed manifest."""
    loaded: dict[str, Any] = json.loads((P4 / MANIFEST).read_text(encoding="utf-8"))
    return loaded


def drift() -> Iterator[str]:
    """Yield a line for each disagreement with the manifest."""
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
    """Compile every configuration whose compiler is on PATH and write the manifest."""
    if shutil.which("p4c-bm2-ss") is None:
        sys.exit("p4c-bm2-ss is not on PATH: install p4c (https://github.com/p4lang/p4c) and try again")
    names = {configuration.name for configuration in CONFIGURATIONS}
    records = {name: entry for name, entry in manifest().items() if name in names}
    for configuration in CONFIGURATIONS:
        if not configuration.buildable:
            print(f"{configuration.name} stays as it is: {' and '.join(COMPILERS[configuration.target])} not on PATH")
            continue
        compile_one(configuration)
        compiler = COMPILERS[configuration.target][0]
        records[configuration.name] = record(configuration, f"{compiler} {version_of(compiler)}")
    (P4 / MANIFEST).write_text(json.dumps(records, indent=2) + "\n", encoding="utf-8")


def compile_one(configuration: Configuration) -> None:
    """Compile a configuration's artefacts; CalledProcessError if a compiler refuses the program."""
    if configuration.target == "bmv2":
        compile_for_bmv2(configuration)
    else:
        compile_for_tofino(configuration)


def compile_for_bmv2(configuration: Configuration) -> None:
    """Write BMv2 JSON and P4Info; a compiler's warning is an error."""
    program, info = configuration.artefacts
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "program.json"
        run_compiler(configuration, "--Werror", "-o", str(written), "--p4runtime-files", info)
        write_program(P4 / program, written.read_bytes())


def compile_for_tofino(configuration: Configuration) -> None:
    """Write P4Info and the page of resources. The assembler must succeed, too: only it refuses too many stages.

    The binary is not kept: the SDE makes it, for its own version (docs/deploy-p4.md).
    """
    report, info = configuration.artefacts
    target = ["--target", configuration.target]
    with tempfile.TemporaryDirectory() as folder:
        options = ("-g", "--verbose", "--p4runtime-force-std-externs", "--p4runtime-files", info, "-o", folder)
        run_compiler(configuration, *target, *options)
        pipe = Path(folder) / "fanin"
        subprocess.run(["bfas", *target, "-o", str(pipe), str(pipe / "fanin.bfa")], check=True)
        (P4 / report).write_text(tofino_resources.report(configuration.name, pipe), encoding="utf-8")


def run_compiler(configuration: Configuration, *options: str) -> None:
    """Run a compiler inside p4/, so that artefacts contain no path of this machine."""
    defines = [f"-D{define}" for define in configuration.defines]
    command = [COMPILERS[configuration.target][0], "--arch", ARCHITECTURES[configuration.target]]
    subprocess.run([*command, *options, *defines, configuration.main], check=True, cwd=P4)


def version_of(compiler: str) -> str:
    """The compiler's own version text, without the date of its build."""
    command = [compiler, "--version"]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    line = next(line for line in said.splitlines() if line.startswith("Version "))
    return line.removeprefix("Version ").split(" (")[0]


def main() -> None:
    """Run the verb of the command line, `build` or `check`."""
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
