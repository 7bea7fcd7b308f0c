"""Between admission and start: news that come early, late, or of the engine. The controller is played by hand."""

from __future__ import annotations

import dataclasses
import queue
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import zmq

from fanin.errors import AdmissionError, WorkerLostError
from fanin.host.session.joining import JoinTerms
from fanin.host.session.session import Session
from fanin.options import Options, SwitchAddress
from fanin.protocol import control
from fanin.protocol.events import MembersChanged, Ready, WorkerEvent, WorkersGone
from fanin.switch.controller.gate import Entered, Gate
from tests.support.processes import DEADLINE_S, in_thread

ADMITTED = control.Admitted(
    job="j", rank=0, index=0, generation=1, workers=2, quorum=2, staleness=0, slots=4, words_per_packet=64,
    codes_per_packet=1, checksum=False, liveness_timeout_s=5.0, token=1, scheme="udp", ports=(1,),
    max_staleness=0, on_worker_loss="raise",
)  # fmt: skip
STARTED = control.Started(job="j", processes=("a:1", "b:2"))
WAITING = control.Waiting(job="j", missing=(1,))


class PlayedEngine:
    """Reports what the test says; `quiet` times it has nothing to report first."""

    def __init__(self, quiet: int, *events: WorkerEvent, fails: bool = False) -> None:
        self.description, self.trouble = "played", ""
        self._fails = fails
        self._events: queue.SimpleQueue[WorkerEvent | None] = queue.SimpleQueue()
        for event in (*[None] * quiet, *events):
            self._events.put(event)

    @property
    def failed(self) -> bool:
        return self._fails and self._events.qsize() <= 2  # Ready was fetched; the failure was not

    def next_event(self, timeout_s: float) -> WorkerEvent | None:
        return self._events.get() if not self._events.empty() else None

    def leave(self, timeout_s: float) -> bool:
        return True

    def close(self) -> None:
        pass


@contextmanager
def controller(*replies: tuple[control.Reply, ...]) -> Iterator[SwitchAddress]:
    """Answers the first Join with the first replies, and so on; the last ones again and again."""
    over = threading.Event()
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        router.setsockopt(zmq.RCVTIMEO, 50)
        router.setsockopt(zmq.LINGER, 0)

        def answer() -> None:
            asked, gate = 0, Gate(random.Random(1).getrandbits)
            while not over.is_set():
                try:
                    route, data = router.recv_multipart()
                except zmq.Again:
                    continue
                entered = gate.enter(route, data)
                if not isinstance(entered, Entered):
                    router.send_multipart([route, control.to_bytes(entered)])
                    continue
                for reply in replies[min(asked, len(replies) - 1)]:
                    sealed = gate.sealed(entered.peer, reply)
                    assert sealed is not None
                    router.send_multipart(sealed)
                asked += 1

        answering = threading.Thread(target=answer)
        answering.start()
        try:
            yield SwitchAddress("udp", "127.0.0.1", port)
        finally:
            over.set()
            answering.join()


def join(address: SwitchAddress) -> Session:
    return Session.join(
        JoinTerms(options=Options(connect_timeout_s=DEADLINE_S), switch=address, job_name="j", rank=0, size=2)
    )


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(engine: PlayedEngine) -> None:
        monkeypatch.setattr("fanin.host.session.joining.make_engine", lambda *_, **__: engine)

    return use


def test_a_start_that_is_told_while_the_data_path_opens_is_not_asked_for_again(play: Any) -> None:
    """Asked again, the controller would have another job of that name by now: one in which nobody else is."""
    play(PlayedEngine(30, Ready()))
    with controller((ADMITTED, STARTED), (WAITING,)) as address:
        session = in_thread(partial(join, address)).result(DEADLINE_S)
        assert isinstance(session, Session)
        session.close()


def test_an_engine_that_fails_while_the_start_is_waited_for_ends_the_wait(play: Any) -> None:
    play(PlayedEngine(0, Ready(), MembersChanged(1, 0b01, 0b10, 0, 0), WorkersGone(lost=0b10, left=0), fails=True))
    with controller((ADMITTED,)) as address:
        error = in_thread(partial(join, address)).exception(DEADLINE_S)
    assert isinstance(error, WorkerLostError)
    assert error.ranks == (1,)


@pytest.mark.parametrize("events", [(Ready(),), ()], ids=["on the data path", "before it opens"])
def test_a_rank_whose_job_has_ended_and_begun_anew_is_told_so(play: Any, events: tuple[WorkerEvent, ...]) -> None:
    play(PlayedEngine(0, *events))
    again = dataclasses.replace(ADMITTED, generation=2)
    with controller((ADMITTED,), (again,)) as address:
        error = in_thread(partial(join, address)).exception(DEADLINE_S)
    assert isinstance(error, AdmissionError)
    assert "another job of that name began" in str(error)
