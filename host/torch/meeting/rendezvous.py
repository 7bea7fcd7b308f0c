"""The meeting of a group's ranks, who find their switches and one job name through the group's store.

Rules
-----
* A rank with addresses of its own configured (options, FANIN_SWITCH) uses these, as many as rank 0 names; the rest use
  rank 0's.
* Rank 0 without any decides where sums are made (host/torch/meeting/placement.py). A group other than the world's
  uses the world's switches: those of the hosts that its ranks are on.
* Otherwise the lowest rank of every host that is to have a shard starts a switch (started_switches.py).
* Rank 0, and a rank that starts a shard, tells the others when it fails: they would wait for the store's timeout. A
  rank that was given other options than rank 0, or cannot reach a switch, tells them too: they would wait for it there.
* A job name is the group's name and a fresh random part, so that two runs never meet at a long-lived switch.
* A job's secret is drawn by rank 0 and told with the switches, unless the ranks were given one (FANIN_SECRET).
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from fanin.errors import (
    ConfigurationError,
    FaninError,
    JoinTimeoutError,
    SwitchUnreachableError,
    UnsupportedError,
    WorkerLostError,
)
from fanin.host.torch.meeting.meeting import Meeting, homes_of
from fanin.host.torch.meeting.network_interfaces import warn_of_idle_cards
from fanin.host.torch.meeting.placement import (
    Facts,
    Hosts,
    cards_of,
    check_size,
    hosts_of,
    judge,
    racks_for,
    shards_for,
    where_to_sum,
)
from fanin.host.torch.meeting.reachable import one_machine
from fanin.host.torch.meeting.started_switches import STARTED
from fanin.host.torch.meeting.versions import Versions, tell_versions
from fanin.options import Options, SwitchAddress
from fanin.protocol.racks import RackPlan
from fanin.protocol.spread import optimal_parts, weights_of
from fanin.shared_options import Shown, shared_values, unlike

KEY = "fanin/job"
HERE_KEY = "fanin/here"
"""Key that rank 0 sets once it has come, before it finds or starts a switch."""
READ_TIMEOUT_S, READ_INTERVAL_S = 3.0, 0.02
"""How long a rank that may serve the store waits for the others to read why it ends, and how often it looks; they look
twice a second."""
START_GRACE = 3
"""Ranks wait at least this many connect timeouts for rank 0, which may need one to start a switch."""


@dataclass(frozen=True, slots=True)
class _Message:
    """Rank 0's message. It has `of_world` or `through_racks`, or `switches` or `starts` or both."""

    job: str = ""
    error: str = ""
    """Text of rank 0's failure."""
    kind: str = ""
    """The class of that error."""
    missing: tuple[int, ...] = ()
    """The ranks that a JoinTimeoutError names."""
    shared: dict[str, Shown] = field(default_factory=dict)
    """Rank 0's values of the options that ranks share."""
    switches: tuple[str, ...] = ()
    """Addresses of switches that run already."""
    of_world: tuple[int, ...] = ()
    """Shards of the world's group, by number."""
    through_racks: bool = False
    """Whether sums go through the racks' leaves, as in the world's group."""
    starts: bool = False
    """Whether leaders start shards: a rank starts one per occurrence in `leaders`, where each network card has one."""
    leaders: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()
    """A weight for each shard that is started, then for each of `switches`; or for each of `of_world`."""
    leaves: bool = False
    """Whether hosts have leaves of the shards."""
    racks: tuple[tuple[int, ...], ...] = ()
    """For each rack the numbers of its hosts, if sums are made inside racks first; otherwise empty."""
    secret: str | None = None
    """Secret of the job; None: all ranks were given it."""
    hosts: tuple[tuple[int, ...], ...] = ()

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: bytes) -> _Message:
        message = json.loads(text)
        lists = {name: tuple(message[name]) for name in ("missing", "switches", "of_world", "leaders", "weights")}
        lists |= {name: tuple(map(tuple, message[name])) for name in ("hosts", "racks")}
        return cls(**message | lists)


def meet(
    store: c10d.Store,
    rank: int,
    size: int,
    job_prefix: str,
    options: Options,
    timeout: timedelta,
    global_ranks: Sequence[int] = (),
    world: Meeting | None = None,
) -> Meeting:
    """Agree with the group's other ranks. `world`: the world's meeting, whose switches this group uses if given none.

    Raises the error of rank 0, or of a rank that was to start a shard, on every rank; JoinTimeoutError naming ranks
    that rank 0 has not heard of; ConfigurationError where this rank was given other options than rank 0, which the
    others have from `raise_if_refused`; torch's timeouts.
    """
    tell_versions(store, rank)
    store.set(_host_key(rank), Facts.of(options).text())
    if rank == 0:
        store.set(HERE_KEY, "")
        try:
            message = _decided(store, size, options, timeout, global_ranks, world)
        except Exception as error:
            missing = error.missing if isinstance(error, JoinTimeoutError) else ()
            store.set(KEY, _Message(error=str(error), kind=type(error).__name__, missing=missing).text())
            _wait_until_read(store, KEY, size - len(missing))
            raise
        job = f"{job_prefix}-{uuid.uuid4().hex[:12]}"
        store.set(KEY, replace(message, job=job, shared=shared_values(options, job)).text())
    return hear(store, options, timeout, rank, world, starts=True)


def hear(
    store: c10d.Store, options: Options, timeout: timedelta, rank: int, world: Meeting | None = None,
    *, starts: bool = False,
) -> Meeting:  # fmt: skip
    """The meeting from rank 0's message. Raises the error that rank 0 tells, or ConfigurationError for unlike options.

    `starts`: whether to start this host's shard, where the message asks for it.
    """
    store.wait([HERE_KEY], timeout)
    # The group's timeout, which is the store's own too, may be shorter than a switch takes to start.
    patience = timedelta(seconds=max(timeout.total_seconds(), START_GRACE * options.connect_timeout_s))
    store.wait([KEY], patience)
    Versions(store, rank).check({0: HERE_KEY})
    message = _Message.read(store.get(KEY))
    if message.error:
        _note_read(store, KEY)
        raise _error_of_rank_0(message)
    meeting = _met(store, message, options, patience, rank, world, starts=starts)
    if differences := unlike(message.shared, options, rank, message.job, one_host=len(message.hosts) == 1):
        error = ConfigurationError("; ".join(differences))
        if starts:
            tell_refusal(store, meeting, rank, error)
            store.set(_met_key(rank), "")
        meeting.close()
        raise error
    return meeting


def wait_for_all(store: c10d.Store, meeting: Meeting, rank: int, size: int, timeout: timedelta) -> None:
    """Wait until every rank has met the others; raises as `raise_if_refused` does, and torch's timeout.

    A group that does not join now waits here, because gloo, which connects next, does not hear of a rank that has
    given up.
    """
    store.set(_met_key(rank), "")
    store.wait([_met_key(each) for each in range(size)], timeout)
    raise_if_refused(store, meeting, rank)


def _met(
    store: c10d.Store, message: _Message, options: Options, patience: timedelta, rank: int, world: Meeting | None,
    *, starts: bool,
) -> Meeting:  # fmt: skip
    """The agreement from rank 0's message, with the switches that have started since."""
    secret = message.secret or options.secret or ""
    hosts = Hosts(message.hosts) if message.hosts else None
    if (message.of_world or message.through_racks) and (options.switch_list.word or not options.switches):
        assert world is not None, "all ranks of a group within the world are in the world"
        return _within_world(message, secret, world, hosts)
    there = options.switches or tuple(map(SwitchAddress.parse, message.switches))
    if not message.starts:
        return Meeting(message.job, secret, True, there, message.weights, hosts)
    assert hosts is not None
    leaders = message.leaders
    meeting = Meeting(message.job, secret, bool(message.switches), (), message.weights, hosts, leaders)
    meeting.homes = homes_of(hosts, leaders, rank)
    try:
        if starts and rank in leaders:
            meeting.holds_switch = _start_shards(store, rank, options, secret, leaders)
        each_once = dict.fromkeys(leaders)
        started = tuple(
            address for leader in each_once for address in _address_of(store, _shard_key(leader), leader, patience)
        )
        meeting.shards = (*started, *there) if message.switches else started
        if rank in leaders:
            warn_of_idle_cards(cards_of(options), [each.host for each in meeting.shards if not meeting.is_local(each)])
        if message.racks:
            _meet_in_racks(store, meeting, rank, RackPlan.of(message.racks), options, patience, starts=starts)
        if message.leaves:
            leader = hosts.leader_of(rank)
            if starts and rank == leader:
                leaf_options = replace(options, flows=None)  # each leaf has as many as its parent
                _tell(
                    store, _leaves_key(rank), lambda: STARTED.start_leaves(meeting.shards, leaf_options, secret, rank)
                )
                meeting.holds_switch = True
            meeting.leaves = _address_of(store, _leaves_key(leader), leader, patience)
    except BaseException:
        meeting.close()
        raise
    return meeting


def _error_of_rank_0(message: _Message) -> FaninError:
    """Rank 0's error, of the same kind where callers tell kinds apart (fallback: gloo cannot cure every one)."""
    if message.kind == JoinTimeoutError.__name__:
        return JoinTimeoutError(message.missing, f"rank 0 reports: {message.error}")
    for kind in (ConfigurationError, UnsupportedError):
        if message.kind == kind.__name__:
            return kind(f"rank 0 reports: {message.error}")
    return SwitchUnreachableError("", f"rank 0 could not start a switch: {message.error}")


def _meet_in_racks(
    store: c10d.Store, meeting: Meeting, rank: int, plan: RackPlan, options: Options, patience: timedelta,
    *, starts: bool,
) -> None:  # fmt: skip
    """Start this host's leaves of its rack, and set the meeting's shards, roots and leaves of all the rack's hosts."""
    hosts = meeting.hosts
    assert hosts is not None
    meeting.racks, meeting.own = plan, meeting.shards
    meeting.shards = tuple(meeting.own[host] for host in plan.roots)
    meeting.weights = ()
    host = hosts.of(rank)
    meeting.homes = (host,)
    parents = [meeting.shards[slice_] for slice_ in plan.leaves_on(host)]
    if starts and rank == hosts.leaders[host] and parents:
        leaf_options = replace(options, flows=None)
        _tell(store, _leaves_key(rank), lambda: STARTED.start_leaves(parents, leaf_options, meeting.secret, rank))
    found: dict[int, SwitchAddress] = {}
    for number in plan.racks[plan.rack_of(host)]:
        if slices := plan.leaves_on(number):
            leader = hosts.leaders[number]
            found |= zip(slices, _address_of(store, _leaves_key(leader), leader, patience), strict=True)
    meeting.leaves = tuple(address for _, address in sorted(found.items()))


def _decided(
    store: c10d.Store,
    size: int,
    options: Options,
    timeout: timedelta,
    global_ranks: Sequence[int],
    world: Meeting | None,
) -> _Message:
    """Rank 0's decision about switches, hosts and racks."""
    drawn = STARTED.secret() if options.secret is None else None
    said = options.switch_list
    if said.addresses and not said.word:
        if world is not None and set(options.switches) == set(world.shards):
            drawn = world.secret  # the world's switch may serve this secret alone
        weights = weights_of(optimal_parts((), said.weights))
        return _Message(switches=tuple(map(str, options.switches)), weights=weights, secret=drawn)
    if world is not None:
        return _of_world(world, global_ranks)
    where = where_to_sum(options, one_machine=one_machine())
    if where == "rank0" and options.host is None:
        check_size(size, leaves=False)
        return _Message(starts=True, leaders=(0,), hosts=(tuple(range(size)),), secret=drawn)
    facts = _gathered(store, size, min(options.join_timeout_s, timeout.total_seconds()))
    judge(facts)
    hosts = hosts_of([each.host for each in facts])
    spread = where == "hosts" or (where == "auto" and len(hosts.ranks) > 1)
    if not spread:
        check_size(size, leaves=False)
        return _Message(starts=True, leaders=(0,), hosts=hosts.ranks, secret=drawn)
    racks = racks_for(hosts, facts, options)
    leaves = not racks and 1 < len(hosts.ranks) < size and options.on_worker_loss == "raise"
    check_size(size, leaves=leaves or bool(racks))
    if racks:
        return _Message(starts=True, leaders=hosts.leaders, racks=racks, hosts=hosts.ranks, secret=drawn)
    shards = shards_for(hosts, facts, said)
    return _Message(
        starts=True, leaders=shards.leaders, switches=tuple(map(str, shards.addresses)), weights=shards.weights,
        leaves=leaves, hosts=hosts.ranks, secret=drawn,
    )  # fmt: skip


def _of_world(world: Meeting, global_ranks: Sequence[int]) -> _Message:
    """The world's shards, for a group within it: those of the hosts that the group's ranks are on, and those on none.

    Parts are in the proportion that they have in the world, whose other groups may be summing at the same time.
    """
    left = tuple(number for number in range(len(world.shards)) if number not in world.lost)
    if world.hosts is None:
        return _Message(of_world=left, weights=_weights(world, left), secret=world.secret)
    numbers, ranks = _by_host(world.hosts, global_ranks)
    if world.racks is not None:
        homes = [world.leaders.index(leader) for leader in numbers]
        across = len({world.racks.rack_of(host) for host in homes}) > 1
        return _Message(of_world=() if across else tuple(homes), through_racks=across, hosts=ranks, secret=world.secret)
    if len(world.shards) == 1:
        return _Message(of_world=(0,), hosts=ranks, secret=world.secret)
    homes = [home for number in numbers for home in homes_of(world.hosts, world.leaders, number)]
    spares = range(len(world.leaders), len(world.shards))
    wanted = tuple(homes) if len(numbers) == 1 and homes else (*homes, *spares)
    own = tuple(number for number in wanted if number in left)
    if own == wanted:
        return _Message(of_world=own, weights=_weights(world, own), hosts=ranks, secret=world.secret)
    # A shard was lost, and the ranks of its host were not: they use a shard elsewhere. With all of the world's hosts it
    # does not count as local, even if all of the group's ranks are on one host.
    used = own or left[:1]
    return _Message(of_world=used, weights=_weights(world, used), hosts=world.hosts.ranks, secret=world.secret)


def _weights(world: Meeting, numbers: Sequence[int]) -> tuple[int, ...]:
    return world.spread.only(numbers).weights


def _by_host(hosts: Hosts, global_ranks: Sequence[int]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """The lowest ranks of the hosts that a group of the world's ranks is on, and the group's own ranks on each."""
    found: dict[int, list[int]] = {}
    for rank, member in enumerate(global_ranks):
        found.setdefault(hosts.leader_of(member), []).append(rank)
    return tuple(found), tuple(map(tuple, found.values()))


def _within_world(message: _Message, secret: str, world: Meeting, hosts: Hosts | None) -> Meeting:
    """The meeting of a group within the world, at shards of the world's: through leaves if these are several."""
    if message.through_racks:
        return replace(world, job_name=message.job, secret=secret, holds_switch=False, lost=frozenset())
    shards = tuple((world.own or world.shards)[number] for number in message.of_world)
    homes = tuple(message.of_world.index(home) for home in world.homes if home in message.of_world)
    through_leaves = world.leaves and world.racks is None and len(shards) > 1
    leaves = tuple(world.leaves[number] for number in message.of_world) if through_leaves else ()
    return Meeting(message.job, secret, world.discloses, shards, message.weights, hosts, homes=homes, leaves=leaves)


def _gathered(store: c10d.Store, size: int, timeout_s: float) -> list[Facts]:
    """Reports of all ranks on their hosts. JoinTimeoutError names the missing ranks."""
    keys = [_host_key(rank) for rank in range(size)]
    try:
        store.wait(keys, timedelta(seconds=timeout_s))
    except dist.DistStoreError:
        missing = tuple(rank for rank, key in enumerate(keys) if not store.check([key]))
        raise JoinTimeoutError(
            missing,
            f"ranks {', '.join(map(str, missing))} have not come to the group within {timeout_s:g} s. Remedy: see "
            "their output, or allow more time (FANIN_JOIN_TIMEOUT_S, and init_process_group's timeout)",
        ) from None
    return [Facts.read(store.get(key)) for key in keys]


def _start_shards(store: c10d.Store, rank: int, options: Options, secret: str, leaders: Sequence[int]) -> bool:
    """Start this process's switches, and tell the others where they are, or why not."""
    # With several shards the flows of a worker are spread over hosts already: one per shard, since each is a thread.
    its = replace(options, flows=options.flows if len(leaders) == 1 else 1)

    def start() -> tuple[SwitchAddress, ...]:
        at = [card.address for card in cards_of(options)]
        return STARTED.start(its, secret, at[: leaders.count(rank)], rank)

    _tell(store, _shard_key(rank), start)
    return True


def _tell(store: c10d.Store, key: str, start: Callable[[], Sequence[SwitchAddress]]) -> None:
    """Call `start`, and tell the other ranks under `key` the addresses that it returns, or the error that it raises."""
    try:
        addresses = start()
    except Exception as error:
        store.set(key, json.dumps({"error": str(error)}))
        raise
    store.set(key, json.dumps({"switches": list(map(str, addresses))}))


def _address_of(store: c10d.Store, key: str, leader: int, patience: timedelta) -> tuple[SwitchAddress, ...]:
    store.wait([key], patience)
    message = json.loads(store.get(key))
    if "error" in message:
        raise SwitchUnreachableError("", f"rank {leader} could not start a switch: {message['error']}")
    return tuple(map(SwitchAddress.parse, message["switches"]))


def tell_refusal(
    store: c10d.Store, meeting: Meeting, rank: int, error: SwitchUnreachableError | ConfigurationError
) -> None:
    """Tell the other ranks that this one does not join, with the reason `error`, so that they do not wait for it."""
    address = error.address if isinstance(error, SwitchUnreachableError) else None
    message = json.dumps({"rank": rank, "address": address, "text": str(error)})
    with contextlib.suppress(dist.DistError):
        store.set(_refusal_key(meeting), message)


def raise_if_refused(store: c10d.Store, meeting: Meeting, rank: int, size: int = 1) -> None:
    """Raise the error of another rank that has told that it does not join. Rank 0 waits till all have heard of it.

    SwitchUnreachableError that names rank and switch, where it cannot reach a switch; ConfigurationError for unlike
    options. And WorkerLostError where the group's store has ended: rank 0 may have ended before a rank could ask why.
    """
    try:
        refusal = refusal_of_another(store, meeting, rank)
    except dist.DistNetworkError as error:
        raise WorkerLostError(
            (),
            f"the group's store is gone while rank {rank} joins job {meeting.job_name!r} at {meeting.address}: the "
            f"process that serves it, rank 0 or torchrun's agent on its host, has ended ({error}). Remedy: see the "
            "output of rank 0",
        ) from None
    except dist.DistError:  # other errors of the store are left to its next user
        return
    if refusal is not None:
        _note_read(store, _refusal_key(meeting))
        if rank == 0:
            wait_until_heard(store, meeting, size)
        raise refusal


def wait_until_heard(store: c10d.Store, meeting: Meeting, size: int) -> None:
    """Wait until all `size` ranks but the one that refuses have heard of it. For rank 0, which may serve the store."""
    _wait_until_read(store, _refusal_key(meeting), size)


def raise_if_unlike(store: c10d.Store, meeting: Meeting, rank: int, size: int, versions: Versions) -> None:
    """ConfigurationError where a rank that has come runs another version of fanin. Every rank looks, and rank 0 tells
    those that have not looked yet, whose store it may serve."""
    try:
        versions.check({each: _host_key(each) for each in range(size)})
    except ConfigurationError as error:
        if rank == 0:
            tell_refusal(store, meeting, rank, error)
            wait_until_heard(store, meeting, size - 1)  # a rank of the other version may not hear it
        else:
            _note_read(store, _refusal_key(meeting))
        raise
    except dist.DistError:  # errors of the store are left to its next user
        return


def _note_read(store: c10d.Store, key: str) -> None:
    with contextlib.suppress(dist.DistError):
        store.add(f"{key}/read", 1)


def _wait_until_read(store: c10d.Store, key: str, size: int) -> None:
    """Wait until all ranks but one have noted that they have read `key`; READ_TIMEOUT_S at most, as one may never come.

    A rank that ends after a refusal may take the store with it, and the others would then report the end of the store
    as the reason.
    """
    ends_at = time.monotonic() + READ_TIMEOUT_S
    with contextlib.suppress(dist.DistError):
        while store.add(f"{key}/read", 0) < size - 1 and time.monotonic() < ends_at:
            time.sleep(READ_INTERVAL_S)


def refusal_of_another(store: c10d.Store, meeting: Meeting, rank: int) -> FaninError | None:
    """The error of another rank that has told that it does not join, or None. Raises torch's errors of stores."""
    key = _refusal_key(meeting)
    if not store.check([key]):
        return None
    message = json.loads(store.get(key))
    if message["rank"] == rank:
        return None
    if message["address"] is None:
        return ConfigurationError(message["text"])
    return SwitchUnreachableError(
        message["address"], f"rank {message['rank']} cannot reach switch {message['address']}: {message['text']}"
    )


def _refusal_key(meeting: Meeting) -> str:
    return f"fanin/refusal/{meeting.job_name}"


def _met_key(rank: int) -> str:
    return f"fanin/met/{rank}"


def _host_key(rank: int) -> str:
    return f"fanin/host/{rank}"


def _shard_key(leader: int) -> str:
    return f"fanin/shard/{leader}"


def _leaves_key(leader: int) -> str:
    return f"fanin/leaves/{leader}"
