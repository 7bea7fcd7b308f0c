"""One rank of a job in which something goes wrong: `python -m tests.torch.failure_ranks SCENARIO OUT.json`.

Each scenario is a function of (rank, size) that returns what the rank saw, for test_failures.py to judge. An expected
error is returned by `raised`: its class, text and how long the call took.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fanin
from fanin.errors import FaninError
from fanin.host.session.shards import ShardedSession
from fanin.host.torch import AsynchronousOptimizer, FaninProcessGroup, Federated, LocalSteps, counters
from fanin.host.torch.training import federated_steering

VICTIM = 1
"""The rank that dies or stops."""
WAITS = "waits"
"""File of the rank that waits next for what never comes."""
WORLDS = 4
"""Worlds that are made and destroyed, where that is what is tested."""

ALIVE: list[object] = []
"""Objects that last until the interpreter ends."""

_worlds = itertools.count()


def raised(call: Callable[[], object]) -> dict[str, Any]:
    """The exception of a call, and its time."""
    started_s = time.monotonic()
    try:
        call()
    except Exception as error:
        return {
            "error": type(error).__name__,
            "text": str(error),
            "ranks": list(getattr(error, "ranks", ())),
            "seconds": time.monotonic() - started_s,
            "fanin": isinstance(error, FaninError),
        }
    return {"error": None, "seconds": time.monotonic() - started_s}


def init(**options: Any) -> None:
    """Join, and do one collective of each kind, so that every connection is up."""
    dist.init_process_group(
        "fanin", timeout=timedelta(seconds=60), pg_options=fanin.Options(**options) if options else None
    )
    dist.all_reduce(torch.ones(10))
    dist.broadcast(torch.ones(10), src=0)
    dist.barrier()
    wait_for_all(f"up{next(_worlds)}", range(dist.get_world_size()))


def wait_for_all(what: str, ranks: Iterable[int]) -> None:
    """Until each of the ranks has come to this place, told by files: nobody is to need a rank that dies or leaves next.

    A barrier is no such place. Its result may reach one rank before another.
    """
    Path(f"{what}.{dist.get_rank()}").touch()
    marks = [Path(f"{what}.{rank}") for rank in ranks]
    while not all(mark.exists() for mark in marks):
        os.sched_yield()


def reduce_for_ever() -> None:
    """Collectives until one raises; DEVICE says where their tensors are."""
    device = os.environ.get("DEVICE", "cpu")
    while True:
        dist.all_reduce(torch.ones(200_000, device=device))


def receive_from_victim() -> None:
    """A receive, by gloo, from a rank that never sends."""
    dist.recv(torch.empty(3), src=VICTIM)


def children() -> list[int]:
    """Processes that this one has started and that still run."""
    return [int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]


def kill_the_switch() -> None:
    """End rank 0's embedded switch without notice."""
    for child in children():
        os.kill(child, signal.SIGKILL)


def host_killed(rank: int, size: int) -> dict[str, Any]:
    """The victim dies with the shard that it started, as a host does."""
    init()
    if rank == int(os.environ.get("VICTIM", VICTIM)):
        kill_the_switch()
        os.kill(os.getpid(), signal.SIGKILL)
    return raised(reduce_for_ever)


def the_rest_goes_on(rank: int, size: int) -> dict[str, Any]:
    """The victim's host dies, or only its shard; sums through the switch go on without what is gone."""
    init()
    victim, alone = int(os.environ["VICTIM"]), bool(os.environ.get("SHARD_ALONE"))
    left = [peer for peer in range(size) if alone or peer != victim]
    mine = torch.arange(100_000, dtype=torch.int32) * (rank + 1)
    if rank == victim:
        kill_the_switch()
        if not alone:
            os.kill(os.getpid(), signal.SIGKILL)
    started_s = time.monotonic()
    works = []
    for _ in range(5):  # some are under way when it is noticed
        tensor = mine.clone()
        works.append((tensor, dist.all_reduce(tensor, async_op=True)))
    for _, work in works:
        assert work is not None
        work.wait()
    seconds = time.monotonic() - started_s
    mean = torch.full((50_000,), float(rank))
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    expected = torch.arange(100_000, dtype=torch.int32) * sum(peer + 1 for peer in left)
    group = dist.group.WORLD
    assert isinstance(group, FaninProcessGroup)
    assert isinstance(group.session, ShardedSession)
    members = list(group.session.members)  # before the barrier, after which a rank may end and leave
    dist.barrier()
    return {
        "right": all(torch.equal(tensor, expected) for tensor, _ in works),
        "mean": mean.unique().tolist(), "expected": sum(left) / len(left), "members": members,
        "shards": len(group.session.sessions), "seconds": seconds,
    }  # fmt: skip


def shard_killed(rank: int, size: int) -> dict[str, Any]:
    """The shard of the victim's host dies, and no rank does."""
    init()
    group = dist.group.WORLD
    assert isinstance(group, FaninProcessGroup)
    assert isinstance(group.session, ShardedSession)
    shard = str(group.session.sessions[VICTIM].address)
    if rank == VICTIM:
        kill_the_switch()
    return raised(reduce_for_ever) | {"shard": shard}


def rank_killed(rank: int, size: int) -> dict[str, Any]:
    init()
    if rank == VICTIM:
        for _ in range(20):
            dist.all_reduce(torch.ones(200_000, device=os.environ.get("DEVICE", "cpu")))
        os.kill(os.getpid(), signal.SIGKILL)
    return raised(reduce_for_ever)


def rank_stopped(rank: int, size: int) -> dict[str, Any]:
    """Rank 0 waits for the switch, rank 2 for gloo, rank 3 for anybody's message."""
    init()
    if rank == VICTIM:
        os.kill(os.getpid(), signal.SIGSTOP)
    waits = {0: reduce_for_ever, 2: receive_from_victim, 3: lambda: dist.recv(torch.empty(3))}
    seen = raised(waits[rank])
    seen["afterwards"] = raised(lambda: dist.all_gather_object([None] * size, 1))
    return seen


def nobody_else_sums(rank: int, size: int) -> dict[str, Any]:
    """Rank 0 waits for a sum, having said so, and the others live on without it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have it ignored by what runs in the background
    init()
    if rank != 0:
        signal.pause()
    Path(WAITS).touch()
    dist.all_reduce(torch.ones(1000))
    return {}


def rank_lost_while_all_sum(rank: int, size: int) -> dict[str, Any]:
    """SIGNAL says how. Survivors stay until all have raised, as rank 0 does whose store they ask for the cause."""
    init()
    if rank == VICTIM:
        for _ in range(5):
            dist.all_reduce(torch.ones(200_000))
        os.kill(os.getpid(), int(os.environ["SIGNAL"]))
    seen = raised(reduce_for_ever)
    wait_for_all("raised", (each for each in range(size) if each != VICTIM))
    return seen


def unlike_hosts(rank: int, size: int) -> dict[str, Any]:
    return raised(init)


def neighbour_left(rank: int, size: int) -> dict[str, Any]:
    """Rank 2 waits, by gloo, for a stopped rank, while the rank after it has already ended."""
    init()
    if rank == VICTIM:
        os.kill(os.getpid(), signal.SIGSTOP)
    if rank == 3:
        os._exit(0)
    return raised(receive_from_victim if rank == 2 else reduce_for_ever)


def switch_killed(rank: int, size: int) -> dict[str, Any]:
    init()
    if rank == 0:
        kill_the_switch()
    return raised(receive_from_victim if rank == 2 else reduce_for_ever)


def switch_killed_under_fallback(rank: int, size: int) -> dict[str, Any]:
    """Training goes on, bit-identical; the reductions in flight when the switch dies are finished over gloo."""
    init(fallback="gloo", flight_recorder="rank_")
    torch.manual_seed(7)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(40, 300), nn.Tanh(), nn.Linear(300, 10)), bucket_cap_mb=0.01
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(30):
            if step == 10 and rank == 0:
                kill_the_switch()
            optimizer.zero_grad()
            model(torch.randn(16, 40, generator=generator)).square().mean().backward()
            optimizer.step()
        unawaited = [torch.full((1000,), float(rank + index)) for index in range(5)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in unawaited]
        for work in works:
            assert work is not None
            work.wait()
        parts = torch.empty(4)
        dist.reduce_scatter_tensor(parts, torch.arange(4.0 * size))
        dist.barrier()
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    copies = [torch.empty_like(flat) for _ in range(size)]
    dist.all_gather(copies, flat)
    group = dist.group.WORLD
    assert isinstance(group, FaninProcessGroup)
    assert group.flight is not None
    return {
        "identical": all(torch.equal(copy, flat) for copy in copies),
        "recorded": [entry["state"] for entry in pickle.loads(Path(f"rank_{rank}").read_bytes())["entries"]],
        "called": len(group.flight.records()),
        "sums": [float(tensor[0]) for tensor in unawaited],
        "part": parts.tolist(),
        "warnings": [str(one.message) for one in caught if "switch" in str(one.message)],
    }


def no_switch(rank: int, size: int) -> dict[str, Any]:
    return raised(lambda: dist.init_process_group("fanin"))


def no_use_of_a_switch_under_fallback(rank: int, size: int) -> dict[str, Any]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        init(fallback="gloo")
    tensor = torch.full((5,), rank + 1.0, dtype=torch.bfloat16)
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    return {
        "mean": float(tensor[0]),
        "paths": sorted({name.split(".")[0] for name in counters()}),
        "warnings": [str(one.message) for one in caught if "switch" in str(one.message)],
    }


def sizes_differ(rank: int, size: int) -> dict[str, Any]:
    init()
    return raised(lambda: dist.all_reduce(torch.ones(1000 + rank)))


def collectives_differ(rank: int, size: int) -> dict[str, Any]:
    init()
    op = dist.ReduceOp.AVG if rank == 0 else dist.ReduceOp.SUM
    return raised(lambda: dist.all_reduce(torch.ones(1000), op))


UNLIKE: dict[str, Callable[[int, Any], object]] = {
    "sum of two widths of one wire type": lambda rank, group: dist.all_reduce(
        torch.ones(5000, dtype=torch.float32 if rank == 0 else torch.bfloat16), group=group
    ),
    "largest of unsigned": lambda rank, group: dist.all_reduce(
        torch.ones(3, dtype=torch.int16 if rank == 0 else torch.uint16), dist.ReduceOp.MAX, group=group
    ),
    "sum with and without a handle": lambda rank, group: (
        dist.all_reduce(torch.ones(3, dtype=torch.int64), group=group)
        if rank == 0
        else dist.all_reduce(torch.ones(3, dtype=torch.uint64), group=group, async_op=True).wait()
    ),
    "broadcast": lambda rank, group: dist.broadcast(
        torch.ones(8, dtype=torch.float32 if rank == 0 else torch.int32), 0, group=group
    ),
    "gather": lambda rank, group: dist.all_gather(
        [torch.ones(8, dtype=torch.float32 if rank == 0 else torch.int32) for _ in range(dist.get_world_size())],
        torch.ones(8, dtype=torch.float32 if rank == 0 else torch.int32),
        group=group,
    ),
    "root of a small sum": lambda rank, group: dist.reduce(torch.ones(4), rank % 2, group=group),
    "root of a large sum": lambda rank, group: dist.reduce(torch.ones(50_000), rank % 2, group=group),
}
"""Calls in which ranks differ, in bytes that travel alike."""


def types_and_roots_differ(rank: int, size: int) -> dict[str, Any]:
    init()
    seen = {}
    for name, call in UNLIKE.items():
        group = dist.new_group(timeout=timedelta(seconds=30))
        dist.barrier(group=group)
        seen[name] = raised(lambda call=call, group=group: call(rank, group))  # type: ignore[misc]
        dist.barrier()
    return {"cases": seen}


def a_rank_does_not_call(rank: int, size: int) -> dict[str, Any]:
    init()
    group = dist.group.WORLD
    assert isinstance(group, FaninProcessGroup)
    group.set_timeout(timedelta(seconds=2))
    store = dist.distributed_c10d._get_default_store()
    if rank == VICTIM:
        store.wait([f"over{peer}" for peer in range(size) if peer != VICTIM])
        return {}
    seen = raised(lambda: dist.all_reduce(torch.ones(1000)))
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    assert work is not None
    future = work.get_future()
    seen["future"] = raised(future.wait)
    work = dist.all_gather([torch.empty(2) for _ in range(size)], torch.ones(2), async_op=True)
    assert work is not None
    seen["gloo"] = raised(lambda: work.wait(timedelta(seconds=1)))
    store.set(f"over{rank}", "1")
    return seen


def exit_without_destroy(rank: int, size: int) -> dict[str, Any]:
    """The rank fails if an exit handler does. No thread starts in one, which Python has so from 3.12 on."""
    init()
    sys.unraisablehook = fail_at_exit
    atexit.register(start_no_more_threads)  # called before those that were registered earlier
    return {
        "children": children(),
        "packets": counters()["engine.packets_out"],
    }


def trainings_alive(rank: int, size: int) -> dict[str, Any]:
    """An error of a federated client is caught, and what trains in the background lasts until the process ends."""
    init()
    federated_steering.LOOK_INTERVAL_S = 0.0  # rank 0's thread asks torch's store without a pause
    federated = Federated(nn.Linear(4, 4), samples=1, rounds=3)
    seen = raised(federated.hand_in)
    asynchronous, local = nn.Linear(4, 4), nn.Linear(4, 4)
    rounds = AsynchronousOptimizer(torch.optim.SGD(asynchronous.parameters(), lr=0.1), asynchronous, rounds=1000)
    steps = LocalSteps(local, torch.optim.SGD(local.parameters(), lr=0.1), period=2, overlap=1)
    for _ in range(4):
        asynchronous(torch.ones(1, 4)).sum().backward()
        rounds.step()
        local(torch.ones(1, 4)).sum().backward()
        steps.step()
    ALIVE.extend((federated, rounds, steps))
    return seen


def trainings_alive_after_destroy(rank: int, size: int) -> dict[str, Any]:
    """The same training lives in a program that destroys its group, which leaves no thread of it."""
    seen = trainings_alive(rank, size)
    dist.destroy_process_group()
    ours = ("fanin-stale", "fanin-federated")
    return {**seen, "threads": [each.name for each in threading.enumerate() if each.name in ours]}


def fail_at_exit(what: sys.UnraisableHookArgs) -> None:
    sys.__unraisablehook__(what)
    sys.stderr.flush()
    os._exit(9)


def start_no_more_threads() -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    threading.Thread.start = start  # type: ignore[method-assign, assignment]


def worlds_one_after_another(rank: int, size: int) -> dict[str, Any]:
    """The same port again and again; rank 0, whose store it is, destroys its group last."""
    sums = []
    for world in range(WORLDS):
        init()
        tensor = torch.full((100,), rank + 1.0)
        dist.all_reduce(tensor, group=dist.new_group())
        sums.append(float(tensor[0]))
        wait_for_all(f"leaving{world}", range(1, size) if rank == 0 else ())
        dist.destroy_process_group()
    return {"sums": sums}


def a_world_of_gloos_after_one_of_ours(rank: int, size: int) -> dict[str, Any]:
    """A group of ours within it, while a model still holds the first world."""
    init()
    model = DistributedDataParallel(nn.Linear(4, 4))
    dist.destroy_process_group()
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    group = dist.new_group(backend="fanin")
    tensor = torch.full((1000,), rank + 1.0)
    dist.all_reduce(tensor, group=group)
    counted = counters(group)["switch.all_reduce"]
    dist.destroy_process_group()
    assert isinstance(model.process_group, FaninProcessGroup)
    return {"sum": float(tensor[0]), "counted": counted}


def main() -> None:
    """Run one scenario and write what was seen. RANKS_PER_HOST: so many ranks in a row count as those of one host."""
    scenario, out = sys.argv[1:3]
    if per_host := os.environ.get("RANKS_PER_HOST"):
        os.environ["FANIN_HOST"] = f"host-{int(os.environ['RANK']) // int(per_host)}"
    torch.set_num_threads(1)
    seen = globals()[scenario](int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    Path(out).write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
