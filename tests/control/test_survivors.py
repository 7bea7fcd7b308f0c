"""A job that goes on without a rank, and takes a new one in, over real sockets."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from fanin.errors import AdmissionError
from fanin.host.session.joining import JoinTerms
from fanin.host.session.session import Session
from fanin.options import Options, SwitchAddress
from tests.support.builders import reduction
from tests.support.processes import DEADLINE_S, join_all, until
from tests.support.services import a_service, address_of

SIZE, COUNT = 3, 2000
LIVENESS_S = 2.0
LEFT = "left"


def join(address: SwitchAddress, rank: int, options: Options) -> Session:
    return Session.join(JoinTerms(options=options, switch=address, job_name="survivors", rank=rank, size=SIZE))


def mean(session: Session, value: float) -> tuple[int, np.ndarray[tuple[int], np.dtype[np.float32]]]:
    array = np.full(COUNT, value, np.float32)
    return session.submit(reduction(array, divisor=0.0, signature=9)), array


@pytest.mark.parametrize("native", [True, False], ids=["native", "twin"])
@pytest.mark.parametrize("how", ["dies", LEFT])
def test_a_job_goes_on_without_a_rank_and_a_new_process_takes_its_place(native: bool, how: str) -> None:
    given = Options(native=native, on_worker_loss="continue", shared_memory=False)
    with a_service(native=native, liveness_timeout_s=LIVENESS_S) as service, contextlib.ExitStack() as stack:
        address = address_of(service)
        sessions = join_all(address, "survivors", SIZE, given)
        for session in sessions:
            stack.callback(session.close)
        first, victim, last = sessions
        if how == LEFT:
            victim.close()
        else:
            victim._engine.close()
        started = [mean(session, value) for session, value in ((first, 1.0), (last, 4.0))]
        for session, (ticket, array) in zip((first, last), started, strict=True):
            session.wait(ticket, DEADLINE_S)
            assert array.tolist() == [2.5] * COUNT, "the mean of the two that are there"
        until(lambda: first.members == (0, 2))
        (change,) = first.take_changes()
        assert (change.gone, change.come) == ((1,), ())

        newcomer = join(address, 1, given)
        stack.callback(newcomer.close)
        assert newcomer.newcomer
        until(lambda: first.members == (0, 1, 2) == last.members)
        assert (first.failure, last.failure, newcomer.failure) == (None, None, None)
        assert newcomer.members == (0, 1, 2)
        with pytest.raises(AdmissionError, match="is taken"):
            join(address, 1, given)
