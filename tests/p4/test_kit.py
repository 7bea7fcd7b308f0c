"""`fanin conformance`: our own switches as somebody else's, and switches that are none."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from fanin import cli
from fanin.emulation.conformance import check as checking
from fanin.emulation.conformance.check import ALLOWED, DIFFERS, REFUSED, SAME, HistoryResult, check
from fanin.emulation.conformance.histories import HISTORIES, History
from fanin.emulation.conformance.subject import Sent
from fanin.errors import AdmissionError
from fanin.options import SwitchAddress
from fanin.protocol.wire import Kind
from fanin.switch.machine.switch_machine import SwitchMachine
from fanin.switch.p4runtime.opening import BUILD
from tests.support.bench import make_spec

NOWHERE = SwitchAddress("udp", "127.0.0.1", 1)
SWITCH = [sys.executable, "-m", "fanin", "switch", "--bind", "127.0.0.1:0"]
P4 = [
    "--target",
    "p4",
    "--program",
    str(BUILD / "v1model-64.json.gz"),
    "--p4info",
    str(BUILD / "v1model-64.p4info.txtpb"),
]
Change = Callable[[Sent], Sent]


@pytest.mark.processes
@pytest.mark.parametrize(("more", "bare"), [([], False), (["--twin"], False), (P4, True)], ids=["native", "twin", "p4"])
def test_our_own_switch_conforms_as_a_foreign_process(
    capsys: pytest.CaptureFixture[str], more: list[str], bare: bool
) -> None:
    assert cli.run(["conformance", "--json", "--seeds", "1", "--words", "64", "--", *SWITCH, *more]) == 0
    verdicts = json.loads(capsys.readouterr().out)["verdicts"]
    assert {each["history"]: each["outcome"] for each in verdicts} == dict.fromkeys(
        [history.name for history in HISTORIES], SAME
    )
    assert any(each["bare"] for each in verdicts) == bare
    assert all(each["packets"] > 5 for each in verdicts)


class Pretended:
    """A switch in this process that does not do all that the twin does."""

    def __init__(self, history: History, change: Change) -> None:
        wanted = history.wanted
        self.spec = make_spec(
            workers=wanted.workers, quorum=wanted.quorum, staleness=wanted.staleness, slots=wanted.slots, words=16
        )
        self._machine, self._change = SwitchMachine(1 << 24), change
        self._machine.admit(self.spec)

    def exchange(self, place: int, data: bytes, expected: dict[int, int]) -> Sent:
        self._machine.receive_datagram(data, place, 0.0)
        sent: Sent = {}
        for each, to in self._machine.datagrams_to_send(0.0):
            sent.setdefault(to, []).append(each)
        return self._change(sent)

    def close(self) -> None:
        pass


def judged(monkeypatch: pytest.MonkeyPatch, name: str, change: Change) -> HistoryResult:
    history = next(each for each in HISTORIES if each.name == name)
    monkeypatch.setattr(checking, "Subject", lambda address, wanted, words: Pretended(history, change))
    return check(NOWHERE, history, seed=1)


def without(kind: Kind) -> Change:
    return lambda sent: {to: [each for each in data if each[3] != kind] for to, data in sent.items()}


def one_bit_off(sent: Sent) -> Sent:
    return {
        to: [each[:-1] + bytes([each[-1] ^ 1]) if each[3] == Kind.RESULT else each for each in data]
        for to, data in sent.items()
    }


def to_the_first_alone(sent: Sent) -> Sent:
    return {to: data for to, data in sent.items() if to == min(sent)}


def twice(sent: Sent) -> Sent:
    return {to: data * 2 for to, data in sent.items()}


def same(sent: Sent) -> Sent:
    return sent


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("in order", one_bit_off),
        ("in order", to_the_first_alone),
        ("in order", without(Kind.ANSWER)),
        ("refusals", without(Kind.NOTICE)),
        ("departures", without(Kind.BYE)),
        ("stale", without(Kind.ANSWER)),
        ("random", twice),
        ("random, stale", one_bit_off),
    ],
)
def test_a_switch_that_is_none_is_found_and_the_first_difference_is_told(
    monkeypatch: pytest.MonkeyPatch, name: str, change: Change
) -> None:
    assert judged(monkeypatch, name, same).outcome == SAME
    verdict = judged(monkeypatch, name, change)
    assert verdict.outcome == DIFFERS
    assert verdict.fails
    assert f"packet {verdict.packets}, from" in str(verdict)
    assert "the twin sends" in str(verdict)


def test_what_hardware_may_do_differently_is_told_and_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = judged(monkeypatch, "mismatches", without(Kind.NOTICE))
    assert (verdict.outcome, verdict.fails) == (ALLOWED, False)
    assert "workers compare signatures" in str(verdict)


def test_a_job_that_a_switch_refuses_is_skipped_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AdmissionError("rings of 2 entries take S = 0")

    monkeypatch.setattr(checking, "Subject", refuse)
    verdict = check(NOWHERE, HISTORIES[5], 0)
    assert (verdict.outcome, verdict.fails, verdict.packets) == (REFUSED, False, 0)
    assert "rings of 2 entries" in str(verdict)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ([], 2, "wants a switch"),
        (["zmq://127.0.0.1:1"], 2, "over UDP"),
        (["--words", "9", "udp://127.0.0.1:1"], 2, "multiple of 8"),
        (["--", "/nonexistent/switch"], 1, "cannot be started"),
        (["--", "true"], 1, "printed no line with udp://HOST:PORT"),
    ],
)
def test_what_is_no_switch_is_said(
    capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, said: str
) -> None:
    assert cli.run(["conformance", *arguments]) == status
    assert said in capsys.readouterr().err
