"""Agreement of a group's ranks on two levels: the ranks of one host, and one rank of each host (`Options.inside`).

Rules
-----
* Every rank states its host and its devices in the group's store; rank 0 decides, and tells all ranks. Levels that
  cannot be made are therefore the same error on every rank.
* Places are counted within a host: the ranks at one place of all hosts sum between hosts, each the same part.
* Hosts with unlike numbers of ranks have no common places. A world refuses them; a group of new_group, which inherited
  the option and may well have been made for something else, sums over one level, with a warning.
* NCCL joins a rank per GPU, and no MIG instances: ranks that cannot take part are named before NCCL is asked, since it
  would report this by an error of its own on some ranks, and by silence on the others.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from fanin.errors import ConfigurationError
from fanin.host.torch.meeting.placement import Hosts, host_identity, hosts_of
from fanin.options import Options

log = logging.getLogger("fanin")

SHARED_GPU = "NCCL_MULTI_RANK_GPU_ENABLE"
"""NCCL's own switch for several ranks per GPU, since 2.30."""
_TOLD = "fanin/levels"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A rank's host, and what it can do there."""

    host: str
    cannot: str = ""
    """Reason why this rank cannot take part inside its host; empty: it can."""
    devices: int = 0
    """Number of CUDA devices that the rank sees."""
    visible: str = ""
    """Its CUDA_VISIBLE_DEVICES: ranks with the same text see the same devices."""
    shares_gpus: bool = False
    """Whether NCCL was told that ranks share GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """The two levels of one rank, in ranks of the group."""

    inside: tuple[int, ...]
    """The ranks of its host, in order; at least itself."""
    between: tuple[int, ...]
    """The ranks at the same place of all hosts, in the order of hosts; at least itself."""

    @property
    def hosts(self) -> int:
        """How many hosts the group is on."""
        return len(self.between)


def is_mig_instance(name: str, environment: Mapping[str, str]) -> bool:
    """Whether the device of this name is a MIG instance: its name has the profile, or the process was given a part.

    Containers are given instances by NVIDIA_VISIBLE_DEVICES, and then see an ordinary number.
    """
    return "MIG" in name or "MIG-" in environment.get("CUDA_VISIBLE_DEVICES", "")


def seat_of(kind: str, options: Options, environment: Mapping[str, str]) -> Seat:
    """This rank's seat for `kind`, "nccl" or "gloo"."""
    host = host_identity(options)
    if kind == "gloo":
        return Seat(host=host)
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    cannot = ""
    if not dist.is_nccl_available():
        cannot = f"PyTorch {torch.__version__} has no NCCL"
    elif not torch.cuda.is_available():
        cannot = "PyTorch sees no CUDA device"
    elif is_mig_instance(torch.cuda.get_device_name(), environment):
        cannot = "its device is a MIG instance, and NCCL joins none"
    return Seat(
        host=host, cannot=cannot, devices=torch.cuda.device_count(), visible=visible,
        shares_gpus=environment.get(SHARED_GPU, "0") != "0",
    )  # fmt: skip


def judge(seats: Sequence[Seat], kind: str) -> Hosts:
    """The hosts of ranks that can all take part; ConfigurationError names those that cannot, and the remedy."""
    unable = {rank: seat.cannot for rank, seat in enumerate(seats) if seat.cannot}
    if unable:
        reasons = "; ".join(f"rank {rank}: {reason}" for rank, reason in unable.items())
        raise ConfigurationError(
            f"inside={kind!r}: {reasons}. Remedy: leave out `inside` (FANIN_INSIDE), so that these ranks sum over one "
            "level like the others, or inside='gloo' for tensors in host memory"
        )
    hosts = hosts_of([seat.host for seat in seats])
    for ranks in hosts.ranks if kind == "nccl" else ():
        here = [seats[rank] for rank in ranks]
        seen_alike = len({seat.visible for seat in here}) == 1
        if seen_alike and here[0].devices < len(ranks) and not all(seat.shares_gpus for seat in here):
            raise ConfigurationError(
                f"inside='nccl': ranks {_listed(ranks)} share {here[0].devices} GPU(s) of one host, and NCCL takes one "
                f"rank per GPU. Remedy: as many ranks as GPUs, or leave out `inside`: one level takes several ranks "
                f"per GPU; or {SHARED_GPU}=1 (NCCL 2.30 and later, experimental)"
            )
    return hosts


def unlike_hosts(hosts: Hosts) -> str:
    """Text that names the ranks of each host; empty where all hosts have equally many."""
    counts = [len(ranks) for ranks in hosts.ranks]
    if len(set(counts)) == 1:
        return ""
    return "; ".join(f"ranks {_listed(ranks)}" for ranks in hosts.ranks) + " are on one host each"


def levels_of(hosts: Hosts, rank: int) -> Levels:
    """The levels of one rank, where all hosts have equally many ranks."""
    inside = hosts.ranks[hosts.of(rank)]
    place = inside.index(rank)
    return Levels(inside=inside, between=tuple(ranks[place] for ranks in hosts.ranks))


def agree(
    store: c10d.Store, rank: int, size: int, kind: str, options: Options, timeout: timedelta, *, is_world: bool
) -> Levels | None:
    """The levels that all ranks agree on; None: one level, of a group on hosts with unlike numbers of ranks.

    Every rank of the group calls it at the same point. Raises ConfigurationError, alike on every rank, where a rank
    cannot take part or a world's hosts are unlike; torch's DistStoreError where a rank does not come.
    """
    store.set(_key(rank), json.dumps(asdict(seat_of(kind, options, os.environ))))
    if rank == 0:
        store.wait([_key(each) for each in range(size)], timeout)
        seats = [Seat(**json.loads(store.get(_key(each)))) for each in range(size)]
        store.set(_TOLD, json.dumps(_decided(seats, kind, is_world=is_world)))
    store.wait([_TOLD], timeout)
    told = json.loads(store.get(_TOLD))
    if told["error"]:
        raise ConfigurationError(told["error"])
    if told["one_level"]:
        log.warning("inside=%r: %s, so this group sums over one level", kind, told["one_level"])
        return None
    return levels_of(Hosts(tuple(map(tuple, told["hosts"]))), rank)


def _decided(seats: Sequence[Seat], kind: str, *, is_world: bool) -> dict[str, object]:
    """Rank 0's decision, in the form in which all ranks read it."""
    try:
        hosts = judge(seats, kind)
    except ConfigurationError as error:
        return {"error": str(error), "one_level": "", "hosts": []}
    unlike = unlike_hosts(hosts)
    refusal = f"inside={kind!r} wants as many ranks on every host, and {unlike}. Remedy: that, or leave out `inside`"
    return {"error": refusal if unlike and is_world else "", "one_level": unlike, "hosts": hosts.ranks}


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))


def _key(rank: int) -> str:
    return f"fanin/seat/{rank}"
