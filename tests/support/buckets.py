"""Buckets of gradients without DDP, for hooks."""

from __future__ import annotations

import torch


class Bucket:
    """The methods of DDP's `GradBucket` that a hook calls: a single bucket of one parameter."""

    def __init__(self, parameter: torch.Tensor, gradients: torch.Tensor) -> None:
        self._parameter, self._gradients = parameter, gradients

    def index(self) -> int:
        """Number of the bucket, the only one."""
        return 0

    def is_last(self) -> bool:
        """Whether it is the step's last bucket."""
        return True

    def buffer(self) -> torch.Tensor:
        """The bucket's gradients as a flat tensor."""
        return self._gradients

    def parameters(self) -> list[torch.Tensor]:
        """Parameters whose gradients these are."""
        return [self._parameter]

    def gradients(self) -> list[torch.Tensor]:
        """Gradients by parameter, of which there is one."""
        return [self._gradients]
