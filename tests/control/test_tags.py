"""Jobs that tag their packets: the decision, and that switches, leaves and tools keep and report it."""

from __future__ import annotations

import contextlib
import dataclasses
import io
from functools import partial
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fanin.cli.stats import render
from fanin.errors import ConfigurationError
from fanin.host.session import joining
from fanin.host.session.control import ask
from fanin.host.session.joining import JoinTerms, spec_of, tags_taken
from fanin.host.session.session import Session
from fanin.key_file import operator_credentials
from fanin.options import Options, SwitchAddress
from fanin.protocol import control
from fanin.protocol.control import Refusal
from fanin.protocol.events import WorkerJoined, WorkerSilent
from fanin.protocol.seal import OPEN, Credentials
from fanin.protocol.tag_algorithm import GCM_SIV, SIPHASH, TAG_ALGORITHMS, TagAlgorithm
from fanin.switch.controller.gate import Caller
from tests.support.controllers import EVERYBODY, Grove, World, join
from tests.support.processes import (
    DEADLINE_S,
    Mode,
    SwitchProcess,
    a_switch,
    in_thread,
    join_all,
    options,
    reduction,
)

BOTH = TAG_ALGORITHMS
SECRET = "a secret of sixteen characters"


# --- who decides ---


def tagging_world(computed: tuple[TagAlgorithm, ...]) -> World:
    """A switch that computes these algorithms."""
    world = World()
    plane = world.controller._direct._planes["udp"]
    world.controller._direct._planes = {"udp": dataclasses.replace(plane, tags=computed)}
    return world


@pytest.mark.parametrize(
    ("changes", "tagged"),
    [
        ([{}, {}], False),
        ([{"exposed": True}, {}], True),
        ([{"authenticate": True}] * 2, True),
        ([{"authenticate": False, "exposed": True}] * 2, False),
        ([{"exposed": True, "tags": ()}, {}], False),
    ],
)
def test_packets_are_tagged_where_they_leave_a_machine_or_all_ranks_ask_for_it(
    changes: list[dict[str, object]], tagged: bool
) -> None:
    world = World()
    admitted = world.admit(*(join(rank, 2, **each) for rank, each in enumerate(changes)))
    (spec,) = world.servers["udp"].specs.values()
    assert admitted.authenticate == tagged == bool(spec.data_key)
    worker = spec_of(admitted, Credentials(EVERYBODY.control_key))
    assert worker.data_key == spec.data_key
    assert (worker.data_key == spec_of(admitted, Credentials(bytes(31) + b"x")).data_key) == (not tagged)
    [report] = world.controller.stats(0).jobs
    assert report.authenticated == tagged


def test_ranks_that_disagree_are_refused_and_the_rank_is_named() -> None:
    world = World()
    world.join(join(0, authenticate=True))
    refused = world.refused(join(1))
    assert refused.code == Refusal.DISAGREEMENT
    assert "rank 1 asks for authenticate None" in refused.reason


@pytest.mark.parametrize(
    ("taken", "computed", "algorithm"),
    [
        ([BOTH, BOTH], BOTH, GCM_SIV),
        ([BOTH, (SIPHASH,)], BOTH, SIPHASH),
        ([BOTH, BOTH], (SIPHASH,), SIPHASH),
        ([("of a later version", *BOTH), BOTH], BOTH, GCM_SIV),
        ([(SIPHASH,), (SIPHASH,)], BOTH, SIPHASH),
    ],
)
def test_the_algorithm_is_one_that_all_ranks_and_the_switch_compute(
    taken: list[tuple[str, ...]], computed: tuple[TagAlgorithm, ...], algorithm: TagAlgorithm
) -> None:
    world = tagging_world(computed)
    admitted = world.admit(*(join(rank, authenticate=True, tags=tags) for rank, tags in enumerate(taken)))
    [spec] = world.servers["udp"].specs.values()
    assert admitted.tag_algorithm == spec.tag == algorithm
    worker = spec_of(admitted, Credentials(EVERYBODY.control_key))
    assert (worker.tag, worker.data_key) == (algorithm, spec.data_key)
    [report] = world.controller.stats(0).jobs
    assert report.tag_algorithm == algorithm


@pytest.mark.parametrize("changes", [{"authenticate": True}, {"exposed": True}], ids=str)
def test_ranks_that_take_no_algorithm_in_common_are_refused_and_never_untagged(changes: dict[str, Any]) -> None:
    world = tagging_world(BOTH)
    world.join(join(0, tags=(SIPHASH,), **changes))
    refused = world.refused(join(1, tags=(GCM_SIV,), **changes))
    assert refused.code == Refusal.DISAGREEMENT
    assert "rank 0 siphash, rank 1 gcm-siv" in refused.reason
    assert "FANIN_TAG" in refused.remedy


def test_a_switch_that_does_not_compute_the_only_algorithm_of_a_rank_refuses_it() -> None:
    refused = tagging_world((SIPHASH,)).refused(join(0, tags=(GCM_SIV,)))
    assert "rank 0 takes keyed tags by gcm-siv; this switch computes siphash" in refused.reason
    assert "FANIN_TAG" in refused.remedy


def test_a_newcomer_that_cannot_compute_a_running_job_s_tags_is_refused_by_name() -> None:
    world = tagging_world(BOTH)
    ranks = [join(rank, authenticate=True, tags=BOTH, on_worker_loss="continue") for rank in range(2)]
    world.admit(*ranks)
    [spec] = world.servers["udp"].specs.values()
    for rank in range(2):
        world.event(WorkerJoined(spec.job, rank))
    world.event(WorkerSilent(spec.job, 1, 5.0))
    refused = world.refused(dataclasses.replace(ranks[1], nonce="new", tags=(SIPHASH,)))
    assert "those of the running job are by gcm-siv" in refused.reason


def test_a_rank_that_was_given_an_algorithm_takes_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tags_taken(Options(tag="siphash")) == ("siphash",)
    assert tags_taken(Options(native=False)) == ("siphash",)
    monkeypatch.setattr(joining, "tag_algorithms", lambda _: (SIPHASH,))
    with pytest.raises(ConfigurationError, match="FANIN_TAG"):
        tags_taken(Options(tag="gcm-siv"))
    with pytest.raises(ConfigurationError, match="tag = 'md5'"):
        Options(tag="md5")  # type: ignore[arg-type]


def test_a_tag_stands_in_the_checksum_s_place() -> None:
    world = World()
    assert not world.admit(*(join(rank, authenticate=True, checksum=True) for rank in range(2))).checksum


def test_without_a_secret_there_is_nothing_to_tag_with() -> None:
    world = World()
    anybody = Caller(key=OPEN.name, control_key=OPEN.key)
    refused = world.say("a", join(0, authenticate=True), anybody)
    assert isinstance(refused, control.Refused)
    assert (refused.code, "FANIN_SECRET" in refused.remedy) == (Refusal.KEY, True)
    for rank in range(2):
        world.say(f"{rank}", join(rank, exposed=True), anybody)
    assert [bool(spec.data_key) for spec in world.servers["udp"].specs.values()] == [False]
    with pytest.raises(ConfigurationError, match="FANIN_SECRET"):
        Session.join(
            JoinTerms(
                options=Options(authenticate=True),
                switch=SwitchAddress("udp", "127.0.0.1", 1),
                job_name="j",
                rank=0,
                size=1,
            )
        )


def test_a_data_plane_that_cannot_refuses_who_insists_and_serves_the_others() -> None:
    world = tagging_world(())
    assert "pipeline" in world.refused(join(0, authenticate=True)).reason
    assert not world.admit(join(0, exposed=True), join(1, exposed=True)).authenticate


@pytest.mark.parametrize("exposed", [False, True])
def test_each_hop_of_a_tree_is_tagged_where_it_needs_to_be(exposed: bool) -> None:
    grove = Grove()
    for leaf in grove.leaves:
        leaf.parent = dataclasses.replace(leaf.parent, exposed=exposed)
    grove.running()
    (root,) = grove.root_server.specs.values()
    assert bool(root.data_key) == exposed
    for server in grove.servers:
        (spec,) = server.specs.values()
        assert not spec.data_key, "ranks on their leaf's machine"
        assert server.routes[spec.job].data_key == root.data_key


def test_a_job_that_insists_is_tagged_on_every_hop_under_different_keys() -> None:
    grove = Grove()
    for rank, leaf in ((0, 1), (1, 0), (2, 0), (3, 1)):
        grove.join(leaf, join(rank, 4, authenticate=True))
    keys = [spec.data_key for server in (grove.root_server, *grove.servers) for spec in server.specs.values()]
    assert len(set(keys)) == 3
    assert all(keys)


# --- over real switches ---


def sums(sessions: list[Session]) -> list[bytes]:
    made = [
        reduction(np.random.default_rng(rank).normal(size=5000).astype(np.float32)) for rank in range(len(sessions))
    ]
    tickets = [session.submit(each) for session, (each, _) in zip(sessions, made, strict=True)]
    for session, ticket in zip(sessions, tickets, strict=True):
        session.wait(ticket, DEADLINE_S)
    return [result.tobytes() for _, result in made]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("mode", "tag"),
    [("native-udp", None), ("native-udp", SIPHASH), ("native-shared-memory", None), ("twin-udp", None),
     ("native-zmq", None)],
)  # fmt: skip
def test_every_software_switch_sums_tagged_packets_and_says_that_it_does(mode: Mode, tag: TagAlgorithm | None) -> None:
    named = f"keyed tags ({tags_taken(options(mode, tag=tag))[0]})"
    with a_switch(mode, "--flows", "2") as switch, contextlib.ExitStack() as stack:
        found: list[list[bytes]] = []
        for authenticate in (False, True):
            given = options(mode, authenticate=authenticate, secret=SECRET, tag=tag)
            sessions = join_all(switch.address, f"tags {authenticate}", 3, given)
            for session in sessions:
                stack.callback(session.close)
            found.append(sums(sessions))
            assert all((named in session.description) == authenticate for session in sessions)
        assert len({*found[0], *found[1]}) == 1
        answer = ask(
            switch.address, control.Ask(), credentials=operator_credentials(None) or OPEN, timeout_s=DEADLINE_S
        )
        assert isinstance(answer, control.Stats)
        assert {job.name: job.authenticated for job in answer.jobs} == {"tags False": False, "tags True": True}
        assert sum(job.counters["dropped_tag"] for job in answer.jobs) == 0
        console = Console(file=io.StringIO(), width=200)
        console.print(render(answer, switch.address))
        assert console.file.getvalue().count(named) == 1  # type: ignore[attr-defined]


@pytest.mark.processes
@pytest.mark.parametrize("mode", ["native-udp", "twin-udp"])
def test_a_tree_sums_tagged_packets(mode: Mode) -> None:
    given = options(mode, authenticate=True, secret=SECRET)
    with contextlib.ExitStack() as stack:
        root = stack.enter_context(a_switch(mode))
        leaves: list[SwitchProcess] = [
            stack.enter_context(a_switch(mode, "--parent", f"udp://127.0.0.1:{root.port}")) for _ in range(2)
        ]
        terms = [
            JoinTerms(options=given, switch=leaves[rank % 2].address, job_name="tree", rank=rank, size=4)
            for rank in range(4)
        ]
        joining = [in_thread(partial(Session.join, each)) for each in terms]
        sessions = [future.result(DEADLINE_S) for future in joining]
        for session in sessions:
            stack.callback(session.close)  # type: ignore[attr-defined]
        assert len(set(sums(sessions))) == 1  # type: ignore[arg-type]
