"""The compiled program with our controller around it, as one more machine: the verbs of the twin, in virtual time.

A source address of the tests, a small number, becomes an IPv4 address, a UDP port and a MAC address behind a port.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from fanin.formats.frames import Endpoint, Frame, mac_of, read_frame
from fanin.protocol.events import SwitchEvent
from fanin.protocol.job import JobSpec, ParentRoute, Uplink
from fanin.switch.p4runtime.controller.job_control import JobControl, Placement
from fanin.switch.p4runtime.controller.leaf_uplink import ParentPort
from fanin.switch.p4runtime.controller.links import LocalLink
from fanin.switch.p4runtime.controller.vocabulary import Vocabulary
from fanin.switch.p4runtime.opening import Artefacts, emulated_device

NETWORK = 0x0A00_0000
SWITCH = Endpoint(mac_of(NETWORK + 0xFFFF), NETWORK + 0xFFFF, 4919)


def endpoint_of(source: int) -> Endpoint:
    return Endpoint(mac_of(NETWORK + source), NETWORK + source, 10_000 + source)


def port_of(source: int) -> int:
    """The switch port behind which a source sits: a few share one, as behind another switch."""
    return 1 + source % 7


class ControlledMachine:
    """A device behind our controller with the verbs of a switch machine; how packets get there is the subclass's."""

    def __init__(self, control: JobControl, end_of: Callable[[int], Endpoint]) -> None:
        """`end_of` says where a source address of the tests is."""
        self.control = control
        self._end_of = end_of
        self.control.serve()

    def admit(self, spec: JobSpec) -> None:
        self.control.admit(spec)

    def admit_leaf(self, spec: JobSpec, uplink: Uplink) -> None:
        end = self._end_of(uplink.parent)
        route = ParentRoute(
            host=socket.inet_ntoa(end.address.to_bytes(4, "big")),
            ports=(end.port,),
            job=uplink.job,
            generation=uplink.generation,
            worker=uplink.worker,
            token=uplink.token,
        )
        self.control.admit(spec, route)

    def remove(self, job: int) -> None:
        self.control.remove(job)

    def suspect(self, job: int, worker: int, now: float) -> None:
        self.control.suspect(job, worker, now)

    def suspect_parent(self, job: int, now: float) -> None:
        self.control.suspect_parent(job, now)

    def evict(self, job: int, worker: int, now: float) -> None:
        self.control.evict(job, worker)

    def set_quorum(self, job: int, quorum: int, now: float) -> None:
        self.control.set_quorum(job, quorum)

    def set_staleness(self, job: int, staleness: int, now: float) -> None:
        self.control.set_staleness(job, staleness)

    def admit_worker(self, job: int, worker: int, token: int) -> None:
        self.control.admit_worker(job, worker, token)

    def jobs(self) -> list[int]:
        return sorted(self.control.jobs)

    def members(self, job: int) -> tuple[int, int, int]:
        placed = self.control.jobs[job]
        return placed.registered, placed.lost, placed.left

    def counters(self) -> dict[str, int]:
        return self.control.counters()

    def job_counters(self, job: int) -> dict[str, int]:
        return self.control.counters(self.control.jobs[job].row)

    def member_counters(self, job: int) -> list[dict[str, int]]:
        return []

    def next_timer(self) -> float | None:
        return self.control.next_timer()

    def handle_timer(self, now: float) -> None:
        self.control.handle_timer(now)

    def next_event(self) -> SwitchEvent | None:
        return self.control.next_event()


class P4Machine(ControlledMachine):
    """The emulator in this process."""

    def __init__(self, memory_bytes: int, artefacts: Artefacts | None = None, parent: int = 0) -> None:
        """`parent` is the address of the switch that leaves contribute to."""
        self.out: list[tuple[bytes, int]] = []
        self.link = LocalLink(emulated_device(artefacts or Artefacts.read(None, None)), self._leave)
        vocabulary = Vocabulary(self.link.p4info())
        placement = Placement((SWITCH,), ParentPort(port_of(parent)))
        super().__init__(JobControl(self.link, vocabulary, placement), endpoint_of)

    def _leave(self, port: int, data: bytes) -> None:
        frame = read_frame(data)
        assert frame is not None, data.hex()
        assert frame.source == SWITCH, frame
        source = frame.destination.address - NETWORK
        assert frame.destination == endpoint_of(source), frame
        assert port == port_of(source)
        self.out.append((frame.payload, source))

    def receive_datagram(self, data: bytes, source: int, now: float) -> None:
        self.link.receive(port_of(source), Frame(endpoint_of(source), SWITCH, data).to_bytes())
        assert not self.link.failed, self.link.failed
        while (packet := self.link.next_packet(0)) is not None:
            self.control.receive(packet, now)

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, int]]:
        self.control.speak(now)
        sent, self.out = self.out, []
        return sent
