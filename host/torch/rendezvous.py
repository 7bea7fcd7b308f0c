"""How the ranks of a group find one switch and one job name: through the group's store.

Rules
-----
* A rank with a switch of its own configured (options, FANIN_SWITCH) uses that address; the rest use rank 0's.
* Rank 0 without one uses the switch of the world's group, and where there is none, starts one: one per process, shared
  by all groups, closed when the last of them is, or at exit.
* What rank 0 fails at is told to the others, who otherwise would wait for the store's timeout.
* A job name is the group's name and a fresh random part, so that two runs never meet at a long-lived switch.
* A job's secret is drawn by rank 0 and told with the switch, unless the ranks were given one (FANIN_SECRET). A switch
  that rank 0 has started serves the jobs of one secret only, so groups made later use the world's.
* A process in the place of one that is gone (on_worker_loss="continue") finds that its rank has been there before it,
  and goes where rank 0 was last. That may be a job that runs without it.
"""

from __future__ import annotations

import atexit
import ipaddress
import json
import os
import secrets
import socket
import threading
import uuid
from collections.abc import Sequence
from datetime import timedelta

from torch._C import _distributed_c10d as c10d

from fanin.errors import ConfigurationError, SwitchUnreachableError
from fanin.host.embedded import EmbeddedSwitch, start_switch
from fanin.options import Options, SwitchAddress
from fanin.seal import SECRET_BYTES, Credentials

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


class SharedSwitch:
    """The switch that this process started, if any, and who uses it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._switch: EmbeddedSwitch | None = None
        self._users = 0
        self._inherited: EmbeddedSwitch | None = None
        """Kept, in a child of fork(), because dropping it would end it."""
        self._secret = ""
        """Of the jobs that it serves."""

    def start(self, options: Options) -> tuple[SwitchAddress, str]:
        """The address of this process's switch, started now if it is not there yet, and the secret of its jobs.

        Call `release` once for it.
        """
        with self._lock:
            if self._switch is None:
                self._secret = options.secret or secrets.token_hex(SECRET_BYTES)
                credentials = Credentials.of_job(self._secret)
                self._switch = start_switch(reachable_host(), options, credentials=credentials)
            self._users += 1
            return self._switch.address, self._secret

    def release(self) -> None:
        """One user less; the last one closes it."""
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._switch is not None:
                self._switch.close()
                self._switch = None

    def forget(self) -> None:
        """In a child of fork(): the switch is its parent's, and the lock may be locked."""
        self._lock = threading.Lock()
        self._users = 0
        self._inherited, self._switch = self._switch, None

    def close(self) -> None:
        """Let go of it at exit."""
        with self._lock:
            if self._switch is not None:
                self._switch.close()
                self._switch = None


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


class Meeting:
    """What the ranks agreed on: the switch, the job's name and its secret. May hold a switch of this process."""

    def __init__(
        self, address: SwitchAddress, job_name: str, holds_switch: bool, secret: str, *, discloses: bool
    ) -> None:
        """`discloses`: whether the switch may be told the job's key; one that a rank started has it already."""
        self.address = address
        self.job_name = job_name
        self.secret = secret
        self.credentials = Credentials.of_job(secret, discloses=discloses)
        """With which ranks of the job speak to the switch."""
        self._holds_switch = holds_switch

    def close(self) -> None:
        """Let go of the embedded switch, if this group holds it. Idempotent."""
        if self._holds_switch:
            self._holds_switch = False
            SHARED.release()


def meet(
    store: c10d.Store,
    rank: int,
    job_prefix: str,
    options: Options,
    timeout: timedelta,
    world: Meeting | None = None,
) -> Meeting:
    """Agree with the group's other ranks. Raises rank 0's error on every rank, ConfigurationError, torch's timeouts.

    `world`: of the world's group, whose switch this one uses if it is given none.
    """
    if rank != 0:
        return hear(store, options, timeout, world)
    store.set(HERE_KEY, "")
    own = _own_address(options, world)
    starts = own is None
    try:
        if own is None:
            address, secret = SHARED.start(options)
        else:
            address, secret = own, options.secret or secrets.token_hex(SECRET_BYTES)
    except Exception as error:
        store.set(KEY, json.dumps({"error": str(error)}))
        raise
    discloses = not starts
    if world is not None and address == world.address:
        secret, discloses = world.secret, world.credentials.discloses
    job_name = f"{job_prefix}-{uuid.uuid4().hex[:12]}"
    told = {"switch": str(address), "job": job_name, "discloses": discloses}
    if options.secret is None:  # who was given one has it, and the store need not know
        told["secret"] = secret
    store.set(KEY, json.dumps(told))
    return Meeting(address, job_name, starts, secret, discloses=discloses)


def hear(store: c10d.Store, options: Options, timeout: timedelta, world: Meeting | None = None) -> Meeting:
    """What rank 0 has said, or says in time. Raises its error."""
    own = _own_address(options, world)
    store.wait([HERE_KEY], timeout)
    # The group's timeout, which is the store's own too, may be shorter than a switch takes to start.
    patience_s = max(timeout.total_seconds(), START_GRACE * options.connect_timeout_s)
    store.wait([KEY], timedelta(seconds=patience_s))
    told = json.loads(store.get(KEY))
    if "error" in told:
        raise SwitchUnreachableError("", f"rank 0 could not start a switch: {told['error']}")
    secret = told.get("secret", options.secret)
    if secret is None:
        raise ConfigurationError("rank 0 was given FANIN_SECRET, this rank was not. Remedy: give it to all, or to none")
    address = own or SwitchAddress.parse(told["switch"])
    return Meeting(address, told["job"], False, secret, discloses=told["discloses"])


def _own_address(options: Options, world: Meeting | None) -> SwitchAddress | None:
    """Where this rank would look for a switch by itself: as it was told, or where the world's group has its own."""
    if options.switch is not None:
        return SwitchAddress.parse(options.switch)
    return None if world is None else world.address
