"""The parts of the simulator, one by one: time, links, pauses, scenarios, violations, captures, the command."""

from __future__ import annotations

import json
import math
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fanin.cli import app
from fanin.emulation.simulator.event_queue import EventQueue
from fanin.emulation.simulator.links import Link, Pipe
from fanin.emulation.simulator.scenario import Fault, JobPlan, Scenario, load, parse
from fanin.emulation.simulator.simulation import simulate
from fanin.emulation.simulator.strangers import Strangers
from fanin.emulation.simulator.violations import AgreementError, CrashError, ProgressError
from fanin.emulation.simulator.virtual_network import Network
from fanin.errors import ConfigurationError
from fanin.protocol.wire import OFFSET_GENERATION, Flag, Kind, Packet
from fanin.protocol.wire import parse as parse_packet
from fanin.switch.machine.switch_job import SwitchJob
from fanin.switch.machine.switch_machine import SwitchMachine

runner = CliRunner()


def test_what_is_due_at_once_happens_in_the_order_it_was_asked_for() -> None:
    queue, happened = EventQueue(), list[str]()
    queue.at(1.0, happened.append, "late")
    queue.at(0.5, happened.append, "first")
    queue.at(0.5, happened.append, "second")
    while queue.next_at() < 2.0:
        queue.step()
    assert happened == ["first", "second", "late"]
    assert (queue.now, queue.happened) == (1.0, 3)


def carried(link: Link, count: int = 1000, size: int = 100) -> list[tuple[float, bytes]]:
    pipe, dice = Pipe(), random.Random(5)
    return [arrival for number in range(count) for arrival in pipe.carry(bytes(size), number * 1.0, link, dice)]


def test_a_clean_link_delays_by_its_rate_and_its_length() -> None:
    assert carried(Link(delay_s=0.25, bytes_per_s=400.0), 2) == [(0.5, bytes(100)), (1.5, bytes(100))]


def test_packets_that_find_the_queue_full_are_lost() -> None:
    pipe, link = Pipe(), Link(bytes_per_s=100.0, queue_bytes=300)
    arrivals = [pipe.carry(bytes(100), 0.0, link, random.Random(0)) for _ in range(5)]
    assert [len(each) for each in arrivals] == [1, 1, 1, 0, 0]
    assert pipe.overflows == 2


@pytest.mark.parametrize(
    ("link", "low", "high"),
    [(Link(loss=0.2), 750, 850), (Link(duplicate=0.2), 1150, 1250), (Link(stray=0.2), 1150, 1250)],
    ids=["loss", "duplicate", "stray"],
)
def test_chances_are_what_they_are_said_to_be(link: Link, low: int, high: int) -> None:
    assert low < len(carried(link)) < high


def test_damage_changes_packets_and_reordering_delays_them() -> None:
    assert all(data != bytes(100) for _, data in carried(Link(corrupt=1.0)))
    late = [at - number for number, (at, _) in enumerate(carried(Link(reorder=1.0, reorder_s=0.5)))]
    assert 0.4 < max(late) < 0.51


def test_a_clogged_pipe_passes_on_what_its_queue_held() -> None:
    pipe, link = Pipe(), Link(delay_s=0.0, bytes_per_s=100.0, queue_bytes=250)
    pipe.clog(10.0)
    arrivals = [pipe.carry(bytes(100), 0.0, link, random.Random(0)) for _ in range(3)]
    assert arrivals == [[(11.0, bytes(100))], [(12.0, bytes(100))], []]


class Echo:
    """A machine that sends back what it gets, and counts how often it was shown the time."""

    def __init__(self, alarm_s: float | None = None) -> None:
        self.alarm_s = alarm_s
        self.rang: list[float] = []
        self._out: list[tuple[bytes, int]] = []

    def receive_datagram(self, data: bytes, source: int, now: float) -> None:
        self._out.append((data, source))

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, int]]:
        out, self._out = self._out, []
        return out

    def next_timer(self) -> float | None:
        return self.alarm_s

    def handle_timer(self, now: float) -> None:
        self.rang.append(now)
        self.alarm_s = None

    def next_event(self) -> None:
        return None

    def counters(self) -> dict[str, int]:
        return {}


def test_a_paused_machine_neither_receives_nor_sees_the_time_until_it_goes_on() -> None:
    queue = EventQueue()
    network = Network(queue, Link(delay_s=1.0), random.Random(0))
    machine, other = Echo(alarm_s=2.0), Echo()
    node = network.attach(1, machine, lambda: None)
    network.attach(2, other, lambda: None)
    network.pause(node)
    other.receive_datagram(b"hello", 1, 0.0)
    queue.at(0.0, network.speak, network._nodes[2])
    queue.at(5.0, network.resume, node)
    while queue.next_at() < 5.5:
        queue.step()
    assert machine.rang == [5.0]
    assert network.pipe(1, 2).free_at == pytest.approx(5.0)


# --- scenarios ---


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[[job]]\nworker = 3", "unknown field 'worker'"),
        ("[[job]]\nstaleness = 1\nchunks = 3\nslots = 2", "chunks must be slots"),
        ("[[job]]\nstaleness = 1\nelement = 'float32'", "element must be int32"),
        ("[[fault]]\nkind = 'flood'\nat_s = 1.0", "'flood'; expected one of"),
        ("[[fault]]\nkind = 'crash'\nat_s = 1.0", "rank is missing"),
        ("[[fault]]\nkind = 'crash'\nat_s = 1.0\nrank = 2", "no rank 2"),
        ("[[fault]]\nkind = 'quorum'\nat_s = 1.0\nvalue = 3", "3 of 2"),
        ("[link]\ncorrupt = 0.1\n[[job]]\nchecksum = false", "checksum"),
        ("[link]\nloss = 2.0", "must be in 0..1"),
        ("[[fault]]\nkind = 'cut'\nat_s = 1.0\nleaf = 0", "no leaf 0"),
        ("leaves = 1\n[[fault]]\nkind = 'crash'\nat_s = 1.0\nrank = 0\nleaf = 0", "that happens to no leaf"),
        ("[[job]]\ntree = true", "a tree needs leaves"),
        ("leaves = 1\n[[job]]\ntree = true\nstaleness = 1", "a tree is synchronous"),
        ("[[job]]\nworkers = 2\npolicy = 'hope'", "'hope'; must be one of"),
        ("job = 3", "scenario.jobs = 3; expected a list"),
        ("link = 5", "scenario.link = 5; expected a table"),
        ("[[job]]\nworkers = 'two'", "'two'; expected a whole number"),
        ("[[fault]]\nkind = 'pause'", "at_s"),
        ("link = ", "scenario 'unnamed'"),
    ],
)
def test_an_illegal_scenario_is_refused_with_the_reason(text: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        parse(text)


def test_a_scenario_that_is_not_there_is_an_error_that_names_those_that_are() -> None:
    with pytest.raises(ConfigurationError, match="calm"):
        load("storm")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load("storm.toml")


def test_strangers_do_not_forge_from_forgeries_or_damage_whose_generation_might_come_back() -> None:
    network = Network(EventQueue(), Link(), random.Random(1))
    strangers = Strangers(network, [1], random.Random(2))
    genuine = Packet(kind=Kind.CONTRIBUTION, job=0, worker=0, generation=0xABCD0123, flags=Flag.CHECKSUM).to_bytes()
    damaged = bytearray(genuine)
    damaged[OFFSET_GENERATION] ^= 1
    strangers.stepped(1, (bytes(damaged), 7), [])
    strangers.stepped(1, (genuine, 7), [])
    forged: list[bytes] = []

    class Switch(Echo):
        def receive_datagram(self, data: bytes, source: int, now: float) -> None:
            if source == 7:
                forged.append(data)
            strangers.stepped(1, (data, source), [])

    network.attach(1, Switch(), lambda: None)
    for _ in range(20):
        strangers.visit(0.1)
        while network.queue.next_at() < math.inf:
            network.queue.step()
    assert len(forged) > 100
    assert all(parse_packet(data).generation != 0xABCD0123 for data in forged)


def test_work_that_does_not_end_is_a_violation_that_says_who_waits() -> None:
    """A worker that never comes back: the bound on recovery is what notices."""
    gone = Fault(kind="crash", at_s=0.0005, rank=1, for_s=10.0)
    with pytest.raises(ProgressError, match="job 0 rank 0") as caught:
        simulate(Scenario(jobs=(JobPlan(steps=100, think_s=0.1),), faults=(gone,), recovery_s=0.01), 1, kind="python")
    assert caught.value.seed == 1
    assert 10.0 < caught.value.time_s <= 10.01


class Explodes(SwitchMachine):
    """A switch machine that cannot bear a contribution."""

    def _contribute(self, job: SwitchJob, packet: Packet, source: int, now: float) -> None:
        raise IndexError("too much")


def test_a_machine_that_raises_is_a_violation_too() -> None:
    with pytest.raises(CrashError, match="IndexError: too much") as caught:
        simulate(Scenario(), 3, kind="python", switch=Explodes)
    assert caught.value.seed == 3
    assert any("CONTRIBUTION" in line for line in caught.value.trace)


def test_a_violation_crosses_processes_with_all_its_facts() -> None:
    violation = AgreementError("no")
    violation.locate(7, 8, 9.0, ["a", "b"])
    copy = pickle.loads(pickle.dumps(violation))
    assert isinstance(copy, AgreementError)
    assert str(copy) == str(violation)
    assert "seed 7, event 8, 9.000000 s" in str(copy)


# --- the command ---


def test_the_command_runs_a_scenario_prints_events_and_captures_packets(tmp_path: Path) -> None:
    from scapy.all import rdpcap

    from fanin.scapy_layer import Fanin, recognize_by_magic

    capture = tmp_path / "run.pcap"
    asked = ["simulate", "--scenario", "calm", "--seed", "1", "--python", "--events", "--pcap", str(capture)]
    result = runner.invoke(app, asked)
    assert result.exit_code == 0, result.output
    assert "nothing was violated" in result.output
    recognize_by_magic()
    kinds = [packet[Fanin].kind for packet in rdpcap(str(capture)) if Fanin in packet]
    assert len(kinds) == sum(" > " in line for line in result.output.splitlines())
    assert result.output.count("CONTRIBUTION") > len(kinds) // 4


def test_the_command_searches_and_says_what_it_did() -> None:
    result = runner.invoke(app, ["simulate", "--python", "--search", "10", "--processes", "1"])
    assert result.exit_code == 0, result.output
    assert "10 schedules with python machines from seed 0 on" in result.output
    assert "nothing was violated" in result.output


def test_the_command_fails_when_a_schedule_does_and_prints_it_shortened(tmp_path: Path) -> None:
    scenario = tmp_path / "impossible.toml"
    scenario.write_text(
        'recovery_s = 0.001\n[[job]]\nthink_s = 0.1\n[[fault]]\nkind = "pause"\nat_s = 0.1\n', encoding="utf-8"
    )
    result = runner.invoke(
        app, ["simulate", "--python", "--scenario", str(scenario), "--search", "3", "--processes", "1"]
    )
    assert result.exit_code == 1
    assert "seed 0 fails" in result.output
    assert "0 of 1 faults are needed" in result.output
    assert "[[job]]" in result.output


def facts_of(*arguments: str, status: int = 0) -> dict[str, Any]:
    result = runner.invoke(app, ["simulate", "--json", *arguments])
    assert result.exit_code == status, result.output
    facts = json.loads(result.stdout)
    assert isinstance(facts, dict)
    return facts


def test_json_has_the_figures_of_a_run_and_of_a_search() -> None:
    run = facts_of("--python", "--scenario", "calm", "--seed", "4")
    report = simulate(load("calm"), 4, kind="python")
    assert run["scenario"] == "calm"
    assert (run["seed"], run["events"], run["recovery_s"]) == (4, report.events, report.recovery_s)
    searched = facts_of("--python", "--search", "3", "--processes", "1")
    assert (searched["schedules"], searched["first_seed"]) == (3, 0)
    assert "violation" not in searched


def test_json_has_what_is_violated_and_the_schedule_shortened(tmp_path: Path) -> None:
    scenario = tmp_path / "impossible.toml"
    scenario.write_text("recovery_s = 0.001\n[[job]]\nthink_s = 0.1\n", encoding="utf-8")
    given = ["--python", "--scenario", str(scenario)]
    assert facts_of(*given, "--seed", "9", status=1)["violation"]["kind"] == "progress"
    searched = facts_of(*given, "--search", "3", "--processes", "1", status=1)
    assert searched["violation"]["seed"] == 0
    assert parse(searched["shortened"]).recovery_s == 0.001


def test_json_and_events_do_not_mix() -> None:
    result = runner.invoke(app, ["simulate", "--json", "--events"])
    assert isinstance(result.exception, ConfigurationError)


def test_a_negative_count_is_refused() -> None:
    result = runner.invoke(app, ["simulate", "--search", "-1"])
    assert result.exit_code == 2
