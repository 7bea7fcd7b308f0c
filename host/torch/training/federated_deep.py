"""Deep layers of federated training: a part whose rounds all clients meet in, every few rounds of the rest.

When the shared weights reach version v with v divisible by `every`, each client contributes at once what its deep
layers have moved since its last contribution, or passes if it has handed in nothing since. So nobody is waited for, and
every client has the same deep rounds. Between them a client goes on with deep layers of its own.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from fanin.errors import ConfigurationError
from fanin.host.federated.weighted_chunks import Values
from fanin.host.stale.account import Account
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.training.federated_part import FederatedPart, Outer
from fanin.host.torch.training.stale import StaleOptions


class DeepLayers:
    """The deep layers of one client."""

    def __init__(
        self,
        group: FaninProcessGroup,
        model: torch.nn.Module,
        names: Sequence[str],
        outer: Outer,
        options: StaleOptions,
        *,
        rounds: int,
        every: int,
        samples_most: int,
        weigh: Callable[[int, int], float],
    ) -> None:
        """`rounds` of the rest of the model; ConfigurationError where none of them carries deep layers."""
        if rounds < every:
            raise ConfigurationError(
                f"deep layers travel every {every} rounds, and there are {rounds}", "every, or rounds"
            )
        self._every, self._rounds = every, rounds // every
        self._lock = threading.Lock()
        """Guards what the two threads exchange: the training's, and the engine's that calls `meet`."""
        self._part = FederatedPart(
            group,
            model,
            names,
            outer,
            dataclasses.replace(options, staleness=0, quorum=dist.get_world_size(group)),
            rounds=self._rounds,
            samples_most=samples_most,
            weigh=weigh,
            on_round=lambda _version: None,
        )
        self._taken_version, self._stood = self._part.take()
        """Version that the model's deep layers began with; where they stood when they were last looked at."""
        self._movement: Values | None = None
        """Their movement since they were last contributed; None: they have not been trained since."""

    @property
    def account(self) -> Account:
        """Account of this client's deep rounds."""
        return self._part.account

    def put_by(self) -> None:
        """Keep the movement of the turn that is over, to contribute it at the next meeting."""
        with self._lock:
            stands = self._part.flat()
            turn = self._stood - stands
            self._movement = turn if self._movement is None else self._movement + turn
            self._stood = stands

    def meet(self, version: int) -> None:
        """Contribute or pass, if a deep round is due at this version of the other layers; on the engine's thread."""
        if version % self._every or version // self._every > self._rounds:
            return
        with self._lock:
            movement, self._movement = self._movement, None
        if movement is None:
            self._part.job.runner.pass_base()
        else:
            self._part.hand_in(movement, self._taken_version)

    def take(self, *, everything: bool = False) -> None:
        """Give the model the newest shared deep layers; where none are new, it keeps its own, unless `everything`."""
        with self._lock:
            if self._part.version > self._taken_version or everything:
                self._taken_version, self._stood = self._part.take()

    def shared(self) -> list[torch.Tensor]:
        """A copy of the shared deep layers."""
        with self._part.lock:
            return [each.detach().clone() for each in self._part.shared]

    def flush(self) -> list[Account]:
        """Wait for the last deep round; returns the accounts of all clients, which balance.

        Movement since the last meeting is dropped, and counted as `at the end`.
        """
        with self._lock:
            movement, self._movement = self._movement, None
        if movement is not None:
            self._part.hand_in(movement, self._taken_version)
        return self._part.flush()
