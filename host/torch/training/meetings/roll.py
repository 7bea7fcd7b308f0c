"""The roll of a meeting: what every rank says of itself, as one exact sum of small integers in which each has a row.

It travels with the deltas, so it costs no round trip. By it every rank knows how many deltas the sum holds, who has
ended, and whether all are where they should be; a meeting whose roll does not fit changes nothing, on any rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

import torch
import torch.distributed as dist

from fanin.errors import CollectiveMismatchError, ConfigurationError
from fanin.host.torch.collectives.process_group import FaninProcessGroup

MODEL_CHANGED = 1
"""Fault of a rank whose parameters are no longer those that it began with."""

CHANGED = (
    "the optimizer's parameters are not those that LocalSteps began with (added, frozen, replaced, or of another shape "
    "or type), so the meeting did not count. Remedy: flush, change the model on every rank, and make LocalSteps anew"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One rank's row. All are small integers, 0 or more."""

    present: int = 1
    contributes: int
    """Whether its delta counts: it has made a step since this fragment's last meeting, and the delta is finite."""
    finite: int = 1
    ended: int
    """Whether the rank is in `flush`."""
    step: int
    """Local steps that it has made, modulo 2^31."""
    period: int
    """Steps of its period; 0 where it is in `flush`."""
    number: int
    """The meeting's number, modulo 2^31."""
    fault: int = 0
    base: int = 0
    """Means of this fragment that had landed at the rank when its delta began, modulo 2^31."""
    met: int = 0
    """Meetings of its period so far, this one included; 0 where it is in `flush`."""
    renews: int = 0
    """Whether the rank has seen processes that wait to take part (elastic.py)."""
    listens: int = 0
    """Whether the rank has no state yet, and takes part with nothing of its own."""


Roll = Sequence[Entry]
_COLUMNS = len(fields(Entry))


def start(group: FaninProcessGroup, own: Entry) -> tuple[torch.Tensor, dist.Work]:
    """Submit this rank's row; the table, shape (ranks, columns), holds all rows when the work is done."""
    table = torch.zeros((group.size(), _COLUMNS), dtype=torch.int32, device="cpu")
    table[group.rank()] = torch.tensor(astuple(own), dtype=torch.int64, device="cpu").remainder(1 << 31).to(torch.int32)
    work = dist.all_reduce(table, group=group, async_op=True)
    assert work is not None
    return table, work


def read(table: torch.Tensor) -> list[Entry]:
    """Return the table's rows as entries, by rank."""
    names = [each.name for each in fields(Entry)]
    return [Entry(**dict(zip(names, row, strict=True))) for row in table.tolist()]


def contributors(roll: Roll) -> int:
    """Number of ranks whose deltas are in the sum."""
    return sum(each.contributes for each in roll)


def all_ended(roll: Roll) -> bool:
    """Whether every rank is in `flush`."""
    return all(each.ended for each in roll)


def base(roll: Roll) -> int:
    """Means that had landed when the deltas began, by ranks that train: one in `flush` may have landed one more."""
    return min(each.base for each in _those_that_train(roll) or [each for each in roll if not each.listens])


def trainer(roll: Roll) -> Entry | None:
    """The row of a rank that trains; None where all are in `flush`."""
    return next(iter(_those_that_train(roll)), None)


def has_deltas(roll: Roll) -> bool:
    """Whether deltas follow a roll that ranks in `flush` have waited for: ranks that train send theirs at once."""
    return not all_ended(roll) or contributors(roll) > 0


def check(roll: Roll) -> None:
    """Raise where a meeting cannot count, on every rank alike, naming ranks.

    ConfigurationError: a model was changed. CollectiveMismatchError: ranks that train differ in steps or in periods.
    """
    changed = [rank for rank, each in enumerate(roll) if each.fault == MODEL_CHANGED]
    if changed:
        raise ConfigurationError(f"{named(changed)}: {CHANGED}")
    training = {rank: each for rank, each in enumerate(roll) if not each.ended}
    for what, remedy in (
        ("period", "the same period and the same learning rates on every rank"),
        ("step", "as many calls of step on every rank from one meeting to the next; flush on those without data"),
    ):
        said = {rank: int(getattr(each, what)) for rank, each in training.items()}
        if len(set(said.values())) > 1:
            words = ", ".join(f"rank {rank}: {value}" for rank, value in said.items())
            raise CollectiveMismatchError(f"ranks meet with unlike {what}s ({words}). Remedy: {remedy}")


def _those_that_train(roll: Roll) -> list[Entry]:
    return [each for each in roll if not each.ended]


def named(ranks: Sequence[int]) -> str:
    """`rank 3` or `ranks 1, 2`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
