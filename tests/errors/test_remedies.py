"""Remedies fit the job: none is offered that its mode, its switch or its scheme has no use for."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from fanin.errors import ConfigurationError
from fanin.host.session import failures
from fanin.host.session.failures import End, MemberNames
from fanin.options import Options, SwitchAddress
from fanin.protocol.control import Admitted

ADDRESS = SwitchAddress("udp", "127.0.0.1", 1)
WHO = MemberNames(address=ADDRESS, job_name="j", rank=1, size=4)
AGAIN = "start the job again"
ADMITTED = Admitted(
    job="j", rank=1, index=0, generation=1, workers=4, quorum=4, staleness=0, max_staleness=0, slots=4,
    words_per_packet=64, codes_per_packet=1, checksum=False,
    liveness_timeout_s=5.0, on_worker_loss="raise", token=1, scheme="udp", ports=(4919,),
)  # fmt: skip


def remedy_of(error: Exception) -> str:
    return str(error).partition(". Remedy: ")[2]


@pytest.mark.parametrize("falls_back", [True, False], ids=["group", "stale"])
@pytest.mark.parametrize("starts_switch", [True, False], ids=["rank 0's switch", "a switch apart"])
@pytest.mark.parametrize(
    ("end", "steps"),
    [
        (End.REFUSED, ("start the switch", AGAIN)),
        (End.FORGOTTEN, (AGAIN,)),
        (End.REPLACED, ("see who listens there (`ss -ltnp`)", "start the switch", AGAIN)),
        (End.DEVICE_GONE, ("start the device", "start its controller", AGAIN)),
        ("silent", ("start the switch", AGAIN)),
        ("moved", ("give this machine its address and route back", AGAIN)),
    ],
    ids=str,
)
def test_the_loss_of_a_switch_is_cured_by_what_its_job_has(
    end: End | str, steps: tuple[str, ...], falls_back: bool, starts_switch: bool
) -> None:
    who = dataclasses.replace(WHO, falls_back=falls_back, starts_switch=starts_switch)
    if isinstance(end, End):
        error = failures.switch_ended(who, end)
    else:
        error = failures.switch_silent(who, 1.5, "", None, moved="it moved" * (end == "moved"))
    wanted = ", then ".join(each for each in steps if each != "start the switch" or not starts_switch)
    assert remedy_of(error) == wanted + ", or set FANIN_FALLBACK=gloo on every rank" * falls_back


@pytest.mark.parametrize(
    ("scheme", "data_host", "narrower", "stream"),
    [("udp", "", True, True), ("udp", "192.0.2.7", True, False), ("zmq", "", False, False)],
    ids=["software", "device", "stream"],
)
def test_a_closed_data_port_is_cured_by_what_its_switch_can(
    scheme: Any, data_host: str, narrower: bool, stream: bool
) -> None:
    admitted = dataclasses.replace(ADMITTED, scheme=scheme, data_host=data_host)
    remedy = remedy_of(failures.data_path_closed(WHO, admitted, 5.0, ""))
    assert remedy.startswith("open that port in the firewall")
    assert ("FANIN_WORDS_PER_PACKET" in remedy) is narrower
    assert ("zmq://" in remedy) is stream


@pytest.mark.parametrize(
    ("given", "offered"),
    [
        ({}, True),
        ({"fallback": "cards"}, True),
        ({"on_worker_loss": "continue"}, True),
        ({"fallback": "gloo"}, False),
        ({"inside": "gloo"}, False),
        ({"on_nonfinite": "raise"}, False),
    ],
    ids=str,
)
def test_gloo_is_offered_where_it_can_be_set(given: dict[str, Any], offered: bool) -> None:
    options = Options(**given)
    assert options.may_fall_back is offered
    if offered:
        Options(**{**given, "fallback": "gloo"})
    elif given.get("fallback") != "gloo":
        with pytest.raises(ConfigurationError, match="fallback"):
            Options(**{**given, "fallback": "gloo"})


def test_a_stale_job_offers_no_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    stale = pytest.importorskip("fanin.host.torch.training.stale")
    joined: list[Any] = []
    monkeypatch.setattr(stale.Session, "join", joined.append)
    monkeypatch.setattr(stale, "next_job_name", lambda _: "j")
    monkeypatch.setattr(stale.dist, "get_world_size", lambda _: 4)
    options = Options(switch=str(ADDRESS))
    group = SimpleNamespace(meeting=None, options=options, switch_options=options, switch=ADDRESS, credentials=None)
    terms = SimpleNamespace(options=SimpleNamespace(lanes=None), rounds_of=lambda _: None)
    stale._join(group, terms, SimpleNamespace(words_per_packet=64, slots=(8,)), 1)
    assert options.may_fall_back, "the group's own errors may offer it"
    assert (joined[0].falls_back, joined[0].starts_switch) == (False, False)
