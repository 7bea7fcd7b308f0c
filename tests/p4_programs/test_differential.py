"""Random writes and frames, made from a program's own P4Info and parser: both interpreters answer and send the same.

FANIN_P4_SAMPLES names a folder of compiled programs of others (`*.json` with `*.p4info.txtpb` or `*.proto.txt` beside
it), for instance the tests of BMv2's simple_switch_grpc. They are run beside ours.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.p4_programs.differential import OURS, EmulatedSide, Sample, compare, samples

FRAMES = 100
SEED = 1


@pytest.mark.parametrize("sample", [pytest.param(each, id=each.name) for each in samples()])
def test_both_interpreters_do_the_same_with_random_entries_and_frames(sample: Sample) -> None:
    native = EmulatedSide(sample, native=None, seed=SEED)
    if native.engine != "native interpreter":
        pytest.skip(native.engine)
    found = compare(sample, EmulatedSide(sample, native=False, seed=SEED), native, SEED, FRAMES)
    assert not found.differences
    assert found.writes > found.refused
    assert found.sent or sample not in OURS


class Forgetful(EmulatedSide):
    """A switch that takes no entry in, and says that it has."""

    def write(self, update: Any) -> int:
        return 0


def test_a_switch_without_the_entries_is_found_out() -> None:
    sample = OURS[0]
    sides = EmulatedSide(sample, native=False, seed=SEED), Forgetful(sample, native=False, seed=SEED)
    assert compare(sample, *sides, SEED, FRAMES).differences
