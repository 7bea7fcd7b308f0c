"""Joining over real sockets: what a worker is told when switch, job or other ranks are not as they should be."""

from __future__ import annotations

import dataclasses
import logging
import random
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace

import pytest
import zmq

from fanin.curve import CurveKeys
from fanin.emulation.processes import free_port
from fanin.errors import (
    AdmissionError,
    ConfigurationError,
    FaninError,
    JoinTimeoutError,
    SwitchUnreachableError,
    WorkerLostError,
)
from fanin.host.session import path
from fanin.host.session.control import ControlClient, ask
from fanin.host.session.joining import JoinTerms
from fanin.host.session.session import Session
from fanin.options import Options, SwitchAddress
from fanin.protocol import control
from fanin.switch.controller.gate import Entered, Gate
from fanin.switch.service.service import SwitchService
from tests.support.controllers import join as a_join
from tests.support.processes import DEADLINE_S, in_thread, join_all, reduce_together, until
from tests.support.services import OPERATOR, a_service, address_of, refusing_port

QUICK = Options(connect_timeout_s=1.5)
"""Options for a place where nobody answers."""
PATIENT = Options(connect_timeout_s=DEADLINE_S)


@pytest.fixture(scope="module")
def service() -> Iterator[SwitchService]:
    """One switch for all of these tests."""
    with a_service() as service:
        yield service


def join(address: SwitchAddress, rank: int = 0, size: int = 2, job: str = "j", options: Options = PATIENT) -> Session:
    return Session.join(JoinTerms(options=options, switch=address, job_name=job, rank=rank, size=size))


@pytest.mark.parametrize("scheme", ["udp", "zmq"])
def test_no_switch_is_an_error_that_names_address_and_remedy(scheme: str) -> None:
    with refusing_port() as port:
        address = SwitchAddress.parse(f"{scheme}://127.0.0.1:{port}")
        with pytest.raises(SwitchUnreachableError) as caught:
            join(address, options=QUICK)
    assert caught.value.address == str(address)
    for words in (str(address), "connection refused", "fanin switch --bind", f"fanin doctor {address}"):
        assert words in str(caught.value)


def test_a_name_that_does_not_resolve_is_named() -> None:
    with pytest.raises(SwitchUnreachableError, match=r"the name 'no-such-host\.invalid' .* does not resolve"):
        join(SwitchAddress("udp", "no-such-host.invalid", 4919), options=QUICK)


def test_a_listener_that_says_nothing_is_no_switch() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = SwitchAddress("udp", "127.0.0.1", listener.getsockname()[1])
        with pytest.raises(SwitchUnreachableError, match="did not answer"):
            join(address, options=QUICK)


def test_a_switch_that_starts_a_little_later_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    port, refused = free_port(), threading.Event()

    def pause(seconds: float) -> None:
        refused.set()
        threading.Event().wait(seconds)

    monkeypatch.setattr(path, "time", SimpleNamespace(monotonic=time.monotonic, sleep=pause))
    joining = in_thread(partial(join, SwitchAddress("udp", "127.0.0.1", port), 0, 1, options=PATIENT))
    until(lambda: refused.is_set() or joining.done())
    with a_service(port=port):
        session = joining.result(DEADLINE_S)
        assert isinstance(session, Session)
        session.close()


def test_a_switch_that_ends_while_a_job_forms_is_told_apart_from_one_that_does_not_answer() -> None:
    with a_service() as service:
        joining = in_thread(partial(join, address_of(service), options=QUICK))
        until(lambda: service.controller.live_jobs == 1)
    error = joining.exception(DEADLINE_S)
    assert isinstance(error, SwitchUnreachableError), error
    assert "connection refused" in str(error)


def test_a_closed_data_path_is_told_apart_from_a_missing_switch(service: SwitchService) -> None:
    """The controller answers, and announces a data port where nothing answers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent, zmq.Context() as context:
        silent.bind(("127.0.0.1", 0))
        router = context.socket(zmq.ROUTER)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        told: list[control.Message] = []
        gate = Gate(random.Random(1).getrandbits)

        def answer() -> None:
            while not any(isinstance(message, control.Leave) for message in told):
                route, data = router.recv_multipart()
                entered = gate.enter(route, data)
                if not isinstance(entered, Entered):
                    router.send_multipart([route, control.to_bytes(entered)])
                    continue
                told.append(entered.request)
                if isinstance(entered.request, control.Join):
                    reply = dataclasses.replace(ADMITTED, ports=(silent.getsockname()[1],))
                    sealed = gate.sealed(entered.peer, reply)
                    assert sealed is not None
                    router.send_multipart(sealed)

        answering = threading.Thread(target=answer)
        answering.start()
        with pytest.raises(
            SwitchUnreachableError, match="answers on its control port, but nothing came back from its UDP"
        ):
            join(SwitchAddress("udp", "127.0.0.1", port), 0, 1, options=QUICK)
        answering.join()
        router.close(linger=0)
    (leave,) = [message for message in told if isinstance(message, control.Leave)]
    assert "nothing came back" in leave.reason


ADMITTED = control.Admitted(
    job="j", rank=0, index=0, generation=1, workers=1, quorum=1, staleness=0, max_staleness=0, slots=4,
    words_per_packet=64, codes_per_packet=1, checksum=False,
    liveness_timeout_s=5.0, on_worker_loss="raise", token=1, scheme="udp", ports=(),
)  # fmt: skip


def test_ranks_that_do_not_come_are_named(service: SwitchService, caplog: pytest.LogCaptureFixture) -> None:
    options = Options(join_timeout_s=2.0)  # both have come by then
    with caplog.at_level(logging.WARNING, "fanin"):
        joining = [in_thread(partial(join, address_of(service), rank, 4, "incomplete", options)) for rank in (0, 2)]
        errors = [future.exception(DEADLINE_S) for future in joining]
    for error in errors:
        assert isinstance(error, JoinTimeoutError)
        assert error.missing == (1, 3)
        assert "ranks 1 and 3 of 4 did not join" in str(error)
    until(lambda: service.controller.live_jobs == 0)


def test_another_job_size_is_refused_with_the_reason_and_who_waits_is_told(service: SwitchService) -> None:
    address = address_of(service)
    waiting = in_thread(partial(join, address, 0, 2, "odd", PATIENT))
    until(lambda: any(job.name == "odd" for job in stats(address).jobs))
    with pytest.raises(AdmissionError, match="rank 1 says that job 'odd' has 3 workers"):
        join(address, 1, 3, "odd")
    error = waiting.exception(DEADLINE_S)
    assert isinstance(error, WorkerLostError)
    assert error.ranks == (1,)
    assert "has 3 workers" in str(error)


def test_a_taken_rank_and_too_many_workers_are_refused_with_the_reason(service: SwitchService) -> None:
    address = address_of(service)
    waiting = in_thread(partial(join, address, 0, 2, "full", PATIENT))
    until(lambda: any(job.name == "full" for job in stats(address).jobs))
    with pytest.raises(AdmissionError, match="rank 0 of job 'full' is taken"):
        join(address, 0, 2, "full")
    with pytest.raises(AdmissionError, match="at most 32"):
        join(address, 0, 33, "crowd")
    other = join(address, 1, 2, "full", PATIENT)
    session = waiting.result(DEADLINE_S)
    assert isinstance(session, Session)
    with pytest.raises(AdmissionError, match="taken"):
        join(address, 0, 2, "full")
    reduce_together([session, other])
    session.close()
    other.close()


def stats(address: SwitchAddress, key: str | None = None) -> control.Stats:
    answer = ask(address, control.Ask(), curve_server_key=key, timeout_s=DEADLINE_S, credentials=OPERATOR)
    assert isinstance(answer, control.Stats)
    return answer


def test_a_job_too_large_for_the_pool_is_refused_with_needed_and_free(service: SwitchService) -> None:
    with pytest.raises(AdmissionError, match=r"bytes of switch memory needed, 67,108,864 free.*FANIN_SLOTS"):
        join(address_of(service), 0, 1, "huge", Options(slots=65_536))


def test_a_worker_of_another_version_is_told_both_versions(
    service: SwitchService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanin.host.session.joining.WIRE_VERSION", 9)
    with pytest.raises(AdmissionError, match=r"speaks packet version 9, the switch 1.*same fanin version"):
        join(address_of(service), 0, 1)


@pytest.mark.parametrize("data", [b"", b"\xff" * 100, control.to_bytes(control.Ask(), version=7)])
def test_bytes_that_are_no_message_are_answered_and_harm_nothing(service: SwitchService, data: bytes) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.connect(f"tcp://127.0.0.1:{service.port}")
        dealer.send(data)
        reply = control.parse(dealer.recv())
        dealer.send_multipart([b"too", b"many", b"frames"])
    assert isinstance(reply, control.Refused)
    assert stats(address_of(service)).wire_version == 1


def test_a_rank_that_gives_up_while_the_job_starts_is_named_to_the_others(service: SwitchService) -> None:
    """Rank 1 is played by hand: it is admitted, never opens its data path, and leaves."""
    address = address_of(service)
    joining = in_thread(partial(join, address, 0, 2, "one gives up", PATIENT))
    request = a_join(1, job="one gives up")
    with ControlClient(address, curve_server_key=None, timeout_s=DEADLINE_S) as rank_1:
        until(lambda: isinstance(rank_1.ask(request, DEADLINE_S), control.Admitted))
        rank_1.send(control.Leave(job=request.job, rank=1, nonce=request.nonce, reason="no answer over UDP"))
        error = joining.exception(DEADLINE_S)
    assert isinstance(error, WorkerLostError)
    assert error.ranks == (1,)
    assert "gave up: no answer over UDP" in str(error)


def test_jobs_come_and_go_and_leave_nothing_behind(service: SwitchService) -> None:
    address = address_of(service)
    for number in range(5):
        sessions = join_all(address, f"job {number // 2}", 2, PATIENT)
        reduce_together(sessions)
        for session in sessions:
            session.close()
    until(lambda: service.controller.live_jobs == 0)


def test_one_job_per_flow_count_spreads_over_all_flows() -> None:
    with a_service(flows=3) as service:
        assert len(set(service.servers["udp"].ports)) == 3
        sessions = join_all(address_of(service), "wide", 2, PATIENT)
        assert sessions[0].flows == 3
        reduce_together(sessions, 100_000)
        for session in sessions:
            session.close()


def test_ranks_over_zmq_and_udp_are_told_that_they_disagree(service: SwitchService) -> None:
    waiting = in_thread(partial(join, address_of(service), 0, 2, "mixed", PATIENT))
    until(lambda: any(job.name == "mixed" for job in stats(address_of(service)).jobs))
    with pytest.raises(AdmissionError, match="same switch address"):
        join(address_of(service, "zmq"), 1, 2, "mixed")
    assert isinstance(waiting.exception(DEADLINE_S), WorkerLostError)


def test_with_curve_only_workers_with_the_key_are_heard() -> None:
    public, secret = (key.decode() for key in zmq.curve_keypair())
    other, _ = (key.decode() for key in zmq.curve_keypair())
    with a_service(curve=CurveKeys(public, secret)) as service:
        for scheme in ("udp", "zmq"):
            address = address_of(service, scheme)
            sessions = join_all(address, "secret", 2, Options(curve_server_key=public, connect_timeout_s=10.0))
            reduce_together(sessions)
            for session in sessions:
                session.close()
        assert stats(address, public).curve
        for key in (None, other):
            with pytest.raises(SwitchUnreachableError, match="CURVE"):
                join(address, options=Options(curve_server_key=key, connect_timeout_s=1.0))
        with pytest.raises(FaninError, match="Z85"):
            join(address, options=Options(curve_server_key="~" * 40))


def test_a_port_that_is_taken_is_an_error_in_one_line(service: SwitchService) -> None:
    with (
        pytest.raises(ConfigurationError, match=f"TCP port {service.port} of 127.0.0.1 cannot be had"),
        a_service(port=service.port),
    ):
        pass
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        with pytest.raises(ConfigurationError, match=str(port)), a_service(port=port):
            pass
    with (
        pytest.raises(ConfigurationError, match="no name or address of this machine"),
        a_service(host="no-such.invalid"),
    ):
        pass
