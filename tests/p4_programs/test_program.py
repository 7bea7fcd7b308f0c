"""The program beside a job's ordinary course: evictions, new generations, other traffic, its counters."""

from __future__ import annotations

import dataclasses
import struct

from fanin.protocol.job import JobSpec
from fanin.protocol.wire import Flag, Kind, Packet, Reason, parse
from fanin.switch.machine.switch_machine import SwitchMachine
from tests.p4_programs.sides import ProgramSides
from tests.p4_programs.subjects import CPU_PORT, REASONS, Subject, program, write_job
from tests.p4_programs.wiring import SERVICE_PORT, SWITCH_ADDRESS, SWITCH_MAC, Place, frame_to_switch, payload_for
from tests.support.bench import Bench, make_spec, words_of

CONTROLLER = Place(30)
ARP = "!HHBBH6sI6sI"


def contribution(spec: JobSpec, worker: int, *values: int, slot: int = 0, base: int = 0) -> bytes:
    packet = Packet(
        kind=Kind.CONTRIBUTION,
        job=spec.job,
        generation=spec.generation,
        worker=worker,
        slot=slot,
        base=base,
        words=words_of(*values),
    )
    return packet.to_bytes()


def test_an_evicted_worker_is_told_and_the_others_rounds_close_when_poked(subject: Subject) -> None:
    spec = make_spec(workers=3, staleness=1, slots=2)
    sides = ProgramSides(subject, spec)
    for worker in (0, 1):
        for slot in range(2):
            sides.say(contribution(spec, worker, 5 + worker, slot=slot), Place(worker))
    sides.twin.evict(spec.job, 2, 0.0)
    write_job(subject, spec, live=0b011)
    twin = sides.twin.datagrams_to_send(0.0)
    expected = {place: [data for data, to in twin if to == place and data[3] == Kind.RESULT] for place in (100, 101)}
    frames = []
    for slot in range(2):
        for _ in range(spec.history):
            frames += subject.command("poke", frame_to_switch(CONTROLLER, contribution(spec, 0, slot=slot)))
    sides.check(expected, [(port, frame) for port, frame in frames if port != Place(2).port])
    sides.say(contribution(spec, 2, 9), Place(2))
    assert subject.counter("FaninIngress.tally.drops", REASONS + Reason.EVICTED) == 1


def test_a_poke_closes_nothing_that_is_not_due(subject: Subject) -> None:
    spec = make_spec(workers=2)
    sides = ProgramSides(subject, spec)
    sides.say(contribution(spec, 0, 5), Place(0))
    assert subject.command("poke", frame_to_switch(CONTROLLER, contribution(spec, 0))) == []
    assert subject.command("poke", frame_to_switch(CONTROLLER, contribution(spec, 0, slot=1))) == []
    assert sides.say(contribution(spec, 1, 6), Place(1))


def test_a_new_generation_finds_its_slots_empty(subject: Subject) -> None:
    old = make_spec(workers=2, staleness=1)
    sides = ProgramSides(subject, old)
    for base in range(3):
        for worker in range(2):
            sides.say(contribution(old, worker, 7, base=base), Place(worker))
    sides.say(contribution(old, 0, 7, base=3), Place(0))
    new = dataclasses.replace(old, generation=old.generation + 1)
    write_job(subject, new)
    sides.twin.remove(old.job)
    sides.twin = Bench(SwitchMachine, new).machine
    sides.say(contribution(old, 0, 7, base=3), Place(0))
    for base in range(3):
        for worker in (1, 0):
            sides.say(contribution(new, worker, 1 << base, base=base), Place(worker))


def test_hello_and_bye_go_to_the_controller_and_its_answer_out_of_the_port_it_names(subject: Subject) -> None:
    spec = make_spec()
    program(subject, spec)
    for kind in (Kind.HELLO, Kind.BYE):
        words = words_of(1, 2, *([0] * 10))
        packet = Packet(kind=kind, job=spec.job, generation=spec.generation, worker=1, words=words)
        frame = frame_to_switch(Place(1), packet.to_bytes())
        assert subject.exchange(Place(1).port, frame) == [(CPU_PORT, (Place(1).port << 7).to_bytes(2, "big") + frame)]
    answer = b"anything at all, as long as it is an Ethernet frame"
    assert subject.exchange(CPU_PORT, (Place(1).port << 7).to_bytes(2, "big") + answer) == [(Place(1).port, answer)]


def test_a_notice_is_never_longer_than_header_and_two_words(subject: Subject) -> None:
    spec = make_spec(words=64)
    program(subject, spec)
    stranger = dataclasses.replace(spec, generation=1)
    ((port, frame),) = subject.exchange(Place(0).port, frame_to_switch(Place(0), contribution(stranger, 0, *range(64))))
    notice = parse(payload_for(Place(0), frame))
    assert (port, notice.kind, notice.contributors) == (Place(0).port, Kind.NOTICE, Reason.GENERATION)
    assert len(notice.words) == 2


def test_other_traffic_is_forwarded_unchanged(subject: Subject) -> None:
    program(subject, make_spec())
    host = Place(3)
    subject.entry("FaninIngress.forward.hosts", (host.mac,), "FaninIngress.forward.to_port", (host.port,))
    subject.entry("FaninIngress.forward.hosts", (0xFFFFFFFFFFFF,), "FaninIngress.forward.flood", (90,))
    subject.group(90, [(port, 1) for port in range(1, 5)])
    to_host, to_all = host.mac.to_bytes(6, "big"), b"\xff" * 6
    source = Place(0).mac.to_bytes(6, "big")
    datagram = frame_to_switch(Place(0), contribution(make_spec(), 0, 1, 2, 3))[14:]
    elsewhere = datagram[:16] + host.address.to_bytes(4, "big") + datagram[20:]
    for kind, body in [(b"\x08\0", elsewhere), (b"\x86\xdd", b"six" * 30), (b"\x08\0", b"\x4f" + bytes(60))]:
        frame = to_host + source + kind + body
        assert subject.exchange(1, frame) == [(host.port, frame)]
        flooded = to_all + source + kind + body
        assert subject.exchange(1, flooded) == [(port, flooded) for port in (2, 3, 4)]
    assert subject.exchange(1, bytes(6) + source + b"\x86\xdd" + bytes(40)) == []


def test_the_switch_answers_arp_for_its_own_address_and_forwards_the_rest(subject: Subject) -> None:
    program(subject, make_spec())
    subject.entry("FaninIngress.forward.addresses", (1, SWITCH_ADDRESS), "FaninIngress.forward.reply", (SWITCH_MAC,))
    subject.entry("FaninIngress.forward.hosts", (0xFFFFFFFFFFFF,), "FaninIngress.forward.flood", (90,))
    subject.group(90, [(1, 1), (2, 1)])
    asks = Place(0)
    mac, ours = asks.mac.to_bytes(6, "big"), SWITCH_MAC.to_bytes(6, "big")

    def request(target: int) -> bytes:
        return (
            b"\xff" * 6 + mac + b"\x08\x06" + struct.pack(ARP, 1, 0x0800, 6, 4, 1, mac, asks.address, bytes(6), target)
        )

    reply = mac + ours + b"\x08\x06" + struct.pack(ARP, 1, 0x0800, 6, 4, 2, ours, SWITCH_ADDRESS, mac, asks.address)
    assert subject.exchange(asks.port, request(SWITCH_ADDRESS)) == [(asks.port, reply)]
    assert subject.exchange(asks.port, request(SWITCH_ADDRESS + 1)) == [(2, request(SWITCH_ADDRESS + 1))]


def test_counters_say_what_the_twin_counts(subject: Subject) -> None:
    spec = make_spec(workers=2)
    sides = ProgramSides(subject, spec)
    for base in range(2):
        for worker in range(2):
            sides.say(contribution(spec, worker, 1, base=base), Place(worker))
    sides.say(contribution(spec, 0, 1, base=1), Place(0))  # a duplicate, answered
    sides.say(contribution(spec, 0, 1, base=0), Place(0))  # an ancient one
    sides.say(contribution(spec, 0, 1, base=9), Place(0))
    sides.say(contribution(spec, 0, 1, slot=5), Place(0))
    twin = sides.twin.job_counters(spec.job)
    for name in ("contributions", "passes", "duplicates", "rounds", "answers", "notices"):
        assert subject.counter(f"FaninIngress.tally.{name}", 1) == twin[name], name
    for reason in (*Reason,)[: Reason.EVICTED]:
        found = subject.counter("FaninIngress.tally.drops", REASONS + reason)
        assert found == twin[f"dropped_{reason.name.lower()}"], reason.name


def test_damage_that_a_checksum_shows_is_dropped(subject: Subject) -> None:
    spec = make_spec()
    program(subject, spec)
    whole = frame_to_switch(Place(0), contribution(spec, 0, 1))
    damaged = whole[:22] + b"\x3f" + whole[23:]  # its time to live, which the IPv4 checksum covers
    assert subject.exchange(1, damaged) == []
    assert subject.exchange(1, whole[:-2]) == []
    packet = Packet(kind=Kind.CONTRIBUTION, job=spec.job, generation=spec.generation, words=words_of(1, 2, 3))
    sealed = dataclasses.replace(packet, flags=Flag.CHECKSUM).to_bytes()
    for bit in (5 * 8, 17 * 8, 40 * 8, len(sealed) * 8 - 1):
        spoilt = bytearray(sealed)
        spoilt[bit // 8] ^= 1 << bit % 8
        assert subject.exchange(1, frame_to_switch(Place(0), bytes(spoilt))) == []
    dropped = [subject.counter("FaninIngress.tally.drops", row * REASONS + Reason.CHECKSUM) for row in (0, 1)]
    assert dropped == [1, 3], "the first is of a job that nobody has"
    assert subject.counter("FaninIngress.tally.contributions", 1) == 0
    assert subject.exchange(1, frame_to_switch(Place(0), sealed)) == []
    assert subject.counter("FaninIngress.tally.contributions", 1) == 1
    assert subject.counter("FaninIngress.tally.drops", REASONS + Reason.TOO_SHORT) == 2


def test_a_datagram_for_another_port_of_the_switch_is_other_traffic(subject: Subject) -> None:
    program(subject, make_spec())
    frame = frame_to_switch(Place(0), contribution(make_spec(), 0, 1))
    other = frame[:36] + (SERVICE_PORT + 1).to_bytes(2, "big") + frame[38:]
    assert subject.exchange(1, other) == []
