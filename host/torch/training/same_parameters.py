"""Whether a bucket holds the parameters that it held before, which every rank must answer alike.

A bucket that has changed begins anew: its residual is dropped, and with a codec its ranks agree on the new shapes by a
collective. Parameters are therefore compared as objects that are kept alive. By `id` alone, a new tensor may pass for a
dead one whose address it was given, on one rank and not on another: then one rank leaves the agreement out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

Parameters = tuple[torch.Tensor, ...]
"""The parameters of a bucket, in its order."""


def same_parameters(known: Sequence[torch.Tensor], now: Sequence[torch.Tensor]) -> bool:
    """Whether both are the same objects in the same order."""
    return len(known) == len(now) and all(one is other for one, other in zip(known, now, strict=True))
