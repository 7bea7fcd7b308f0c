"""Hosts with two network cards of which one dies: with fallback="cards" the job goes on over the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fanin.emulation.network.fabric import Cable, Fabric
from fanin.emulation.network.placed_job import placed_job
from fanin.emulation.network.switch_place import SwitchPlace
from fanin.emulation.network.topology import CARD_NETWORKS, Topology
from tests.support.forks import fork_jobs
from tests.support.repository import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("namespaces")]
HOSTS = SwitchPlace.parse("hosts")
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "FANIN_LIVENESS_TIMEOUT_S": "2", "FANIN_FALLBACK": "cards"}
WORKERS = 3
STEPS_BEFORE = 3
FLAPS = 6


def cables(fabric: Fabric, cards: tuple[int, ...]) -> list[Cable]:
    """The cables of host 1's cards."""
    name = fabric.topology.host_name(1)
    found = {each.name: each for each in fabric.cables}
    return [found[f"{name}, eth{card}" if card else name] for card in cards]


def ends_of(
    cut: tuple[int, ...], over: Path, monkeypatch: pytest.MonkeyPatch, *, ranks_per_host: int = 1, flaps: bool = False
) -> dict[int, dict[str, Any]]:
    """The last words of ranks when these cards of host 1 were cut off once all had done some steps.

    Cards that flap are cut off and back again after each of some steps, and only then ranks see the file `over`.
    """
    fork_jobs(monkeypatch)
    workers = WORKERS * ranks_per_host
    topology = Topology(workers=workers, ranks_per_host=ranks_per_host, switch_at=HOSTS, cards=2)
    ends: dict[int, dict[str, Any]] = {}
    done, cuts = [0] * workers, 0
    with (
        Fabric(topology) as fabric,
        placed_job(fabric, "tests.network.lost_card_program", [str(over)], ENVIRONMENT) as job,
    ):
        for report in job.reports():
            if report.record["event"] == "end":
                ends[report.rank] = report.record
                continue
            done[report.rank] += 1
            if min(done) == done[report.rank] >= STEPS_BEFORE and cuts < (FLAPS if flaps else 1):
                cuts += 1
                for cable in cables(fabric, cut):
                    fabric.cut(cable, down=True)
                    if flaps:
                        fabric.cut(cable, down=False)
                if flaps and cuts == FLAPS:
                    over.touch()
    assert sorted(ends) == list(range(workers))
    return ends


def expect_equal_sums(ends: dict[int, dict[str, Any]]) -> None:
    """Expect every rank to have done as many steps, with the same right sums, and no error."""
    assert not [end["error"] for end in ends.values() if end["error"]]
    assert not [end["wrong"] for end in ends.values() if end["wrong"]]
    assert len({(end["steps"], end["digest"]) for end in ends.values()}) == 1


@pytest.mark.parametrize("ranks_per_host", [1, 2], ids=["", "through leaves"])
def test_a_card_that_dies_is_left_by_all_and_no_sum_is_lost(
    ranks_per_host: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = ends_of((1,), tmp_path / "over", monkeypatch, ranks_per_host=ranks_per_host)
    expect_equal_sums(ends)
    for rank, end in ends.items():
        assert CARD_NETWORKS not in end["described"]
        (warning,) = [text for text in end["warnings"] if "goes on without network card" in text]
        assert f"rank {rank} goes on without network card eth1 ({CARD_NETWORKS}" in warning
        assert "Remedy: look at that card" in warning
        if rank // ranks_per_host != 1:
            lost = ", ".join(map(str, range(ranks_per_host, 2 * ranks_per_host)))
            assert f"{lost} cannot be reached through it" in warning


def test_the_card_of_gloo_and_the_store_may_die_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = ends_of((0,), tmp_path / "over", monkeypatch)
    expect_equal_sums(ends)


def test_a_card_that_flaps_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    over = tmp_path / "over"
    ends = ends_of((1,), over, monkeypatch, flaps=True)
    assert over.exists(), "ranks have gone on through all of it"
    for end in ends.values():
        assert (end["error"], end["wrong"]) == ("", [])
        assert CARD_NETWORKS in end["described"]
        assert not [text for text in end["warnings"] if "goes on without" in text]
    assert len({end["digest"] for end in ends.values()}) == 1


def test_both_cards_of_a_host_end_the_job_and_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = ends_of((0, 1), tmp_path / "over", monkeypatch)
    assert not [end["wrong"] for end in ends.values() if end["wrong"]]
    for rank in (0, 2):
        assert ends[rank]["error"].startswith("WorkerLostError: ")
        assert "rank 1" in ends[rank]["error"]
    assert ends[1]["error"].startswith(("WorkerLostError: ", "SwitchLostError: "))
