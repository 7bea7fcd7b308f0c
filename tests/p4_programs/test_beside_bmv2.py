"""Random writes and frames into BMv2's simple_switch_grpc and into the emulator: the same answers, the same bytes.

As test_differential.py, FANIN_P4_SAMPLES names a folder of compiled programs of others.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fanin.emulation.bmv2_process import Links, linked, missing
from fanin.switch.p4runtime.server.status import Code
from tests.p4_programs.bmv2 import PORTS
from tests.p4_programs.bmv2_side import SHORTEST_FRAME, EndedError, bmv2_side
from tests.p4_programs.differential import (
    EmulatedSide,
    RefusedProgramError,
    Sample,
    Sent,
    compare,
    expected,
)

FRAMES = 60
SEED = 1


LISTED = frozenset(
    {
        (Code.RESOURCE_EXHAUSTED, Code.UNKNOWN),
        (Code.INVALID_ARGUMENT, Code.UNKNOWN),
        (Code.OUT_OF_RANGE, Code.UNKNOWN),
    }
)
"""Refusals that docs/p4-emulator.md lists: a full table, no error of that name in a key, a translated value."""
ENDS, LOADS_NOT = "BMv2 ends at a frame, or works on it without an end", "BMv2 does not load the program"
EXPLAINED = {
    **dict.fromkeys(
        (
            "control-hs-index-test1",
            "control-hs-index-test2",
            "control-hs-index-test4",
            "control-hs-index-test5",
            "extract_for_header_union",
            "forloop-bmv2",
            "issue1043-bmv2",
            "issue1607-bmv2",
            "issue2726-bmv2",
            "runtime-index-2-bmv2",
            "runtime-index-bmv2",
        ),
        ENDS,
    ),
    **dict.fromkeys(
        (
            "control-hs-index-test3",
            "control-hs-index-test6",
            "issue3374",
            "v1model-digest-containing-ser-enum",
            "v1model-digest-custom-type",
        ),
        LOADS_NOT,
    ),
    "issue2283_1-bmv2": "PI takes no name for a value that is translated to a string",
    "match-on-exprs2-bmv2": "BMv2 masks an entry's key where the program masks the packet's; so two entries are one",
    "v1model-p4runtime-enumint-types1": "BMv2 cuts off bits of a default action's value that is translated",
}
"""Programs of p4c's samples that differ, by name, and why: docs/p4-emulator.md lists them."""


def taken_by_bmv2(update: Any) -> bool:
    """Leaves out what BMv2 1.15.5 does not do: clone sessions that truncate (PI/src/pi_clone_imp.cpp), value sets."""
    if update.entity.packet_replication_engine_entry.HasField("clone_session_entry"):
        update.entity.packet_replication_engine_entry.clone_session_entry.packet_length_bytes = 0
    return not update.entity.HasField("value_set_entry")


class AtPorts(EmulatedSide):
    """The emulator, seen from the ports that BMv2 has."""

    def exchange(self, port: int, frame: bytes) -> Sent | None:
        """See Side; in order at each port."""
        if len(frame) < SHORTEST_FRAME:
            return None
        sent = super().exchange(port, frame)
        if sent is None:
            return None
        leaving = [(to, data) for to, data in sent if to in PORTS and len(data) >= SHORTEST_FRAME]
        return sorted(leaving, key=lambda each: each[0])


@pytest.fixture(scope="module")
def links() -> Iterator[Links]:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with linked(PORTS) as made:
        yield made


@pytest.mark.processes
@pytest.mark.parametrize("sample", expected(EXPLAINED, AssertionError, EndedError, RefusedProgramError))
def test_bmv2_does_the_same_with_random_entries_and_frames(sample: Sample, links: Links, tmp_path: Path) -> None:
    here = AtPorts(sample, native=None, seed=SEED)
    with bmv2_side(sample, links, tmp_path) as there:
        found = compare(
            sample,
            here,
            there,
            SEED,
            FRAMES,
            undefined_alike=False,
            written=taken_by_bmv2,
            codes_alike=LISTED,
        )
    assert not found.differences
    assert found.writes > found.refused
