"""Every error of a rank's session names the rank, the switch's address and a remedy."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial

import pytest

from fanin.emulation.processes import free_port
from fanin.errors import FaninError, SwitchUnreachableError
from fanin.host.session import failures
from fanin.host.session.control import ControlClient
from fanin.host.session.failures import End, MemberNames
from fanin.host.session.joining import JoinTerms
from fanin.host.session.session import Session
from fanin.options import Options, SwitchAddress
from fanin.protocol.control import Admitted, Ask, Challenge, Explanation, Refused, to_bytes
from fanin.protocol.conversation import UnknownKey
from fanin.protocol.events import PathNarrowed
from fanin.protocol.wire import Reason

ADDRESS = SwitchAddress("udp", "127.0.0.1", 4711)
WHO = MemberNames(address=ADDRESS, job_name="j", rank=1, size=4)
ADMITTED = Admitted(
    job="j", rank=1, index=0, generation=1, workers=4, quorum=4, staleness=0, max_staleness=0, slots=4,
    words_per_packet=64, codes_per_packet=1, checksum=False,
    liveness_timeout_s=5.0, on_worker_loss="raise", token=1, scheme="udp", ports=(4919,),
)  # fmt: skip
REFUSED = Refused(code="full", reason="no memory is free", remedy="wait")
KNOWN = Explanation(known=True, text="a leaf is gone")
GONE = Explanation(known=True, text="rank 1 is gone", lost=(1,))
NARROWED = PathNarrowed(passes_bytes=512, needed_bytes=1400)
MAKERS: dict[str, Callable[[], FaninError]] = {
    "used in a child": lambda: failures.used_in_child(WHO),
    "lost": lambda: failures.workers_gone(WHO, (1,), (), 5.0),
    "lost, told": lambda: failures.workers_gone(WHO, (1,), (), 5.0, GONE),
    "left": lambda: failures.workers_gone(WHO, (), (2,), 5.0),
    "narrowed": lambda: failures.path_narrowed(WHO, NARROWED, 5.0, None, None),
    "silent": lambda: failures.switch_silent(WHO, 5.0, "", None),
    "late": lambda: failures.reduction_late("j", ADDRESS, 1, 3, 5.0, ""),
    "stopped": lambda: failures.engine_stopped(WHO, "no memory"),
    "broken": lambda: failures.broken(WHO, "the thread that joins", KeyError("j")),
    "closed": lambda: failures.session_closed("j", 1, ADDRESS),
    "data path": lambda: failures.data_path_closed(WHO, ADMITTED, 5.0, ""),
    "narrow": lambda: failures.path_too_narrow(WHO, ADMITTED, 1464, 548),
    "superseded": lambda: failures.superseded(WHO),
    "branch": lambda: failures.branch_gone(WHO, KNOWN),
    "join refused": lambda: failures.join_refused(WHO, REFUSED),
}
MAKERS |= {f"ended, {end.name}": partial(failures.switch_ended, WHO, end) for end in End}
MAKERS |= {f"refused, {reason.name}": partial(failures.packet_refused, WHO, reason, None, 5.0) for reason in Reason}


@pytest.mark.parametrize("kind", MAKERS)
def test_an_error_names_rank_address_and_remedy(kind: str) -> None:
    text = str(MAKERS[kind]())
    assert "rank 1" in text
    assert str(ADDRESS) in text
    assert ". Remedy: " in text


def test_every_function_that_makes_an_error_is_in_the_table() -> None:
    makers = {
        name
        for name, each in vars(failures).items()
        if callable(each) and "Error" in str(getattr(each, "__annotations__", {}).get("return", ""))
    }
    used = {name for maker in MAKERS.values() for name in _names(maker)}
    assert makers == used


def _names(maker: Callable[[], FaninError]) -> set[str]:
    if isinstance(maker, partial):
        return {maker.func.__name__}
    return set(maker.__code__.co_names) & set(vars(failures))


def join(address: SwitchAddress, connect_timeout_s: float) -> SwitchUnreachableError:
    options = Options(connect_timeout_s=connect_timeout_s, secret="a secret of 16 letters")
    with pytest.raises(SwitchUnreachableError) as caught:
        Session.join(JoinTerms(options=options, switch=address, job_name="j", rank=1, size=4))
    return caught.value


def test_a_rank_that_finds_no_switch_is_named() -> None:
    address = SwitchAddress("udp", "127.0.0.1", free_port())
    text = str(join(address, 0.2))
    assert text.startswith(f"rank 1 of job 'j': no switch answers at {address}")
    assert "Remedy: start one there" in text


def test_a_rank_whose_switch_stays_silent_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = SwitchAddress("udp", "127.0.0.1", silent.getsockname()[1])
        text = str(join(address, 0.5))
    assert text.startswith(f"rank 1 of job 'j': {address} accepts TCP connections but did not answer")
    assert "Remedy: start one there" in text


@pytest.mark.parametrize("answered", [False, True], ids=["challenge alone", "answered before"])
def test_a_switch_whose_long_answers_are_dropped_is_called_a_switch(answered: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = SwitchAddress("udp", "127.0.0.1", silent.getsockname()[1])
        with ControlClient(address, curve_server_key=None, timeout_s=5.0, asker=WHO.in_words) as client:
            client.send(Ask())
            client._conversation.incoming(to_bytes(Challenge(challenge="0" * 32, key="", known=True, closed=False)))
            client._conversation.answered = answered
            error = client.silent(5.0)
    assert str(error).startswith(f"rank 1 of job 'j': switch {address} ")
    assert "drops long packets" in str(error)
    assert "not a fanin switch" not in str(error)
    assert str(error).endswith(f". Remedy: {error.remedy}")


def test_a_rank_without_the_switchs_key_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = SwitchAddress("udp", "127.0.0.1", silent.getsockname()[1])
        with ControlClient(address, curve_server_key=None, timeout_s=5.0, asker=WHO.in_words) as client:
            text = str(client._unknown(UnknownKey("ab", closed=False)))
    assert text.startswith(f"rank 1 of job 'j': the switch {address} does not have key ab")
    assert "Remedy: give all ranks" in text
