"""Comparison of settings that all ranks of a training must share, when it begins."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from fanin.errors import CollectiveMismatchError
from fanin.host.torch.collectives.process_group import FaninProcessGroup

PLAIN = (int, float, str, type(None))
"""Types of settings whose text is the same in every process."""


def compare(group: FaninProcessGroup, facts: dict[str, str], training: str, same: str) -> None:
    """Return if all ranks have the same facts; collective. CollectiveMismatchError names the first that differs.

    `training`: its name in the error; `same`: what the remedy asks for on every rank. The price of agreement is one
    small sum; only ranks that do not agree say more.
    """
    if group.size() == 1:
        return
    digest = hashlib.blake2b(repr(sorted(facts.items())).encode(), digest_size=4).digest()
    said = torch.zeros(group.size(), dtype=torch.int32, device="cpu")
    said[group.rank()] = int.from_bytes(digest, "little", signed=True)
    dist.all_reduce(said, group=group)
    if len(set(said.tolist())) == 1:
        return
    everyones: list[Any] = [None] * group.size()
    dist.all_gather_object(everyones, facts, group=group)
    raise CollectiveMismatchError(difference(everyones, training, same))


def difference(everyones: Sequence[dict[str, str]], training: str, same: str) -> str:
    """The first fact that ranks differ in, and what each of them has, as the text of an error."""
    names = list(dict.fromkeys(name for each in everyones for name in each))
    for name in names:
        values = [each.get(name, "missing") for each in everyones]
        if len(set(values)) > 1:
            words = "; ".join(f"rank {rank}: {value}" for rank, value in enumerate(values))
            return f"ranks would take unlike {training}: {name} differs ({words}). Remedy: {same} on every rank"
    return f"ranks would take unlike {training}. Remedy: {same} on every rank"


def settings_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the options of each parameter group, sorted by name; a scheduler's own entries are left out."""
    return [
        {name: value for name, value in sorted(group.items()) if name not in ("params", "initial_lr")}
        for group in optimizer.param_groups
    ]


def options_of(optimizer: torch.optim.Optimizer) -> str:
    """An optimizer's kind and the options of its parameter groups, as text."""
    groups = [{name: _plain(value) for name, value in group.items()} for group in settings_of(optimizer)]
    return f"{type(optimizer).__name__} {groups}"


def _plain(value: Any) -> Any:
    """A value whose text is the same in every process: of an object that is no number or text, its type's name."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, PLAIN) else type(value).__name__


def state_of(optimizer: torch.optim.Optimizer) -> str:
    """A digest of an optimizer's state, such as momentum, by which ranks tell that they have the same."""
    state = optimizer.state_dict()["state"]
    if not state:
        return "none"
    digest = hashlib.blake2b(repr(sorted(map(str, state))).encode(), digest_size=8)
    for leaf in tree_leaves(state):
        if isinstance(leaf, torch.Tensor):
            flat = leaf.detach().to("cpu").contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().data)
        else:
            digest.update(repr(leaf).encode())
    return digest.hexdigest()
