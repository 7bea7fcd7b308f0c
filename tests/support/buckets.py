"""Buckets of gradients without DDP, for hooks."""

from __future__ import annotations

import torch


class Bucket:
    """What a hook asks of DDP's `GradBucket`: a single bucket of one parameter."""

    def __init__(self, parameter: torch.Tensor, gradients: torch.Tensor) -> None:
        self._parameter, self._gradients = parameter, gradients

    def index(self) -> int:
        """Its number."""
        return 0

    def is_last(self) -> bool:
        """Of the step."""
        return True

    def buffer(self) -> torch.Tensor:
        """The gradients, flat."""
        return self._gradients

    def parameters(self) -> list[torch.Tensor]:
        """Whose they are."""
        return [self._parameter]

    def gradients(self) -> list[torch.Tensor]:
        """By parameter."""
        return [self._gradients]
