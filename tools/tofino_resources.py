"""What a build of p4/tna takes of a Tofino, as a markdown table: from the compiler's logs/resources.json.

`python tools/tofino_resources.py OUT/fanin` prints it; OUT is what was given to the compiler as -o.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def _used(stage: dict[str, Any]) -> tuple[int, int, int, int, int]:
    """Tables, SRAM blocks, TCAM blocks, stateful ALUs and map RAMs of a stage."""
    return (
        len(stage["logical_tables"]["ids"]),
        len(stage["rams"]["srams"]),
        len(stage["tcams"]["tcams"]),
        len(stage["meter_alus"]["meters"]),
        len(stage["map_rams"]["maprams"]),
    )


def rows(stages: list[dict[str, Any]]) -> list[str]:
    """One line of markdown per stage, then the sum."""
    used = [_used(stage) for stage in stages]
    named = [(str(stage["stage_number"]), one) for stage, one in zip(stages, used, strict=True)]
    sums = tuple(sum(column) for column in zip(*used, strict=True))
    return ["| " + " | ".join([name, *map(str, one)]) + " |" for name, one in [*named, ("all", sums)]]


def main() -> None:
    """Print the table of one build."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipe", type=Path, help="folder of the compiled pipe")
    logs = parser.parse_args().pipe / "logs"
    resources = json.loads((logs / "resources.json").read_text(encoding="utf-8"))["resources"]
    print("| stage | tables | SRAM | TCAM | stateful ALUs | map RAMs |\n|---:|---:|---:|---:|---:|---:|")
    print("\n".join(rows(resources["mau"]["mau_stages"])))


if __name__ == "__main__":
    main()
