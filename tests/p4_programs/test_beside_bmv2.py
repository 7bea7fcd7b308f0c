"""Random writes and frames into BMv2's simple_switch_grpc and into the emulator: the same answers, the same bytes.

As test_differential.py, FANIN_P4_SAMPLES names a folder of compiled programs of others.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.p4_programs import bmv2
from tests.p4_programs.bmv2_side import SHORTEST_FRAME, bmv2_side
from tests.p4_programs.differential import EmulatedSide, Sample, Sent, compare, samples

FRAMES = 60
SEED = 1


class AtPorts(EmulatedSide):
    """The emulator, seen from the ports that BMv2 has."""

    def exchange(self, port: int, frame: bytes) -> Sent | None:
        """See Side; in order at each port."""
        if len(frame) < SHORTEST_FRAME:
            return None
        sent = super().exchange(port, frame)
        if sent is None:
            return None
        leaving = [(to, data) for to, data in sent if to in bmv2.PORTS and len(data) >= SHORTEST_FRAME]
        return sorted(leaving, key=lambda each: each[0])


@pytest.fixture(scope="module")
def links() -> Iterator[bmv2.Links]:
    if (reason := bmv2.missing()) is not None:
        pytest.skip(reason)
    with bmv2.linked(bmv2.PORTS) as made:
        yield made


@pytest.mark.processes
@pytest.mark.parametrize("sample", samples(), ids=lambda sample: sample.name)
def test_bmv2_does_the_same_with_random_entries_and_frames(sample: Sample, links: bmv2.Links, tmp_path: Path) -> None:
    here = AtPorts(sample, native=None, seed=SEED)
    with bmv2_side(sample, links, tmp_path) as there:
        # BMv2 1.15.5 answers UNKNOWN to clone sessions that truncate (PI/src/pi_clone_imp.cpp: "add support").
        found = compare(sample, here, there, SEED, FRAMES, undefined_alike=False, truncated_clones=False)
    assert not found.differences
    assert found.writes > found.refused
