"""How a job comes to be over two leaves: controllers of root and leaves in virtual time, over fake data planes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from fanin.protocol import control
from fanin.protocol.control import JOIN_LEASE_S, Refusal
from fanin.protocol.events import BranchNarrowed, WorkerLeft, WorkerSilent
from fanin.protocol.seal import OPEN
from fanin.switch.controller.data_plane import Limits
from fanin.switch.controller.leaf import LeafController
from tests.support.controllers import BUFFERS, EVERYBODY, PATH_MTU, FakeServer, Grove, join


def test_ranks_at_two_leaves_form_one_job() -> None:
    grove = Grove()
    assert grove.join(1, join(0, 4)) == control.Waiting(job="j", missing=(1, 2, 3))
    assert grove.join(0, join(1, 4)) == control.Waiting(job="j", missing=(2, 3))
    grove.join(0, join(2, 4))
    admitted = grove.join(1, join(3, 4))
    assert isinstance(admitted, control.Admitted)
    assert (admitted.ranks, admitted.total_workers, admitted.workers, admitted.ports) == ((0, 3), 4, 2, (5001,))
    (root_spec,) = grove.root_server.specs.values()
    assert (root_spec.workers, root_spec.total_workers, root_spec.branches) == (2, 4, True)
    for leaf, (ranks, branch) in enumerate((((1, 2), 1), ((0, 3), 0))):
        (spec,) = grove.servers[leaf].specs.values()
        route = grove.servers[leaf].routes[spec.job]
        assert (spec.workers, spec.total_workers, spec.slots) == (len(ranks), 4, root_spec.slots)
        assert spec.packet_bytes == root_spec.packet_bytes
        assert spec.packet_bytes + 48 <= PATH_MTU, "the way up is narrower than the ranks' own"
        assert (route.host, route.ports, route.worker) == ("10.0.0.1", (4919,), branch)
        assert route.token == root_spec.tokens[branch]
        assert (route.job, route.generation) == (root_spec.job, root_spec.generation)


def test_the_job_starts_once_every_leaf_is_on_the_data_path() -> None:
    grove = Grove()
    grove.running()
    for rank in range(4):
        started = grove.told[f"nonce-{rank}"][-1]
        assert isinstance(started, control.Started)
        assert started.processes == tuple(f"laptop:{1000 + each}" for each in range(4))
    (report,) = grove.root.stats(0.0).jobs
    assert (report.state, report.size, [member.state for member in report.members]) == (
        "running",
        4,
        ["registered"] * 4,
    )


def test_a_leaf_that_is_lost_is_named_to_who_asks_at_another() -> None:
    grove = Grove()
    grove.running()
    grove.root.handle_event(WorkerSilent(0, 0, 5.0), 1.0)
    (spec,) = grove.servers[0].specs.values()
    explanation = grove.say(0, control.Explain(job="j", generation=spec.generation), "asker")
    assert isinstance(explanation, control.Explanation)
    assert explanation.lost == (0, 3)
    assert "leaf switch udp://leaf1:4919" in explanation.text
    assert "ranks 0 and 3" in explanation.text


def test_a_rank_that_its_leaf_has_lost_is_named_to_who_asks_at_another() -> None:
    grove = Grove()
    grove.running()
    grove.leaves[1].handle_event(WorkerSilent(0, 1, 5.0), 1.0)
    grove.settle()
    (spec,) = grove.servers[0].specs.values()
    explanation = grove.say(0, control.Explain(job="j", generation=spec.generation), "asker")
    assert isinstance(explanation, control.Explanation)
    assert explanation.lost == (3,)
    assert "rank 3 (laptop:1003) is lost" in explanation.text


def test_a_leaf_that_reaches_its_parent_with_short_packets_alone_is_named_with_both_addresses() -> None:
    grove = Grove()
    grove.running()
    grove.leaves[1].handle_event(BranchNarrowed(0, 1448, 600), 1.0)
    grove.settle()
    (spec,) = grove.servers[1].specs.values()
    explanation = grove.say(1, control.Explain(job="j", generation=spec.generation), "asker")
    assert isinstance(explanation, control.Explanation)
    assert explanation.lost == (0, 3)
    assert "leaf, udp://leaf1:4919, says that it lacks a way to its parent, udp://root:4919" in explanation.text
    assert "packets of 1448 bytes have not passed for" in explanation.text
    assert "ones of 600 bytes do" in explanation.text


def test_ranks_at_a_leaf_whose_parent_is_silent_are_refused_with_its_address_before_they_lose_patience() -> None:
    grove = Grove()
    grove.cut.add(0)
    grove.leaves[0].receive(b"nonce-0", join(0, 4), grove.now, EVERYBODY)
    waited_s = 0.0
    while not grove.told["nonce-0"]:
        waited_s += 0.5
        assert waited_s < 5.0, "a worker's connect_timeout_s"
        grove.advance(0.5)
        grove.leaves[0].receive(b"nonce-0", join(0, 4), grove.now, EVERYBODY)
        grove.settle()
    (refused,) = grove.told["nonce-0"]
    assert isinstance(refused, control.Refused)
    assert refused.code == Refusal.PARENT.value
    assert "udp://root:4919" in refused.reason
    assert "udp://leaf0:4919" in refused.reason
    assert grove.leaves[0].stats(grove.now).parent is not None
    assert grove.leaves[0].live_jobs == 0


def test_a_parent_that_comes_a_little_later_is_waited_for_and_one_that_comes_back_is_taken() -> None:
    grove = Grove()
    for silence_s in (2.0, 8.0):
        grove.cut.add(0)
        for _ in range(int(silence_s)):
            grove.advance(1.0)
        grove.cut.clear()
        grove.advance(1.0)
        grove.advance(1.0)
        parent = grove.leaves[0].stats(grove.now).parent
        assert parent is not None
        assert parent.state == "answers"
        assert isinstance(grove.join(0, join(0, 4)), control.Waiting)


def test_a_leaf_that_slept_does_not_take_its_own_sleep_for_its_parents() -> None:
    grove = Grove()
    grove.advance(1.0)
    grove.leaves[0].handle_timer(grove.now + 60.0)
    assert grove.leaves[0].watch.state == "answers"


def test_a_leaf_is_nobodys_parent_not_even_its_own() -> None:
    """In a circle of any length each switch is a leaf that another asks for."""
    grove = Grove()
    child, parent = grove.leaves
    for asking, words in ((child, "is itself a leaf, of udp://root:4919"), (parent, "is its own parent")):
        attach = asking.watch.due(grove.now)
        assert attach is not None
        parent.receive(b"child", attach, grove.now, EVERYBODY)
        ((_, refused),) = parent.messages_to_send()
        assert isinstance(refused, control.Refused)
        assert words in refused.reason
        asking.receive_from_parent(refused, grove.now, OPEN.name)
        assert words in asking.watch.misled()
        assert asking.watch.objection(grove.now, grove.now) is not None


def test_a_parent_that_does_not_answer_is_the_answer() -> None:
    grove = Grove()
    grove.running()
    grove.cut.add(0)
    (spec,) = grove.servers[0].specs.values()
    grove.leaves[0].receive(b"asker", control.Explain(job="j", generation=spec.generation), grove.now, EVERYBODY)
    grove.settle()
    assert grove.told["asker"] == []
    grove.advance(0.8)
    (explanation,) = grove.told["asker"]
    assert isinstance(explanation, control.Explanation)
    assert "udp://root:4919, does not answer" in explanation.text


@pytest.mark.parametrize("placed", [False, True], ids=["forming", "starting"])
def test_a_leaf_that_is_restarted_while_its_ranks_wait_takes_them_on_or_they_are_told(placed: bool) -> None:
    """Found by the simulator: they asked through the new leaf, were answered through the old one, and so for ever."""
    grove = Grove()
    for rank, leaf in ((0, 1), (1, 0), (2, 0), (3, 1))[: 4 if placed else 3]:
        grove.join(leaf, join(rank, 4))
    limits = Limits(memory_bytes=1 << 28, liveness_timeout_s=5)
    bits = random.Random(2).getrandbits
    grove.servers[1] = FakeServer((5001,))
    grove.leaves[1] = LeafController(
        limits, grove.servers[1], grove._path(1), BUFFERS, random_bits=bits, started_s=0.0, engine="none"
    )
    reply = grove.join(1, join(0, 4))
    if not placed:
        assert reply == control.Waiting(job="j", missing=(3,))
        assert isinstance(grove.join(1, join(3, 4)), control.Admitted)
        return
    assert isinstance(reply, control.Refused)
    assert "leaf switch udp://leaf1:4919, with ranks 0 and 3, was restarted" in reply.reason
    assert isinstance(grove.told["nonce-1"][-1], control.Refused)
    assert grove.told["nonce-1"][-1].ranks == (0, 3)


def test_an_answer_that_a_parent_owed_when_it_was_cut_off_is_not_missed_from_the_next_question() -> None:
    """The question was lost with the connection: no answer to it will ever come."""
    grove = Grove()
    grove.running()
    (spec,) = grove.servers[0].specs.values()
    question = control.Explain(job="j", generation=spec.generation)
    grove.cut.add(0)
    grove.leaves[0].receive(b"early", question, grove.now, EVERYBODY)
    grove.settle()
    grove.advance(0.8)
    grove.cut.clear()
    grove.root.handle_event(WorkerSilent(0, 0, 5.0), grove.now)
    explanation = grove.say(0, question, "late")
    assert isinstance(explanation, control.Explanation)
    assert explanation.lost == (0, 3)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"staleness": 1}, Refusal.QUORUM),
        ({"quorum": 1}, Refusal.QUORUM),
        ({"on_worker_loss": "continue"}, Refusal.QUORUM),
        ({"words_per_packet": 12}, Refusal.SHAPE),
        ({"size": 3}, Refusal.SIZE),
    ],
)
def test_a_rank_that_is_refused_is_told_and_so_are_those_who_wait_at_another_leaf(
    changes: dict[str, object], code: Refusal
) -> None:
    grove = Grove()
    grove.join(0, join(0, 2))
    refused = grove.join(1, join(1, **{"size": 2, **changes}))  # type: ignore[arg-type]
    assert isinstance(refused, control.Refused)
    assert refused.code == code
    other = grove.told["nonce-0"][-1]
    assert isinstance(other, control.Refused)
    assert other.ranks == (1,)


def test_a_rank_that_asks_again_while_another_has_left_is_in_the_old_job_and_its_name_is_free() -> None:
    """Its data path is not open yet, so it may join again. The leaf must not take the reply for a job of its own."""
    grove = Grove()
    grove.running()
    (spec,) = grove.servers[0].specs.values()
    grove.leaves[0].handle_event(WorkerLeft(spec.job, 0), 1.0)
    assert isinstance(grove.join(0, join(2, 4)), control.Started)
    grove.say(0, control.Leave(job="j", rank=2, nonce="nonce-2"), "nonce-2")
    refused = grove.join(0, join(2, 4, nonce="another process"))
    assert isinstance(refused, control.Refused)
    assert "taken: laptop:1002 runs with it" in refused.reason, "the parent has not heard of the end, and says so"
    for branch in range(2):
        grove.root.handle_event(WorkerLeft(0, branch), 2.0)
    assert isinstance(grove.join(0, join(2, 4, nonce="another process")), control.Waiting)


def test_a_start_of_a_part_that_is_gone_starts_nothing() -> None:
    """The parent, of which the leaf has not taken leave yet, answers who asked for the job that was."""
    grove = Grove()
    grove.running()
    (spec,) = grove.servers[0].specs.values()
    for worker in range(2):
        grove.leaves[0].handle_event(WorkerLeft(spec.job, worker), 1.0)
    grove.advance(10.0)
    assert not grove.servers[0].specs
    grove.join(0, join(2, 4))
    assert grove.leaves[0].live_jobs == 1
    grove.advance(JOIN_LEASE_S)
    assert grove.leaves[0].live_jobs == 0


def test_direct_ranks_and_ranks_at_leaves_do_not_mix() -> None:
    grove = Grove()
    grove.join(0, join(0, 2))
    grove.root.receive(b"direct", join(1, 2, nonce="direct"), 0.0, EVERYBODY)
    grove.settle()
    refused = grove.told["direct"][-1]
    assert isinstance(refused, control.Refused)
    assert refused.code == Refusal.DISAGREEMENT


def test_a_leaf_with_another_number_of_flows_refuses_and_everybody_is_told() -> None:
    grove = Grove(root_flows=2)
    grove.join(0, join(0, 2))
    grove.join(1, join(1, 2))
    for rank in range(2):
        refused = grove.told[f"nonce-{rank}"][-1]
        assert isinstance(refused, control.Refused)
        assert "flows" in refused.reason


def test_a_rank_taken_twice_is_refused_whichever_leaf_it_comes_from() -> None:
    grove = Grove()
    grove.join(0, join(0, 2))
    for leaf in range(2):
        refused = grove.join(leaf, join(0, 2, nonce=f"another {leaf}"))
        assert isinstance(refused, control.Refused)
        assert refused.code == Refusal.RANK_TAKEN


def test_missing_ranks_are_named_when_the_time_is_over() -> None:
    grove = Grove()
    grove.join(0, join(0, 3, join_timeout_s=3.0))
    grove.advance(3.0)
    refused = grove.told["nonce-0"][-1]
    assert isinstance(refused, control.Refused)
    assert (refused.code, refused.ranks) == (Refusal.JOIN_TIMEOUT, (1, 2))


def test_memory_is_free_again_once_all_have_left() -> None:
    grove = Grove()
    grove.running()
    for leaf in grove.leaves:
        for worker in range(2):
            leaf.handle_event(WorkerLeft(0, worker), grove.now)
    for branch in range(2):
        grove.root.handle_event(WorkerLeft(0, branch), grove.now)
    grove.advance(2.0)
    assert [server.specs for server in (grove.root_server, *grove.servers)] == [{}, {}, {}]
    assert (grove.root.live_jobs, [leaf.live_jobs for leaf in grove.leaves]) == (0, [0, 0])


def test_in_a_tree_a_rank_is_suspected_by_its_leaf_and_a_leaf_by_the_root() -> None:
    grove = Grove()
    grove.running()
    (part,), (whole,) = grove.servers[0].specs.values(), grove.root_server.specs.values()
    grove.leaves[0].hung_up(b"nonce-2", grove.now)
    assert grove.servers[0].suspected == [(part.job, 1)]
    grove.root.hung_up(b"0", grove.now)
    assert grove.root_server.suspected == [(whole.job, 1)]


def test_a_root_that_hung_up_is_suspected_by_its_leaf() -> None:
    grove = Grove()
    grove.running()
    (part,) = grove.servers[0].specs.values()
    grove.leaves[0].parent_hung_up()
    assert (grove.servers[0].suspected_parents, grove.servers[1].suspected_parents) == ([part.job], [])


def test_a_root_that_was_restarted_is_named_by_the_leaf_that_still_knows_the_job() -> None:
    grove = Grove()
    grove.running()
    (spec,) = grove.servers[0].specs.values()
    forgotten = control.Explanation(known=False, text="this switch never had that job", generation=0)
    grove.cut.add(0)
    grove.leaves[0].receive(b"asker", control.Explain(job="j", generation=spec.generation), grove.now, EVERYBODY)
    ((_, question),) = [each for each in grove.leaves[0].messages_to_parent() if isinstance(each[1], control.Explain)]
    assert isinstance(question, control.Explain)
    grove.leaves[0].receive_from_parent(replace(forgotten, generation=question.generation), grove.now, OPEN.name)
    ((_, explanation),) = grove.leaves[0].messages_to_send()
    assert isinstance(explanation, control.Explanation)
    assert explanation.known
    assert "the parent switch, udp://root:4919, does not know the job any more: it was restarted" in explanation.text


def test_who_gives_up_because_others_are_lost_is_not_named_among_them() -> None:
    """A survivor that was told, and has closed its session, was once named to the next one that asked."""
    grove = Grove()
    grove.running()
    grove.root.handle_event(WorkerSilent(0, 0, 5.0), grove.now)
    (spec,) = grove.servers[0].specs.values()
    why = "ranks 0 and 3 are lost"
    grove.say(0, control.Leave(job="j", rank=1, nonce="nonce-1", reason=why), "nonce-1")
    grove.leaves[0].hung_up(b"nonce-1", grove.now)
    assert grove.servers[0].suspected == [], "nobody misses it"
    grove.leaves[0].handle_event(WorkerSilent(spec.job, 0, 0.7), grove.now)
    explanation = grove.say(0, control.Explain(job="j", generation=spec.generation), "asker")
    assert isinstance(explanation, control.Explanation)
    assert (explanation.lost, explanation.left) == ((0, 3), (1,))


def test_ranks_that_are_lost_at_two_leaves_are_all_named() -> None:
    grove = Grove()
    grove.running()
    for leaf in range(2):
        (part,) = grove.servers[leaf].specs.values()
        grove.leaves[leaf].handle_event(WorkerSilent(part.job, 1, 0.7), grove.now)
        grove.settle()
    (spec,) = grove.servers[0].specs.values()
    explanation = grove.say(0, control.Explain(job="j", generation=spec.generation), "asker")
    assert isinstance(explanation, control.Explanation)
    assert explanation.lost == (2, 3)


def test_who_gives_up_for_a_reason_of_its_own_is_missed_at_once_and_quoted() -> None:
    """It calls another collective than the others, say, and may live on: they would wait for it."""
    grove = Grove()
    grove.running()
    (spec,) = grove.servers[0].specs.values()
    worker = 0  # the leaf has ranks 1 and 2
    grove.say(0, control.Leave(job="j", rank=1, nonce="nonce-1", reason="they differ", own=True), "nonce-1")
    assert grove.servers[0].suspected == [(spec.job, worker)]
    assert grove.root_server.suspected == [], "the other rank of that leaf is there"
    explanation = grove.say(0, control.Explain(job="j", generation=spec.generation), "asker")
    assert isinstance(explanation, control.Explanation)
    assert explanation.gave_up.startswith("rank 1 (")
    assert explanation.gave_up.endswith("gave up: they differ")
