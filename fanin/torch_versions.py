"""The versions of PyTorch that fanin supports: checked before anything is imported that an older one lacks."""

from __future__ import annotations

from fanin.errors import ConfigurationError

OLDEST = "2.8"
"""Oldest version of PyTorch that fanin's backend was tried with, and that pyproject.toml requires."""


def require_torch(what: str, oldest: str, why: str = "") -> None:
    """ConfigurationError where PyTorch is older than `what` needs it."""
    import torch

    if torch.__version__ < oldest:
        raise ConfigurationError(
            f"{what} needs PyTorch {oldest} or newer{why and f', {why}'}, and this is {torch.__version__}. Remedy: "
            f"pip install 'torch>={oldest}'"
        )
