"""Rates and findings from statistics (fanin/watching), and how `fanin top` finds switches and shows them."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from rich.console import Console

from fanin import running_switches
from fanin.cli import run
from fanin.cli.asking import addresses_of
from fanin.cli.stats import found_in, render
from fanin.cli.top import view
from fanin.cli.watch_tables import cells_of
from fanin.errors import FaninError, SwitchUnreachableError
from fanin.host.session import control, line
from fanin.host.session.path import start_hint
from fanin.options import Options, SwitchAddress
from fanin.protocol.control import Ask, JobReport, MemberReport, Spending, Stats
from fanin.watching.findings import KINDS, findings
from fanin.watching.rates import RankRates, TimeShares, rates, time_shares
from tests.support.processes import join_all, reduce_together, until
from tests.support.repository import ROOT
from tests.support.services import a_service, address_of

HERE = SwitchAddress("udp", "here", 1)
HEALTHY = {"transmissions": 1000, "lost_up": 0, "asked_again": 0, "marks": 0, "last": 250, "waited_us": 0}


def stats(uptime_s: float, *ranks: dict[str, int], generation: int = 1, **counters: int) -> Stats:
    """A switch with one job, whose ranks have these counters."""
    members = tuple(
        MemberReport(rank=rank, process=f"host{rank}:1", state="registered", counters=counts)
        for rank, counts in enumerate(ranks)
    )
    job = JobReport(
        name="job", state="running", index=0, generation=generation, scheme="udp", size=len(ranks), quorum=len(ranks),
        staleness=0, max_staleness=0, on_worker_loss="raise", slots=8, words_per_packet=64, flows=1, memory_bytes=0,
        ring_bytes=0, wanted_ring_bytes=0, age_s=uptime_s, members=members, counters={"rounds": 1000} | counters,
    )  # fmt: skip
    return Stats(
        software="0", wire_version=0, engine="", uptime_s=uptime_s, memory_bytes=0, memory_used_bytes=0, curve=False,
        data=(), jobs=(job,), refused={}, job_count=1,
    )  # fmt: skip


def with_rank(rank: int, **counts: int) -> Stats:
    """Four ranks after 10 s, one of which is not like the others."""
    return stats(10.0, *(HEALTHY | counts if each == rank else HEALTHY for each in range(4)))


def test_stats_names_what_it_finds_beside_a_switch_that_does_not_answer() -> None:
    answers: list[Stats | FaninError] = [FaninError("no switch answers"), with_rank(2, waited_us=3_000_000)]
    (line,) = found_in([HERE, HERE], answers)
    assert str(line).startswith("straggler: job: rank 2 ")


def named(answer: Stats) -> list[tuple[str, int | None]]:
    return [(each.kind, each.rank) for each in findings([None], [answer])]


@pytest.mark.parametrize(
    ("counts", "kind"),
    [
        ({"waited_us": 2_000_000}, "straggler"),
        ({"lost_up": 20, "waited_us": 2_000_000}, "lossy uplink"),
        ({"asked_again": 20, "waited_us": 2_000_000}, "lossy downlink"),
        ({"marks": 200, "waited_us": 2_000_000}, "clogged queue"),
        ({"turnaround_8192": 100, "waited_us": 2_000_000}, "clogged queue"),
    ],
)
def test_one_cause_is_named_for_a_rank(counts: dict[str, int], kind: str) -> None:
    there = {"turnaround_512": 100}
    ranks = [HEALTHY | there for _ in range(4)]
    ranks[2] = HEALTHY | (counts if "turnaround_8192" in counts else there | counts)
    assert named(stats(10.0, *ranks)) == [(kind, 2)]


@pytest.mark.parametrize("slow", [0, 2])
def test_a_shard_is_slow_that_keeps_one_rank_back_whose_window_its_queue_has_cut(slow: int) -> None:
    """Counters of a shard behind an eighth of the others' rate (fanin.benchmarks.planted_faults)."""
    sound = HEALTHY | {"turnaround_16384": 60, "turnaround_65536": 600, "waited_us": 150_000}
    waits = HEALTHY | {"turnaround_65536": 90, "turnaround_131072": 270, "turnaround_524288": 130, "waited_us": 250_000}
    cut = HEALTHY | {"turnaround_65536": 120, "turnaround_524288": 1400, "waited_us": 6_000_000}
    shards = [stats(12.0, *[sound] * 4) for _ in range(3)]
    shards[slow] = stats(12.0, waits, waits, cut, waits)
    (found,) = findings([None] * 3, shards)
    assert (found.kind, found.rank, found.switch) == ("slow shard", None, slow)
    assert "524 ms" in found.text


def test_a_rank_that_is_slow_at_every_shard_makes_none_of_them_slow() -> None:
    sound = HEALTHY | {"turnaround_65536": 600, "waited_us": 150_000}
    late = HEALTHY | {"turnaround_524288": 600, "waited_us": 6_000_000}
    shards = [stats(12.0, sound, sound, late, sound), stats(12.0, sound, sound, late, sound)]
    assert [(each.kind, each.rank) for each in findings([None] * 2, shards)] == [("clogged queue", 2)]
    few = late | {"turnaround_524288": 2}  # too few to tell: its turnaround is known at one shard alone
    shards[1] = stats(12.0, sound, sound, few, sound)
    assert "slow shard" not in [each.kind for each in findings([None] * 2, shards)]


def spent(age_us: int, **counted: int) -> Spending:
    """A rank's account, with nothing counted but what is given."""
    nothing = dict.fromkeys(("communicating_us", "quantizing_us", "sending_us", "decoding_us"), 0)
    return Spending(age_us=age_us, **(nothing | counted))


def test_shares_of_a_ranks_time_are_of_the_time_between_two_accounts_and_add_up() -> None:
    before = spent(1_000_000, communicating_us=900_000, quantizing_us=800_000)
    after = spent(
        3_000_000, communicating_us=1_900_000, quantizing_us=1_000_000, sending_us=100_000, decoding_us=100_000
    )
    shares = time_shares(before, after)
    assert shares is not None
    assert dataclasses.asdict(shares) == pytest.approx(
        {"compute": 0.5, "quantize": 0.1, "send": 0.05, "wait": 0.3, "decode": 0.05}
    )
    assert time_shares(after, after) is None
    assert time_shares(None, None) is None
    anew = time_shares(after, spent(1000, communicating_us=250))
    assert anew == TimeShares(compute=0.75, quantize=0.0, send=0.0, wait=0.25, decode=0.0)


def test_processor_time_of_many_threads_leaves_no_negative_wait() -> None:
    shares = time_shares(None, spent(1000, communicating_us=500, quantizing_us=900, sending_us=100))
    assert shares is not None
    assert dataclasses.asdict(shares) == pytest.approx(
        {"compute": 0.5, "quantize": 0.45, "send": 0.05, "wait": 0.0, "decode": 0.0}
    )


@pytest.mark.parametrize("native", [True, False], ids=["native", "twin"])
def test_ranks_with_the_native_engine_tell_the_switch_how_they_spend_their_time(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "SPENT_INTERVAL_S", 0.0)
    monkeypatch.setattr(line, "LOOK_INTERVAL_S", 0.0)
    shown = io.StringIO()
    given = Options(native=native, secret="a secret of the ranks")
    with a_service() as service, contextlib.ExitStack() as stack:
        sessions = join_all(address_of(service), "j", 2, given)
        for session in sessions:
            stack.callback(session.close)
        console = Console(file=shown, width=100)

        def told() -> bool:
            reduce_together(sessions)
            assert all(session.failure is None for session in sessions)
            credentials = sessions[0].credentials
            answer = control.ask(sessions[0].address, Ask(), timeout_s=5.0, credentials=credentials)
            assert isinstance(answer, Stats)
            console.print(render(answer, HERE))
            accounts = [member.spending for member in answer.jobs[0].members]
            assert native or accounts == [None, None]
            return not native or all(accounts)

        until(told)
    assert ("shares of time" in shown.getvalue()) == native
    assert len(re.findall(r"^\d +[\d.]+% +[\d.]+% ", shown.getvalue(), re.MULTILINE)) >= 2 * native


def test_a_network_that_loses_everywhere_is_no_ranks_fault() -> None:
    assert named(stats(10.0, *[HEALTHY | {"lost_up": 20} for _ in range(4)])) == []


def test_a_rank_on_the_switchs_machine_makes_no_other_ones_queue_look_clogged() -> None:
    near, far = {"turnaround_64": 100}, {"turnaround_1024": 100, "waited_us": 500_000}
    found = named(stats(10.0, HEALTHY | near, HEALTHY | far))
    assert ("clogged queue", 1) not in found


def test_a_job_of_one_and_a_job_without_counters_by_rank_have_no_findings() -> None:
    assert named(stats(10.0, HEALTHY | {"waited_us": 9_000_000})) == []
    assert named(stats(10.0, {}, {})) == []


def test_rates_are_of_the_time_between_snapshots() -> None:
    before = stats(10.0, HEALTHY, HEALTHY, rounds=1000)
    after = stats(12.0, HEALTHY, HEALTHY | {"waited_us": 500_000, "lost_up": 10, "transmissions": 1200}, rounds=3000)
    (job,) = rates(before, after)
    assert (job.seconds, job.rounds_per_s) == (2.0, 1000.0)
    assert (job.ranks[1].waited_share, job.ranks[1].lost_up_share) == (0.25, 0.05)
    assert job.ranks[0].waited_s == 0


@pytest.mark.parametrize(
    "before",
    [stats(100.0, HEALTHY, HEALTHY), stats(10.0, HEALTHY, HEALTHY, generation=2), None],
    ids=["restarted", "another job", "nothing"],
)
def test_what_began_anew_counts_from_its_beginning(before: Stats | None) -> None:
    (job,) = rates(before, stats(20.0, HEALTHY | {"waited_us": 10_000_000}, HEALTHY))
    assert (job.seconds, job.rounds) == (20.0, 1000)
    assert job.ranks[0].waited_share == 0.5


def test_counters_of_a_new_process_in_a_place_do_not_make_rates_negative() -> None:
    before, after = stats(10.0, HEALTHY, HEALTHY), stats(12.0, HEALTHY | {"transmissions": 10}, HEALTHY)
    assert rates(before, after)[0].ranks[0].lost_up_share == 0


def test_the_page_names_every_kind_of_finding() -> None:
    page = (ROOT / "docs/watching.md").read_text()
    assert [kind for kind in KINDS if f"\n| {kind} |" not in page] == []


def test_the_view_fits_a_terminal_and_says_what_holds_the_job_up() -> None:
    for width in (60, 80, 120):
        console = Console(width=width, file=io.StringIO())
        with console.capture() as captured:
            console.print(
                view([HERE], [FaninError("not asked before")], [with_rank(3, waited_us=5_000_000)]), soft_wrap=True
            )
        text = " ".join(captured.get().split())
        assert "straggler: job: rank 3 begins its sums later" in text
        assert "…" not in text


def test_a_switch_that_does_not_answer_is_shown_beside_those_that_do() -> None:
    answers: list[Any] = [FaninError("no answer"), with_rank(0)]
    console = Console(width=200, file=io.StringIO())
    with console.capture() as captured:
        console.print(view([HERE, HERE], answers, answers))
    assert "no answer" in captured.get()
    assert "nothing holds a job up" in captured.get()


# --- where switches are ---


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for this user's state."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return running_switches.folder()


def test_a_users_switches_are_found_while_they_run(state: Path) -> None:
    with running_switches.announced([HERE]):
        assert running_switches.found() == [HERE]
        assert addresses_of("", Options()) == (HERE,)
        assert state.stat().st_mode & 0o777 == 0o700
    assert running_switches.found() == []
    assert [str(each) for each in addresses_of("", Options())] == ["udp://127.0.0.1:4919"]


@pytest.mark.parametrize("command", ["stats", "top"])
def test_where_nothing_runs_the_commands_say_so(
    command: str, state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(address: SwitchAddress, **_: object) -> NoReturn:
        raise SwitchUnreachableError(str(address), "in other words")

    monkeypatch.setattr("fanin.host.session.control.ControlClient", refuse)
    monkeypatch.delenv("FANIN_SWITCH", raising=False)
    assert run([command]) == 1
    assert "no job of yours runs a switch on this machine" in capsys.readouterr().err
    assert run([command, str(HERE)]) == 1
    assert "in other words" in capsys.readouterr().err


def test_the_remedy_names_the_variable_only_where_it_has_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FANIN_SWITCH", raising=False)
    assert "or correct the address; `fanin doctor" in start_hint(HERE)
    monkeypatch.setenv("FANIN_SWITCH", f"{HERE},udp://10.0.0.1:4919")
    assert "or correct FANIN_SWITCH; `fanin doctor" in start_hint(HERE)


def test_files_of_processes_that_are_gone_and_of_others_count_for_nothing(state: Path) -> None:
    state.mkdir(parents=True, mode=0o700)
    (state / "4194999").write_text("udp://gone:1\n")
    (state / str(os.getpid())).write_text("nonsense\n")
    assert running_switches.found() == []
    assert not (state / "4194999").exists()
    (state / str(os.getpid())).write_text("udp://here:1\n")
    state.chmod(0o777)
    assert running_switches.found() == []


@pytest.mark.usefixtures("state")
def test_top_asks_the_switch_that_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    with a_service() as service, running_switches.announced([address_of(service)]):
        assert run(["top", "--once", "--json", "--interval", "0.1"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert [each["address"] for each in found["switches"]] == [str(address_of(service))]
        assert found["findings"] == []
        assert run(["top", "--once", "--interval", "0.1"]) == 0
        assert "no jobs" in capsys.readouterr().out


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        (["top"], "udp://"),
        (["top", "--json"], '{"switches"'),
        (["stats", "--watch"], "udp://"),
        (["stats", "--watch", "--json"], '{"software"'),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_every_view_is_shown_without_a_terminal_and_in_one_that_cannot_move_its_cursor(
    arguments: list[str], start: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(f"fanin.cli.{arguments[0]}.time", SimpleNamespace(sleep=wait))
    for terminal in ("", "1"):
        waits.clear()
        monkeypatch.setenv("TERM", "dumb")
        monkeypatch.setenv("FORCE_COLOR", terminal)
        with a_service() as service, running_switches.announced([address_of(service)]):
            assert run(arguments) == 0
        lines = capsys.readouterr().out.splitlines()
        assert sum(line.startswith(start) for line in lines) == (2 if arguments[0] == "top" else 3)


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.000256, "0.26"), (0.0655, "66"), (0.0996, "100"), (0.131, "131"), (4.2, "4,200")]
)
def test_turnarounds_are_written_in_digits(seconds: float, shown: str) -> None:
    rank = RankRates(rank=0, process="here:1", state="registered", counted=True, turnaround_s=seconds)
    assert f"< {shown} ms" in cells_of(rank)
