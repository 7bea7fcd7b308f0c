"""Hosts with several network cards: all of them carry sums, and the loss of one is that of its host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fanin.emulation.network.fabric import Fabric
from fanin.emulation.network.placed_job import placed_job
from fanin.emulation.network.switch_place import SwitchPlace
from fanin.emulation.network.topology import CARD_NETWORKS, Topology
from fanin.emulation.network.traffic import Meters
from fanin.emulation.processes import WorkerFailedError
from tests.support.forks import fork_jobs
from tests.support.repository import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("namespaces")]
HOSTS = SwitchPlace.parse("hosts")


@pytest.mark.parametrize("ranks_per_host", [1, 2], ids=["", "through leaves"])
def test_every_card_carries_its_part(ranks_per_host: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fork_jobs(monkeypatch)
    topology = Topology(workers=2 * ranks_per_host, ranks_per_host=ranks_per_host, switch_at=HOSTS, cards=2)
    with Fabric(topology) as fabric:
        meters = Meters(fabric)
        with placed_job(fabric, "tests.network.cards_program", ["whole"], {"PYTHONPATH": str(ROOT)}) as job:
            ends = [report.record for report in job.reports()]
        sent = {name: sample.up_bytes for name, sample in meters.sample(0.0).items()}
        meters.close()
    assert [end["sums"] for end in ends] == [[sum(range(1, topology.workers + 1))]] * topology.workers
    for host in range(topology.hosts):
        first, second = (sent[f"{topology.host_name(host)}{card}"] for card in ("", ", eth1"))
        assert first + second > 4_000_000, "half of the words leave the host, and half of the results"
        assert 0.7 < second / first < 1.05, "gloo and the store have the first card"


@pytest.mark.parametrize("reaction", ["raise", "continue"])
def test_a_card_that_dies_is_named_or_all_go_on_without_its_network(
    reaction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts miss the shard at that card; its host misses all that the others have on that network."""
    fork_jobs(monkeypatch)
    environment = {"PYTHONPATH": str(ROOT), "FANIN_LIVENESS_TIMEOUT_S": "2", "FANIN_ON_WORKER_LOSS": reaction}
    topology = Topology(workers=3, switch_at=HOSTS, cards=2)
    ends: dict[int, dict[str, Any]] = {}
    ready = 0
    with Fabric(topology) as fabric:
        (cable,) = (each for each in fabric.cables if each.name == "worker 1, eth1")
        with placed_job(fabric, "tests.network.cards_program", ["cut"], environment) as job:
            for report in job.reports():
                if report.record["event"] == "end":
                    ends[report.rank] = report.record
                    continue
                ready += 1
                if ready == topology.workers:
                    fabric.cut(cable, down=True)
    assert sorted(ends) == [0, 1, 2]
    for end in ends.values():
        assert end["sums"] == [6.0], "no result lacks a rank that is there"
        if reaction == "continue":
            assert not end["error"]
            assert not any(topology.card_address(host, 1) in end["described"] for host in range(3))
        else:  # a rank that looks late may see first that one has ended which has raised
            assert any(each in end["error"] for each in (CARD_NETWORKS, "Connection closed by peer: rank "))
    if reaction == "raise":
        assert any(CARD_NETWORKS in end["error"] for end in ends.values())


def test_a_job_that_starts_without_a_card_uses_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """FANIN_INTERFACES excludes names, so ranks that are started anew take the cards that are left."""
    fork_jobs(monkeypatch)
    topology = Topology(workers=2, switch_at=HOSTS, cards=2)
    with Fabric(topology) as fabric:
        for cable in fabric.cables:
            fabric.cut(cable, down=cable.name.endswith("eth1"))
        environment = {"PYTHONPATH": str(ROOT)}
        monkeypatch.setattr(Topology, "rank_environment", _with_all_but(topology, "^docker"))
        with placed_job(fabric, "tests.network.cards_program", ["whole"], environment) as job:
            ends = [report.record for report in job.reports()]
    assert [end["sums"] for end in ends] == [[3.0]] * 2
    assert not any(CARD_NETWORKS in end["described"] for end in ends)


def _with_all_but(topology: Topology, text: str) -> Callable[[Topology, int], dict[str, str]]:
    told = {rank: topology.rank_environment(rank) | {"FANIN_INTERFACES": text} for rank in range(topology.workers)}
    return lambda _, rank: told[rank]


def test_a_card_that_is_not_there_is_every_ranks_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fork_jobs(monkeypatch)
    topology = Topology(workers=2, switch_at=HOSTS)
    environment = {"PYTHONPATH": str(ROOT), "FANIN_INTERFACES": "eth0,eth7"}
    with (
        Fabric(topology) as fabric,
        pytest.raises(WorkerFailedError, match=r"this machine has no interface eth7; those .* are eth0") as raised,
        placed_job(fabric, "tests.network.cards_program", ["whole"], environment) as job,
    ):
        list(job.reports())
    assert "`ip address` lists them" in str(raised.value)
