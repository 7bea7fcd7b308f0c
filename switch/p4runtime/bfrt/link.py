"""A device behind BfRt as a `Link`, so that the controller programs it like a P4Runtime device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fanin.errors import SwitchLostError
from fanin.switch.p4runtime.bfrt.client import BfrtClient
from fanin.switch.p4runtime.bfrt.cpu_port import ControllerHeaders, CpuPort
from fanin.switch.p4runtime.bfrt.groups import Groups
from fanin.switch.p4runtime.bfrt.info import BfrtInfo
from fanin.switch.p4runtime.bfrt.translation import Translation
from fanin.switch.p4runtime.controller.links import RefusedError
from fanin.switch.p4runtime.server.status import StatusError

GROUP_ENTRY = "packet_replication_engine_entry"


class BfrtLink:
    """Implements the protocol `links.Link`. Owns the client and the port to the processor."""

    def __init__(self, client: BfrtClient, info: BfrtInfo, p4info: Any, cpu: CpuPort) -> None:
        """`info`: the result of `client.bind`. ProgramError if the P4Info is of another program."""
        self._client, self._p4info, self._cpu = client, p4info, cpu
        self._translation = Translation(p4info, info)
        self._headers = ControllerHeaders(p4info)
        self._groups = Groups(client, info)
        self._closed = False

    @property
    def description(self) -> str:
        """The device's address and the port for its packets, in words."""
        address = self._client.address
        where = f"{address.target}, device {address.device_id}, packets by way of {self._cpu.description}"
        return f"P4 program behind BfRt at {where}"

    def p4info(self) -> Any:
        """The P4Info that was given to the constructor, since BfRt has none."""
        return self._p4info

    def write(self, updates: Sequence[Any]) -> None:
        """Implements the protocol `links.Link`. Consecutive entries and counters go in one request."""
        refused: RefusedError | None = None
        waiting: list[Any] = []

        def carry_out() -> None:
            nonlocal refused
            batch, waiting[:] = waiting[:], []
            try:
                self._client.write(batch)
            except RefusedError as error:
                refused = refused or error

        for update in updates:
            try:
                if update.entity.HasField(GROUP_ENTRY):
                    carry_out()
                    self._groups.write(update)
                else:
                    waiting.append(self._translation.update(update))
            except StatusError as error:
                refused = refused or RefusedError(error.code, str(error))
            except RefusedError as error:
                refused = refused or error
        carry_out()
        if refused is not None:
            raise refused

    def read(self, entities: Sequence[Any]) -> list[Any]:
        """Implements the protocol `links.Link`."""
        try:
            wanted = [self._translation.wanted(each) for each in entities if not each.HasField(GROUP_ENTRY)]
        except StatusError as error:
            raise RefusedError(error.code, str(error)) from None
        found = [self._translation.found(each) for each in self._client.read(wanted)]
        if len(wanted) < len(entities):
            found += self._groups.read()
        return found

    def send(self, packet: Any) -> None:
        """Implements the protocol `links.Link`. A frame that the interface does not accept is lost."""
        self._cpu.send(self._headers.put(packet))

    def next_packet(self, timeout_s: float) -> Any | None:
        """Implements the protocol `links.Link`."""
        if self._closed:
            return None
        if self._client.lost:
            target = self._client.address.target
            raise SwitchLostError(
                target,
                f"the BfRt device at {target} is gone: {self._client.lost}. Remedy: start it, then this controller "
                "again; it takes over what the device still has",
            )
        frame = self._cpu.receive(timeout_s)
        return None if frame is None else self._headers.take(frame)

    def close(self) -> None:
        """Implements the protocol `links.Link`."""
        self._closed = True
        self._cpu.wake()
        self._client.close()
        self._cpu.close()
