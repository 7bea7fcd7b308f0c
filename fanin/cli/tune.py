"""`fanin tune`: K and S of a job that runs."""

from __future__ import annotations

import dataclasses
import json as json_module
import os
from typing import Annotated

import typer

from fanin import control
from fanin.errors import FaninError
from fanin.options import Options, SwitchAddress

ASK_TIMEOUT_S = 5.0


def tune(
    switch: Annotated[str, typer.Argument(help="udp://host:port or zmq://host:port of the switch.")],
    job: Annotated[str, typer.Argument(help="The job's name, as `fanin stats` shows it.")],
    quorum: Annotated[int | None, typer.Option(min=1, max=32, help="K: contributions that a round waits for.")] = None,
    staleness: Annotated[
        int | None, typer.Option(min=0, max=1024, help="S: rounds that the slowest worker may be behind.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Change the quorum or the staleness bound of a running job; with neither, show them."""
    from fanin.host.control import ask

    options = Options.from_environment(os.environ)
    question = control.Tune(job=job, quorum=quorum, staleness=staleness)
    address = SwitchAddress.parse(switch)
    answer = ask(address, question, curve_server_key=options.curve_server_key, timeout_s=ASK_TIMEOUT_S)
    if isinstance(answer, control.Refused):
        raise FaninError(f"{address}: {answer.reason}. Remedy: {answer.remedy}")
    if not isinstance(answer, control.Tuned):
        raise FaninError(f"{address} did not answer: it is no fanin switch of this version")
    if json:
        print(json_module.dumps(dataclasses.asdict(answer), indent=2))
        return
    print(f"{answer.job}: quorum {answer.quorum}, staleness {answer.staleness} of at most {answer.max_staleness}")
