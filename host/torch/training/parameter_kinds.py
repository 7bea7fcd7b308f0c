"""Refusal of parameters that training by deltas cannot carry: sums of deltas are sums of floats."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fanin.errors import UnsupportedError


def check_kind(name: str, parameter: torch.Tensor, kinds: Sequence[torch.dtype], what: str) -> None:
    """Raise UnsupportedError for a parameter of another element type than `kinds`, or a sparse one.

    `what` says for what it is checked, such as "local steps are".
    """
    if parameter.dtype not in kinds:
        *most, last = [str(each).removeprefix("torch.") for each in kinds]
        halves = "its real and its imaginary part (torch.view_as_real) as one parameter of floats"
        raise UnsupportedError(
            f"parameter {name!r} is {parameter.dtype}; {what} for {', '.join(most)} and {last} parameters. Remedy: "
            f"{halves if parameter.is_complex() else 'another type; or a buffer, where it is not trained'}"
        )
    if parameter.layout is not torch.strided:
        raise UnsupportedError(
            f"parameter {name!r} is sparse; {what} for dense parameters. Remedy: parameter.to_dense()"
        )
