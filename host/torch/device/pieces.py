"""Cuts reductions into pieces that pass through a ring's slots, and places each piece's record in its slot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from fanin.host.codecs.words import codec_class, codec_for
from fanin.host.torch.device import lines
from fanin.host.torch.device.pipeline import Piece
from fanin.host.torch.handles.host_tensor import as_bytes
from fanin.numerics.reduction import EXACT, Element, Operator, Reduction
from fanin.protocol.wire import CODE_BYTES

if TYPE_CHECKING:
    from fanin.host.session.any_session import AnySession
    from fanin.host.torch.device.sight import Sight
    from fanin.host.torch.handles.call import Call

NOWHERE = 1
"""Stands for addresses until a piece has its slot; 0 would be refused, as the address of a tensor without memory."""


def placer(session: AnySession, piece: Reduction, source: int, destination: int) -> Callable[[int], Callable[[], int]]:
    """A function from a slot's address to the action that submits the piece there, and returns the ticket.

    `source`, `destination`: offsets of the piece's memory in the slot, in bytes.
    """

    def place(address: int) -> Callable[[], int]:
        placed = replace(piece, source=address + source, destination=address + destination if piece.kept else 0)
        return partial(session.submit, placed)

    return place


def raw_pieces(call: Call, session: AnySession, divisor: float, sight: Sight | None) -> Iterator[Piece]:
    """Pieces of a call whose bytes travel as they are. `divisor`: of averages (`Call.reduction`)."""
    whole = call.reduction(divisor)
    size = call.source.element_size()
    source = as_bytes(call.source.detach())
    kept = None if call.kept is None else as_bytes(call.kept.detach())
    owned = whole.own_count >= 0
    own_first, own_count = (whole.own_first, whole.own_count) if owned else (0, whole.count)
    per_piece = _whole_packets(whole, session, lines.SLOT_BYTES // size)
    for start in range(0, whole.count, per_piece):
        count = min(per_piece, whole.count - start)
        own_at, own = overlap(start, count, own_first, own_count)
        kept_at, keep = overlap(start, count, whole.keep_first, call.kept_count)
        out = back = None
        if own:
            begin = (start + own_at - own_first) * size
            out = source[begin : begin + own * size]
        if kept is not None and keep:
            begin = (start + kept_at - whole.keep_first) * size
            back = kept[begin : begin + keep * size]
        piece = replace(
            whole, count=count, keep_first=kept_at, keep_count=keep,
            own_first=own_at if owned else 0, own_count=own if owned else -1,
            residual=whole.residual + start * 4 if whole.residual else 0, owner=call.residual,
        )  # fmt: skip
        yield Piece(
            out=out, out_first=own_at * size, back=back, back_first=kept_at * size,
            place=placer(session, piece, own_at * size, kept_at * size),
            inspect=None if sight is None else partial(sight.ask, session, start),
        )  # fmt: skip


def _whole_packets(whole: Reduction, session: AnySession, most: int) -> int:
    """Elements of a piece, at most `most`: packets as the reduction has them in one piece, so that blocks with a scale
    are the same and every result has the bits of a tensor in host memory."""
    if not codec_class(whole.element, whole.lanes).scaled:
        return most
    packet = codec_for(whole.element, whole.lanes, whole.count, session.spec, operator=whole.operator).packet_elements
    return most // packet * packet or most  # a slot holds many packets of any network


def code_pieces(
    codes: torch.Tensor, session: AnySession, tag: int, inspect: Callable[[int, int], None] | None
) -> Iterator[Piece]:
    """Pieces of scale codes, int16, which become the largest of all ranks'. `inspect`: the first one's."""
    bytes_of = as_bytes(codes)
    for first in range(0, len(bytes_of), lines.CODE_SLOT_BYTES):
        part = bytes_of[first : first + lines.CODE_SLOT_BYTES]
        maximum = Reduction(
            source=NOWHERE, destination=NOWHERE, count=len(part) // CODE_BYTES, element=Element.INT16, lanes=EXACT,
            operator=Operator.MAX, tag=tag,
        )  # fmt: skip
        yield Piece(out=part, back=part, place=placer(session, maximum, 0, 0), inspect=None if first else inspect)


def overlap(start: int, count: int, keep_first: int, keep_count: int) -> tuple[int, int]:
    """Range of a piece's elements that is kept: its offset in the piece and its length."""
    first = max(start, keep_first)
    last = min(start + count, keep_first + keep_count)
    return (first - start, last - first) if last > first else (0, 0)
