"""Jobs: admitted, refused, isolated from each other, removed; over both machines."""

from __future__ import annotations

import dataclasses

import pytest

from fanin.errors import AdmissionError
from fanin.protocol.job import SWITCH_QUEUE_BYTES, SWITCH_QUEUE_DATAGRAMS, JobSpec
from fanin.protocol.wire import Kind
from tests.support.bench import PLENTY, Bench, MachineType, address, make_spec


def test_a_pool_is_refused_when_memory_is_out_and_fits_again_after_a_removal(machine_type: MachineType) -> None:
    spec = make_spec(job=1, slots=8)
    machine = machine_type(2 * spec.pool_bytes)
    machine.admit(spec)
    machine.admit(make_spec(job=2, slots=8))
    with pytest.raises(AdmissionError, match=rf"needs {spec.pool_bytes} bytes .* and 0 of {2 * spec.pool_bytes}"):
        machine.admit(make_spec(job=3, slots=8))
    assert machine.jobs() == [1, 2]
    machine.remove(1)
    machine.admit(make_spec(job=3, slots=8))
    assert machine.jobs() == [2, 3]


@pytest.mark.parametrize(
    "spec",
    [
        make_spec(),
        make_spec(slots=100, words=2048),
        make_spec(staleness=3, codes=14, words=14 * 8),
        make_spec(codes=64, words=64 * 8, slots=3),
        make_spec(words=16352),
    ],
    ids=lambda spec: f"{spec.words_per_packet} words {spec.codes_per_packet} codes",
)
def test_a_pool_takes_exactly_what_the_spec_says(machine_type: MachineType, spec: JobSpec) -> None:
    machine_type(spec.pool_bytes).admit(spec)
    with pytest.raises(AdmissionError, match="ask for fewer slots"):
        machine_type(spec.pool_bytes - 1).admit(spec)


def test_a_pool_is_hardly_more_than_its_results() -> None:
    spec = make_spec(slots=128, words=2048)
    results = spec.slots * spec.history * spec.packet_bytes
    assert results < spec.pool_bytes < 1.01 * results


def test_an_index_that_is_taken_is_refused(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    with pytest.raises(AdmissionError, match="job index 1 is taken"):
        bench.machine.admit(make_spec(generation=5))
    assert bench.machine.members(1) == (0b11, 0, 0)


@pytest.mark.parametrize("job", [0, 2, 65535])
def test_what_is_asked_of_an_unknown_job_is_a_key_error(machine_type: MachineType, job: int) -> None:
    machine = Bench(machine_type).machine
    with pytest.raises(KeyError):
        machine.remove(job)
    with pytest.raises(KeyError):
        machine.evict(job, 0, 0.0)
    with pytest.raises(KeyError):
        machine.set_quorum(job, 1, 0.0)
    with pytest.raises(KeyError):
        machine.members(job)
    with pytest.raises(KeyError):
        machine.job_counters(job)


def test_jobs_do_not_see_each_other(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    other = Bench(machine_type, make_spec(job=65535, workers=2))
    other.machine = bench.machine
    bench.machine.admit(other.spec)
    for worker in range(2):
        other.say(other.hello(worker), address(worker, 65535))
    bench.gives(0, 0, (1,))
    other.gives(0, 0, (100,))
    assert [(p.job, p.words.tolist(), to) for p, to in other.gives(1, 0, (200,))] == [
        (65535, [300], address(worker, 65535)) for worker in range(2)
    ]
    assert [(p.job, p.words.tolist(), to) for p, to in bench.gives(1, 0, (2,))] == [(1, [3], 100), (1, [3], 101)]
    assert bench.machine.job_counters(1)["rounds"] == bench.machine.job_counters(65535)["rounds"] == 1
    bench.machine.remove(65535)
    assert bench.counter("rounds") == 2, "what a job did is not forgotten with it"
    bench.gives(0, 1, (1,))
    assert bench.gives(1, 1, (1,)) != []


def test_a_worker_of_one_job_cannot_speak_in_another(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    bench.machine.admit(make_spec(job=2))
    packet = dataclasses.replace(bench.packet(Kind.CONTRIBUTION, 0, words=(1,)), job=2)
    ((notice, _),) = bench.say(packet, address(0))
    assert notice.kind is Kind.NOTICE
    assert bench.counter("contributions") == 0


def test_a_job_admitted_again_starts_from_nothing(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    bench.gives(0, 0, (77,))
    bench.machine.remove(1)
    bench.machine.admit(bench.spec)
    assert bench.machine.members(1) == (0, 0, 0)
    for worker in range(2):
        bench.say(bench.hello(worker), address(worker))
    bench.gives(0, 0, (1,))
    assert [packet.words.tolist() for packet, _ in bench.gives(1, 0, (2,))] == [[3], [3]]


def test_counters_have_the_same_names_in_the_same_order_always(machine_type: MachineType) -> None:
    names = list(machine_type(PLENTY).counters())
    assert names[:12] == [
        "packets_in",
        "packets_out",
        "bytes_in",
        "bytes_out",
        "contributions",
        "passes",
        "duplicates",
        "answers",
        "receipts",
        "rounds",
        "notices",
        "unsent",
    ]
    assert all(name.startswith("dropped_") for name in names[12:])
    assert len(names) == 12 + 17
    bench = Bench(machine_type)
    assert list(bench.machine.counters()) == names
    last = [f"last_arrivals_{worker}" for worker in range(bench.spec.workers)]
    assert list(bench.machine.job_counters(1)) == names + last


def test_counters_add_up(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(words=8))
    before = bench.machine.job_counters(1)
    bench.gives(0, 0, (1,) * 8, codes=(1,))
    bench.gives(0, 0, (1,) * 8, codes=(1,))
    bench.passes(1, 0)
    bench.gives(0, 0, (1,) * 8, codes=(1,))
    grown = {
        name: count - before[name] for name, count in bench.machine.job_counters(1).items() if count != before[name]
    }
    full = bench.spec.packet_bytes
    assert grown == {
        "packets_in": 4,
        "bytes_in": 3 * full + 36,
        "packets_out": 3,
        "bytes_out": 3 * full,
        "contributions": 1,
        "passes": 1,
        "duplicates": 2,
        "answers": 1,
        "rounds": 1,
        "last_arrivals_1": 1,
    }


def test_what_nobody_fetches_is_bounded_in_number(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    probe = bench.packet(Kind.PROBE, 0, words=(1,)).to_bytes()
    for _ in range(SWITCH_QUEUE_DATAGRAMS + 10):
        bench.machine.receive_datagram(probe, 3, 0.0)
    assert bench.counter("unsent") == 10
    assert len(bench.machine.datagrams_to_send(0.0)) == SWITCH_QUEUE_DATAGRAMS
    assert len(bench.say(probe, 3)) == 1


def test_what_nobody_fetches_is_bounded_in_bytes(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    probe = bench.packet(Kind.PROBE, 0, words=[0] * 16_000).to_bytes()
    for _ in range(600):
        bench.machine.receive_datagram(probe, 3, 0.0)
    sent = bench.machine.datagrams_to_send(0.0)
    assert sum(len(data) for data, _ in sent) <= SWITCH_QUEUE_BYTES < (len(sent) + 1) * len(probe)
    assert bench.counter("unsent") == 600 - len(sent)
