"""State of a training, such as weights and an optimizer's, as bytes for another process."""

from __future__ import annotations

import io
from typing import Any

import torch


def packed(state: dict[str, Any]) -> bytes:
    """Write the state as torch.save does."""
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def unpacked(data: bytes) -> dict[str, Any]:
    """Read what `packed` wrote; tensors are on the CPU. Nothing but data is read: another process cannot run code."""
    state: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return state
