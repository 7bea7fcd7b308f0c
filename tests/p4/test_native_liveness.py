"""Bytes of a frame that the program does not read change nothing."""

from __future__ import annotations

from random import Random

from fanin.switch.p4.native_liveness import Liveness, extents
from tests.p4.instructions import FRAME, PLACES, random_code, run


def test_limbs_that_do_not_matter_may_have_any_value() -> None:
    random = Random(7)
    spared = 0
    for _ in range(1000):
        code, labels, entries = random_code(random)
        liveness = Liveness(code, labels, [], [])
        read = random.randrange(1 << PLACES + 1)
        for entry in entries:
            live = liveness.at_start(entry, read)
            dirty = [value if live >> at & 1 else random.randrange(9) for at, value in enumerate(FRAME)]
            clean, other = run(code, labels, entry, FRAME), run(code, labels, entry, dirty)
            assert (clean is None) is (other is None), code
            if clean is None or other is None:
                continue
            assert clean[1] == other[1], code
            assert all(clean[0][at] == other[0][at] for at in range(PLACES + 1) if read >> at & 1), code
            spared += dirty != FRAME
    assert spared > 500


def test_limbs_side_by_side_and_small_gaps_are_one_extent() -> None:
    assert extents(1 << 3 | 1 << 4 | 1 << 12 | 1 << 30 | 1 << 50, 0, 40) == [(3, 10), (30, 1)]
    assert extents(0, 0, 40) == []
