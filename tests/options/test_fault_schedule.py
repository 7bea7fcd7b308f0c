"""The grammar of what goes wrong at a time or a step (that of datagrams: tests/transports/test_faults.py)."""

from __future__ import annotations

import pytest

from fanin.errors import ConfigurationError
from fanin.faults import FaultSchedule, ScheduledFault
from fanin.options import Options


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kill=worker:2@step:40", {"action": "kill", "target": "worker", "index": 2, "at_step": 40}),
        ("restart=switch@12s", {"action": "restart", "target": "switch", "index": None, "at_s": 12.0}),
        ("pause=worker:1@0.5s+3s", {"action": "pause", "index": 1, "at_s": 0.5, "lasts_s": 3.0}),
        ("down=link:3@5s+2s", {"action": "down", "target": "link", "index": 3, "lasts_s": 2.0}),
        ("slow=link:3:4x@5s+10s", {"action": "slow", "factor": 4.0, "at_s": 5.0}),
    ],
)
def test_a_clause_says_what_happens_to_whom_and_when(text: str, expected: dict[str, object]) -> None:
    fault = ScheduledFault.parse(text)
    assert {name: getattr(fault, name) for name in expected} == expected


@pytest.mark.parametrize(
    "text",
    [
        "kill=worker@step:40",
        "kill=switch:1@step:40",
        "kill=link:1@5s",
        "kill=worker:1",
        "kill=worker:1@40",
        "kill=worker:1@5s+2s",
        "down=link:3@5s",
        "slow=link:3@5s+2s",
        "down=link:3:2x@5s+2s",
        "pause=worker:1@step:4+2s",
        "break=worker:1@5s",
        "down=worker:1@5s+2s",
    ],
)
def test_a_clause_that_makes_no_sense_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ConfigurationError, match="kill=worker:2@step:40"):
        ScheduledFault.parse(text)


def test_clauses_are_joined_by_semicolons_and_workers_get_theirs() -> None:
    text = "drop=1%,dup=2%@seed=7; kill=worker:2@step:40; restart=switch@12s"
    schedule = FaultSchedule.parse(text)
    assert schedule.packets is not None
    assert schedule.packets.seed == 7
    assert [each.action for each in schedule.scheduled] == ["kill", "restart"]
    assert schedule.for_workers(text) == "drop=1%,dup=2%@seed=7;kill=worker:2@step:40"
    assert FaultSchedule.parse("") == FaultSchedule()


def test_a_fault_at_a_worker_that_a_job_does_not_have_is_refused() -> None:
    schedule = FaultSchedule.parse("drop=1%;kill=worker:1@step:4;kill=switch@step:1;restart=worker:2@step:9")
    schedule.check_workers(3)
    with pytest.raises(
        ConfigurationError, match=r"^fault 'restart=worker:2@step:9': there is no worker 2: .* 0\.\.1\. R"
    ):
        schedule.check_workers(2)


def test_a_worker_refuses_what_only_an_emulator_can_do() -> None:
    assert Options(faults="kill=worker:0@step:3").packet_faults is None
    with pytest.raises(ConfigurationError, match="fanin emulate"):
        Options(faults="restart=switch@12s")
