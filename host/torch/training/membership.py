"""Synchronous training that goes on without lost ranks, and lets new processes into their places between two steps.

    membership = Membership(net, optimizer)       # a newcomer waits here, and returns with the others' weights
    model = DistributedDataParallel(net)
    step = membership.step                        # 0, or the step at which a newcomer came in
    while step < steps:
        if membership.let_in(step):               # somebody has come: wrap the module anew, on every rank
            model = DistributedDataParallel(net)
        ...
        step += 1

Rules of this file
------------------
* A newcomer says in the group's store that it waits, again and again, so that one that died is not waited for.
* `let_in` is a sum of one integer over the ranks that are there, to which rank 0 alone adds: one, when every free place
  has somebody who waits. So all go on alike. The group is then renewed (a new job, a new gloo group), and rank 0 sends
  module and optimizer state to those who came.
* Between two steps nothing is under way, so there is no round to catch up with.
"""

from __future__ import annotations

import json
import time
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from fanin.errors import AdmissionError
from fanin.host.torch.training.newcomer import compare, facts_key, parameter_facts
from fanin.host.torch.training.stale import fanin_group

WAITING_INTERVAL_S = 0.2
"""A newcomer says this often that it waits."""
POLL_S = 0.02


class Membership:
    """The ranks that take part in synchronous training with on_worker_loss="continue"."""

    def __init__(
        self, module: torch.nn.Module, optimizer: torch.optim.Optimizer, *, group: c10d.ProcessGroup | None = None
    ) -> None:
        """Founders return at once. A newcomer waits until the others call `let_in`, and has `module` and `optimizer`
        loaded then.

        Raises ConfigurationError for a module or an optimizer that is not the others', AdmissionError when nobody lets
        it in within join_timeout_s.
        """
        self._group = fanin_group(group, newcomers=True)
        self._module = module
        self._optimizer = optimizer
        self._heard: dict[int, int] = {}
        """How often each rank that waits had said so when rank 0 last looked."""
        self.step = 0
        """The step at which this process came in."""
        self._has_just_come = self._group.outside
        if self._group.outside:
            self._come_in()
        self._post_facts()

    def let_in(self, step: int) -> bool:
        """Let those in who wait, if they fill every free place. Every rank calls it, before the same step.

        True when somebody has come: then what was made for the old group (DistributedDataParallel) must be made anew.
        The first call of a newcomer is the one that let it in, and has nothing left to do.
        """
        if self._has_just_come:
            self._has_just_come = False
            return False
        verdict = torch.zeros(1, dtype=torch.int32, device="cpu")
        store, job = self._group.store, self._group.job_name
        if self._group.rank() == 0 and self._somebody_for_every_place():
            store.set(_door(job), json.dumps(step))
            verdict += 1
        dist.all_reduce(verdict, group=self._group)
        if not verdict.item():
            return False
        self._renew(job)
        self._post_facts()
        return True

    def _somebody_for_every_place(self) -> bool:
        """At rank 0: whether each free place has a process that waits, and has said so since the last look."""
        session, store = self._group.session, self._group.store
        assert session is not None
        free = set(range(session.size)) - set(session.members)
        said = {rank: store.add(_waits(self._group.job_name, rank), 0) for rank in free}
        ready = bool(free) and all(count > self._heard.get(rank, count) for rank, count in said.items())
        self._heard = said
        return ready

    def _come_in(self) -> None:
        store, job, rank = self._group.store, self._group.job_name, self._group.rank()
        compare(self._group, job, self._facts())
        deadline = time.monotonic() + self._group.options.join_timeout_s
        next_word_s = 0.0
        while not store.check([_door(job)]):
            now = time.monotonic()
            if now >= deadline:
                raise AdmissionError(
                    f"rank {rank} waited {self._group.options.join_timeout_s:g} s before job {job!r}, and was not let "
                    "in. Remedy: call Membership.let_in between steps on the other ranks; fill the other free places"
                )
            if now >= next_word_s:
                store.add(_waits(job, rank), 1)
                next_word_s = now + WAITING_INTERVAL_S
            time.sleep(POLL_S)
        self.step = int(json.loads(store.get(_door(job))))
        self._renew(job, load=True)

    def _renew(self, job: str, *, load: bool = False) -> None:
        """Renew the group, and send module and optimizer state from rank 0, for newcomers to `load`; on every rank."""
        self._group.renew(job)
        things: list[Any] = [None]
        if self._group.rank() == 0:
            things = [(self._module.state_dict(), self._optimizer.state_dict())]
        dist.broadcast_object_list(things, group_src=0, group=self._group)
        if load:
            module, optimizer = things[0]
            self._module.load_state_dict(module)
            self._optimizer.load_state_dict(optimizer)

    def _facts(self) -> dict[str, Any]:
        return {
            "optimizer": type(self._optimizer).__name__,
            "parameters": parameter_facts(self._module, list(self._module.parameters())),
        }

    def _post_facts(self) -> None:
        self._group.store.set(facts_key(self._group.job_name), json.dumps(self._facts()))


def _waits(job: str, rank: int) -> str:
    return f"fanin/waits/{job}/{rank}"


def _door(job: str) -> str:
    """Key of the step at which the others let newcomers in."""
    return f"fanin/door/{job}"
