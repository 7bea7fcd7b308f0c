"""Rank 0 steers federated rounds: it reads what clients post in the group's store, and publishes plans and quorums.

A thread of rank 0 does so, since rank 0 is a client as well, and computes. Posts take a fraction of a millisecond, and
nobody waits for one.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from fanin.errors import FaninError
from fanin.host.federated.policies.view import RoundPlan
from fanin.host.federated.steering import Steering
from fanin.host.session.shards import JoinedSession
from fanin.host.session.threads import WORK

LOOK_INTERVAL_S = 0.02
"""Time between two looks at posts, members and deadlines."""
STOP_TIMEOUT_S = 5.0
log = logging.getLogger("fanin.stale")


class Board:
    """The posts of one federated job in the group's store."""

    def __init__(self, store: c10d.Store, job_name: str) -> None:
        self._store = store
        self._prefix = f"fanin/federated/{job_name}"

    def post_client(self, client: int, *, samples: int, turns: int, seconds: float, loss: float | None) -> None:
        """Post a client's samples and, once it has had a turn, how long the last one took and its loss."""
        facts = {"samples": samples, "turns": turns, "seconds": seconds, "loss": loss}
        self._store.set(f"{self._prefix}/{client}", json.dumps(facts))

    def client(self, client: int) -> dict[str, Any] | None:
        """The last post of a client; None where it has posted nothing."""
        return self._read(f"{self._prefix}/{client}")

    def post_plan(self, round: int, plan: RoundPlan) -> None:
        """Post the plan of the round that begins; for rank 0."""
        clients = None if plan.clients is None else sorted(plan.clients)
        rates = {str(client): rate for client, rate in plan.rates.items()}
        facts = {"round": round, "quorum": plan.quorum, "clients": clients, "rates": rates}
        self._store.set(f"{self._prefix}/plan", json.dumps(facts))

    def plan(self) -> tuple[int, RoundPlan] | None:
        """The round of the last plan, and that plan; None before the first."""
        facts = self._read(f"{self._prefix}/plan")
        if facts is None:
            return None
        clients = None if facts["clients"] is None else frozenset(facts["clients"])
        rates = {int(client): rate for client, rate in facts["rates"].items()}
        return facts["round"], RoundPlan(quorum=facts["quorum"], clients=clients, rates=rates)

    def _read(self, key: str) -> dict[str, Any] | None:
        if not self._store.check([key]):
            return None
        facts: dict[str, Any] = json.loads(self._store.get(key))
        return facts


class Steerer:
    """Rank 0's thread, which reads posts, asks the policy for plans and publishes them. `close` ends it."""

    def __init__(self, board: Board, session: JoinedSession, steering: Steering, version: Callable[[], int]) -> None:
        self._board = board
        self._session = session
        self._steering = steering
        self._version = version
        self._quorum = session.spec.quorum
        self._began_s = time.monotonic()
        board.post_plan(0, steering.plan)  # for newcomers: founders have made it themselves
        self._stop = threading.Event()
        self.failure: Exception | None = None
        """Error of a policy, which the client of rank 0 raises."""
        self._thread = threading.Thread(target=self._run, name="fanin-federated", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End the thread. Idempotent, bounded."""
        self._stop.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._stop.wait(LOOK_INTERVAL_S):
                with WORK:
                    self._steer()
        except dist.DistError as error:
            log.warning("rank 0: federated rounds keep their last plan, since the group's store has ended (%s)", error)
        except Exception as error:  # a policy's own: training must hear of it
            self.failure = error

    def _steer(self) -> None:
        steering, present = self._steering, frozenset(self._session.members)
        for client in present:
            facts = self._board.client(client)
            if facts is None:
                continue
            steering.roster.enroll(client, facts["samples"])
            if facts["turns"] > steering.roster.turns(client):
                steering.handed_in(client, facts["turns"], facts["seconds"], facts["loss"])
        version = self._version()
        if steering.observe(version, present, time.monotonic() - self._began_s):
            self._board.post_plan(version, steering.plan)
        if steering.quorum != self._quorum:
            self._tune(steering.quorum)

    def _tune(self, quorum: int) -> None:
        try:
            self._session.tune(quorum=quorum)
            self._quorum = quorum
        except FaninError as error:
            log.warning("K = %d was not set: %s", quorum, error)
