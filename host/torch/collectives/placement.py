"""Where a group's sums are made: at one switch, or at a shard on every host.

| FANIN_SWITCH | sums are made |
|---|---|
| not set | at a switch beside rank 0 if all ranks are on one host, else at a shard on every host |
| `hosts` | at a shard on every host |
| `rank0` | at a switch beside rank 0 |
| an address | there |
| several addresses, separated by commas | at all of them, in that order on every rank |

Ranks are on one host if they could share memory: the same boot of the same kernel, and one namespace of process
numbers, since shared memory is found through them. FANIN_HOST overrides it: any text, the same for ranks of one host.

Where a host has several ranks, every host has a leaf of each shard as well, at which its ranks meet: one stream leaves
the host, whatever the number of its ranks.

In a job that must survive the loss of ranks or shards (on_worker_loss="continue") every rank goes to the shards itself:
a leaf would end with the first of its ranks. Each rank's stream leaves the host then, and 32 ranks are the most. With
fallback="gloo" as well, which goes on over gloo instead of over the other shards, it is kept at one switch.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fanin.errors import ConfigurationError, UnsupportedError
from fanin.options import Options
from fanin.protocol.wire import MAX_WORKERS

HOSTS, RANK0 = "hosts", "rank0"
"""Words for FANIN_SWITCH."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PID_NAMESPACE = Path("/proc/self/ns/pid")
UNKNOWN = ""
"""The host of ranks that share one with everybody, as far as anybody asked."""

log = logging.getLogger("fanin")

Where = Literal["hosts", "rank0", "auto"]


@dataclass(frozen=True, slots=True)
class Hosts:
    """The ranks of a group, by host; in the order of each host's lowest rank."""

    ranks: tuple[tuple[int, ...], ...]

    @property
    def leaders(self) -> tuple[int, ...]:
        """The lowest rank of every host: it starts the host's shard."""
        return tuple(each[0] for each in self.ranks)

    def of(self, rank: int) -> int:
        """The number of the host that a rank is on."""
        return next(number for number, each in enumerate(self.ranks) if rank in each)


def host_identity(options: Options) -> str:
    """What tells this process's host from others."""
    if options.host is not None:
        return options.host
    try:
        boot, namespace = BOOT_ID.read_text(encoding="ascii").strip(), os.readlink(PID_NAMESPACE)
    except OSError:  # no Linux: every machine has a name
        return platform.node()
    return f"{boot} {namespace} {os.getuid()}"


def hosts_of(identities: Sequence[str]) -> Hosts:
    """Ranks with the same identity, together."""
    found: dict[str, list[int]] = {}
    for rank, identity in enumerate(identities):
        found.setdefault(identity, []).append(rank)
    return Hosts(tuple(tuple(ranks) for ranks in found.values()))


def where_to_sum(options: Options, *, one_machine: bool) -> Where:
    """The switch of a job without addresses, or `auto` if that depends on where the ranks are.

    `one_machine`: the ranks can only reach each other on this machine. Raises ConfigurationError for shards that such a
    job cannot have.
    """
    twice = options.on_worker_loss == "continue" and options.fallback == "gloo"
    if options.switch == HOSTS:
        if twice:
            raise ConfigurationError(
                "FANIN_SWITCH=hosts with on_worker_loss='continue' and fallback='gloo': a job goes on over the shards "
                "that are left, or over gloo. Remedy: unset FANIN_FALLBACK, or FANIN_SWITCH=rank0"
            )
        return "hosts"
    if options.switch == RANK0 or (one_machine and options.host is None):
        return "rank0"
    if twice:
        log.warning(
            "on_worker_loss='continue' and fallback='gloo' together keep all sums at rank 0's switch: over several "
            "hosts, its link carries everybody's"
        )
        return "rank0"
    return "auto"


def check_size(size: int, *, leaves: bool) -> None:
    """UnsupportedError for more ranks than the switches that they would start take."""
    if size > MAX_WORKERS and not leaves:
        raise UnsupportedError(
            f"{size} ranks; one switch takes at most {MAX_WORKERS}. A world on several hosts may have {MAX_WORKERS} on "
            "each of them; on one host make the world with another backend, and groups of up to that many ranks with "
            "new_group(ranks, backend='fanin')"
        )
