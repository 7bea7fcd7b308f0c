"""Several passes in one datagram, and several bare results: when a worker sends any, and what it takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fanin.protocol.ecn import Marked
from fanin.protocol.job import JobSpec
from fanin.protocol.packet_tag import PacketKeys
from fanin.protocol.wire import HEADER_BYTES, HELLO_RUNS, MAX_RUN, SWITCH_WORKER, Flag, Kind, Packet, parse
from tests.support.builders import job_spec, moved
from tests.support.cluster import WORKER_MACHINES, Array, Cluster
from tests.support.network import SWITCH, Link

HOSTILE = Link(loss=0.15, duplicate=0.1, reorder=0.3)
WORDS = 8
BYTES = 4 * WORDS
"""Bytes of the elements in a packet."""


class Voice:
    """Worker 0 of 2, and what the test says in the switch's name."""

    def __init__(self, kind: str, *, takes_runs: bool = True, **fields: Any) -> None:
        self.spec: JobSpec = job_spec(workers=2, words_per_packet=WORDS, **{"slots": 24, **fields})
        self.machine = WORKER_MACHINES[kind](self.spec, 0, switch=SWITCH, token=self.spec.tokens[0])
        (hello,) = self.sent(0.0)
        assert hello.bitmap == HELLO_RUNS
        zeros = np.zeros(len(hello.words), np.uint32)
        flags = hello.flags | (Flag.RUN if takes_runs else Flag(0))
        self.says(replace(hello.reply(Kind.WELCOME, bitmap=0b11, words=zeros), flags=flags), 0.001)

    def sent(self, now: float) -> list[Packet]:
        """The worker's packets, each with the tag that it should have."""
        datagrams = [data for data, _ in self.machine.datagrams_to_send(now)]
        keys = PacketKeys(self.spec.data_key, self.spec.tokens)
        assert all(keys.holds(data, 0) for data in datagrams)
        return [parse(data) for data in datagrams]

    def says(self, packet: Packet, now: float, *, marked: bool = False) -> None:
        data = PacketKeys(self.spec.data_key, self.spec.tokens).finish(packet.to_bytes())
        self.machine.receive_datagram(Marked(data) if marked else data, SWITCH, now)

    def moves(self, chunks: int, *, owns: bool) -> Array:
        """A broadcast, of this worker's bytes or of the other's, in so many packets."""
        whole = np.zeros(chunks * BYTES, np.uint8)
        nothing = np.empty(0, np.uint8)
        source, output = (whole, nothing) if owns else (nothing, whole)
        self.machine.submit(moved(source, 0, len(whole), output, 0))
        return whole

    def says_a_run_to_who_owns(self, **fields: Any) -> None:
        """Four bare results for a worker that owns what they are of, with these `fields` of the first."""
        self.moves(4, owns=True)
        (first, *_) = self.sent(0.002)
        bare = replace(self.result(first, 0), flags=Flag.BARE | Flag.RUN, words=np.empty(0, np.uint32), run=4)
        self.says(replace(bare, **fields), 0.003)

    def result(self, to: Packet, fill: int) -> Packet:
        """The result of a pass's round, each byte of which is `fill`."""
        words = np.full(WORDS, fill * 0x01010101, np.uint32)
        whole = replace(to, kind=Kind.RESULT, worker=SWITCH_WORKER, bitmap=0b11, contributors=1, words=words)
        return replace(whole, flags=Flag(to.flags & Flag.CHECKSUM))


def apart(packets: list[Packet], slots: int) -> list[Packet]:
    """The passes of runs, one by one."""
    return [one.part(index, slots) if one.run > 1 else one for one in packets for index in range(one.run)]


SECURED = pytest.mark.parametrize("fields", [{}, {"checksum": True}, {"data_key": bytes(range(16))}], ids=str)


# R-WORKER-9
@SECURED
def test_passes_that_go_at_the_same_moment_go_in_one_datagram(kind: str, fields: dict[str, Any]) -> None:
    voice, alone = Voice(kind, **fields), Voice(kind, takes_runs=False, **fields)
    for each in (voice, alone):
        each.moves(40, owns=False)
    runs, singles = voice.sent(0.002), alone.sent(0.002)
    assert {packet.run for packet in singles} == {1}
    assert len(singles) == 24
    assert [packet.run for packet in runs] == [MAX_RUN, 24 - MAX_RUN]
    assert [one.to_bytes() for one in apart(runs, 24)] == [one.to_bytes() for one in singles]
    assert voice.machine.counters()["packets_out"] == 3
    assert voice.machine.counters()["bytes_out"] == voice.spec.packet_bytes + 2 * HEADER_BYTES


def test_runs_go_on_over_the_last_slot(kind: str) -> None:
    voice = Voice(kind, slots=20)
    voice.moves(200, owns=False)
    outstanding = apart(voice.sent(0.002), 20)
    over = 0
    for moment in range(1, 9):
        now = 0.002 + moment * 1e-3
        for packet in outstanding[:MAX_RUN]:
            voice.says(voice.result(packet, 1), now)
        runs = voice.sent(now)
        assert [packet.run for packet in runs] == [MAX_RUN]
        outstanding = outstanding[MAX_RUN:] + apart(runs, 20)
        over += sum(packet.slot + packet.run > 20 for packet in runs)
    assert over > 4
    assert voice.machine.counters()["results"] == 8 * MAX_RUN


# R-WORKER-9
def test_what_a_receipt_shows_to_be_lost_goes_again_by_itself(kind: str) -> None:
    """A run brings no answer, and what is sent again is to be answered."""
    voice = Voice(kind)
    voice.moves(40, owns=False)
    *_, last = voice.sent(0.002)
    lost = 1 << 24 - 1 - 3 | 1 << 24 - 1 - 4  # orders 3 and 4
    voice.says(
        replace(last.reply(Kind.RECEIPT, signature=24, bitmap=0xFFFFFFFF & ~lost), slot=24, base=0, flags=Flag(0)),
        0.003,
    )
    again = voice.sent(0.003)
    assert [(packet.slot, packet.run, packet.bitmap) for packet in again] == [(2, 1, 25), (3, 1, 26)]


def test_what_is_sent_again_is_joined_with_no_new_pass_behind_it(kind: str) -> None:
    voice = Voice(kind)
    voice.moves(60, owns=False)
    passes = apart(voice.sent(0.002), 24)
    for packet in passes[:-1]:
        voice.says(voice.result(packet, 1), 0.003)
    voice.machine.handle_timer(0.4)
    again, *runs = voice.sent(0.4)
    assert (again.slot, again.run, again.bitmap) == (23, 1, 25)
    assert [(packet.slot, packet.base, packet.bitmap, packet.run) for packet in runs] == [
        (0, 1, 26, 16),
        (16, 1, 42, 7),
    ]


def test_a_switch_that_takes_runs_no_more_gets_none(kind: str) -> None:
    """Another one may have its place: every WELCOME counts."""
    voice = Voice(kind)
    voice.says(Packet(kind=Kind.WELCOME, job=voice.spec.job, generation=voice.spec.generation, bitmap=0b11,
                      words=np.zeros(2, np.uint32)), 0.001)  # fmt: skip
    voice.moves(40, owns=False)
    assert {packet.run for packet in voice.sent(0.002)} == {1}


@SECURED
def test_bare_results_that_come_together_are_taken_one_by_one(kind: str, fields: dict[str, Any]) -> None:
    voice, alone = Voice(kind, **fields), Voice(kind, **fields)
    said: list[list[Packet]] = []
    for each in (voice, alone):
        each.moves(30, owns=True)
        said.append(each.sent(0.002))
    bare = [
        replace(voice.result(packet, 0), flags=Flag.BARE | packet.flags & Flag.CHECKSUM, words=np.empty(0, np.uint32))
        for packet in said[0]
    ]
    runs = [bare[0]]
    for packet in bare[1:]:
        longer = runs[-1].followed_by(packet, 24)
        runs[-1:] = [longer] if longer else [runs[-1], packet]
    assert runs[0].run > 5
    for number, packet in enumerate(runs):
        voice.says(packet, 0.003, marked=number == 0)
    for number, packet in enumerate(bare):
        alone.says(packet, 0.003, marked=number == 0)
    assert [packet.to_bytes() for packet in voice.sent(0.003)] == [packet.to_bytes() for packet in alone.sent(0.003)]
    counted = [each.machine.counters() for each in (voice, alone)]
    alike = [{name: count for name, count in counts.items() if not name.endswith("s_in")} for counts in counted]
    assert alike[0] == alike[1]
    assert counted[0]["results"] == len(bare)


def test_a_run_of_a_slot_that_is_not_the_jobs_is_dropped_whole(kind: str) -> None:
    voice = Voice(kind)
    voice.says_a_run_to_who_owns(slot=24)
    assert voice.machine.counters()["dropped_slot_range"] == 1
    assert voice.machine.counters()["results"] == 0


def test_what_follows_a_result_that_ends_the_worker_is_not_taken(kind: str) -> None:
    """Its memory may no longer be there: a peer is missing in a round of bytes with owners."""
    voice = Voice(kind)
    voice.says_a_run_to_who_owns(bitmap=0b01)
    assert voice.machine.failed
    assert voice.machine.counters()["dropped_evicted"] == 1
    assert voice.machine.counters()["results"] == 0


@pytest.mark.parametrize("link", [None, HOSTILE], ids=["lossless", "hostile"])
@pytest.mark.parametrize("fields", [{}, {"data_key": bytes(range(16))}], ids=str)
def test_a_broadcast_among_three_has_runs_both_ways(kinds: str, link: Link | None, fields: dict[str, Any]) -> None:
    spec = job_spec(workers=3, words_per_packet=WORDS, slots=24, **fields)
    cluster = Cluster.joined(kinds, spec=spec, switch="native" if kinds == "native" else "twin", link=link, seed=2)
    runs = {Kind.CONTRIBUTION: 0, Kind.RESULT: 0}

    def hear(now: float, source: int, destination: int, data: bytes) -> bool:
        packet = parse(data)
        if packet.run > 1:
            runs[packet.kind] += 1
        return True

    cluster.network.wiretap = hear
    for seed in range(3):
        whole = np.random.default_rng(seed).integers(0, 256, 60 * BYTES, np.uint8)
        outputs = [np.zeros(0 if worker == 1 else len(whole), np.uint8) for worker in range(3)]
        for worker in (1, 0, 2):  # the others' passes come when the owner's words are there: each closes rounds
            own = whole if worker == 1 else np.empty(0, np.uint8)
            cluster.submit(worker, moved(own, 0, len(whole), outputs[worker], 0))
            cluster.network.run_for(1e-3)
        cluster.run()
        assert all(output.tobytes() == whole.tobytes() for output in outputs if len(output))
    assert min(runs.values()) >= 3
