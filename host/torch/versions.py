"""What needs a newer PyTorch than the oldest that the backend takes (fanin/_torch_entry.py)."""

from __future__ import annotations

import torch

from fanin.errors import ConfigurationError


def require(what: str, oldest: str, why: str) -> None:
    """ConfigurationError where PyTorch is older."""
    if torch.__version__ < oldest:
        raise ConfigurationError(
            f"{what} needs PyTorch {oldest} or newer, {why}, and this is {torch.__version__}. Remedy: "
            f"pip install 'torch>={oldest}'"
        )
