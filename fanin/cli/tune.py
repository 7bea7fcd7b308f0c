"""`fanin tune`: K and S of a job that runs."""

from __future__ import annotations

import dataclasses
import json as json_module
import os
import sys
from typing import Annotated

import typer

from fanin.cli.asking import ASK_TIMEOUT_S, KeyFile
from fanin.cli.fields import described
from fanin.cli.output import JsonObject
from fanin.errors import ConfigurationError, FaninError
from fanin.key_file import VARIABLE, operator_credentials
from fanin.options import Options, Rounds, SwitchAddress
from fanin.protocol import control


@described(Rounds, "quorum", "staleness")
def tune(
    switch: Annotated[str, typer.Argument(help="udp://host:port or zmq://host:port of the switch.")],
    job: Annotated[str, typer.Argument(help="The job's name, as `fanin stats` shows it.")],
    quorum: Annotated[int | None, typer.Option(show_default=False)] = None,
    staleness: Annotated[int | None, typer.Option(show_default=False)] = None,
    index: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Index of the job, if jobs of several owners have that name.")
    ] = None,
    json: JsonObject = False,
    key_file: KeyFile = None,
) -> None:
    """Change the quorum or the staleness bound of a running job; with neither, show them. Wants the switch's key."""
    from fanin.host.session.control import ask

    options = Options.from_environment(os.environ)
    question = control.Tune(job=job, quorum=quorum, staleness=staleness, index=index)
    address = SwitchAddress.parse(switch)
    credentials = operator_credentials(key_file)
    if credentials is None:
        raise ConfigurationError(
            "to change a job takes the switch's own key, and this user has none. Remedy: run it as the user who runs "
            f"the switch, or give the switch and this command one --key-file ({VARIABLE})"
        )
    key = options.curve_server_key
    answer = ask(address, question, curve_server_key=key, timeout_s=ASK_TIMEOUT_S, credentials=credentials)
    if isinstance(answer, control.Refused):
        raise FaninError(f"{address}: {answer.reason}. Remedy: {answer.remedy}")
    if not isinstance(answer, control.Tuned):
        raise FaninError(
            f"{address} did not answer: it is no fanin switch of this version. "
            "Remedy: correct the address, or start a switch of this version there"
        )
    if json:
        print(json_module.dumps(dataclasses.asdict(answer), indent=2))
        return
    print(f"{answer.job}: quorum {answer.quorum}, staleness {answer.staleness} of at most {answer.max_staleness}")
    if quorum is not None and answer.staleness == 0:
        # A round V closes only if V - S < floor (switch/machine/slot_machine.py): with S = 0 it waits for all workers.
        longer = f"give --staleness, at most {answer.max_staleness}"
        print(
            "note: the quorum has no effect while the staleness bound is 0, since a round waits for all workers then. "
            f"Remedy: {longer if answer.max_staleness else 'start the job with max_staleness'}",
            file=sys.stderr,
        )
