"""The hidden share of exchanges of local steps, from lines of a rank's time line."""

from __future__ import annotations

from typing import Any

import pytest

from fanin.emulation.network.hidden_exchange import Exchanged, exchanges_of, hidden, hidden_in_words
from fanin.emulation.network.timelines import legal


def meeting(number: int, launched: float, submitted: float, awaited: float, landed: float) -> dict[str, Any]:
    return {"kind": "meeting", "number": number, "fragment": 0, "launched": launched, "submitted": submitted,
            "awaited": awaited, "landed": landed}  # fmt: skip


def sums(*times: tuple[float, float]) -> list[dict[str, Any]]:
    return [
        {"kind": "reduction", "submitted": begun_s, "done": done_s, "bytes": 4, "packing_s": 0.0, "sending_s": 0.0,
         "step": 1}
        for begun_s, done_s in times
    ]  # fmt: skip


def of(*lines: dict[str, Any]) -> Exchanged:
    (found,) = exchanges_of(legal(lines))
    return found


def test_a_result_that_lay_there_is_no_exchange_and_coding_is_exposed() -> None:
    """Launch at 10, sums from 10.1 till 12, read from 15 on: 2 s of network and 0.5 s of decoding."""
    found = of(*sums((10.05, 11.0), (10.1, 12.0)), meeting(0, 10.0, 10.25, 15.0, 15.5))
    assert found.arrived_s == 12.0
    assert found.exchange_s == pytest.approx(2.5)
    assert found.exposed_s == pytest.approx(0.75)
    assert found.fits
    both = hidden([found])
    assert both is not None
    assert both.share == pytest.approx(1 - 0.75 / 2.5)


def test_a_wait_for_the_network_is_exposed_and_such_an_exchange_does_not_fit() -> None:
    found = of(*sums((10.0, 13.0)), meeting(0, 10.0, 10.0, 11.0, 13.0))
    assert (found.exchange_s, found.exposed_s, found.fits) == (3.0, 2.0, False)


def test_nothing_of_an_exchange_that_training_waits_for_at_once_is_hidden() -> None:
    found = of(*sums((10.0, 13.0)), meeting(0, 10.0, 10.5, 10.5, 13.0))
    assert found.exposed_s == found.exchange_s
    assert hidden_in_words([found]) == [
        "meetings: 1, of whose 3.0 s 0% was hidden behind steps; none was shorter than the steps that it overlapped"
    ]


def test_sums_belong_to_the_meeting_that_launched_them() -> None:
    """Fragments overlap: the second is launched while the first travels."""
    lines = [
        *sums((10.0, 14.0), (12.0, 13.0), (20.0, 29.0)),
        meeting(0, 10.0, 10.5, 15.0, 15.0),
        meeting(1, 12.0, 12.5, 16.0, 16.0),
    ]
    assert [each.arrived_s for each in exchanges_of(legal(lines))] == [14.0, 13.0]
    assert hidden_in_words(exchanges_of(lines)) == ["meetings: 2, of whose 5.0 s 80% was hidden behind steps"]


def test_the_words_tell_those_that_fit_from_all() -> None:
    lines = [
        *sums((10.0, 12.0), (20.0, 23.0)),
        meeting(0, 10.0, 10.0, 15.0, 15.0),
        meeting(1, 20.0, 20.0, 21.0, 23.0),
    ]
    assert hidden_in_words(exchanges_of(lines)) == [
        "meetings: 2, of whose 5.0 s 60% was hidden behind steps; 100% of the 1 that were shorter than the steps they "
        "overlapped"
    ]
    assert hidden_in_words([]) == []
    assert hidden([]) is None


def test_a_spoiled_line_of_a_meeting_is_left_out() -> None:
    line = meeting(0, 10.0, 10.0, 11.0, 13.0)
    assert legal([line | {"awaited": None}, line | {"number": "first"}, line]) == [line]
