"""Jobs that a controller gives an accumulator for each lane, and jobs that it refuses by name."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest

from fanin.errors import ConfigurationError
from fanin.host.session.joining import accumulators_wished
from fanin.host.stale.layout import Layout
from fanin.numerics.reduction import WIDE_SUMS, lanes_number
from fanin.options import Options, Rounds
from fanin.protocol import control
from fanin.protocol.control import Refusal
from tests.support.controllers import BUFFERS, World, join


def spec_of(world: World, admitted: control.Admitted) -> bool:
    """Whether the data plane's job has accumulators; the ranks are told the same."""
    held = world.servers["udp"].specs[admitted.index].accumulators
    assert admitted.accumulators == held
    return held


@pytest.mark.parametrize(
    ("wishes", "given"), [((None, None), True), ((True, None), True), ((False, None), False), ((True, False), False)]
)
def test_a_job_has_accumulators_if_every_rank_can_use_them(
    wishes: tuple[bool | None, bool | None], given: bool
) -> None:
    world = World()
    admitted = world.admit(*(join(rank, accumulators=wish) for rank, wish in enumerate(wishes)))
    assert spec_of(world, admitted) is given


def test_memory_that_is_short_goes_to_jobs_without_accumulators() -> None:
    world = World(memory_bytes=1 << 20)
    admitted = world.admit(join(0, 1, slots=100, words_per_packet=1024, accumulators=None))
    assert not spec_of(world, admitted)
    report = world.say("tool", control.Ask())
    assert isinstance(report, control.Stats)
    assert not report.jobs[0].accumulators


def test_a_job_that_cannot_do_without_is_refused_with_the_bytes_that_it_needs() -> None:
    world = World(memory_bytes=1 << 20)
    refused = world.refused(join(0, 1, slots=100, words_per_packet=1024, accumulators=True))
    assert refused.code == Refusal.MEMORY
    assert "2,4" in refused.reason, "ring and accumulators"
    world = World(memory_bytes=1 << 22)
    assert spec_of(world, world.admit(join(0, 1, slots=100, words_per_packet=1024, accumulators=True)))


def test_a_pipeline_refuses_by_name_who_cannot_do_without_and_serves_all_others() -> None:
    world = World(buffers=dataclasses.replace(BUFFERS, accumulators=False))
    refused = world.refused(join(0, 1, accumulators=True))
    assert refused.code == Refusal.SHAPE
    assert "adds whole words" in refused.reason
    assert "FANIN_LANES" in refused.remedy
    assert not spec_of(world, world.admit(join(0, 1, job="other", accumulators=None)))


@pytest.mark.parametrize(
    ("options", "needs"),
    [({}, False), ({"lanes": 8}, False), ({"lanes": "8"}, True), ({"lanes": "4/8"}, True),
     ({"codec": "rotated:8"}, False), ({"codec": "rotated:4/8"}, True), ({"codec": "rotated:4/8:seed=1"}, True),
     ({"codec": "rotated:lanes=4/8"}, True), ({"codec": "by_layer:8:rules=*=>lanes,4/8"}, True),
     ({"codec": "by_layer:4/8:rules=*=>lanes,8"}, False), ({"lanes": "16"}, False)],
)  # fmt: skip
def test_options_say_whether_a_job_can_do_without(options: dict[str, str | int], needs: bool) -> None:
    """The codec's own parser decides, so every way to write its lanes counts."""
    assert (accumulators_wished(Options(**options), Rounds()) is True) is needs  # type: ignore[arg-type]


def test_only_stale_jobs_of_wide_sums_ask_for_accumulators() -> None:
    stale, wide = Rounds(staleness=2), Options(lanes="8")
    assert [accumulators_wished(Options(), rounds) for rounds in (Rounds(), stale)] == [None, False]
    assert [accumulators_wished(wide, rounds) for rounds in (Rounds(), stale)] == [True, True]


def test_lanes_are_read_from_the_environment_as_they_are_meant() -> None:
    assert Options.from_environment({"FANIN_LANES": "4/8"}).lanes_number == lanes_number("4/8")
    assert Options.from_environment({"FANIN_LANES": "8"}).lanes_number == 8
    assert WIDE_SUMS[Options(lanes="8").lanes_number] == (8, 8)
    assert WIDE_SUMS[Options(lanes="4").lanes_number] == (4, 4)


@pytest.mark.parametrize("lanes", ["8/4", "1/8", "32/32", "8/", "", "eight", 7, "2"])
def test_widths_that_no_switch_has_are_refused_with_those_that_there_are(lanes: str | int) -> None:
    with pytest.raises(ConfigurationError, match=r"one of \(32, 16, 8, 4\), or bits up / bits down: '8/8', '4/8'"):
        Options(lanes=lanes)


@pytest.mark.parametrize(("lanes", "staleness"), [("4/4", 0), ("8/8", 16)])
def test_a_stale_job_whose_tally_narrowing_would_lose_is_refused(lanes: str, staleness: int) -> None:
    layout = partial(Layout, elements=1000, words_per_packet=64, flows=(1,), workers=4)
    with pytest.raises(ConfigurationError, match=f"lanes = {lanes} in a stale job of {4 * (staleness + 1)} contrib"):
        layout(lanes=lanes_number(lanes), staleness=staleness)
    assert layout(lanes=lanes_number("4/8"), staleness=15).chunk_elements == 256
