"""Announces among a group's words that its ranks are about to agree elsewhere: on scale codes, or on their devices.

Rules
-----
* An announcement is a sum of one integer that nobody keeps, with a tag of its own. So a rank that takes another way, as
  one whose tensor is in host memory, is refused as soon as its packets meet it, and so the others learn of it.
* The words follow without waiting for it: it takes a ticket, and no time of theirs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from fanin.host.torch.device.courier import Parcel
from fanin.host.torch.device.pipeline import land_within
from fanin.numerics.lanes import WORD_BITS
from fanin.numerics.reduction import Element, Reduction

if TYPE_CHECKING:
    from fanin.host.session.any_session import AnySession

FIRST_DEVICE_TENSOR = 0xDE71CE00
"""Tag of the announcement that a group has come to its first CUDA tensor; no collective has the number 0 (tag_of)."""
_NOTHING = torch.zeros(1, dtype=torch.int32, device="cpu")


def announcement(tag: int) -> Reduction:
    """The reduction that announces what the tag stands for."""
    return Reduction(
        source=_NOTHING.data_ptr(), destination=0, count=1, element=Element.INT32, lanes=WORD_BITS, tag=tag,
        keep_count=0,
    )  # fmt: skip


def announce(session: AnySession, tag: int, timeout_s: float) -> Parcel:
    """A parcel for the session's courier that announces what the tag stands for."""
    return Parcel(
        start=partial(session.submit, announcement(tag)), land=partial(land_within, session.wait, timeout_s, None, 0)
    )
