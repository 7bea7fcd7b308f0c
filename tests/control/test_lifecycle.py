"""One life for every job: of ranks that come themselves, of ranks at leaves, and of a leaf's own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fanin.errors import ConfigurationError
from fanin.options import SwitchAddress
from fanin.protocol import control
from fanin.protocol.control import Join, Refusal
from fanin.protocol.events import WorkerJoined, WorkerLeft, WorkerSilent
from fanin.protocol.job import SUSPICION_TIMEOUT_S, JobSpec
from fanin.protocol.window import DEFAULT_RECEIVE_BUFFER_BYTES
from fanin.switch.controller.controller import AnyController, Controller
from fanin.switch.controller.data_plane import DataPlane, Limits
from fanin.switch.controller.job_table import LINGER_S
from fanin.switch.controller.jobs import LIFE, State, Trigger
from fanin.switch.controller.leaf import LeafController, ParentPath
from tests.support.controllers import BUFFERS, EVERYBODY, FakeServer, join

WAYS = ("direct", "through leaves", "at a leaf")
SHAPE: dict[str, object] = {"slots": 100, "words_per_packet": 1024}
PARENT = ParentPath(
    address=SwitchAddress("udp", "root", 4919),
    host="10.0.0.1",
    path_mtu=65_536,
    receive_buffer_bytes=DEFAULT_RECEIVE_BUFFER_BYTES,
    own_address="udp://leaf:4919",
)


class Picky(FakeServer):
    """A data plane that cannot have some shapes."""

    picky = False

    def admit(self, spec: JobSpec, *, share_memory: bool = True) -> None:
        if self.picky:
            raise ConfigurationError("this device has 8 slots")
        super().admit(spec, share_memory=share_memory)


class Place:
    """A switch that jobs of two ranks come to in one of the three ways; the parent of a leaf agrees to everything."""

    def __init__(self, way: str) -> None:
        self.way, self.now, self.generation = way, 0.0, 0
        self.server = Picky()
        limits = Limits(memory_bytes=1 << 20, liveness_timeout_s=5)
        self.controller: AnyController
        if way == "at a leaf":
            self.controller = LeafController(
                limits, self.server, PARENT, BUFFERS, random_bits=lambda bits: 1, started_s=0.0, engine="none"
            )
        else:
            planes: dict[control.Scheme, DataPlane] = {"udp": DataPlane(self.server, BUFFERS)}
            self.controller = Controller(limits, planes, random_bits=lambda bits: 1, started_s=0.0, engine="none")
        self.told: dict[tuple[str, int], control.Reply] = {}

    def peer(self, name: str, rank: int) -> bytes:
        return f"{name}/{rank}".encode()

    def join(self, rank: int, name: str = "j", **changes: object) -> control.Reply | None:
        """Join and return the last reply to the rank."""
        asked = join(rank, 2, job=name, **changes)
        self.say(rank, asked if self.way != "through leaves" else _enlisted(asked), name)
        return self.told.get((name, rank))

    def say(self, rank: int, request: control.Request, name: str = "j") -> None:
        self.controller.receive(self.peer(name, rank), request, self.now, EVERYBODY)
        self.settle()

    def settle(self) -> None:
        for peer, reply in self.controller.messages_to_send():
            name, rank = peer.decode().split("/")
            if isinstance(reply, control.Relayed):
                relayed = reply.waiting or reply.placed or reply.started or reply.refused
                assert relayed is not None
                self.told[name, reply.rank] = relayed  # type: ignore[assignment]
            else:
                self.told[name, int(rank)] = reply
        if isinstance(self.controller, LeafController):
            self._play_parent(self.controller)

    def _play_parent(self, leaf: LeafController) -> None:
        asked = [each for _, each in leaf.messages_to_parent() if isinstance(each, control.Enlist)]
        for one in (each.join for each in asked if each.join.rank == 1):
            self.generation += 1
            placed = control.Placed(
                index=self.generation,
                generation=self.generation,
                branch=0,
                token=2,
                ranks=(0, 1),
                size=2,
                slots=one.slots or 4,
                words_per_packet=one.words_per_packet or 64,
                codes_per_packet=1,
                checksum=False,
                liveness_timeout_s=5.0,
                ports=(4919,),
            )
            for rank in range(2):
                relayed = control.Relayed(job=one.job, rank=rank, placed=placed)
                leaf.receive_from_parent(relayed, self.now, EVERYBODY.key)
        if asked:
            self.settle()

    def form(self, name: str = "j", **changes: object) -> None:
        for rank in range(2):
            self.join(rank, name, **changes)

    def run(self, name: str = "j", **changes: object) -> int:
        """A job that runs; its index."""
        self.form(name, **changes)
        index = max(self.server.specs)
        for worker in range(2):
            self.controller.handle_event(WorkerJoined(index, worker), self.now)
        if isinstance(self.controller, LeafController):
            started = control.Started(job=name, processes=("a:1", "b:2"))
            for rank in range(2):
                relayed = control.Relayed(job=name, rank=rank, started=started)
                self.controller.receive_from_parent(relayed, self.now, EVERYBODY.key)
        self.settle()
        assert isinstance(self.told[name, 0], control.Started), self.told
        return index

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.controller.next_timer()) is not None and due <= end:
            self.now = due
            self.controller.handle_timer(due)
            self.settle()
        self.now = end

    def refused(self, name: str, rank: int) -> control.Refused:
        told = self.told[name, rank]
        assert isinstance(told, control.Refused), told
        return told


def _enlisted(asked: Join) -> control.Enlist:
    return control.Enlist(leaf=f"leaf {asked.rank}", address=f"udp://leaf{asked.rank}:1", join=asked)


@pytest.fixture(params=WAYS)
def place(request: pytest.FixtureRequest) -> Place:
    return Place(request.param)


# R-JOB-6
def test_memory_of_a_job_that_lingers_is_there_for_the_next_one(place: Place) -> None:
    index = place.run("j", **SHAPE)
    for worker in range(2):
        place.controller.handle_event(WorkerLeft(index, worker), place.now)
    assert index in place.server.specs, "it lingers"
    place.form("next", **SHAPE)
    assert index not in place.server.specs
    assert len(place.server.specs) == 1


# R-JOB-6
def test_memory_of_a_job_that_does_not_reach_the_data_path_is_there_for_one_that_needs_it(place: Place) -> None:
    place.form("hog", **SHAPE)
    for _ in range(12):
        place.advance(0.5)
        for rank in range(2):
            place.join(rank, "hog", **SHAPE)
    assert place.server.specs, "nobody needs it yet"
    place.form("next", **SHAPE)
    assert place.refused("hog", 0).code == Refusal.MEMBER_LOST
    assert not isinstance(place.told["next", 0], control.Refused)


def test_every_rank_that_is_refused_is_counted(place: Place) -> None:
    place.form(slots=1000, words_per_packet=1024)
    for rank in range(2):
        assert place.refused("j", rank).code == Refusal.MEMORY
    assert place.controller.stats(place.now).refused == {"memory": 2}


def test_a_shape_that_the_switch_cannot_have_has_one_name(place: Place) -> None:
    place.server.picky = True
    place.form()
    for rank in range(2):
        assert place.refused("j", rank).code == Refusal.SHAPE
    assert place.controller.stats(place.now).refused == {"shape": 2}


def test_ranks_whose_connection_closes_while_the_job_starts_do_not_keep_the_others_waiting(place: Place) -> None:
    place.form()
    place.controller.hung_up(place.peer("j", 1), place.now)
    place.advance(SUSPICION_TIMEOUT_S + 0.1)
    assert place.refused("j", 0).code == Refusal.MEMBER_LOST
    assert place.refused("j", 0).ranks == (1,)


def test_who_has_gone_is_not_suspected(place: Place) -> None:
    index = place.run()
    place.controller.handle_event(WorkerLeft(index, 1), place.now)
    for rank in range(2):
        place.controller.hung_up(place.peer("j", rank), place.now)
    assert place.server.suspected == [(index, 0)]


def test_a_job_that_does_not_reach_the_data_path_is_let_go_of(place: Place) -> None:
    place.form(join_timeout_s=6.0)
    for _ in range(20):
        place.advance(0.5)
        if not place.server.specs:
            break
        for rank in range(2):
            if not isinstance(place.told["j", rank], control.Refused):
                place.join(rank, join_timeout_s=6.0)
    assert "did not reach the data path in time" in place.refused("j", 0).reason
    place.advance(LINGER_S)
    assert not place.server.specs


# R-JOB-5
def test_events_that_lag_do_not_keep_a_successor_out(place: Place) -> None:
    index = place.run()
    place.server.masks[index] = (0b11, 0, 0b11)
    place.join(0, nonce="successor")
    assert not isinstance(place.told["j", 0], control.Refused)


def test_what_became_of_a_job_is_told_after_it_is_off_the_data_plane(place: Place) -> None:
    index = place.run()
    generation = place.server.specs[index].generation
    for worker, event in ((0, WorkerSilent(index, 0, 5.0)), (1, WorkerLeft(index, 1))):
        assert event.worker == worker
        place.controller.handle_event(event, place.now)
    place.advance(10 * LINGER_S)
    assert not place.server.specs
    place.controller.receive(b"asker/9", control.Explain(job="j", generation=generation), place.now, EVERYBODY)
    if isinstance(place.controller, LeafController):
        asked = [each for _, each in place.controller.messages_to_parent() if isinstance(each, control.Explain)]
        assert [each.generation for each in asked] == [1], "the parent knows what became of all of it"
        return
    place.settle()
    told = place.told["asker", 9]
    assert isinstance(told, control.Explanation)
    assert told.lost == (0,)


# R-JOB-2
@pytest.mark.parametrize("how", ["direct", "through leaves"])
def test_those_who_ask_after_a_refused_rank_are_told_and_a_rank_that_comes_back_right_is_welcome(how: str) -> None:
    """Only a switch that decides can do this, and give another rank the place of the first one."""
    place = Place(how)
    place.join(1, words_per_packet=12)
    place.join(0)
    assert place.refused("j", 0).ranks == (1,)
    place.join(1, nonce="right this time")
    place.join(0)
    assert not isinstance(place.told["j", 0], control.Refused)


@pytest.mark.parametrize("how", ["direct", "through leaves"])
def test_a_rank_that_disagrees_is_compared_with_one_that_is_there(how: str) -> None:
    place = Place(how)
    place.controller.receive(b"j/0", _first(how, join(0, 3)), 0.0, EVERYBODY)
    place.controller.receive(b"j/1", _first(how, join(1, 3)), 0.0, EVERYBODY)
    place.say(0, control.Leave(job="j", rank=0, nonce="nonce-0"))
    place.join(0, nonce="another")
    assert "rank 1 (laptop:1001)" in place.refused("j", 0).reason


def _first(how: str, asked: Join) -> control.Request:
    return asked if how == "direct" else _enlisted(asked)


# R-JOB-9
def test_who_gives_up_before_others_are_missed_is_missed_and_who_does_after_that_is_not(place: Place) -> None:
    place.run()
    for rank in range(2):
        place.say(rank, control.Leave(job="j", rank=rank, nonce=f"nonce-{rank}", reason="something broke"))
    jobs = {job.name: job for job in place.controller.stats(place.now).jobs}
    assert [member.state for member in jobs["j"].members] == ["lost", "left"]


# R-JOB-1
def test_only_what_the_table_has_can_happen_and_every_state_ends() -> None:
    ends: set[State] = {State.FORGOTTEN}
    for _ in LIFE:
        ends |= {state for state, steps in LIFE.items() if any(then in ends for then, _ in steps.values())}
    assert ends == set(State)
    assert {trigger for steps in LIFE.values() for trigger in steps} == set(Trigger)


def test_the_table_in_the_documents_is_the_one_that_the_code_reads() -> None:
    text = (Path(__file__).parents[2] / "docs/control.md").read_text()
    rows = re.findall(r"^\| ([A-Z]+) \| ([A-Z]+): [^|]+ \| ([A-Z]+) \|", text, re.MULTILINE)
    assert rows == [
        (state.name, trigger.name, then.name) for state, steps in LIFE.items() for trigger, (then, _) in steps.items()
    ]


def test_a_job_over_leaves_is_not_tuned() -> None:
    place = Place("through leaves")
    place.run()
    place.say(0, control.Tune(job="j", quorum=1))
    assert place.refused("j", 0).code == Refusal.QUORUM
    assert not place.server.tuned


def test_a_job_that_goes_on_without_its_dead_is_found_running_as_one() -> None:
    place = Place("direct")
    place.run(on_worker_loss="continue")
    (spec,) = place.server.specs.values()
    second = Place("direct")
    second.server.specs[spec.job] = spec
    assert isinstance(second.controller, Controller)
    second.controller.adopt(spec, "udp", 0.0)
    second.controller.handle_event(WorkerSilent(spec.job, 1, 5.0), 0.0)
    assert second.server.evicted == [(spec.job, 1)]
