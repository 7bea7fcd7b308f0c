"""The controller in virtual time: who is admitted, who is refused and why, and when a job is forgotten."""

from __future__ import annotations

import random
import re

import pytest

from fanin.cli.stats import rings
from fanin.errors import ConfigurationError
from fanin.protocol import control
from fanin.protocol.control import JOIN_INTERVAL_S, JOIN_LEASE_S, Refusal
from fanin.protocol.events import WorkerJoined, WorkerLeft, WorkerSilent
from fanin.protocol.job import SUSPICION_TIMEOUT_S
from fanin.switch.controller.gate import Gate
from fanin.switch.controller.job_table import LINGER_S
from tests.support.controllers import FakeServer, World, join

STARTED = control.Started(job="j", processes=("laptop:1000", "laptop:1001"))


def test_ranks_wait_and_are_told_who_is_missing_until_the_last_one_asks() -> None:
    world = World()
    assert world.join(join(1, 3)) == control.Waiting(job="j", missing=(0, 2))
    assert world.join(join(0, 3)) == control.Waiting(job="j", missing=(2,))
    assert world.join(join(1, 3)) == control.Waiting(job="j", missing=(2,))
    world.join(join(2, 3))
    for rank in range(3):
        admitted = world.told[f"nonce-{rank}"][-1]
        assert isinstance(admitted, control.Admitted)
        assert (admitted.rank, admitted.workers, admitted.ports) == (rank, 3, (4919,))
        assert world.servers["udp"].specs[admitted.index].tokens[rank] == admitted.token


# R-JOB-4
def test_a_job_has_started_once_every_rank_is_on_the_data_path() -> None:
    world = World()
    admitted = world.admit(join(0), join(1))
    world.event(WorkerJoined(admitted.index, 1))
    assert world.join(join(1)) == world.told["nonce-1"][0]  # admitted still
    assert world.state_of("j") == ["starting"]
    world.event(WorkerJoined(admitted.index, 0))
    assert world.told["nonce-0"][-1] == world.told["nonce-1"][-1] == STARTED
    assert world.join(join(0)) == STARTED
    assert world.state_of("j") == ["running"]


def test_any_two_jobs_differ_in_index_generation_and_tokens() -> None:
    world = World()
    admitted = [world.admit(join(0, 1, job=f"job {number}", nonce=f"n{number}")) for number in range(20)]
    for field in ("index", "generation", "token"):
        assert len({getattr(one, field) for one in admitted}) == 20


def test_an_index_is_not_used_again_at_once() -> None:
    world = World()
    first = world.run(join(0, 1))
    world.event(WorkerLeft(first.index, 0))
    world.advance(LINGER_S)
    assert not world.servers["udp"].specs
    assert world.run(join(0, 1)).index == first.index + 1


def test_the_shape_is_the_minimum_of_what_the_workers_report_and_ask_for() -> None:
    world = World()
    loopback = world.admit(join(0), join(1))
    mixed = world.admit(join(0, job="mixed"), join(1, job="mixed", path_mtu=1500))
    assert mixed.words_per_packet < loopback.words_per_packet
    asked = world.admit(
        join(0, job="asked", words_per_packet=256, slots=9), join(1, job="asked", words_per_packet=64, checksum=True)
    )
    assert (asked.words_per_packet, asked.slots, asked.checksum) == (64, 9, True)
    cramped = world.admit(join(0, job="cramped"), join(1, job="cramped", receive_buffer_bytes=1 << 12))
    assert cramped.slots <= loopback.slots
    larger = world.admit(join(0, job="larger", words_per_packet=16_352, path_mtu=1500), join(1, job="larger"))
    assert larger.words_per_packet == mixed.words_per_packet


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"wire_version": 9}, Refusal.VERSION, "version 9"),
        ({"size": 33}, Refusal.TOO_MANY_WORKERS, "33 workers"),
        ({"size": 0}, Refusal.RANK, "rank 0 of 0"),
        ({"quorum": 3}, Refusal.QUORUM, "quorum 3 of 2"),
        ({"quorum": 0}, Refusal.QUORUM, "quorum 0"),
        ({"staleness": 1025}, Refusal.STALENESS, "1025"),
        ({"staleness": -1}, Refusal.STALENESS, "-1"),
        ({"scheme": "zmq"}, Refusal.SCHEME, "zmq"),
        ({"job": ""}, Refusal.MALFORMED, "name"),
        ({"job": "x" * 201}, Refusal.MALFORMED, "name"),
        ({"words_per_packet": 12}, Refusal.SHAPE, "12"),
        ({"slots": 0}, Refusal.SHAPE, "slots 0"),
        ({"path_mtu": 100}, Refusal.SHAPE, "100 bytes"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(changes: dict[str, object], code: Refusal, words: str) -> None:
    world = World()
    refused = world.refused(join(0, **{"size": 2, **changes}))  # type: ignore[arg-type]
    assert refused.code == code
    assert words in refused.reason
    assert world.controller.stats(0).refused == {code.value: 1}
    assert world.controller.live_jobs == 0


# R-JOB-2
def test_another_job_size_is_refused_and_both_sizes_and_the_opener_are_named() -> None:
    world = World()
    world.join(join(0, 3))
    refused = world.refused(join(1, 4))
    assert refused.code == Refusal.SIZE
    assert "4 workers" in refused.reason
    assert "3" in refused.reason
    assert "laptop:1000" in refused.reason


def test_ranks_that_disagree_on_quorum_staleness_or_scheme_are_refused() -> None:
    for changes in ({"quorum": 1}, {"staleness": 2}, {"scheme": "zmq"}):
        world = World(servers={"udp": FakeServer(), "zmq": FakeServer((5000,))})
        world.join(join(0))
        assert world.refused(join(1, **changes)).code == Refusal.DISAGREEMENT


def test_a_taken_rank_is_refused_whether_the_job_forms_or_runs() -> None:
    world = World()
    world.join(join(0))
    refused = world.refused(join(0, nonce="another"))
    assert refused.code == Refusal.RANK_TAKEN
    assert "laptop:1000" in refused.reason
    assert refused.ranks == (0,)
    world.run(join(0), join(1))
    refused = world.refused(join(1, nonce="another"))
    assert refused.code == Refusal.RANK_TAKEN
    assert "runs" in refused.reason


def test_a_job_that_does_not_form_in_time_is_forgotten_and_the_missing_ranks_named() -> None:
    world = World()
    for _ in range(8):
        world.join(join(0, 3, join_timeout_s=3))
        world.join(join(2, 3, join_timeout_s=60))
        world.advance(JOIN_INTERVAL_S)
    for rank in (0, 2):
        refused = next(reply for reply in world.told[f"nonce-{rank}"] if isinstance(reply, control.Refused))
        assert refused.code == Refusal.JOIN_TIMEOUT
        assert refused.ranks == (1,)


# R-MEMBER-8
@pytest.mark.parametrize("missing", [0, 1])
def test_a_controller_that_was_stopped_lets_ranks_renew_their_joins(missing: int) -> None:
    """This holds for a job that forms, and for one that starts."""
    world = World()
    for rank in range(2 - missing):
        world.join(join(rank, 2, join_timeout_s=10.0))
    world.advance(1.0)
    world.now += 20.0
    world.controller.handle_timer(world.now)
    world.advance(2.0)
    assert world.state_of("j") == (["forming"] if missing else ["starting"])
    world.advance(JOIN_LEASE_S)
    assert world.controller.live_jobs == 0, "silence after it counts"


# R-JOB-3
def test_a_waiting_rank_that_falls_silent_is_missing_again_and_its_place_is_free() -> None:
    world = World()
    world.join(join(0, 3))
    world.advance(JOIN_LEASE_S / 2)
    world.join(join(1, 3))
    world.advance(JOIN_LEASE_S / 2)
    assert world.join(join(2, 3)) == control.Waiting(job="j", missing=(0,))
    assert isinstance(world.join(join(0, 3, nonce="a new process")), control.Admitted)


def test_a_job_whose_waiting_ranks_all_leave_is_forgotten() -> None:
    world = World()
    world.join(join(0))
    assert world.say("nonce-0", control.Leave(job="j", rank=0, nonce="nonce-0")) == control.Left(job="j", rank=0)
    assert world.controller.live_jobs == 0
    assert isinstance(world.join(join(1, 7)), control.Waiting)


def test_nobody_can_leave_for_another() -> None:
    world = World()
    world.join(join(0))
    world.say("stranger", control.Leave(job="j", rank=0, nonce="guess"))
    assert world.controller.live_jobs == 1


# R-JOB-4
@pytest.mark.parametrize("how", ["leaves", "is silent on the control channel"])
def test_a_job_that_cannot_start_tells_the_others_which_rank_it_was(how: str) -> None:
    world = World()
    world.admit(join(0), join(1))
    if how == "leaves":
        world.say("nonce-1", control.Leave(job="j", rank=1, nonce="nonce-1", reason="no answer over UDP"))
    else:
        for _ in range(10):
            world.join(join(0))
            world.advance(JOIN_INTERVAL_S)
    refused = next(reply for reply in world.told["nonce-0"] if isinstance(reply, control.Refused))
    assert refused.code == Refusal.MEMBER_LOST
    assert refused.ranks == (1,)
    assert "rank 1 (laptop:1001)" in refused.reason
    world.advance(LINGER_S)
    assert not world.servers["udp"].specs


# R-JOB-4
def test_a_rank_that_never_reaches_the_data_path_does_not_hold_the_others_for_ever() -> None:
    world = World()
    admitted = world.admit(join(0, join_timeout_s=6), join(1, join_timeout_s=6))
    world.event(WorkerJoined(admitted.index, 0))
    for _ in range(13):
        world.join(join(0, join_timeout_s=6))
        world.join(join(1, join_timeout_s=6))
        world.advance(JOIN_INTERVAL_S)
    refused = next(reply for reply in world.told["nonce-0"] if isinstance(reply, control.Refused))
    assert refused.ranks == (1,)
    assert "data path" in refused.reason


def test_a_job_is_removed_once_all_its_members_have_left_or_are_lost() -> None:
    world = World()
    admitted = world.run(join(0, 3), join(1, 3), join(2, 3))
    world.event(WorkerSilent(admitted.index, 2, 5.0))
    world.event(WorkerLeft(admitted.index, 0))
    world.advance(100)
    assert world.state_of("j") == ["ending"]
    world.say("nonce-1", control.Leave(job="j", rank=1, nonce="nonce-1", reason="rank 2 was lost"))
    assert world.controller.live_jobs == 0
    assert world.servers["udp"].specs  # a repeated BYE still finds its echo
    world.advance(LINGER_S)
    assert not world.servers["udp"].specs


# R-JOB-5
def test_the_name_of_a_job_that_lost_a_member_is_free_for_its_successor() -> None:
    world = World()
    old = world.run(join(0), join(1))
    world.event(WorkerSilent(old.index, 1, 5.0))
    new = world.run(join(0, nonce="restarted 0"), join(1, nonce="restarted 1"))
    assert new.index != old.index
    assert world.state_of("j") == ["ending", "running"]


def test_a_successor_need_not_wait_for_the_events_of_a_job_whose_members_have_left() -> None:
    world = World()
    old = world.run(join(0), join(1))
    world.servers["udp"].masks[old.index] = (0b11, 0, 0b11)
    assert isinstance(world.join(join(0, nonce="successor")), control.Waiting)
    world.event(WorkerLeft(old.index, 0))  # which comes late
    assert world.state_of("j") == ["ended", "forming"]


def test_a_worker_can_ask_what_became_of_its_job() -> None:
    world = World()
    admitted = world.run(join(0), join(1))
    ask = control.Explain(job="j", generation=admitted.generation)
    world.event(WorkerSilent(admitted.index, 1, 5.0))
    for _ in ("while it ends", "when it has ended"):
        answer = world.say("asker", ask)
        assert isinstance(answer, control.Explanation)
        assert (answer.known, answer.lost) == (True, (1,))
        assert "rank 1 was silent for 5.0 s" in answer.text
        world.event(WorkerLeft(admitted.index, 0))
        world.advance(LINGER_S)
    answer = world.say("asker", control.Explain(job="j", generation=admitted.generation ^ 1))
    assert isinstance(answer, control.Explanation)
    assert not answer.known


def test_a_job_that_does_not_fit_is_refused_on_every_rank_with_needed_and_free_bytes() -> None:
    world = World(memory_bytes=1 << 20)
    big = {"slots": 200, "words_per_packet": 1024}
    assert isinstance(world.join(join(0, **big)), control.Waiting)
    refused = world.refused(join(1, **big))
    assert refused.code == Refusal.MEMORY
    assert world.told["nonce-0"][-1] == refused
    assert re.match("1,6[0-9]{2},[0-9]{3} bytes of switch memory needed, 1,048,576 free", refused.reason)
    assert isinstance(world.join(join(0, 1, slots=10, words_per_packet=1024)), control.Admitted)


def test_memory_of_an_ended_job_is_there_for_the_next_one_at_once() -> None:
    world = World(memory_bytes=1 << 20)
    shape = {"slots": 100, "words_per_packet": 1024}
    first = world.run(join(0, 1, **shape))
    assert world.refused(join(0, 1, job="second", nonce="n2", **shape)).code == Refusal.MEMORY
    world.event(WorkerLeft(first.index, 0))
    assert isinstance(world.join(join(0, 1, job="second", nonce="n2", **shape)), control.Admitted)


def test_an_ended_job_does_not_count_in_the_quota_of_the_next_one() -> None:
    world = World(memory_bytes=1 << 20, source_share=0.5)
    shape = {"slots": 50, "words_per_packet": 1024}
    first = world.run(join(0, 1, **shape))
    assert world.refused(join(0, 1, job="second", nonce="n2", **shape)).code == Refusal.QUOTA
    world.event(WorkerLeft(first.index, 0))
    assert isinstance(world.join(join(0, 1, job="second", nonce="n2", **shape)), control.Admitted)


@pytest.mark.parametrize("share", [1.0, 0.5], ids=["of the memory", "of an address's share"])
def test_rings_leave_half_for_the_slots_of_jobs_to_come(share: float) -> None:
    world = World(memory_bytes=int((1 << 20) / share), source_share=share)
    server = world.servers["udp"]
    server.rings = (500_000, 500_000)
    shape = {"slots": 4, "words_per_packet": 1024, "accumulators": None}
    jobs = [world.run(join(0, 1, job=f"job{each}", nonce=f"n{each}", **shape)).index for each in range(6)]
    specs = [server.specs[job] for job in jobs]
    assert server.sharing == {jobs[0]}
    assert [spec.accumulators for spec in specs] == [True, True, True, False, False, False]
    stats = world.say("tool", control.Ask())
    assert isinstance(stats, control.Stats)
    assert [job.ring_bytes for job in stats.jobs] == [500_000, 0, 0, 0, 0, 0]


def test_rings_in_shared_memory_count_as_the_jobs_memory() -> None:
    world = World(memory_bytes=1 << 20)
    world.servers["udp"].rings = (900_000, 900_000)
    first = world.run(join(0, 1, slots=10, words_per_packet=1024))
    stats = world.say("tool", control.Ask())
    assert isinstance(stats, control.Stats)
    assert stats.jobs[0].ring_bytes == 900_000
    assert stats.memory_used_bytes == stats.jobs[0].memory_bytes > 900_000
    assert "0.9 MiB of the switch's memory are rings" in rings(stats.jobs[0])
    more = {"job": "second", "nonce": "n2", "slots": 10, "words_per_packet": 1024}
    assert re.search(r"needed, [0-9]{2},[0-9]{3} free", world.refused(join(0, 1, **more)).reason)
    world.event(WorkerLeft(first.index, 0))
    assert isinstance(world.join(join(0, 1, **more)), control.Admitted)


def test_stats_tell_of_a_job_whose_rings_found_no_room() -> None:
    world = World()
    world.servers["udp"].rings = (0, 3 << 20)
    world.run(join(0, 1))
    stats = world.say("tool", control.Ask())
    assert isinstance(stats, control.Stats)
    assert "through sockets only" in rings(stats.jobs[0])
    assert "take 3.0 MiB" in rings(stats.jobs[0])


def test_a_data_plane_that_refuses_refuses_the_job() -> None:
    world = World(servers={"udp": FakeServer(jobs_max=0)})
    refused = world.refused(join(0, 1))
    assert refused.code == Refusal.MEMORY
    assert "the fake is full" in refused.reason
    assert world.controller.live_jobs == 0


def test_a_message_of_another_version_is_answered_with_a_refusal_that_names_it() -> None:
    reply = Gate(random.Random(1).getrandbits).enter(b"old", control.to_bytes(control.Ask(), version=9))
    assert isinstance(reply, control.Refused)
    assert reply.code == Refusal.VERSION
    assert "version 9" in reply.reason


def test_stats_show_jobs_members_memory_and_refusals() -> None:
    world = World()
    world.run(join(0, slots=4), join(1, slots=4))
    world.join(join(0, 3, job="forming", nonce="f"))
    world.now = 2.5
    stats = world.say("tool", control.Ask())
    assert isinstance(stats, control.Stats)
    running, forming = stats.jobs
    assert [member.state for member in running.members] == ["registered", "registered"]
    assert [member.state for member in forming.members] == ["waiting", "missing", "missing"]
    assert (running.state, forming.state, forming.index) == ("running", "forming", None)
    assert running.counters == {"rounds": 4}
    assert stats.memory_used_bytes == running.memory_bytes > 0
    assert stats.uptime_s == 2.5
    assert control.parse(control.to_bytes(stats)) == stats


def test_events_of_jobs_that_are_gone_are_ignored() -> None:
    world = World()
    for event in (WorkerJoined(5, 0), WorkerLeft(5, 0), WorkerSilent(5, 0, 5.0)):
        world.event(event)
    assert not world.told


# --- K and S while the job runs ---


def test_k_and_s_of_a_running_job_can_be_set_and_asked_for() -> None:
    world = World()
    admitted = world.run(*(join(rank, 3, quorum=2, staleness=1, max_staleness=4) for rank in range(3)))
    assert (admitted.staleness, admitted.max_staleness) == (1, 4)
    told = world.say("operator", control.Tune(job="j"))
    assert told == control.Tuned(job="j", quorum=2, staleness=1, max_staleness=4)
    told = world.say("operator", control.Tune(job="j", quorum=3, staleness=0))
    assert told == control.Tuned(job="j", quorum=3, staleness=0, max_staleness=4)
    assert world.servers["udp"].tuned == [("staleness", 0, 0), ("quorum", 0, 3)]
    (report,) = world.controller.stats(world.now).jobs
    assert (report.quorum, report.staleness, report.max_staleness) == (3, 0, 4)


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"quorum": 4}, Refusal.QUORUM, "1..3"),
        ({"quorum": 0}, Refusal.QUORUM, "1..3"),
        ({"staleness": 2}, Refusal.STALENESS, "at most 1"),
        ({"staleness": -1}, Refusal.STALENESS, "at most 1"),
        ({"job": "nobody's"}, Refusal.UNKNOWN_JOB, "nobody's"),
    ],
)
def test_what_a_job_cannot_be_tuned_to_is_refused_and_changes_nothing(
    changes: dict[str, object], code: Refusal, words: str
) -> None:
    world = World()
    world.run(*(join(rank, 3, max_staleness=1) for rank in range(3)))
    reply = world.say("operator", control.Tune(**{"job": "j", **changes}))  # type: ignore[arg-type]
    assert isinstance(reply, control.Refused)
    assert reply.code == code
    assert words in f"{reply.reason} {reply.remedy}"
    assert world.servers["udp"].tuned == []


def test_a_switch_that_cannot_change_s_has_not_changed_k_either(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.run(*(join(rank, 3, quorum=2, staleness=1, max_staleness=4) for rank in range(3)))

    def refused(job: int, staleness: int) -> None:
        raise ConfigurationError("this program's rings are as deep as staleness says: it cannot change")

    monkeypatch.setattr(world.servers["udp"], "set_staleness", refused)
    reply = world.say("operator", control.Tune(job="j", quorum=3, staleness=2))
    assert isinstance(reply, control.Refused)
    assert reply.code == Refusal.STALENESS
    assert world.servers["udp"].tuned == []
    assert world.say("operator", control.Tune(job="j")) == control.Tuned(
        job="j", quorum=2, staleness=1, max_staleness=4
    )


def test_a_job_that_still_forms_cannot_be_tuned() -> None:
    world = World()
    world.join(join(0))
    reply = world.say("operator", control.Tune(job="j", quorum=1))
    assert isinstance(reply, control.Refused)
    assert reply.code == Refusal.UNKNOWN_JOB


# --- jobs that go on without a rank ---


def surviving(world: World, size: int = 3) -> control.Admitted:
    return world.run(*(join(rank, size, on_worker_loss="continue") for rank in range(size)))


# R-JOB-7
def test_a_rank_that_is_lost_or_leaves_is_evicted_and_the_job_runs_on() -> None:
    world = World()
    admitted = surviving(world)
    assert admitted.on_worker_loss == "continue"
    assert world.servers["udp"].specs[0].survives_loss
    world.event(WorkerSilent(0, 1, 5.0))
    world.event(WorkerLeft(0, 2))
    assert world.servers["udp"].evicted == [(0, 1), (0, 2)]
    assert world.state_of("j") == ["running"]
    (report,) = world.controller.stats(world.now).jobs
    assert [member.state for member in report.members] == ["registered", "lost", "left"]
    world.event(WorkerLeft(0, 0))
    assert world.state_of("j") == ["ended"]


# R-JOB-8
def test_a_new_process_comes_into_a_free_place_and_no_other() -> None:
    world = World()
    surviving(world)
    assert world.refused(join(1, 3, nonce="new", on_worker_loss="continue")).code == Refusal.RANK_TAKEN
    world.event(WorkerSilent(0, 1, 5.0))
    newcomer = join(1, 3, nonce="new", process="spare:9", on_worker_loss="continue")
    told = world.join(newcomer)
    assert isinstance(told, control.Admitted)
    assert told.running
    assert world.servers["udp"].opened == [(0, 1, told.token)]
    assert world.join(newcomer) == told, "asking again changes nothing"
    world.event(WorkerJoined(0, 1))
    started = world.told["new"][-1]
    assert isinstance(started, control.Started)
    assert started.processes[1] == "spare:9"
    assert started not in world.told["nonce-0"], "the others hear of it on the data path"
    assert world.refused(join(1, 3, nonce="third", on_worker_loss="continue")).code == Refusal.RANK_TAKEN


# R-JOB-8
def test_a_newcomer_that_never_reaches_the_data_path_frees_its_place() -> None:
    world = World()
    surviving(world)
    world.event(WorkerSilent(0, 1, 5.0))
    world.join(join(1, 3, nonce="new", on_worker_loss="continue"))
    world.advance(10.0)
    assert world.servers["udp"].evicted == [(0, 1), (0, 1)]
    assert isinstance(world.join(join(1, 3, nonce="newer", on_worker_loss="continue")), control.Admitted)


def test_a_newcomer_whose_path_is_too_narrow_for_the_running_job_is_refused() -> None:
    world = World()
    surviving(world)
    world.event(WorkerSilent(0, 1, 5.0))
    refused = world.refused(join(1, 3, nonce="new", path_mtu=1500, on_worker_loss="continue"))
    assert refused.code == Refusal.SHAPE
    assert "1500" in refused.reason


def test_ranks_that_disagree_on_what_a_loss_means_are_refused() -> None:
    world = World()
    world.join(join(0, on_worker_loss="continue"))
    assert world.refused(join(1)).code == Refusal.DISAGREEMENT


# --- a rank that is refused ---


def test_those_who_wait_for_a_rank_that_is_refused_are_told_at_once_which_and_why() -> None:
    world = World()
    world.join(join(0, 3))
    world.join(join(2, 3))
    assert world.refused(join(1, 3, words_per_packet=12)).code == Refusal.SHAPE
    for waiting in ("nonce-0", "nonce-2"):
        told = world.told[waiting][-1]
        assert isinstance(told, control.Refused)
        assert (told.code, told.ranks) == (Refusal.MEMBER_LOST, (1,))
        assert "rank 1 (laptop:1001) was refused" in told.reason
        assert "words_per_packet" in told.remedy
    assert world.controller.live_jobs == 0


def test_a_rank_that_asks_after_another_was_refused_is_told_too_for_a_while() -> None:
    world = World()
    world.refused(join(1, 3, staleness=-1))
    assert world.refused(join(0, 3)).ranks == (1,)
    world.advance(5.0)
    assert world.join(join(0, 3)) == control.Waiting(job="j", missing=(1, 2))


def test_a_rank_that_was_refused_and_comes_back_right_is_welcome() -> None:
    world = World()
    world.refused(join(1, 2, staleness=-1))
    world.join(join(1, 2, nonce="right this time"))
    assert isinstance(world.join(join(0, 2)), control.Admitted)


# R-JOB-2
def test_a_second_process_that_wants_a_taken_rank_disturbs_nobody() -> None:
    world = World()
    world.join(join(0, 2))
    world.refused(join(0, 2, nonce="another"))
    assert isinstance(world.join(join(1, 2)), control.Admitted)


# R-JOB-10
def test_a_rank_that_hangs_up_is_suspected_and_one_that_has_gone_is_not() -> None:
    world = World()
    admitted = world.run(join(0, 3), join(1, 3), join(2, 3))
    world.event(WorkerLeft(admitted.index, 2))
    for rank in (1, 2):
        world.controller.hung_up(f"nonce-{rank}".encode(), world.now)
    world.controller.hung_up(b"a stranger", world.now)
    assert world.servers["udp"].suspected == [(admitted.index, 1)]


# R-JOB-3
def test_a_rank_that_hangs_up_while_a_job_forms_waits_no_more_unless_it_asks_again() -> None:
    world = World()
    for rank in range(2):
        world.join(join(rank, 3))
        world.controller.hung_up(f"nonce-{rank}".encode(), world.now)
    world.advance(SUSPICION_TIMEOUT_S - 0.1)
    assert world.join(join(0, 3)) == control.Waiting(job="j", missing=(2,))
    world.advance(0.2)
    assert world.join(join(0, 3)) == control.Waiting(job="j", missing=(1, 2))


def test_a_job_does_not_start_without_a_rank_that_hung_up_meanwhile() -> None:
    world = World()
    world.admit(join(0), join(1))
    world.controller.hung_up(b"nonce-1", world.now)
    world.advance(SUSPICION_TIMEOUT_S + 0.1)
    told = world.told["nonce-0"][-1]
    assert isinstance(told, control.Refused)
    assert told.ranks == (1,)
