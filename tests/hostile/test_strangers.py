"""Somebody who reaches the control port can do nothing to a job that is not his."""

from __future__ import annotations

import pytest

from fanin.protocol import control
from fanin.protocol.control import Refusal
from fanin.protocol.conversation import UnknownKey
from fanin.protocol.events import WorkerJoined
from fanin.protocol.seal import OPEN, Credentials
from fanin.switch.controller.leaf import LeafController
from fanin.switch.controller.resources import MAX_FORMING_PER_SOURCE, MAX_WAITING_PER_SOURCE
from tests.hostile.channel import OPERATOR, Channel, Client, LeafChannel, of_job
from tests.support.controllers import join

STRANGERS = [OPEN, of_job("a stranger's secret")]


def ranks(channel: Channel, size: int = 2, credentials: Credentials | None = None, **changes: object) -> list[Client]:
    clients = [Client(channel, f"rank {rank}", credentials or of_job()) for rank in range(size)]
    for rank, client in enumerate(clients):
        client.say(join(rank, size, slots=4, **changes))
    return clients


def running(channel: Channel) -> tuple[list[Client], control.Admitted]:
    clients = ranks(channel, staleness=1)  # or a smaller quorum would have no effect, and be refused
    admitted = clients[1].say(join(1, 2, slots=4, staleness=1))
    assert isinstance(admitted, control.Admitted)
    for rank in range(2):
        channel.controller.handle_event(WorkerJoined(admitted.index, rank), channel.now)
    channel.collect()
    assert all(isinstance(client.hear(), control.Started) for client in clients)
    return clients, admitted


def state(channel: Channel, name: str = "j") -> list[str]:
    stats = Client(channel, "the operator", OPERATOR).say(control.Ask())
    assert isinstance(stats, control.Stats)
    return [job.state for job in stats.jobs if job.name == name]


@pytest.mark.parametrize("credentials", STRANGERS)
def test_a_join_of_another_size_does_not_end_a_job_that_forms(credentials: Credentials) -> None:
    channel = Channel()
    (first,) = ranks(channel, 2)[:1]
    stranger = Client(channel, "stranger", credentials)
    assert isinstance(stranger.say(join(0, 3)), control.Waiting)
    assert isinstance(first.hear() or first.say(join(0, 2, slots=4)), control.Admitted)


@pytest.mark.parametrize("credentials", STRANGERS)
def test_a_rank_cannot_be_taken_before_its_owner(credentials: Credentials) -> None:
    channel = Channel()
    stranger = Client(channel, "stranger", credentials)
    assert isinstance(stranger.say(join(1, 2, nonce="stranger")), control.Waiting)
    clients, admitted = running(channel)
    assert isinstance(stranger.say(join(1, 2, nonce="stranger")), control.Waiting), "his own job still waits"
    assert channel.server.specs[admitted.index].workers == len(clients)


@pytest.mark.parametrize("credentials", STRANGERS)
def test_nobody_else_leaves_tunes_or_explains(credentials: Credentials) -> None:
    channel = Channel()
    clients, admitted = running(channel)
    stranger = Client(channel, "stranger", credentials)
    assert isinstance(stranger.say(control.Leave(job="j", rank=0, nonce="nonce-0")), control.Left)
    tuned = stranger.say(control.Tune(job="j", quorum=1))
    assert isinstance(tuned, control.Refused)
    assert tuned.code == Refusal.UNKNOWN_JOB
    explained = stranger.say(control.Explain(job="j", generation=admitted.generation))
    assert isinstance(explained, control.Explanation)
    assert not explained.known
    assert state(channel) == ["running"]
    assert not channel.server.tuned
    assert isinstance(clients[0].say(control.Tune(job="j", quorum=1)), control.Tuned)
    assert isinstance(Client(channel, "the operator", OPERATOR).say(control.Tune(job="j", quorum=2)), control.Tuned)


@pytest.mark.parametrize("credentials", STRANGERS)
def test_stats_say_no_names_without_the_key(credentials: Credentials) -> None:
    channel = Channel()
    (client, _), admitted = running(channel)
    told = Client(channel, "stranger", credentials).say(control.Ask())
    assert isinstance(told, control.Stats)
    assert (told.jobs, told.job_count, told.operator) == ((), 1, False)
    assert told.memory_used_bytes > 0
    own = client.say(control.Ask())
    assert isinstance(own, control.Stats)
    assert [job.generation for job in own.jobs] == [admitted.generation]
    whole = Client(channel, "the operator", OPERATOR).say(control.Ask())
    assert isinstance(whole, control.Stats)
    assert whole.operator
    assert whole.jobs == own.jobs


def test_jobs_without_a_secret_are_shown_to_operators_alone() -> None:
    channel = Channel()
    ranks(channel, credentials=OPEN)
    told = Client(channel, "anybody").say(control.Ask())
    assert isinstance(told, control.Stats)
    assert (told.jobs, told.job_count) == ((), 1)
    assert state(channel) == ["starting"]


def test_an_operators_key_is_never_told_to_a_switch_that_does_not_have_it() -> None:
    channel = Channel()
    wrong = Client(channel, "operator", Credentials(bytes(32), discloses=False))
    assert isinstance(wrong.say(control.Ask()), UnknownKey)
    assert bytes(32).hex().encode() not in b"".join(wrong.sent)


def test_an_operator_says_which_of_two_jobs_of_one_name_he_means() -> None:
    channel = Channel()
    _, admitted = running(channel)
    other = Client(channel, "other", of_job("another secret"))
    other.say(join(0, 1, slots=4, nonce="other"))
    second = other.say(join(0, 1, slots=4, nonce="other"))
    assert isinstance(second, control.Admitted)
    channel.controller.handle_event(WorkerJoined(second.index, 0), 0.0)
    channel.collect()
    operator = Client(channel, "the operator", OPERATOR)
    refused = operator.say(control.Tune(job="j"))
    assert isinstance(refused, control.Refused)
    assert f"--index {admitted.index}" in refused.remedy
    told = operator.say(control.Tune(job="j", index=second.index))
    assert isinstance(told, control.Tuned)
    assert told.quorum == 1


# --- who sees packets ---


def test_what_was_recorded_is_not_taken_again_on_the_same_or_on_another_connection() -> None:
    channel = Channel()
    clients, _ = running(channel)
    assert isinstance(clients[0].say(control.Tune(job="j", quorum=1)), control.Tuned)
    assert isinstance(clients[0].say(control.Tune(job="j", quorum=2)), control.Tuned)
    seen, tuned = list(clients[0].sent), list(channel.server.tuned)
    for route in (clients[0].route, b"somebody else's"):
        for data in seen:
            channel.bring(route, data)
    assert channel.server.tuned == tuned
    replies = [control.parse(data) for data in channel.answers[b"somebody else's"]]
    assert all(isinstance(reply, control.Challenge) for reply in replies)


def test_no_byte_of_a_sealed_request_can_be_changed() -> None:
    channel = Channel()
    clients, _ = running(channel)
    data = clients[0].conversation.outgoing(control.Tune(job="j", quorum=1), clients[0].credentials)
    for place in range(len(data)):
        for flipped in (1, 0x20):
            changed = data[:place] + bytes((data[place] ^ flipped,)) + data[place + 1 :]
            channel.bring(clients[0].route, changed)
    assert not channel.server.tuned
    channel.bring(clients[0].route, data)
    assert channel.server.tuned, "unchanged, it is taken"


def test_an_answer_that_is_forged_recorded_or_reflected_does_not_count() -> None:
    channel = Channel()
    client = Client(channel, "rank", of_job())
    assert isinstance(client.say(join(0, 2)), control.Waiting)
    request = client.conversation.outgoing(join(0, 2), client.credentials)
    channel.bring(client.route, request)
    (honest,) = channel.answers[client.route]
    forged = control.to_bytes(control.Started(job="j", processes=("evil:1", "evil:2")))
    assert client.conversation.incoming(forged) is None
    with pytest.raises(control.ControlError, match="a request came"):
        client.conversation.incoming(request)
    for place in range(0, len(honest), 3):
        changed = honest[:place] + bytes((honest[place] ^ 1,)) + honest[place + 1 :]
        try:
            assert client.conversation.incoming(changed) is None
        except control.ControlError:
            continue
    late = Client(channel, "rank", of_job())
    late.say(join(0, 2))
    assert late.conversation.incoming(honest) is None, "it answers an earlier connection"
    assert client.conversation.incoming(honest) is not None


def test_a_switch_that_was_given_the_key_is_never_told_it() -> None:
    credentials = Credentials.of_job("the job's own secret", discloses=False)
    channel = Channel(keys=(credentials.key,))
    clients = ranks(channel, credentials=credentials)
    assert isinstance(clients[0].say(join(0, 2, slots=4)), control.Admitted)
    assert credentials.key.hex().encode() not in b"".join(data for client in clients for data in client.sent)
    assert isinstance(Client(channel, "stranger", of_job("another")).say(join(0, 1)), UnknownKey)
    refused = Client(channel, "anybody").say(join(0, 1))
    assert isinstance(refused, control.Refused)
    assert refused.code == Refusal.KEY
    assert isinstance(Client(channel, "anybody else").say(control.Ask()), control.Stats)


# --- who wants to use it all up ---


def test_one_address_holds_no_more_than_its_share_of_the_memory() -> None:
    channel = Channel()
    refused = ""
    for number in range(1000):
        stranger = Client(channel, f"stranger {number}", of_job(f"secret {number}"), source="10.6.6.6")
        answer = stranger.say(join(0, 1, slots=64, job=str(number), nonce=str(number)))
        if isinstance(answer, control.Refused):
            refused = answer.code
            break
        channel.advance(0.001)
    assert refused == Refusal.QUOTA
    clients = ranks(channel)
    assert isinstance(clients[0].hear() or clients[0].say(join(0, 2, slots=4)), control.Admitted)


def test_memory_that_is_held_without_a_data_path_is_given_to_whoever_needs_it() -> None:
    """One Join every three seconds kept a job, and all of the memory, in being."""
    channel = Channel(share=1.0)
    stranger = Client(channel, "stranger", of_job("another"))
    hog = join(0, 1, slots=1000, job="hog", nonce="hog")
    assert isinstance(stranger.say(hog), control.Admitted)
    for _ in range(3):
        channel.advance(3.0)
        assert isinstance(stranger.say(hog), control.Admitted)
    need = join(0, 1, slots=900, nonce="honest")
    assert isinstance(Client(channel, "honest", of_job()).say(need), control.Admitted)


@pytest.mark.parametrize("kind", [Channel, LeafChannel])
def test_jobs_that_form_are_bounded_for_each_address(kind: type[Channel]) -> None:
    channel = kind()
    answers = []
    for number in range(MAX_FORMING_PER_SOURCE + 10):
        stranger = Client(channel, "stranger", of_job(), source="10.6.6.6")
        answers.append(stranger.say(join(0, 2, job=f"job {number}", nonce=str(number))))
    refused = [answer for answer in answers if isinstance(answer, control.Refused)]
    assert len(refused) == 10
    assert {answer.code for answer in refused} == {Refusal.QUOTA}
    assert channel.controller.live_jobs == MAX_FORMING_PER_SOURCE
    other = Client(channel, "honest", of_job(), source="10.0.0.2").say(join(0, 2))
    assert not isinstance(other, control.Refused)


def test_ranks_that_wait_at_a_leaf_are_bounded_for_each_address() -> None:
    channel = LeafChannel()
    stranger = Client(channel, "stranger", of_job())
    for rank in range(MAX_WAITING_PER_SOURCE + 5):
        answer = stranger.say(join(rank, 1 << 20, nonce=str(rank)))
    assert isinstance(answer, control.Refused)
    assert answer.code == Refusal.QUOTA


def test_refused_enlists_leave_nothing_behind() -> None:
    """Each leaf's name and address was kept for the job's life."""
    channel = Channel()
    leaf = Client(channel, "leaf", of_job())
    first = control.Enlist(leaf="first", address="udp://leaf:1", join=join(0, 2))
    assert isinstance(leaf.say(first), control.Relayed)
    for number in range(2000):
        enlist = control.Enlist(leaf=f"leaf {number}", address="x" * 500, join=join(0, 2, nonce=f"other {number}"))
        relayed = leaf.say(enlist)
        assert isinstance(relayed, control.Relayed)
        assert relayed.refused is not None
    (job,) = channel.controller._table.open.values()
    assert {member.reply_to.leaf for member in job.members.values()} == {"first"}


# --- a leaf ---


@pytest.mark.parametrize("rank", [777, 2, 2**63])
def test_a_rank_that_does_not_exist_joins_and_leaves_at_a_leaf_and_harms_nothing(rank: int) -> None:
    """Join (rank 777), then Leave, was a ValueError that ended the leaf."""
    channel = LeafChannel()
    leaf = channel.controller
    assert isinstance(leaf, LeafController)
    own = Client(channel, "rank 0", of_job())
    own.say(join(0, 2))
    placed = control.Placed(
        index=0,
        generation=1,
        branch=0,
        token=2,
        ranks=(0,),
        size=2,
        slots=4,
        words_per_packet=64,
        codes_per_packet=1,
        checksum=False,
        liveness_timeout_s=5.0,
        ports=(4919,),
    )
    leaf.receive_from_parent(control.Relayed(job="j", rank=0, placed=placed), 0.0, of_job().name)
    channel.collect()
    assert isinstance(own.hear(), control.Admitted)
    other = Client(channel, "rank 777", of_job())
    assert isinstance(other.say(join(rank, 2, nonce="other")), control.Refused)
    assert isinstance(other.say(control.Leave(job="j", rank=rank, nonce="other")), control.Left)
    assert isinstance(own.say(join(0, 2)), control.Relayed | control.Admitted | None)
    assert leaf.live_jobs == 1
