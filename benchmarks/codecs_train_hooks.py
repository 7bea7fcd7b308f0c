"""torch's own PowerSGD beside the codecs of `fanin bench codecs --train`: `power_sgd:GROUP:rank=N`.

GROUP is the backend over which the hook sums, fanin (32-bit lanes) or gloo. The hook is configured like the codec
`low_rank`: error feedback, warm start, and the same rule for which parameters are matrices (`min_compression_rate=1`).
Two differences remain: torch takes two steps of plain averages at the start, and draws its own random subspace.

Source: torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook; Vogels et al., NeurIPS 2019.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fanin.errors import ConfigurationError

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

NAME = "power_sgd"
PLAIN_STEPS = 2
"""Steps of plain averages before the first approximation: the fewest that torch takes with error feedback."""
MAX_RANK = 64
ONE_BUCKET = ("digits",)
"""Tasks whose gradients are one bucket. With several buckets, torch's callbacks sum in orders that differ between
ranks, unless the group orders its futures, which gloo does not.
"""
_TEXT = re.compile(rf"{NAME}:(?P<group>fanin|gloo)(:rank=(?P<rank>[0-9]{{1,2}}))?")


@dataclass(frozen=True, slots=True)
class PowerSgd:
    """torch's PowerSGD hook over a group."""

    group: str
    """Backend of the group, fanin or gloo."""
    rank: int = 4
    """Columns of P and Q, 1..64."""

    def register(self, model: DistributedDataParallel, group: dist.ProcessGroup) -> None:
        """Register the hook, over that group, with a model."""
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hooks

        state = hooks.PowerSGDState(
            group, matrix_approximation_rank=self.rank, start_powerSGD_iter=PLAIN_STEPS, min_compression_rate=1
        )
        model.register_comm_hook(state, hooks.powerSGD_hook)


def is_hook(text: str) -> bool:
    """Whether a text names torch's hook rather than a codec."""
    return text.split(":")[0] == NAME


def read(text: str) -> PowerSgd:
    """Parse a hook such as "power_sgd:fanin:rank=4"; a ConfigurationError says how it is written."""
    found = _TEXT.fullmatch(text)
    if found is None or not 1 <= (rank := int(found["rank"] or PowerSgd("").rank)) <= MAX_RANK:
        raise ConfigurationError(
            f"{text!r}: torch's hook is {NAME}:fanin or {NAME}:gloo, with :rank=N of 1..{MAX_RANK} after it if not 4",
            "--codecs",
        )
    return PowerSgd(found["group"], rank)


def check_hook(text: str, tasks: tuple[str, ...]) -> None:
    """Raise ConfigurationError for a hook that does not exist, or that one of these tasks does not allow."""
    for task in tasks:
        if read(text).group == "gloo" and task not in ONE_BUCKET:
            raise ConfigurationError(
                f"{text!r}: over gloo torch's hook takes one bucket, and the gradients of {task} are several. "
                f"Remedy: {NAME}:fanin, or --task {ONE_BUCKET[0]}"
            )
