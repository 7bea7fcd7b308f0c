"""Federated training through the switch: clients with unlike data, speeds and presence (docs/federated.md).

    federated = Federated(model, samples=len(dataset), rounds=100, policy=FedBuff(quorum=4))
    while federated.begin():                       # the model has the newest shared weights
        for inputs, targets in loader:             # local epochs with a local optimizer
            ...
        federated.hand_in(loss)                    # the delta: weights at begin, minus the present ones
    accounts = federated.flush()                   # every delta is in a round, or dropped by name

A round closes at the switch when K deltas have come; clients that compute pass it and go on. A round's result is the
mean of its deltas by their weights, which travel in the same packets. Every client applies the same results in the same
order, each with the same bits, so no client is a server. Rank 0 asks the policy for plans.

With on_worker_loss="continue" clients come and go: rounds close without one that is gone, and the same program started
again takes its place with the weights of a peer.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from fanin.errors import CollectiveTimeoutError, ConfigurationError, UnsupportedError
from fanin.host.federated.policies import make_policy
from fanin.host.federated.policies.policy import FederatedPolicy
from fanin.host.federated.policies.view import RoundPlan
from fanin.host.federated.policies.whole_numbers import whole_number
from fanin.host.federated.steering import Steering
from fanin.host.federated.weighted_chunks import Values
from fanin.host.stale.account import Account
from fanin.host.torch.training.federated_deep import DeepLayers
from fanin.host.torch.training.federated_part import FederatedPart, Outer, check_model
from fanin.host.torch.training.federated_steering import Board, Steerer
from fanin.host.torch.training.same_settings import PLAIN, compare, options_of
from fanin.host.torch.training.stale import StaleOptions, fanin_group
from fanin.protocol.job import MAX_STALENESS

POLL_S = 0.01
"""How often a client that is not selected asks for the next plan."""
NO_LIMIT = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class FederatedOptions:
    """Settings of federated rounds. The same on every client."""

    staleness: int = 2
    """S, 1..1024: rounds by which a delta under way may land late. Each costs the switch another copy of the model."""
    max_age: int | None = None
    """Largest age of a delta in rounds; older ones are dropped, and counted as `too old`. None: no limit."""
    epoch_rounds: int = 1024
    """Rounds from one change of scale to the next at most, more than S. Each change takes S of the rounds, which no
    delta is in, and one meeting of all clients. One comes soon after a delta far above the scale's bound."""
    patience_s: float | None = None
    """How long a client waits for the others before it raises CollectiveTimeoutError. None: the group's timeout."""

    def __post_init__(self) -> None:
        whole_number("staleness", self.staleness, 1, MAX_STALENESS)
        whole_number("epoch_rounds", self.epoch_rounds, self.staleness + 1)
        if self.max_age is not None:
            whole_number("max_age", self.max_age, 0)
        self.stale(1)

    def stale(self, quorum: int) -> StaleOptions:
        """The options of the stale job."""
        return StaleOptions(
            staleness=self.staleness,
            quorum=quorum,
            bound=NO_LIMIT if self.max_age is None else self.max_age,
            epoch_rounds=self.epoch_rounds,
            lanes=32,
            patience_s=self.patience_s,
        )


class Federated:
    """One client. `begin`, `hand_in` and `flush` are for one thread, the training's."""

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        samples: int,
        rounds: int,
        policy: FederatedPolicy | str = "fedbuff",
        outer: Outer | None = None,
        options: FederatedOptions | None = None,
        group: c10d.ProcessGroup | None = None,
        on_round: Callable[[int], None] | None = None,
    ) -> None:
        """Collective: every client makes it. A newcomer, alone, gets the weights of a peer here.

        `samples` of this client's data, at least 1. `rounds`, `policy` and `outer` are the same on all clients;
        `outer` makes the optimizer that steps with a round's mean, SGD with rate 1 unless given (plain averaging).
        `on_round` is called with the version after each round, in a thread of the engine's, and must be quick.
        The model's parameters become those of rank 0; its buffers stay local.
        Raises ConfigurationError for a group without a switch or what a policy refuses, UnsupportedError for a newcomer
        under a policy with deep layers, and what a stale job raises.
        """
        whole_number("rounds", rounds, 1)
        whole_number("samples", samples, 1)
        self._policy = make_policy(policy) if isinstance(policy, str) else policy
        self._options = options or FederatedOptions()
        self._samples, self._rounds, self._on_round = samples, rounds, on_round
        self._changed = threading.Condition()
        """Notified when a round is over."""
        check_model(model)
        self._group = fanin_group(group, newcomers=True)
        names = [name for name, _ in model.named_parameters()]
        deep = self._policy.deep(names) if self._policy.deep_every > 1 else frozenset()
        if deep and self._group.outside:
            raise UnsupportedError(
                f"policy {self._policy.name!r} takes no newcomers: deep layers are summed with all clients. Remedy: a "
                "policy without deep layers"
            )
        outer = outer or (lambda parameters: torch.optim.SGD(parameters, lr=1.0))
        self.client = dist.get_rank(self._group)
        self._policy.check(dist.get_world_size(self._group))
        everyone = {self.client: samples} if self._group.outside else self._founders(model, outer)
        steering = Steering(self._policy, rounds, everyone)
        self._plan_round, self._plan = 0, steering.plan
        # The job begins with K = N, which a newcomer knows as well; rank 0 sets the plan's K at its first look.
        stale = self._options.stale(dist.get_world_size(self._group))
        most = max(everyone.values())
        self._deep = DeepLayers(self._group, model, sorted(deep, key=names.index), outer, stale, rounds=rounds,
            every=self._policy.deep_every, samples_most=most, weigh=self._weigh) if deep else None  # fmt: skip
        self._part = FederatedPart(
            self._group,
            model,
            [name for name in names if name not in deep],
            outer,
            stale,
            rounds=rounds,
            samples_most=most,
            weigh=self._weigh,
            on_round=self._round_over,
        )
        session = self._part.job.session
        self._board = Board(self._group.store, session.job_name)
        self._steerer = Steerer(self._board, session, steering, lambda: self.version) if self.client == 0 else None
        if self._steerer is not None:
            self._group.attach(self._steerer.close)
        self._turns = 0
        self._began_s: float | None = None
        self._start: Values | None = None
        self._computed_on = 0
        self._board.post_client(self.client, samples=samples, turns=0, seconds=0.0, loss=None)

    # --- the client's side ---

    @property
    def version(self) -> int:
        """Rounds applied to the shared weights; after `flush` S more, which late deltas have landed in."""
        return self._part.version

    @property
    def finished(self) -> bool:
        """Whether all rounds are over: no more deltas are wanted."""
        return self.version >= self._rounds

    @property
    def rate(self) -> float:
        """The policy's factor of this client's local learning rate for the turn that `begin` has begun."""
        return self._plan.rates.get(self.client, 1.0)

    @property
    def plan(self) -> RoundPlan:
        """The last plan that this client has seen."""
        return self._plan

    @property
    def accounts(self) -> tuple[Account, ...]:
        """Accounts of this client: one, and one of its deep layers where a policy has them."""
        return (self._part.account,) if self._deep is None else (self._part.account, self._deep.account)

    def shared(self) -> list[torch.Tensor]:
        """A copy of the shared weights, in the order of model.parameters()' parts: shallow ones, then deep ones."""
        with self._part.lock:
            shared = [each.detach().clone() for each in self._part.shared]
        return shared if self._deep is None else shared + self._deep.shared()

    def begin(self) -> bool:
        """Wait for this client's turn, and give the model the newest shared weights. False when all rounds are over.

        Raises the session's failure, CollectiveTimeoutError after `patience_s`, and at rank 0 a policy's error.
        """
        patience_s = self._part.job.patience_s
        deadline_s = time.monotonic() + patience_s
        while not self.finished:
            self._raise_failures()
            if self._may_begin():
                self._computed_on, self._start = self._part.take()
                if self._deep is not None:
                    self._deep.take()
                self._began_s = time.monotonic()
                return True
            if time.monotonic() >= deadline_s:
                raise CollectiveTimeoutError(
                    f"Timed out: client {self.client} waited {patience_s:g} s for round {self.version} "
                    "to close or to be selected. Remedy: see whether the other clients train; a smaller quorum"
                )
            with self._changed:
                self._changed.wait(POLL_S)
        return False

    def hand_in(self, loss: torch.Tensor | float | None = None) -> None:
        """Contribute the change of the model's parameters since `begin`. `loss`: for policies that judge by it.

        After the last round the delta is dropped, and counted as `at the end`. Raises the session's failure.
        """
        if self._start is None or self._began_s is None:
            raise ConfigurationError("hand_in without begin: there is no delta. Remedy: call begin before each hand_in")
        seconds = time.monotonic() - self._began_s
        delta, self._start = self._start - self._part.flat(), None
        self._turns += 1
        if self._deep is not None:
            self._deep.put_by()
        self._part.hand_in(delta, self._computed_on)
        value = float(loss.detach()) if isinstance(loss, torch.Tensor) else loss
        self._board.post_client(self.client, samples=self._samples, turns=self._turns, seconds=seconds, loss=value)

    def flush(self) -> list[list[Account]]:
        """Wait until all rounds are over and nothing is under way; returns the accounts of all clients, which balance.

        The accounts are by part. The model has the same bits on every client then. Collective; call it when `begin`
        says False. Raises UnbalancedError, CollectiveTimeoutError, the session's failure.
        """
        accounts = [self._part.flush()]
        if self._deep is not None:
            accounts.append(self._deep.flush())
        if self._steerer is not None:
            self._steerer.close()
            self._group.detach(self._steerer.close)
        self._part.take()
        if self._deep is not None:
            self._deep.take(everything=True)
        job = self._part.job
        if job.newcomers and len(accounts[0]) == job.size:
            self._group.renew(job.session.job_name)
        return accounts

    def leave(self) -> None:
        """Leave the job, once what was handed in is in a round; the others continue. Needs on_worker_loss="continue".

        Rank 0 stays, since it steers and serves the store. Raises UnsupportedError where a client must not go.
        """
        if self.client == 0 or self._deep is not None or not self._part.job.session.spec.survives_loss:
            raise UnsupportedError(
                f"client {self.client} cannot leave: rank 0 steers, deep layers need every client, and a job without "
                'on_worker_loss="continue" ends with its first loss. Remedy: FANIN_ON_WORKER_LOSS=continue, or train on'
            )
        self._part.job.runner.wait_for_results()
        self._part.close()

    def _founders(self, model: torch.nn.Module, outer: Outer) -> dict[int, int]:
        """Give all clients the weights of rank 0; returns the number of samples of each client.

        Raises CollectiveMismatchError when clients have unlike settings.
        """
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.data, group_src=0, group=self._group)
        own = torch.tensor([self._samples], dtype=torch.int64, device="cpu")
        everyones = [torch.zeros_like(own) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(everyones, own, group=self._group)
        copies = [each.detach().clone().requires_grad_() for each in model.parameters()]
        facts = {
            "rounds": str(self._rounds),
            "policy": f"{self._policy.name} {_plain_settings(self._policy)}",
            "options": str(self._options),
            "outer optimizer": options_of(outer(copies)),
        }
        compare(self._group, facts, "federated training", "the same rounds, policy, options and outer optimizer")
        return {client: int(each) for client, each in enumerate(everyones)}

    def _weigh(self, version: int, round: int) -> float:
        weight = self._policy.weight(self._samples, version, round)
        if not 0 < weight < math.inf:
            raise ConfigurationError(
                f"policy {self._policy.name!r} gives weight {weight} to a delta of {self._samples} samples, computed "
                f"on version {version}, in round {round}. Remedy: a weight that is finite and above 0"
            )
        with self._changed:
            self._changed.notify_all()  # the delta is on its way
        return weight

    def _may_begin(self) -> bool:
        """Whether what this client waits for has come, and the plan in force selects it."""
        # Not by the version: rounds without deltas, in which the scale changes, move it as well. A round takes one
        # delta of a client, so a turn that began while one waits for the next round would only be on older weights.
        runner = self._part.job.runner
        if not (runner.has_results if self._policy.waits else runner.has_sent):
            return False
        version = self.version
        if version > self._plan_round or self._plan.clients is not None:
            told = self._board.plan()
            if told is not None:
                self._plan_round, self._plan = told
        selected = self._plan.clients
        return selected is None or (self._plan_round >= version and self.client in selected)

    def _raise_failures(self) -> None:
        if self._steerer is not None and self._steerer.failure is not None:
            raise self._steerer.failure
        failure = self._part.job.session.failure
        if failure is not None:
            raise failure

    def _round_over(self, version: int) -> None:
        if self._deep is not None:
            self._deep.meet(version)
        if self._on_round is not None:
            self._on_round(version)
        with self._changed:
            self._changed.notify_all()


def _plain_settings(policy: FederatedPolicy) -> dict[str, Any]:
    """A policy's settings that are numbers or texts, by name: these must be alike on all clients."""
    return {name: value for name, value in sorted(vars(policy).items()) if isinstance(value, PLAIN)}
