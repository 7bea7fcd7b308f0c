"""Choosing S and K while a job runs: ranks post their pace in the group's store, rank 0 chooses and tells the switch.

The store is there anyway, a post takes a fraction of a millisecond, and nobody waits for anybody. Choices are in
`fanin stats` and in `choices`.

Hosts' clocks are not compared. The times that ranks post count from the job's start, of which the switch tells all of
them at once; a newcomer was not there then, and posts none.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from fanin.errors import FaninError
from fanin.host.session.shards import JoinedSession
from fanin.host.stale.bound import DynamicBound, Pace
from fanin.host.stale.drops import MOST, QuorumFloor
from fanin.host.stale.quorum import AdaptiveQuorum, SemiAsynchronousQuorum

Chooser = DynamicBound | SemiAsynchronousQuorum | AdaptiveQuorum

SMOOTHING = 0.3
"""Weight of the newest step in a rank's pace."""
EVERY = 10
"""Steps of rank 0 between two choices."""
log = logging.getLogger("fanin.stale")


class Pacing:
    """One rank's part in choosing S or K. `stepped` is called once per step by the thread that trains."""

    def __init__(
        self,
        store: c10d.Store,
        session: JoinedSession,
        chooser: Chooser,
        *,
        dropped_share: Callable[[], float] = lambda: 0.0,
        every: int = EVERY,
        newcomer: bool = False,
    ) -> None:
        """Rank 0 chooses anew after `every` steps of its own. `dropped_share`: of this rank's gradients, 0..1.

        To be made as soon as the job has begun, but by a `newcomer`.
        """
        self._dropped_share = dropped_share
        self._floor = QuorumFloor(session.size)
        self.choices: list[int] = []
        """Values that rank 0 has set, oldest first."""
        self._store = store
        self._session = session
        self._chooser = chooser
        self._every = every
        self._steps = 0
        self._ended = False
        """Whether the store has ended: training goes on without a choice."""
        self._step_s = 0.0
        self._last_s = time.monotonic()
        self._began_s = None if newcomer else self._last_s
        self._chosen_s = self._last_s
        self._loss: float | None = None
        self._chosen_loss: float | None = None
        self._telling: threading.Thread | None = None

    def stepped(self, loss: float | None = None) -> None:
        """Note that a gradient is ready, for which this rank has computed since `resumed` or the last step."""
        now = time.monotonic()
        step_s = now - self._last_s
        self._step_s = step_s if not self._steps else (1 - SMOOTHING) * self._step_s + SMOOTHING * step_s
        self._last_s = now
        self._steps += 1
        if loss is not None:
            self._loss = loss if self._loss is None else (1 - SMOOTHING) * self._loss + SMOOTHING * loss
        if self._ended:
            return
        at_s = None if self._began_s is None else now - self._began_s
        try:
            self._store.set(self._key(self._session.rank), json.dumps([at_s, self._step_s, self._dropped_share()]))
            if self._session.rank == 0 and self._steps % self._every == 0:
                self._choose(now)
        except dist.DistError as error:
            self._ended = True
            log.warning(
                "rank %d of job %r: S and K stay as they are, since the group's store does not answer any more: the "
                "process that serves it, rank 0 of the world or torchrun's agent, has ended (%s)",
                self._session.rank, self._session.job_name, error,
            )  # fmt: skip

    def resumed(self) -> None:
        """Note that waiting is over, and that the rank computes from here on."""
        self._last_s = time.monotonic()

    def close(self) -> None:
        """Wait until the switch has been told of the last choice."""
        if self._telling is not None:
            self._telling.join()

    def _key(self, rank: int) -> str:
        return f"fanin/pace/{self._session.job_name}/{rank}"

    def _choose(self, now: float) -> None:
        if self._telling is not None and self._telling.is_alive():
            return
        keys = [self._key(rank) for rank in self._session.members]
        if not self._store.check(keys):
            return
        posts = [json.loads(self._store.get(key)) for key in keys]
        paces = [Pace(at_s, step_s) for at_s, step_s, _ in posts if at_s is not None]
        steps_s = [step_s for _, step_s, _ in posts]
        choice = self._choice(paces, steps_s, sum(share for *_, share in posts) / len(posts), now)
        if not self.choices or choice != self.choices[-1]:
            self.choices.append(choice)
            self._tell(choice)

    def _choice(self, paces: Sequence[Pace], steps_s: Sequence[float], dropped_share: float, now: float) -> int:
        """S or K by the paces; towards those of a synchronous job while most of what is computed is dropped."""
        if isinstance(self._chooser, DynamicBound):
            return self._chooser.lowest if dropped_share > MOST else self._chooser.choose(paces)
        wanted = self._quorum(steps_s, now)
        present = self.choices[-1] if self.choices else self._session.spec.quorum
        choice = max(wanted, self._floor.observe(dropped_share, present))
        if isinstance(self._chooser, AdaptiveQuorum):
            self._chooser.quorum = choice
        return choice

    def _quorum(self, steps_s: Sequence[float], now: float) -> int:
        if isinstance(self._chooser, SemiAsynchronousQuorum):
            return self._chooser.choose(steps_s)
        assert isinstance(self._chooser, AdaptiveQuorum)
        before, self._chosen_loss = self._chosen_loss, self._loss
        since, self._chosen_s = self._chosen_s, now
        if before is None or self._loss is None:
            return self._chooser.quorum
        return self._chooser.observe(now - since, before, self._loss)

    def _tell(self, choice: int) -> None:
        """Tell the switch of a choice, by a thread, since asking the controller takes a round trip over TCP."""
        is_bound = isinstance(self._chooser, DynamicBound)
        change: Callable[[], object] = (
            (lambda: self._session.tune(staleness=choice)) if is_bound else (lambda: self._session.tune(quorum=choice))
        )

        def tell() -> None:
            try:
                change()
            except FaninError as error:
                log.warning("%s = %d was not set: %s", "S" if is_bound else "K", choice, error)

        self._telling = threading.Thread(target=tell, name="fanin-pacing", daemon=True)
        self._telling.start()
