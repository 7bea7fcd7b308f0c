"""Ports of a Tofino: a file that lists them, and the device's table $PORT, which brings them up.

The file is JSON: {"ports": [{"port": "1/0", "speed": "100G", "fec": "rs", "autonegotiation": "off"}, ...]}. A port is
named as on the front panel ("1/0": connector and channel) or by its number in the device ("device_port": 128), which
the program and multicast groups use. Bits 7 and 8 of that number are the pipe.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fanin import files
from fanin.errors import ConfigurationError, FaninError
from fanin.switch.p4runtime.bfrt import messages
from fanin.switch.p4runtime.bfrt.groups import Writes
from fanin.switch.p4runtime.bfrt.info import BfrtInfo, BfrtTable
from fanin.switch.p4runtime.bfrt.messages import UpdateType
from fanin.switch.p4runtime.controller.links import RefusedError
from fanin.switch.p4runtime.server.status import Code

PORT, PORT_NAMES = "$PORT", "$PORT_STR_INFO"
NAME, DEVICE_PORT = "$PORT_NAME", "$DEV_PORT"
SPEED, FEC, NEGOTIATION, ENABLED, UP = "$SPEED", "$FEC", "$AUTO_NEGOTIATION", "$PORT_ENABLE", "$PORT_UP"
SPEEDS = {f"{rate}G": f"BF_SPEED_{rate}G" for rate in (1, 10, 25, 40, 50, 100, 200, 400)}
FECS = {"none": "BF_FEC_TYP_NONE", "fc": "BF_FEC_TYP_FIRECODE", "rs": "BF_FEC_TYP_REED_SOLOMON"}
NEGOTIATIONS = {"default": "PM_AN_DEFAULT", "on": "PM_AN_FORCE_ENABLE", "off": "PM_AN_FORCE_DISABLE"}
PIPE_SHIFT = 7
MAX_PORTS = 512
REMEDY = "Remedy: correct the file, as docs/deploy-p4.md describes it"
MAX_FILE_BYTES = 1 << 20
UP_TIMEOUT_S = 30.0
"""How long to wait for ports: autonegotiation and training of a link take some seconds."""
UP_POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PortPlan:
    """One port of the file, with either `name` or `number`."""

    name: str | None
    number: int | None
    speed: str
    """A key of SPEEDS; `fec` is one of FECS, `negotiation` one of NEGOTIATIONS."""
    fec: str
    negotiation: str

    @property
    def label(self) -> str:
        """Name of the port in the file."""
        return self.name if self.name is not None else f"device port {self.number}"

    def __str__(self) -> str:
        return f"{self.label}: {self.speed}, FEC {self.fec}, autonegotiation {self.negotiation}"


def read_plan(path: Path) -> list[PortPlan]:
    """The ports that a file lists. ConfigurationError names the place of an error in the file."""
    try:
        document = json.loads(files.read(path, "--ports", MAX_FILE_BYTES))
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"--ports {files.name(path)} is no JSON: {error}. {REMEDY}") from None
    listed = document.get("ports") if isinstance(document, dict) else None
    if not isinstance(listed, list) or not 0 < len(listed) <= MAX_PORTS:
        raise ConfigurationError(
            f'--ports {files.name(path)}: expected {{"ports": [...]}} with 1..{MAX_PORTS} of them. {REMEDY}'
        )
    plans = [_port(each, f"--ports {files.name(path)}: port {number}") for number, each in enumerate(listed, 1)]
    labels = [plan.label for plan in plans]
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise ConfigurationError(f"--ports {files.name(path)}: {twice} is there twice. {REMEDY}")
    return plans


def _port(described: Any, where: str) -> PortPlan:
    if not isinstance(described, dict) or ("port" in described) == ("device_port" in described):
        raise ConfigurationError(f'{where}: expected an object with either "port" or "device_port". {REMEDY}')
    known = {"port", "device_port", "speed", "fec", "autonegotiation"}
    if unknown := sorted(described.keys() - known):
        raise ConfigurationError(f"{where}: {unknown[0]!r} is unknown; there are {', '.join(sorted(known))}. {REMEDY}")
    name, number = described.get("port"), described.get("device_port")
    if name is not None and not (isinstance(name, str) and _is_name(name)):
        raise ConfigurationError(f"{where}: port {name!r} is no name like 1/0. {REMEDY}")
    if number is not None and not (type(number) is int and 0 <= number < MAX_PORTS):
        raise ConfigurationError(f"{where}: device_port {number!r} is no number in 0..{MAX_PORTS - 1}. {REMEDY}")
    chosen = []
    for key, choices, default in (
        ("speed", SPEEDS, None),
        ("fec", FECS, "none"),
        ("autonegotiation", NEGOTIATIONS, "default"),
    ):
        value = described.get(key, default)
        if not isinstance(value, str) or value not in choices:
            raise ConfigurationError(f"{where}: {key} {value!r}: expected one of {', '.join(choices)}. {REMEDY}")
        chosen.append(value)
    return PortPlan(name=name, number=number, speed=chosen[0], fec=chosen[1], negotiation=chosen[2])


def _is_name(name: str) -> bool:
    connector, slash, channel = name.partition("/")
    return bool(slash) and all(part.isascii() and part.isdigit() and len(part) <= 3 for part in (connector, channel))


def one_pipe(numbers: Sequence[int], pipes: Sequence[int]) -> int:
    """The pipe of all these device ports: a job's workers must share one, since its sums are in the pipe's registers.

    ConfigurationError if they are in several pipes, or in one that does not run the program. `pipes`: those that run
    it; empty: unknown.
    """
    found = sorted({number >> PIPE_SHIFT for number in numbers})
    if len(found) != 1:
        raise ConfigurationError(
            f"the ports are in pipes {', '.join(map(str, found))}, and each pipe has registers of its own. Remedy: "
            "workers of one job behind ports of one pipe"
        )
    if pipes and found[0] not in pipes:
        raise ConfigurationError(
            f"the ports are in pipe {found[0]}, but the program runs in {', '.join(map(str, pipes))}. Remedy: other "
            "ports, or another pipe_scope"
        )
    return found[0]


class DevicePorts:
    """The ports of a device behind BfRt."""

    def __init__(self, client: Writes, info: BfrtInfo) -> None:
        """Find the tables of ports. ProgramError if the device has none."""
        self._client, self._ports, self._names = client, info.table(PORT), info.table(PORT_NAMES)

    def number_of(self, plan: PortPlan) -> int:
        """The device port number of a planned port. ConfigurationError for a name that the device does not know."""
        if plan.number is not None:
            return plan.number
        assert plan.name is not None
        entry = messages.TableEntry(table_id=self._names.number)
        entry.key.fields.add(field_id=self._names.key[NAME].number).exact.value = plan.name.encode()
        try:
            (found,) = self._client.read([entry])
        except (RefusedError, ValueError) as error:
            raise ConfigurationError(f"the device has no port {plan.name}: {error}") from None
        return int.from_bytes(_value(found, self._names, DEVICE_PORT).stream, "big")

    def bring_up(self, plans: Iterable[PortPlan]) -> list[int]:
        """Add the ports as planned, and enable them; return their device port numbers.

        The speed and FEC of an existing port cannot be changed: FaninError if they differ from the plan.
        """
        numbers = []
        for plan in plans:
            number = self.number_of(plan)
            try:
                self._client.write([self._update(UpdateType.INSERT, number, plan)])
            except RefusedError as error:
                if error.code is not Code.ALREADY_EXISTS:
                    raise FaninError(f"the device refuses port {plan}: {error}") from None
                self._adopt(number, plan)
            numbers.append(number)
        return numbers

    def _adopt(self, number: int, plan: PortPlan) -> None:
        found = self._read(number)
        has = {name: _value(found, self._ports, name).str_val for name in (SPEED, FEC)}
        if has != {SPEED: SPEEDS[plan.speed], FEC: FECS[plan.fec]}:
            raise FaninError(
                f"port {plan.label} is there with {has[SPEED]} and {has[FEC]}. Remedy: delete it on the device "
                "(`pm port-del`), or plan what it has"
            )
        self._client.write([self._update(UpdateType.MODIFY, number)])

    def wait_until_up(
        self,
        numbers: Sequence[int],
        timeout_s: float = UP_TIMEOUT_S,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> list[int]:
        """Wait until all ports are up; return those still down after `timeout_s`: no cable, or unequal settings."""
        deadline = now() + timeout_s
        down = list(numbers)
        while True:
            down = [each for each in down if not _value(self._read(each), self._ports, UP).bool_val]
            if not down or now() >= deadline:
                return down
            sleep(UP_POLL_S)

    def _read(self, number: int) -> Any:
        entry = messages.TableEntry(table_id=self._ports.number)
        self._key(entry, number)
        (found,) = self._client.read([entry])
        return found

    def _key(self, entry: Any, number: int) -> None:
        key = self._ports.key[DEVICE_PORT]
        entry.key.fields.add(field_id=key.number).exact.value = key.stream(number)

    def _update(self, kind: UpdateType, number: int, plan: PortPlan | None = None) -> Any:
        """An Update of one port: all its settings from `plan`, or without one, only that it is enabled."""
        update = messages.Update(type=kind)
        entry = update.entity.table_entry
        entry.table_id = self._ports.number
        self._key(entry, number)
        data, fields = self._ports.data, entry.data.fields
        if plan is not None:
            fields.add(field_id=data[SPEED].number, str_val=SPEEDS[plan.speed])
            fields.add(field_id=data[FEC].number, str_val=FECS[plan.fec])
            fields.add(field_id=data[NEGOTIATION].number, str_val=NEGOTIATIONS[plan.negotiation])
        fields.add(field_id=data[ENABLED].number, bool_val=True)
        return update


def _value(entry: Any, table: BfrtTable, name: str) -> Any:
    number = table.data[name].number
    found = next((each for each in entry.data.fields if each.field_id == number), None)
    if found is None:
        raise FaninError(
            f"the device does not say {name} of {table.name}. "
            "Remedy: see whether the driver is of the SDE for which docs/p4-emulator.md is written"
        )
    return found
