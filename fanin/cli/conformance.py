"""`fanin conformance`: somebody else's switch beside ours, packet by packet."""

from __future__ import annotations

import contextlib
import dataclasses
import json as json_module
import sys
from typing import Annotated

import typer

from fanin.bounds import SEED
from fanin.cli import ending
from fanin.cli.output import JsonObject
from fanin.errors import ConfigurationError
from fanin.options import SwitchAddress

MAX_SEEDS = 100_000


def conformance(
    switch: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[udp://HOST:PORT] [-- COMMAND]",
            help="The switch's control address; or, and, a command that starts it and prints that.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=MAX_SEEDS, help="Random histories of each kind.")] = 3,
    seed: Annotated[int, typer.Option(min=SEED.least, max=SEED.most, help="The first of these.")] = 0,
    words: Annotated[
        int | None, typer.Option(min=8, max=8192, help="Most words per packet. Default: as many as it takes.")
    ] = None,
    json: JsonObject = False,
) -> None:
    """Play histories to a switch and to the readable twin, and compare what they send (docs/conformance.md)."""
    from fanin.emulation.conformance.check import HistoryResult, check
    from fanin.emulation.conformance.histories import HISTORIES, RANDOM
    from fanin.emulation.conformance.subject import started

    command = list(switch or [])
    at = SwitchAddress.parse(command.pop(0)) if command and "://" in command[0] else None
    if at is None and not command:
        raise ConfigurationError("conformance wants a switch. Remedy: udp://HOST:PORT, or -- and what starts one")
    if at is not None and at.scheme != "udp":
        raise ConfigurationError(f"{at}: histories are played over UDP. Remedy: udp://HOST:PORT")
    if words is not None and words % 8:
        raise ConfigurationError(f"--words {words}: must be a multiple of 8", "--words")
    verdicts: list[HistoryResult] = []
    with contextlib.ExitStack() as stack:
        if command:
            printed = stack.enter_context(started(command))
            at = at or printed
        assert at is not None
        switch_at = at

        def so_far() -> str:
            conform = sum(not verdict.fails for verdict in verdicts)
            return f"{len(verdicts)} histories were played to {switch_at}, and {conform} of them conform"

        stack.enter_context(ending.told_when_interrupted(so_far))
        for history in HISTORIES:
            for each in range(seed, seed + (seeds if history.name in RANDOM else 1)):
                verdicts.append(check(at, history, each, words))
                if not json:
                    print(verdicts[-1], flush=True)
    failed = sum(verdict.fails for verdict in verdicts)
    if json:
        print(
            json_module.dumps(
                {"switch": str(at), "verdicts": [dataclasses.asdict(each) for each in verdicts]}, indent=2
            )
        )
    else:
        packets = sum(verdict.packets for verdict in verdicts)
        print(f"{at}: {len(verdicts) - failed} of {len(verdicts)} histories conform, {packets} packets")
    if failed:
        sys.exit(1)
