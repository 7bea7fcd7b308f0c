"""Switches that a command asks for their statistics, again and again over the same connections."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated

import typer

from fanin import running_switches
from fanin.addresses import SwitchAddress, SwitchList
from fanin.errors import FaninError, SwitchUnreachableError
from fanin.key_file import VARIABLE, operator_credentials
from fanin.options import Options
from fanin.protocol import control
from fanin.protocol.seal import OPEN
from fanin.schemes import DEFAULT

if TYPE_CHECKING:
    from fanin.host.session.control import ControlClient

ASK_TIMEOUT_S = 5.0
KeyFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help=f"The switch's own key; default: {VARIABLE}, then this user's."),
]
WHERE = (
    "udp://host:port or zmq://host:port, or several with commas; default: FANIN_SWITCH, then the switches that this "
    "user's ranks have started on this machine."
)


def addresses_of(asked: str, options: Options) -> tuple[SwitchAddress, ...]:
    """The switches that a command line means: `asked`, FANIN_SWITCH, those that this user's ranks have started here, or
    the one at the default port.
    """
    return _named_or_running(asked, options) or (SwitchAddress.parse(f"{DEFAULT}://127.0.0.1:{control.DEFAULT_PORT}"),)


def _named_or_running(asked: str, options: Options) -> tuple[SwitchAddress, ...]:
    given = SwitchList.parse(asked or options.switch or "hosts").addresses
    return given or tuple(running_switches.found())


class Switches:
    """Connections to some switches, opened when they are first asked."""

    def __init__(self, asked: str, options: Options, key_file: Path | None) -> None:
        """`asked`: as for `addresses_of`."""
        self.addresses = addresses_of(asked, options)
        self._guessed = not _named_or_running(asked, options)
        self._options, self._key_file = options, key_file
        self._opened = contextlib.ExitStack()
        self._clients: dict[SwitchAddress, ControlClient] = {}

    def __enter__(self) -> Switches:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def ask_all(self) -> list[control.Stats | FaninError]:
        """Ask each switch for its statistics; an error takes its answer's place. FaninError where none answers."""
        answers = [self._ask(address) for address in self.addresses]
        errors = [each for each in answers if isinstance(each, FaninError)]
        if len(errors) == len(answers):
            raise errors[0] if len(errors) == 1 else FaninError("; ".join(map(str, errors)))
        return answers

    def _connected(self, address: SwitchAddress) -> ControlClient:
        from fanin.host.session.control import ControlClient

        try:
            return ControlClient(
                address,
                curve_server_key=self._options.curve_server_key,
                timeout_s=ASK_TIMEOUT_S,
                credentials=operator_credentials(self._key_file) or OPEN,
                otherwise_open=self._key_file is None,
            )
        except SwitchUnreachableError:
            if not self._guessed:
                raise
            raise SwitchUnreachableError(
                str(address),
                f"no job of yours runs a switch on this machine, and none answers at {address}, the default. Remedy: "
                "start a job, or name its switch, as in udp://host:port",
            ) from None

    def _ask(self, address: SwitchAddress) -> control.Stats | FaninError:
        try:
            if address not in self._clients:
                self._clients[address] = self._opened.enter_context(self._connected(address))
            return ask_stats(self._clients[address])
        except FaninError as error:
            return error


def ask_stats(client: ControlClient) -> control.Stats:
    """Ask one switch for its statistics; FaninError where it refuses, or answers with anything else."""
    answer = client.ask(control.Ask(), ASK_TIMEOUT_S)
    if isinstance(answer, control.Refused):
        raise FaninError(f"{client.address}: {answer.reason}. Remedy: {answer.remedy}")
    if not isinstance(answer, control.Stats):
        raise FaninError(
            f"{client.address} did not answer with statistics: it is no fanin switch of this version. "
            "Remedy: correct the address, or start a switch of this version there"
        )
    return answer
