"""A root, two leaves and four workers: real processes, real signals."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterator
from functools import partial

import pytest

from fanin.errors import AdmissionError, SwitchLostError, WorkerLostError
from fanin.host.session.control import ask
from fanin.host.session.joining import JoinTerms
from fanin.host.session.session import Session
from fanin.key_file import operator_credentials
from fanin.options import Options, SwitchAddress
from fanin.protocol import control
from fanin.protocol.job import SUSPICION_SETTLES_S, SUSPICION_TIMEOUT_S
from tests.support.processes import (
    DEADLINE_S,
    SwitchProcess,
    a_switch,
    a_worker,
    in_thread,
    join_all,
    options,
    reduce_together,
    reduce_until_it_fails,
    reduced,
    until,
)

pytestmark = pytest.mark.processes

SIZE = 4
SECRET = "only the ranks of this job share it"
PROMISED_S = 10.0
"""In which whoever dies is named, on a machine that may be busy."""
MODES = ["native-udp", "native-shared-memory", "twin-udp"]


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    """Engine and transport of every switch and worker."""
    return str(request.param)


@pytest.fixture
def leaves(mode: str) -> Iterator[list[SwitchProcess]]:
    """Two leaves of one root, and the root."""
    with contextlib.ExitStack() as stack:
        root = stack.enter_context(a_switch(mode))  # type: ignore[arg-type]
        parent = ("--parent", f"udp://127.0.0.1:{root.port}")
        yield [*(stack.enter_context(a_switch(mode, *parent)) for _ in range(2)), root]  # type: ignore[arg-type]


def join(address: SwitchAddress, job: str, rank: int, given: Options, size: int = SIZE) -> Session:
    return Session.join(JoinTerms(options=given, switch=address, job_name=job, rank=rank, size=size))


@pytest.mark.parametrize("lanes", [32, 8])
def test_a_tree_gives_every_rank_the_bits_that_one_switch_gives(
    mode: str, leaves: list[SwitchProcess], lanes: int
) -> None:
    given = options(mode)  # type: ignore[arg-type]
    spread = [leaves[0].address, leaves[1].address, leaves[1].address, leaves[0].address]
    tree = reduced(spread, "tree", given, lanes)
    with a_switch(mode) as alone:  # type: ignore[arg-type]
        flat = reduced([alone.address] * SIZE, "flat", given, lanes)
    assert len({*tree, *flat}) == 1


def test_every_worker_names_a_leaf_that_dies_within_the_promised_time(mode: str, leaves: list[SwitchProcess]) -> None:
    """The root says how long the leaf was silent: it suspects one that hung up. The bound for one that did not is held,
    to the virtual second, in tests/simulator/test_trees.py."""
    given = options(mode)  # type: ignore[arg-type]
    with (
        a_worker(leaves[1].address, "doomed", 2, SIZE, given) as one,
        a_worker(leaves[1].address, "doomed", 3, SIZE, given) as other,
    ):
        joining = [in_thread(partial(join, leaves[0].address, "doomed", rank, given)) for rank in range(2)]
        survivors = [future.result(DEADLINE_S) for future in joining]
        failing = [in_thread(partial(reduce_until_it_fails, session)) for session in survivors]  # type: ignore[arg-type]
        until(lambda: survivors[0].counters()["results"] >= 20)  # type: ignore[attr-defined]
        leaves[1].process.send_signal(signal.SIGKILL)
        errors = [future.result(DEADLINE_S) for future in failing]  # all before one leaves: it would be named too
        for error, session in zip(errors, survivors, strict=True):
            assert isinstance(error, WorkerLostError), error
            assert error.ranks == (2, 3)
            assert f"leaf switch udp://127.0.0.1:{leaves[1].port}" in str(error)
            silent = re.search(r"silent for ([\d.]+) s", str(error))
            assert silent, error
            assert SUSPICION_TIMEOUT_S - SUSPICION_SETTLES_S <= float(silent[1]) < PROMISED_S
            session.close()  # type: ignore[attr-defined]
        for worker in (one, other):
            last = worker.last_words()
            assert last["error"] == "SwitchLostError"
            assert str(leaves[1].address) in str(last["text"])


@pytest.mark.parametrize("secret", [SECRET, None], ids=["tags", "open"])
@pytest.mark.parametrize("again", [True, False], ids=["restarted", "dead"])
def test_every_worker_knows_soon_that_the_root_has_ended(mode: str, secret: str | None, again: bool) -> None:
    given = options(mode, authenticate=secret is not None, secret=secret)  # type: ignore[arg-type]
    patient = ("--liveness-timeout", str(2 * DEADLINE_S))
    with contextlib.ExitStack() as stack:
        root = stack.enter_context(a_switch(mode, *patient))  # type: ignore[arg-type]
        parent = f"udp://127.0.0.1:{root.port}"
        leaves = [stack.enter_context(a_switch(mode, "--parent", parent)) for _ in range(2)]  # type: ignore[arg-type]
        joining = [in_thread(partial(join, leaves[rank].address, "doomed", rank, given, 2)) for rank in range(2)]
        sessions = [future.result(DEADLINE_S) for future in joining]
        failing = [in_thread(partial(reduce_until_it_fails, session)) for session in sessions]  # type: ignore[arg-type]
        until(lambda: sessions[0].counters()["results"] >= 20)  # type: ignore[attr-defined]
        root.end(signal.SIGKILL)
        if again:
            stack.enter_context(a_switch(mode, *patient, bind=f"127.0.0.1:{root.port}"))  # type: ignore[arg-type]
        told = "does not know the job any more: it was restarted" if again else "does not answer"
        for session, future in zip(sessions, failing, strict=True):
            error = future.result(DEADLINE_S)
            assert isinstance(error, SwitchLostError), error
            assert parent in str(error)
            assert told in str(error)
            session.close()  # type: ignore[attr-defined]


def test_ranks_that_wait_at_another_leaf_are_told_of_one_that_is_refused(
    mode: str, leaves: list[SwitchProcess]
) -> None:
    given = options(mode)  # type: ignore[arg-type]
    waiting = in_thread(partial(join, leaves[0].address, "odd", 0, given, 2))
    operator = operator_credentials(None)
    assert operator is not None
    until(lambda: "odd" in str(ask(leaves[2].address, control.Ask(), timeout_s=DEADLINE_S, credentials=operator)))
    with pytest.raises(AdmissionError, match="synchronous"):
        join(leaves[1].address, "odd", 1, options(mode, on_worker_loss="continue"), 2)  # type: ignore[arg-type]
    error = waiting.exception(DEADLINE_S)
    assert isinstance(error, WorkerLostError), error
    assert error.ranks == (1,)
    assert "synchronous" in str(error)


def test_a_leaf_has_as_many_flows_as_its_parent_unless_it_is_told_otherwise(mode: str) -> None:
    given = options(mode)  # type: ignore[arg-type]
    with contextlib.ExitStack() as stack:
        root = stack.enter_context(a_switch(mode, "--flows", "2"))  # type: ignore[arg-type]
        parent = ("--parent", f"udp://127.0.0.1:{root.port}")
        leaf, other = (stack.enter_context(a_switch(mode, *parent, *flows)) for flows in ((), ("--flows", "1")))  # type: ignore[arg-type]
        sessions = join_all(leaf.address, "flows", 2, given)
        assert [session.flows for session in sessions] == [2, 2]
        reduce_together(sessions)
        for session in sessions:
            session.close()
        with pytest.raises(AdmissionError, match="has 2 flows, this leaf 1: --flows"):
            join(other.address, "one flow", 0, given, size=1)
