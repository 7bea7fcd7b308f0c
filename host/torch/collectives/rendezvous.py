"""How the ranks of a group find their switches and one job name: through the group's store.

Rules
-----
* A rank with addresses of its own configured (options, FANIN_SWITCH) uses these, as many as rank 0 names; the rest use
  rank 0's.
* Rank 0 without any decides where sums are made (host/torch/collectives/placement.py). A group other than the world's
  uses the world's switches: those of the hosts that its ranks are on.
* Otherwise the lowest rank of every host that is to have a shard starts a switch: one per process, shared by all
  groups, closed when the last of them is, or at exit.
* Rank 0, and a rank that starts a shard, tells the others when it fails: they would wait for the store's timeout.
* A job name is the group's name and a fresh random part, so that two runs never meet at a long-lived switch.
* A job's secret is drawn by rank 0 and told with the switches, unless the ranks were given one (FANIN_SECRET). A switch
  that a rank has started serves the jobs of one secret only, so groups made later use the world's.
* A process in the place of one that is gone (on_worker_loss="continue") finds that its rank has been there before it,
  and goes where rank 0 was last. That may be a job that runs without it.
"""

from __future__ import annotations

import atexit
import contextlib
import ipaddress
import json
import os
import secrets
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from fanin.errors import ConfigurationError, JoinTimeoutError, SwitchUnreachableError
from fanin.host.session.embedded import EmbeddedSwitch, start_switch
from fanin.host.torch.collectives.placement import (
    Facts,
    Hosts,
    check_size,
    hosts_of,
    judge,
    racks_for,
    shards_for,
    where_to_sum,
)
from fanin.options import Options, SwitchAddress
from fanin.protocol.racks import RackPlan
from fanin.protocol.seal import SECRET_BYTES, Credentials
from fanin.protocol.spread import Spread, optimal_parts, weights_of

KEY = "fanin/job"
HERE_KEY = "fanin/here"
"""Rank 0 has come, and goes to find or start a switch."""
START_GRACE = 3
"""Ranks wait at least this many connect timeouts for rank 0, which may need one to start a switch."""


_LIVED: set[tuple[str, str, int, int]] = set()
"""Incarnations that this process was a member of: the group's name and members, its rank there, and their number."""


def find_incarnation(
    store: c10d.Store, group_name: str, rank: int, global_ranks: Sequence[int], patience: timedelta | None = None
) -> tuple[c10d.Store, bool]:
    """A store for this very incarnation of the group: names come back after destroy and init, old keys stay.

    Each rank counts in the store itself, per name (the store's prefix) and members: those who were members of one group
    of that name need not be of the next, and a new store starts afresh.

    Given a `patience`, also whether another process had this rank before: then the incarnation is the one that rank 0
    is in, or has renewed, which is waited for so long.
    """
    members = _members(global_ranks)
    own, newest = f"fanin/{members}/{rank}", _newest(members)
    number = store.add(own, 1)
    place = f"fanin/{members}/{number}"
    replaces = False
    if patience is not None and number > 1 and (group_name, members, rank, number - 1) not in _LIVED:
        replaces = True
        store.wait([newest], patience)
        told = json.loads(store.get(newest))
        store.add(own, told["number"] - number)  # so that it counts like the others from here on
        number, place = told["number"], told["place"]
    elif rank == 0:
        store.set(newest, json.dumps({"number": number, "place": place}))
    _LIVED.add((group_name, members, rank, number))
    return c10d.PrefixStore(place, store), replaces


def renewed_store(store: c10d.Store, rank: int, global_ranks: Sequence[int], name: str) -> c10d.Store:
    """A store for a group that is made whole again within its incarnation; `name` tells one renewal from others."""
    place = f"fanin/renewed/{name}"
    if rank == 0:
        newest = _newest(_members(global_ranks))
        store.set(newest, json.dumps(json.loads(store.get(newest)) | {"place": place}))
    return c10d.PrefixStore(place, store)


def _members(global_ranks: Sequence[int]) -> str:
    return ".".join(map(str, global_ranks)) or "world"


def _newest(members: str) -> str:
    """Where rank 0 says in which incarnation it is, and where that has its keys."""
    return f"fanin/{members}/newest"


@dataclass(slots=True)
class _Started:
    """A switch that this process has started, for the jobs of one secret."""

    switch: EmbeddedSwitch | None = None
    """This host's shard, where it has one."""
    leaves: EmbeddedSwitch | None = None
    """Leaves of all shards, for the ranks of this host."""
    users: int = 0


class SharedSwitch:
    """The switches that this process started, if any, and who uses them: one for each secret."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: dict[str, _Started] = {}
        self._inherited: list[_Started] = []
        """Kept, in a child of fork(), because dropping them would end them."""

    def secret(self) -> str:
        """That of a switch that is there, so that one serves all groups of this process; or a new one."""
        with self._lock:
            return next(iter(self._started), None) or secrets.token_hex(SECRET_BYTES)

    def start(self, options: Options, secret: str) -> SwitchAddress:
        """The address of this process's switch for the jobs of that secret, started now if it is not there yet.

        Call `release` once for it.
        """
        with self._lock:
            started = self._started.get(secret)
            switch = None if started is None else started.switch
            if started is None or switch is None or not switch.is_running:  # it may have died, and the job have gone on
                users = 0 if started is None else started.users
                credentials = Credentials.of_job(secret)
                switch = start_switch(reachable_host(), options, credentials=credentials)
                self._started[secret] = started = _Started(switch, users=users)
            started.users += 1
            assert started.switch is not None
            return started.switch.address

    def start_leaves(self, shards: Sequence[SwitchAddress], options: Options, secret: str) -> tuple[SwitchAddress, ...]:
        """A leaf of every shard, on this host, for the world's group; they go with the switch of that secret.

        Where this process has started none, call `release` once for them.
        """
        with self._lock:
            credentials = Credentials.of_job(secret)
            leaves = start_switch(reachable_host(), options, credentials=credentials, parents=shards)
            started = self._started.setdefault(secret, _Started())
            started.users = max(started.users, 1)
            started.leaves = leaves
            return leaves.addresses

    def release(self, secret: str) -> None:
        """One user less of the switch with that secret; the last one closes it."""
        with self._lock:
            started = self._started.get(secret)
            if started is None:
                return
            started.users -= 1
            if started.users == 0:
                _let_go(self._started.pop(secret))

    def forget(self) -> None:
        """In a child of fork(): the switches are its parent's, and the lock may be locked."""
        self._lock = threading.Lock()
        self._inherited += self._started.values()
        self._started = {}

    def close(self) -> None:
        """Let go of all of them at exit."""
        with self._lock:
            for started in self._started.values():
                _let_go(started)
            self._started.clear()


def _let_go(started: _Started) -> None:
    for switch in (started.leaves, started.switch):
        if switch is not None:
            switch.close()


SHARED = SharedSwitch()
atexit.register(SHARED.close)
os.register_at_fork(after_in_child=SHARED.forget)


def reachable_host() -> str:
    """The name or address under which the other ranks reach this process.

    Loopback where MASTER_ADDR is loopback or not set. MASTER_ADDR itself where it names this machine, since the others
    resolved it too; otherwise the address that this machine uses on the way there.
    """
    master = os.environ.get("MASTER_ADDR", "")
    if not master:
        return "127.0.0.1"
    try:
        family, _, _, _, target = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # a datagram socket sends nothing here; the system only picks the way
            own = str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
    if ipaddress.ip_address(own).is_loopback:
        # Debian gives a host's own name a loopback address: right for one machine, wrong for the others.
        alone = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
        return "127.0.0.1" if alone or master in ("localhost", "::1") or master.startswith("127.") else master
    return master if own == target[0] else own


def _one_machine() -> bool:
    """Whether the ranks can only reach each other on this machine."""
    host = reachable_host()
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost" or os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")


@dataclass(slots=True)
class Meeting:
    """What the ranks agreed on: the job's name, its switches, and whether this process holds one of them."""

    job_name: str
    secret: str
    discloses: bool
    """Whether a switch may be told the job's key; one that a rank started has it already."""
    shards: tuple[SwitchAddress, ...]
    """Where sums are made, in the same order on every rank; a single one makes all of them."""
    weights: tuple[int, ...] = ()
    """How much of a large sum each of them gets (fanin/protocol/spread.py); empty: all alike."""
    hosts: Hosts | None = None
    """Which ranks are on which host, where that was asked."""
    leaders: tuple[int, ...] = ()
    """The ranks that have started the first of the shards, one each; the others were there."""
    home: int | None = None
    """The number of the shard on this rank's own host, where there is one."""
    leaves: tuple[SwitchAddress, ...] = ()
    """This host's leaf of every shard, where hosts have several ranks: they meet at home first."""
    racks: RackPlan | None = None
    """Where hosts are in racks: then `leaves` are those of this rank's rack, on its hosts, and `shards` add them up."""
    own: tuple[SwitchAddress, ...] = ()
    """In racks, the shards that `leaders` have started, of which `shards` are some."""
    holds_switch: bool = False
    lost: frozenset[int] = frozenset()
    """The numbers of shards that were lost since."""

    @property
    def credentials(self) -> Credentials:
        """The keys of the ranks' requests to the job's switches."""
        return Credentials.of_job(self.secret, discloses=self.discloses)

    @property
    def switches(self) -> tuple[SwitchAddress, ...]:
        """What this rank itself talks to: the shards, or its host's leaves of them."""
        return self.leaves or self.shards

    @property
    def spread(self) -> Spread:
        """How sums are dealt to them."""
        return Spread(self.weights or (1,) * len(self.shards))

    @property
    def address(self) -> SwitchAddress:
        """The first of `switches`."""
        return self.switches[0]

    @property
    def local(self) -> frozenset[SwitchAddress]:
        """The switches whose shared memory may be used: all of them where nobody has told hosts apart."""
        if self.racks is not None and self.leaves:
            assert self.hosts is not None
            assert self.home is not None
            return frozenset(self.leaves[slice_] for slice_ in self.racks.leaves_on(self.home))
        if self.leaves or self.hosts is None or len(self.hosts.ranks) == 1:
            return frozenset(self.switches)
        return frozenset() if self.home is None else frozenset({self.shards[self.home]})

    @property
    def in_words(self) -> str:
        """What its switches are leaves of, if they are; for people, behind what a session says of itself."""
        if not self.leaves:
            return ""
        where = "leaves on this host" if self.racks is None else f"leaves in this rack, one of {len(self.racks.racks)},"
        return f"; these are {where} of {', '.join(map(str, self.shards))}"

    def close(self) -> None:
        """Let go of the embedded switch, if this group holds it. Idempotent."""
        if self.holds_switch:
            self.holds_switch = False
            SHARED.release(self.secret)


@dataclass(frozen=True, slots=True)
class _Told:
    """What rank 0 says. `of_world` or `through_racks` is there, or `switches` or `starts` or both."""

    job: str = ""
    error: str = ""
    switches: tuple[str, ...] = ()
    """Addresses that are there."""
    of_world: tuple[int, ...] = ()
    """Shards of the world's group, by number."""
    through_racks: bool = False
    """As the world's group: through its racks' leaves."""
    starts: bool = False
    """`leaders` are to start a shard each."""
    leaders: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()
    """Of the shards that are started, and then of `switches`; or of `of_world`."""
    leaves: bool = False
    """Hosts have leaves of the shards."""
    racks: tuple[tuple[int, ...], ...] = ()
    """The numbers of the hosts of each rack, where racks have leaves of shards that add them up."""
    secret: str | None = None
    """Secret of the job; None: all ranks were given it."""
    hosts: tuple[tuple[int, ...], ...] = ()

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: bytes) -> _Told:
        told = json.loads(text)
        lists = {name: tuple(told[name]) for name in ("switches", "of_world", "leaders", "weights")}
        lists |= {name: tuple(map(tuple, told[name])) for name in ("hosts", "racks")}
        return cls(**told | lists)


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
    """Agree with the group's other ranks. `world`: of the world's group, whose switches this one uses if given none.

    Raises the error of rank 0, or of a rank that was to start a shard, on every rank; JoinTimeoutError naming ranks
    that rank 0 has not heard of; ConfigurationError; torch's timeouts.
    """
    store.set(_host_key(rank), Facts.of(options).text())
    if rank == 0:
        store.set(HERE_KEY, "")
        try:
            told = _decided(store, size, options, timeout, global_ranks, world)
        except Exception as error:
            store.set(KEY, _Told(error=str(error)).text())
            raise
        store.set(KEY, replace(told, job=f"{job_prefix}-{uuid.uuid4().hex[:12]}").text())
    return hear(store, options, timeout, rank, world, starts=True)


def hear(
    store: c10d.Store, options: Options, timeout: timedelta, rank: int, world: Meeting | None = None,
    *, starts: bool = False,
) -> Meeting:  # fmt: skip
    """Rank 0's meeting. Raises the error that it reports instead. `starts`: start this host's shard, if asked."""
    store.wait([HERE_KEY], timeout)
    # The group's timeout, which is the store's own too, may be shorter than a switch takes to start.
    patience = timedelta(seconds=max(timeout.total_seconds(), START_GRACE * options.connect_timeout_s))
    store.wait([KEY], patience)
    told = _Told.read(store.get(KEY))
    if told.error:
        raise SwitchUnreachableError("", f"rank 0 could not start a switch: {told.error}")
    secret = told.secret or options.secret
    if secret is None:
        raise ConfigurationError("rank 0 was given FANIN_SECRET, this rank was not. Remedy: give it to all, or to none")
    hosts = Hosts(told.hosts) if told.hosts else None
    if (told.of_world or told.through_racks) and (options.switch_list.word or not options.switches):
        assert world is not None, "all ranks of a group within the world are in the world"
        return _within_world(told, secret, world, hosts)
    there = options.switches or tuple(map(SwitchAddress.parse, told.switches))
    if not told.starts:
        return Meeting(told.job, secret, True, there, told.weights, hosts)
    assert hosts is not None
    leaders = told.leaders
    meeting = Meeting(told.job, secret, bool(told.switches), (), told.weights, hosts, leaders)
    meeting.home = _home(hosts, leaders, rank)
    try:
        if starts and rank in leaders:
            meeting.holds_switch = _start_shard(store, rank, options, secret, alone=len(leaders) == 1)
        started = tuple(_address_of(store, _shard_key(leader), leader, patience)[0] for leader in leaders)
        meeting.shards = (*started, *there) if told.switches else started
        if told.racks:
            _meet_in_racks(store, meeting, rank, RackPlan.of(told.racks), options, patience, starts=starts)
        if told.leaves:
            leader = hosts.leader_of(rank)
            if starts and rank == leader:
                leaf_options = replace(options, flows=1)
                _tell(store, _leaves_key(rank), lambda: SHARED.start_leaves(meeting.shards, leaf_options, secret))
                meeting.holds_switch = True
            meeting.leaves = _address_of(store, _leaves_key(leader), leader, patience)
    except BaseException:
        meeting.close()
        raise
    return meeting


def _meet_in_racks(
    store: c10d.Store, meeting: Meeting, rank: int, plan: RackPlan, options: Options, patience: timedelta,
    *, starts: bool,
) -> None:  # fmt: skip
    """Start what this host runs for its rack, and hear of the rack's other leaves."""
    hosts = meeting.hosts
    assert hosts is not None
    meeting.racks, meeting.own = plan, meeting.shards
    meeting.shards = tuple(meeting.own[host] for host in plan.roots)
    meeting.weights = ()
    meeting.home = host = hosts.of(rank)
    parents = [meeting.shards[slice_] for slice_ in plan.leaves_on(host)]
    if starts and rank == hosts.leaders[host] and parents:
        leaf_options = replace(options, flows=1)
        _tell(store, _leaves_key(rank), lambda: SHARED.start_leaves(parents, leaf_options, meeting.secret))
    found: dict[int, SwitchAddress] = {}
    for number in plan.racks[plan.rack_of(host)]:
        if slices := plan.leaves_on(number):
            leader = hosts.leaders[number]
            found |= zip(slices, _address_of(store, _leaves_key(leader), leader, patience), strict=True)
    meeting.leaves = tuple(address for _, address in sorted(found.items()))


def _home(hosts: Hosts, leaders: Sequence[int], rank: int) -> int | None:
    """The number of the shard that one of `leaders` runs on that rank's host, if any does."""
    leader = hosts.leader_of(rank)
    return leaders.index(leader) if leader in leaders else None


def _decided(
    store: c10d.Store,
    size: int,
    options: Options,
    timeout: timedelta,
    global_ranks: Sequence[int],
    world: Meeting | None,
) -> _Told:
    """Rank 0's decision."""
    drawn = SHARED.secret() if options.secret is None else None
    said = options.switch_list
    if said.addresses and not said.word:
        if world is not None and set(options.switches) == set(world.shards):
            drawn = world.secret  # the world's own switch may be one that serves no other
        weights = weights_of(optimal_parts((), said.weights))
        return _Told(switches=tuple(map(str, options.switches)), weights=weights, secret=drawn)
    if world is not None:
        return _of_world(world, global_ranks)
    where = where_to_sum(options, one_machine=_one_machine())
    if where == "rank0" and options.host is None:
        check_size(size, leaves=False)
        return _Told(starts=True, leaders=(0,), hosts=(tuple(range(size)),), secret=drawn)
    facts = _gathered(store, size, min(options.join_timeout_s, timeout.total_seconds()))
    judge(facts)
    hosts = hosts_of([each.host for each in facts])
    spread = where == "hosts" or (where == "auto" and len(hosts.ranks) > 1)
    if not spread:
        check_size(size, leaves=False)
        return _Told(starts=True, leaders=(0,), hosts=hosts.ranks, secret=drawn)
    racks = racks_for(hosts, facts, options)
    leaves = not racks and 1 < len(hosts.ranks) < size and options.on_worker_loss == "raise"
    check_size(size, leaves=leaves or bool(racks))
    if racks:
        return _Told(starts=True, leaders=hosts.leaders, racks=racks, hosts=hosts.ranks, secret=drawn)
    shards = shards_for(hosts, facts, said)
    return _Told(
        starts=True, leaders=shards.leaders, switches=tuple(map(str, shards.addresses)), weights=shards.weights,
        leaves=leaves, hosts=hosts.ranks, secret=drawn,
    )  # fmt: skip


def _of_world(world: Meeting, global_ranks: Sequence[int]) -> _Told:
    """The world's shards, for a group within it: those of the hosts that the group's ranks are on, and those on none.

    Parts are in the proportion that they have in the world, whose other groups may be summing at the same time.
    """
    left = tuple(number for number in range(len(world.shards)) if number not in world.lost)
    if world.hosts is None:
        return _Told(of_world=left, weights=_weights(world, left), secret=world.secret)
    numbers, ranks = _by_host(world.hosts, global_ranks)
    if world.racks is not None:
        homes = [world.leaders.index(leader) for leader in numbers]
        across = len({world.racks.rack_of(host) for host in homes}) > 1
        return _Told(of_world=() if across else tuple(homes), through_racks=across, hosts=ranks, secret=world.secret)
    if len(world.shards) == 1:
        return _Told(of_world=(0,), hosts=ranks, secret=world.secret)
    homes = [home for number in numbers if (home := _home(world.hosts, world.leaders, number)) is not None]
    spares = range(len(world.leaders), len(world.shards))
    wanted = tuple(homes) if len(numbers) == 1 and homes else (*homes, *spares)
    own = tuple(number for number in wanted if number in left)
    if own == wanted:
        return _Told(of_world=own, weights=_weights(world, own), hosts=ranks, secret=world.secret)
    # A shard was lost and its ranks were not: theirs are elsewhere, even if all of them are on one host.
    used = own or left[:1]
    return _Told(of_world=used, weights=_weights(world, used), hosts=world.hosts.ranks, secret=world.secret)


def _weights(world: Meeting, numbers: Sequence[int]) -> tuple[int, ...]:
    return world.spread.only(numbers).weights


def _by_host(hosts: Hosts, global_ranks: Sequence[int]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """The lowest ranks of the hosts that a group of the world's ranks is on, and the group's own ranks on each."""
    found: dict[int, list[int]] = {}
    for rank, member in enumerate(global_ranks):
        found.setdefault(hosts.leader_of(member), []).append(rank)
    return tuple(found), tuple(map(tuple, found.values()))


def _within_world(told: _Told, secret: str, world: Meeting, hosts: Hosts | None) -> Meeting:
    """Through the world's own leaves, unless all of the group's ranks are at home there."""
    if told.through_racks:
        return replace(world, job_name=told.job, secret=secret, holds_switch=False, lost=frozenset())
    shards = tuple((world.own or world.shards)[number] for number in told.of_world)
    home = None if world.home not in told.of_world else told.of_world.index(world.home)
    through_leaves = world.leaves and world.racks is None and len(shards) > 1
    leaves = tuple(world.leaves[number] for number in told.of_world) if through_leaves else ()
    return Meeting(told.job, secret, world.discloses, shards, told.weights, hosts, home=home, leaves=leaves)


def _gathered(store: c10d.Store, size: int, timeout_s: float) -> list[Facts]:
    """What all ranks say of their hosts. JoinTimeoutError names those that have not."""
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


def _start_shard(store: c10d.Store, rank: int, options: Options, secret: str, *, alone: bool) -> bool:
    """Start this process's switch, and tell the others where it is, or why not."""
    # With several shards the flows of a worker are spread over hosts already: one per shard, since each is a thread.
    flows = options.flows if alone else 1
    _tell(store, _shard_key(rank), lambda: [SHARED.start(replace(options, flows=flows), secret)])
    return True


def _tell(store: c10d.Store, key: str, start: Callable[[], Sequence[SwitchAddress]]) -> None:
    """Start something and say where it is; what that raises is told, too."""
    try:
        addresses = start()
    except Exception as error:
        store.set(key, json.dumps({"error": str(error)}))
        raise
    store.set(key, json.dumps({"switches": list(map(str, addresses))}))


def _address_of(store: c10d.Store, key: str, leader: int, patience: timedelta) -> tuple[SwitchAddress, ...]:
    store.wait([key], patience)
    told = json.loads(store.get(key))
    if "error" in told:
        raise SwitchUnreachableError("", f"rank {leader} could not start a switch: {told['error']}")
    return tuple(map(SwitchAddress.parse, told["switches"]))


def tell_unreachable(store: c10d.Store, meeting: Meeting, rank: int, error: SwitchUnreachableError) -> None:
    """This rank cannot reach one of the job's switches: the others, which can, need not wait for it there."""
    told = json.dumps({"rank": rank, "address": error.address, "text": str(error)})
    with contextlib.suppress(dist.DistError):
        store.set(_unreachable_key(meeting), told)


def raise_if_unreachable(store: c10d.Store, meeting: Meeting, rank: int) -> None:
    """SwitchUnreachableError that names both, when another rank has said that it cannot reach a switch of the job."""
    try:
        if not store.check([_unreachable_key(meeting)]):
            return
        told = json.loads(store.get(_unreachable_key(meeting)))
    except dist.DistError:  # the store's own errors are its next user's
        return
    if told["rank"] != rank:
        raise SwitchUnreachableError(
            told["address"], f"rank {told['rank']} cannot reach switch {told['address']}: {told['text']}"
        )


def _unreachable_key(meeting: Meeting) -> str:
    return f"fanin/unreachable/{meeting.job_name}"


def _host_key(rank: int) -> str:
    return f"fanin/host/{rank}"


def _shard_key(leader: int) -> str:
    return f"fanin/shard/{leader}"


def _leaves_key(leader: int) -> str:
    return f"fanin/leaves/{leader}"
