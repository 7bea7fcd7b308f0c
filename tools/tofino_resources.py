"""The resources of a Tofino that a build of p4/tna uses, as Markdown, from the compiler's logs (resources.json,
phv.json and parser.characterize.log).

`python -m tools.tofino_resources NAME OUT/fanin` prints it, after a compilation with `-g --verbose -o OUT`.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

PARSER_ROWS = 256
TOFINO_1_STAGES = 12
NOT_THERE = {("normal", 16): 32}
"""Containers that phv.json counts and a Tofino 1 lacks: it has six groups of 16, where the numbering allows eight."""


def report(name: str, pipe: Path) -> str:
    """The page of one build, as Markdown."""
    logs = pipe / "logs"
    stages = json.loads((logs / "resources.json").read_text(encoding="utf-8"))["resources"]["mau"]["mau_stages"]
    phv = json.loads((logs / "phv.json").read_text(encoding="utf-8"))
    taken = sum(1 for stage in stages if any(_used(stage)))
    parts = (
        f"# What {name} takes",
        f"{taken} of {phv['nStages']} match-action stages; ingress and egress together.",
        _table(("stage", "tables", "SRAM", "TCAM", "stateful ALUs", "map RAMs"), stage_rows(stages)),
        parser_line((logs / "parser.characterize.log").read_text(encoding="utf-8")),
        "Packet header vector. Tagalong, mocha and dark containers hold what is not computed with.",
        _table(("containers", "used", "of", "bits in use"), container_rows(phv)),
    )
    return "\n\n".join(parts) + "\n"


def stage_rows(stages: Sequence[dict[str, Any]]) -> list[tuple[object, ...]]:
    """A row per stage, and the sums."""
    used = [_used(stage) for stage in stages]
    sums = tuple(sum(column) for column in zip(*used, strict=True))
    return [*((stage["stage_number"], *one) for stage, one in zip(stages, used, strict=True)), ("all", *sums)]


def parser_line(log: str) -> str:
    """A sentence on the rows of the ingress parser, and on the most states that a packet goes through."""
    rows = re.search(r"Number of matches on ingress: (\d+)", log)
    path = re.search(r"Longest path \((\d+) states\) on ingress", log)
    if not rows or not path:
        raise ValueError("the compiler's log of the parser says neither its rows nor its longest path")
    share = f"{rows[1]} of {PARSER_ROWS} rows"
    return f"Parser of ingress: {share}; a packet takes at most {path[1]} states, one per clock."


def container_rows(phv: dict[str, Any]) -> list[tuple[object, ...]]:
    """A row per kind and width of containers. A container group takes the kind of its used containers."""
    kinds = {one["phv_number"]: (one["container_type"], one["bit_width"]) for one in phv["containers"]}
    used, bits, there = Counter(kinds.values()), Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for container in phv["containers"]:
        slices = (one["slice_info"] for one in container["slices"])
        taken = {bit for one in slices for bit in range(one["lsb"], one["msb"] + 1)}
        bits[container["container_type"], container["bit_width"]] += len(taken)
    for group in phv["resources"]:
        if group["group_type"] == "mau":
            for kind in {kinds[number] for number in group["addresses"] if number in kinds}:
                there[kind] += group["num_containers"]
    if phv["nStages"] == TOFINO_1_STAGES:
        there.subtract(NOT_THERE)
    return [
        (f"{kind}, {width} bits", used[kind, width], there[kind, width], bits[kind, width])
        for kind, width in sorted(used)
    ]


def _used(stage: dict[str, Any]) -> tuple[int, int, int, int, int]:
    """Numbers of tables, SRAM blocks, TCAM blocks, stateful ALUs and map RAMs that a stage uses."""
    return (
        len(stage["logical_tables"]["ids"]),
        len(stage["rams"]["srams"]),
        len(stage["tcams"]["tcams"]),
        len(stage["meter_alus"]["meters"]),
        len(stage["map_rams"]["maprams"]),
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---:|" * len(head), *lines[1:]])


def main() -> None:
    """Print the page of one build."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="name of the build")
    parser.add_argument("pipe", type=Path, help="folder of the compiled pipe")
    given = parser.parse_args()
    print(report(given.name, given.pipe), end="")


if __name__ == "__main__":
    main()
