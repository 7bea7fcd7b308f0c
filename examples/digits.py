"""Handwritten digits: the 1,797 images of 8 x 8 pixels that come with scikit-learn (UCI, Alpaydin and Kaynak, 1998)."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

TEST_SAMPLES = 360
"""Number of test samples: a fifth of the images, drawn with a fixed seed."""


@functools.cache
def load() -> tuple[TensorDataset, TensorDataset]:
    """Training and test set: float32 images [n, 1, 8, 8] in 0..1 and int64 labels [n].

    They are read once, which takes longer than a step, and shared by all callers.
    """
    # scipy comes with it and takes 2 s, and most importers of this module load no digits
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(bunch.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[:TEST_SAMPLES], order[TEST_SAMPLES:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


class Network(nn.Module):
    """Two convolutions and two linear layers: 151,306 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits [n, 10] of images [n, 1, 8, 8]."""
        logits: Tensor = self.layers(images)
        return logits
