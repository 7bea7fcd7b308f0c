"""Jobs whose packets carry keyed tags: who sees a job's packets, and forges their sources, can change nothing.

The observer here is given all that is on the wire: index and generation, addresses, tokens, slots and bases. It does
not have the job's secret. Where a job does without tags, the same things work, which is documented in docs/security.md:
these tests say so, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fanin.extension import tag_algorithms
from fanin.protocol import packet_tag
from fanin.protocol.job import Uplink
from fanin.protocol.packet_tag import Direction, MemberKeys, PacketKeys
from fanin.protocol.tag_algorithm import SIPHASH, TagAlgorithm
from fanin.protocol.wire import SWITCH_WORKER, Flag, Kind, Packet, Reason, parse
from tests.support.bench import PLENTY, Bench, Machine, MachineType, address, make_spec
from tests.support.machines import native

KEY = bytes(range(16))
TAGGED = make_spec(data_key=KEY)
BARE = make_spec()
FORGED_WORDS = [0xBAD] * 8


def gives(bench: Bench, worker: int, *, base: int = 0, words: Sequence[int] = (1,) * 8) -> Packet:
    return bench.packet(Kind.CONTRIBUTION, worker, base=base, codes=[0], words=words)


def as_sent(bench: Bench, packet: Packet, source: int) -> list[bytes]:
    """The machine's datagrams in answer to a packet with its own tag."""
    bench.machine.receive_datagram(bench.bytes_of(packet), source, bench.now)
    return [data for data, _ in bench.machine.datagrams_to_send(bench.now)]


@pytest.mark.parametrize("spec", [TAGGED, BARE], ids=["with tags", "without"])
def test_a_forged_contribution_changes_a_sum_only_without_tags(machine_type: MachineType, spec: object) -> None:
    bench = Bench(machine_type, spec)  # type: ignore[arg-type]
    forged = gives(bench, 1, words=FORGED_WORDS).to_bytes()
    said = bench.say(forged, address(1))  # from worker 1's own address
    said += bench.say(gives(bench, 0), address(0)) + bench.say(gives(bench, 1), address(1))
    sums = {packet.words.tolist()[0] for packet, _ in said if packet.kind is Kind.RESULT}
    harmed = bench.spec.data_key == b""
    assert sums == {1 + FORGED_WORDS[0] if harmed else 2}
    assert bench.dropped() == ({} if harmed else {"tag": 1})


@pytest.mark.parametrize("spec", [TAGGED, BARE], ids=["with tags", "without"])
@pytest.mark.parametrize("kind", [Kind.HELLO, Kind.BYE])
def test_a_worker_cannot_be_signed_off_or_kept_alive_by_others(
    machine_type: MachineType, spec: object, kind: Kind
) -> None:
    bench = Bench(machine_type, spec)  # type: ignore[arg-type]
    forged = bench.bye(1) if kind is Kind.BYE else bench.hello(1, slot=9)
    bench.say(forged.to_bytes(), address(1))
    assert bench.machine.members(1)[2] == (0b10 if kind is Kind.BYE and not bench.spec.data_key else 0)
    assert bench.dropped() == ({"tag": 1} if bench.spec.data_key else {})


def test_every_flipped_bit_of_a_contribution_is_refused(machine_type: MachineType) -> None:
    bench = Bench(machine_type, TAGGED)
    whole = bench.bytes_of(gives(bench, 0))
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        bench.machine.receive_datagram(bytes(changed), address(0), bench.now)
    counters = bench.machine.counters()
    assert counters["contributions"] == counters["passes"] == counters["duplicates"] == 0
    dropped = bench.dropped()
    assert sum(dropped.values()) == 8 * len(whole)
    assert dropped["tag"] > 6 * len(whole)
    bench.say(whole, address(0))
    assert bench.machine.counters()["contributions"] == 1


def test_whatever_a_switch_says_carries_the_tag_of_whom_it_is_for(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(data_key=KEY, staleness=1, quorum=1), registered=False)
    members = [MemberKeys(KEY, token) for token in bench.spec.tokens]
    said: list[bytes] = []
    for worker in range(2):
        said += as_sent(bench, bench.hello(worker), address(worker))
    said += as_sent(bench, gives(bench, 0), address(0))  # a result
    said += as_sent(bench, gives(bench, 0), address(0))  # an answer
    said += as_sent(bench, bench.packet(Kind.CONTRIBUTION, 0, flags=Flag.PASS), address(0))  # a bare one
    said += as_sent(bench, gives(bench, 1, base=0, words=(1,) * 4), address(1))
    said += as_sent(bench, bench.hello(0, token=7), address(0))
    bench.machine.evict(1, 1, bench.now)
    said += [data for data, _ in bench.machine.datagrams_to_send(bench.now)]
    said += as_sent(bench, gives(bench, 1, base=3), address(1))
    said += as_sent(bench, bench.bye(0), address(0))
    kinds = set()
    for data in said:
        packet = parse(data)
        kinds.add(packet.kind)
        for worker, member in enumerate(members):
            assert member.holds(data) == (packet.worker in (worker, SWITCH_WORKER)), packet
    assert kinds == {Kind.WELCOME, Kind.RESULT, Kind.ANSWER, Kind.NOTICE, Kind.BYE}


def test_nobody_is_handed_a_notice_to_end_a_worker_with(machine_type: MachineType) -> None:
    """A worker's HELLO repeated from elsewhere gets no reply: a tagged STRANGER would be believed by its owner."""
    bench = Bench(machine_type, TAGGED)
    hello = bench.bytes_of(bench.hello(1, slot=1))
    bench.machine.receive_datagram(hello, 666, bench.now)
    bench.machine.receive_datagram(bench.bytes_of(gives(bench, 1)), 666, bench.now)
    bench.machine.receive_datagram(gives(bench, 1).to_bytes(), 666, bench.now)
    assert bench.machine.datagrams_to_send(bench.now) == []
    assert bench.dropped() == {"stranger": 2, "tag": 1}


def test_another_generation_is_told_without_a_tag(machine_type: MachineType) -> None:
    bench = Bench(machine_type, TAGGED)
    old = dataclasses.replace(gives(bench, 1), generation=5)
    [said] = as_sent(bench, old, address(1))
    assert (parse(said).kind, parse(said).contributors) == (Kind.NOTICE, Reason.GENERATION)
    assert not any(MemberKeys(KEY, token).holds(said) for token in bench.spec.tokens)


def test_a_heartbeat_counts_once(machine_type: MachineType) -> None:
    """Or who has recorded a worker's HELLO could keep the job waiting for it when it is dead."""
    bench = Bench(machine_type, TAGGED)
    bench.now = 1.0
    bench.say(bench.hello(0, padded=False, slot=1), address(0))
    last = bench.hello(1, padded=False, slot=1)
    bench.say(last, address(1))
    given = gives(bench, 1)
    bench.say(given, address(1))
    timeout_s = bench.spec.liveness_timeout_s
    for step in range(1, 20):
        bench.now = 1.0 + step * timeout_s / 10
        bench.say(bench.hello(0, padded=False, slot=1 + step), address(0))
        bench.say(last, address(1))
        bench.say(given, address(1))
    assert bench.machine.members(1)[1] == 0b10
    assert bench.dropped()["ancient"] == 19


def test_what_an_earlier_process_said_does_not_hold_for_its_successor(machine_type: MachineType) -> None:
    spec = dataclasses.replace(make_spec(data_key=KEY), on_worker_loss="continue")
    bench = Bench(machine_type, spec)
    recorded = bench.bytes_of(bench.bye(1))
    bench.machine.evict(1, 1, bench.now)
    bench.machine.admit_worker(1, 1, 4711)
    bench.sent()
    bench.spec = dataclasses.replace(spec, tokens=(spec.tokens[0], 4711))
    assert [packet.kind for packet, _ in bench.say(bench.hello(1), address(1)) if packet.kind is Kind.WELCOME]
    bench.say(recorded, address(1))
    assert bench.machine.members(1) == (0b11, 0, 0)
    assert bench.dropped() == {"tag": 1}


def test_a_packet_of_one_flow_does_not_hold_in_another(machine_type: MachineType) -> None:
    flows = [Bench(machine_type, TAGGED.for_flow(flow)) for flow in range(2)]
    recorded = flows[0].bytes_of(gives(flows[0], 0))
    flows[1].say(recorded, address(0))
    assert flows[1].dropped() == {"tag": 1}
    flows[0].say(recorded, address(0))
    assert flows[0].dropped() == {}


def test_results_that_wait_to_be_sent_have_their_tags_when_their_slot_or_their_job_is_gone(
    machine_type: MachineType,
) -> None:
    bench = Bench(machine_type, TAGGED)
    for base in range(5):  # of a slot that has room for two
        for worker in range(2):
            data = bench.bytes_of(gives(bench, worker, base=base, words=(base,) * 8))
            bench.machine.receive_datagram(data, address(worker), bench.now)
    bench.machine.remove(1)
    said = [data for data, _ in bench.machine.datagrams_to_send(bench.now)]
    assert [parse(data).words.tolist()[0] for data in said[::2]] == [0, 2, 4, 6, 8]
    assert all(MemberKeys(KEY, TAGGED.tokens[0]).holds(data) for data in said)


@pytest.mark.skipif(native("SwitchMachine") is None, reason="the native extension is not built")
@pytest.mark.parametrize("seed", range(3))
def test_a_batch_is_as_good_as_its_datagrams_one_by_one(seed: int) -> None:
    """Batches hold the right tags, wrong ones, none, other jobs', scraps."""
    dice = np.random.default_rng(seed)
    benches = [Bench(native("SwitchMachine"), TAGGED) for _ in range(2)]
    other = make_spec(job=2, data_key=bytes(16))
    for bench in benches:
        bench.machine.admit(other)
    one, batched = benches
    honest = [
        one.bytes_of(gives(one, worker, base=base, words=(base,) * int(length)))
        for base in range(8)
        for worker, length in enumerate(dice.choice([8, 8, 8, 4], 1).repeat(2))
    ]
    stream: list[tuple[bytes, int]] = []
    for data in honest:
        worker = parse(data).worker
        forged = data[:-1] + bytes([data[-1] ^ 1])
        elsewhere = data[:4] + b"\x00\x02" + data[6:]
        renamed = data[:6] + bytes([1 - worker]) + data[7:]
        junk = [forged, elsewhere, renamed, data[:20], b"", gives(one, worker).to_bytes()]
        stream += [(junk[pick], address(worker)) for pick in dice.integers(0, len(junk), dice.integers(0, 4))]
        stream.append((data, address(worker)))
    machine: Any = batched.machine
    for first in range(0, len(stream), 9):
        machine.receive_datagrams(stream[first : first + 9], 0.0)
        for data, source in stream[first : first + 9]:
            one.machine.receive_datagram(data, source, 0.0)
        assert machine.datagrams_to_send(0.0) == one.machine.datagrams_to_send(0.0)
    assert machine.counters() == one.machine.counters()
    assert machine.counters()["rounds"] == 8
    assert batched.dropped()["tag"] > 0


PARENT = 9000
UP = Uplink(parent=PARENT, job=77, generation=0xFEED, worker=3, token=0xABCDEF, data_key=packet_tag.of_flow(KEY, 5))


def leaf(machine_type: MachineType, tag: TagAlgorithm = SIPHASH) -> tuple[Machine, Bench]:
    """A leaf with two workers, tagged on both sides, under keys of their own; by `tag` on its way up."""
    bench = Bench(machine_type, TAGGED, registered=False)
    machine = machine_type(PLENTY)
    machine.admit_leaf(dataclasses.replace(TAGGED, total_workers=4), dataclasses.replace(UP, tag=tag))  # type: ignore[attr-defined]
    bench.machine = machine
    for worker in range(2):
        bench.say(bench.hello(worker), address(worker))
    return machine, bench


@pytest.mark.parametrize("tag", tag_algorithms(None))
def test_a_leaf_speaks_with_its_parent_under_the_keys_of_the_parent_s_job(
    machine_type: MachineType, tag: TagAlgorithm
) -> None:
    machine, bench = leaf(machine_type, tag)
    at_parent = PacketKeys(UP.data_key, [0, 0, 0, UP.token], tag)
    welcome = Packet(
        kind=Kind.WELCOME,
        job=77,
        worker=3,
        generation=0xFEED,
        bitmap=0b1111,
        words=np.zeros((TAGGED.packet_bytes - 36) // 4, np.uint32),
    ).to_bytes()
    machine.receive_datagram(welcome, PARENT, bench.now)
    assert bench.dropped()["tag"] == 1, "a forged WELCOME of the parent's"
    machine.receive_datagram(at_parent.finish(welcome), PARENT, bench.now)
    for worker in range(2):
        machine.receive_datagram(bench.bytes_of(gives(bench, worker)), address(worker), bench.now)
    [up] = [data for data, to in machine.datagrams_to_send(bench.now) if to == PARENT]
    assert parse(up).kind is Kind.CONTRIBUTION
    assert at_parent.holds(up, 3)
    assert not packet_tag.tag_holds(packet_tag.of_worker(KEY, TAGGED.tokens[0]), up, Direction.TO_SWITCH)
    result = Packet(
        kind=Kind.RESULT,
        job=77,
        worker=SWITCH_WORKER,
        generation=0xFEED,
        signature=parse(up).signature,
        bitmap=0b1111,
        contributors=4,
        codes=(0,),
        words=np.full(8, 4, np.uint32),
    ).to_bytes()
    forged = dataclasses.replace(parse(result), words=np.full(8, 666, np.uint32)).to_bytes()
    machine.receive_datagram(forged, PARENT, bench.now)
    assert machine.datagrams_to_send(bench.now) == []
    machine.receive_datagram(at_parent.finish(result), PARENT, bench.now)
    down = machine.datagrams_to_send(bench.now)
    assert [to for _, to in down] == [address(0), address(1)]
    assert all(MemberKeys(KEY, token).holds(data) for (data, _), token in zip(down, TAGGED.tokens, strict=True))
