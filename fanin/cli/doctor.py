"""`fanin doctor`: why nothing arrives, or that everything is well."""

from __future__ import annotations

import contextlib
import dataclasses
import json as json_module
import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from fanin.addresses import SwitchList
from fanin.cli.output import JsonObject
from fanin.errors import FaninError
from fanin.options import Options

if TYPE_CHECKING:
    from rich.console import Console

    from fanin.host.diagnosis import Check

COLORS = {"ok": "green", "warning": "yellow", "failure": "red"}
STATE_WIDTH = max(map(len, COLORS)) + 1
"""Width of the column of states."""


def doctor(
    switch: Annotated[
        str,
        typer.Argument(
            help="udp://host:port or zmq://host:port, or several with commas. Default: FANIN_SWITCH, or a switch made "
            "to try."
        ),
    ] = "",
    json: JsonObject = False,
) -> None:
    """Check this machine and the way to a switch; status 1 when something must be cured."""
    from rich.console import Console

    options = Options.from_environment(os.environ)
    found: list[Check] = []
    console = Console(highlight=False, soft_wrap=True)
    for check in examine(switch or options.switch, options):
        found.append(check)
        if not json:
            show(check, console)
    healthy = all(check.state != "failure" for check in found)
    if json:
        checks = [dataclasses.asdict(check) for check in found]
        print(json_module.dumps({"healthy": healthy, "checks": checks}, indent=2))
    elif healthy:
        console.print("everything that was checked works")
    raise typer.Exit(0 if healthy else 1)


def examine(switch: str | None, options: Options) -> Iterator[Check]:
    """All checks: of the machine, and of the switches that are named or, when none is, of one started for this."""
    from fanin.host.diagnosis import Check, examine_environment, examine_machine, examine_options, examine_switch
    from fanin.host.session.embedded import start_switch

    yield from examine_environment(os.environ)
    yield from examine_options(options)
    yield from examine_machine(options)
    yield from examine_gpus(options)
    there = SwitchList() if switch is None else SwitchList.parse(switch)
    for address in there.addresses:
        if len(there.addresses) > 1:
            yield Check(name="switch", result=f"{address}, of {len(there.addresses)}")
        yield from examine_switch(address, options)
    if there.addresses:
        return
    with contextlib.ExitStack() as stack:
        try:
            embedded = stack.enter_context(start_switch("127.0.0.1", options))
        except FaninError as error:
            yield Check(name="switch", state="failure", result=str(error), remedy="see the output above")
            return
        which = f"ranks start them themselves ({there.word})" if there.word else "none is configured"
        yield Check(name="switch", result=f"{which}; started one to try: {embedded.address}")
        yield from examine_switch(embedded.address, options)


def examine_gpus(options: Options) -> Iterator[Check]:
    """Checks of GPUs; nothing on a machine without a driver, where importing torch would take seconds for nothing."""
    from fanin.host.diagnosis import Check, gpu_driver_is_there

    if not gpu_driver_is_there():
        return
    if find_spec("torch") is None:
        yield Check(name="gpu", result="a driver is there, and no PyTorch, whose tensors fanin would take from it")
        return
    from fanin.host.torch import gpus

    yield from gpus.examine_gpus(options)


def show(check: Check, console: Console) -> None:
    """Print one check with its result."""
    from rich.markup import escape

    state = f"[{COLORS[check.state]}]{check.state:<{STATE_WIDTH}}[/]"
    console.print(f"{state} [bold]{escape(check.name)}[/]: {escape(check.result)}")
    if check.remedy:
        console.print(f"{'':<{STATE_WIDTH}} remedy: {escape(check.remedy)}")
