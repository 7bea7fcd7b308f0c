"""The twin beside a compiled program, both fed the same packets."""

from __future__ import annotations

from abc import ABC, abstractmethod

from fanin.protocol.job import JobSpec
from fanin.protocol.wire import Flag, Kind, Packet, parse
from fanin.switch.machine.switch_machine import SwitchMachine
from tests.p4_programs.job_histories import History
from tests.p4_programs.subjects import Subject, program
from tests.p4_programs.wiring import Place, frame_to_switch, payload_for
from tests.support.bench import Bench, address

Sent = dict[int, list[bytes]]
"""Payloads by the address that they go to."""


class Sides(ABC):
    """The twin and a subject side by side, with one job whose workers are registered."""

    def __init__(self, subject: Subject, spec: JobSpec) -> None:
        assert address(0) == Place(0).twin_address
        self.twin = Bench(SwitchMachine, spec).machine
        self.subject = subject
        program(subject, spec)

    @abstractmethod
    def say(self, data: bytes, source: Place) -> Sent:
        """Send to both; the subject's packets must be the twin's, as far as the program promises the same."""

    def twin_sends(self, data: bytes, source: Place) -> Sent:
        """The twin's packets in response to one."""
        self.twin.receive_datagram(data, source.twin_address, 0.0)
        sent: Sent = {}
        for payload, destination in self.twin.datagrams_to_send(0.0):
            sent.setdefault(destination, []).append(payload)
        return sent

    def play(self, history: History, packets: int) -> set[Kind]:
        """Say so many packets of a history, whose workers go on as the results come; the kinds of what was sent."""
        kinds = set()
        for data, source in history.packets(packets):
            if not meets(data):
                continue
            for payloads in self.say(data, source).values():
                for packet in map(parse, payloads):
                    kinds.add(packet.kind)
                    if packet.kind is Kind.RESULT:
                        history.closed(packet.slot, packet.base)
        return kinds


class ProgramSides(Sides):
    """The twin and a program that does all that the twin does."""

    def say(self, data: bytes, source: Place) -> Sent:
        """See the base class."""
        expected = self.twin_sends(data, source)
        self.check(expected, self.subject.exchange(source.port, frame_to_switch(source, data)))
        return expected

    def check(self, expected: Sent, frames: list[tuple[int, bytes]]) -> None:
        """Same payloads for each worker, in frames that its socket would take in.

        One packet leads to at most two for the same worker, a result and an answer. They are copies of one multicast,
        and BMv2 makes copies in an order of its own; so would a network.
        """
        got: Sent = {}
        for port, frame in frames:
            place = Place(port - 1)
            got.setdefault(place.twin_address, []).append(payload_for(place, frame))
        wanted = {place: _as_target_may(payloads) for place, payloads in expected.items()}
        got = {place: as_short_as(wanted.get(place, []), payloads) for place, payloads in got.items()}
        assert _sorted(got) == _sorted(wanted)


def _sorted(payloads: Sent) -> Sent:
    return {place: sorted(each) for place, each in payloads.items()}


def _as_target_may(payloads: list[bytes]) -> list[bytes]:
    """The twin's packets as the program may send them: the answer that comes with a result is bare (p4/README.md)."""
    result_and_answer = [data[3] for data in payloads] == [Kind.RESULT, Kind.ANSWER]
    return [payloads[0], bare(payloads[1])] if result_and_answer else payloads


def as_short_as(wanted: list[bytes], payloads: list[bytes]) -> list[bytes]:
    """A program's packets where the twin's answer is bare for its length's sake: programs cannot compare lengths."""
    if not any(data[3] == Kind.ANSWER and data[7] & Flag.BARE for data in wanted):
        return payloads
    return [bare(data) if data[3] == Kind.ANSWER else data for data in payloads]


def meets(data: bytes) -> bool:
    """Whether a program promises what the twin does: HELLO and BYE are the controller's, checksums only of what it
    parses its own."""
    legible = len(data) >= 8 and data[:3] == b"\xfa\x19\x01"
    parsed = legible and data[3] in (Kind.CONTRIBUTION, Kind.RESULT, Kind.ANSWER)
    return not legible or ((parsed or not data[7] & Flag.CHECKSUM) and data[3] not in (Kind.HELLO, Kind.BYE))


def bare(payload: bytes) -> bytes:
    """An answer of the twin without what hardware may leave out (docs/protocol.md)."""
    answer = parse(payload)
    acknowledgement = Packet(
        kind=Kind.ANSWER,
        job=answer.job,
        worker=answer.worker,
        flags=Flag.BARE | answer.flags & Flag.CHECKSUM,
        generation=answer.generation,
        slot=answer.slot,
        base=answer.base,
        bitmap=answer.bitmap,
    )
    return acknowledgement.to_bytes()
