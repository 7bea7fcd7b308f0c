"""One stale job of federated training: parameters that travel together, their shared weights, and the weighted mean.

A model has one part, or two where deep layers travel every few rounds (fanin/host/federated/policies/layer_wise.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fanin.errors import ConfigurationError
from fanin.host.federated.weighted_chunks import Values, WeightedChunks
from fanin.host.stale.account import Account
from fanin.host.stale.runner import Result
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.collectives.routing import QUANTIZED
from fanin.host.torch.training.newcomer import Welcome, come_in, parameter_facts
from fanin.host.torch.training.parameter_kinds import check_kind
from fanin.host.torch.training.stale import StaleJob, StaleOptions, StaleTerms

Floats = npt.NDArray[np.float32]
KINDS = (*QUANTIZED, torch.float64)
"""Element types of parameters whose deltas travel."""
Outer = Callable[[Sequence[torch.Tensor]], torch.optim.Optimizer]
POLICY = "skip"
"""The round policy of the stale job: nobody waits, and rounds that close without a client are passed."""
FLUSH_REMEDY = "on every client, train until `begin` returns False, and then call flush"
"""Remedy of a flush that is not through."""
UNIT = 1.0
"""The weight of `samples_most` as an element of a round. Bounds begin at 1 at least, so that one scale fits both."""


def check_model(model: torch.nn.Module) -> None:
    """Raise UnsupportedError for a parameter whose deltas cannot travel, ConfigurationError for a model without any."""
    for name, parameter in model.named_parameters():
        check_kind(name, parameter, KINDS, "federated training is")
    if not any(each.numel() for each in model.parameters()):
        raise ConfigurationError(
            f"the model, a {type(model).__name__}, has no parameter with elements. Remedy: give Federated the model "
            "that clients train"
        )


class FederatedPart:
    """Shared weights of some parameters, and the rounds that change them. The runner's thread applies results."""

    def __init__(
        self,
        group: FaninProcessGroup,
        model: torch.nn.Module,
        names: Sequence[str],
        outer: Outer,
        options: StaleOptions,
        *,
        rounds: int,
        samples_most: int,
        weigh: Callable[[int, int], float],
        on_round: Callable[[int], None],
    ) -> None:
        """`weigh(version, round)`: this client's weight of a delta; `on_round`: called with the version after a result.

        `samples_most`: the most samples of a founding client, which weighs 1.
        """
        by_name = dict(model.named_parameters())
        self.parameters = [by_name[name] for name in names]
        self._model = model
        self._rounds = rounds
        self._options = options
        self._weigh_at = weigh
        self._on_round = on_round
        self._sizes = [each.numel() for each in self.parameters]
        self._count = sum(self._sizes)
        self._samples_most = samples_most
        self.lock = threading.Lock()
        """Guards the shared weights and the version."""
        self.version = 0
        """Results applied to the shared weights."""
        self.shared = [each.detach().clone().requires_grad_() for each in self.parameters]
        self._outer = outer(self.shared)
        self._mean = np.zeros(self._count, np.float32)
        self._chunks: WeightedChunks | None = None
        self.job = self._opened(group)
        self._welcome = Welcome(self.job, self) if self.job.session.spec.survives_loss else None

    # --- the client's side ---

    @property
    def account(self) -> Account:
        """Account of this client."""
        return self.job.account

    def hand_in(self, delta: Values, version: int) -> None:
        """Contribute `delta`, shape (elements,), start minus end, computed on this version. Raises as StaleRunner's."""
        self.job.runner.hand_in(lambda out: self._write(out, delta), version)

    def take(self) -> tuple[int, Values]:
        """Give the model the newest shared weights; returns their version and the weights, shape (elements,)."""
        with self.lock, torch.no_grad():
            for parameter, newest in zip(self.parameters, self.shared, strict=True):
                parameter.copy_(newest)
            return self.version, self.flat()

    def flat(self) -> Values:
        """The model's present values of these parameters, shape (elements,), in the widest of their types.

        A delta is rounded to float32 where it is sent, and not the weights that it is the difference of.
        """
        kind = torch.float64 if any(each.dtype is torch.float64 for each in self.parameters) else torch.float32
        flat: Values = torch.cat([each.detach().reshape(-1).to(kind) for each in self.parameters]).numpy()
        return flat

    def flush(self) -> list[Account]:
        """Wait for the last round and leave the job; returns the accounts of all clients, which balance."""
        accounts = self.job.flush(FLUSH_REMEDY)
        self.close()
        return accounts

    def close(self) -> None:
        """Leave the job. Idempotent."""
        if self._welcome is not None:
            self._welcome.close()
        self.job.close()

    # --- for newcomers ---

    def facts(self) -> dict[str, Any]:
        """Facts that a newcomer must share with the others."""
        return {
            "rounds": self._rounds,
            "epoch_rounds": self._options.epoch_rounds,
            "optimizer": type(self._outer).__name__,
            "parameters": parameter_facts(self._model, self.parameters),
        }

    def state(self) -> dict[str, Any]:
        """Shared weights, the outer optimizer's state, and `samples_most`, by which deltas are weighed."""
        with self.lock:
            return {
                "shared": [each.detach() for each in self.shared],
                "outer": self._outer.state_dict(),
                "samples_most": self._samples_most,
            }

    def load(self, state: dict[str, Any], version: int) -> None:
        """Load what a peer's `state` has returned, of that version."""
        with self.lock, torch.no_grad():
            for own, given in zip(self.shared, state["shared"], strict=True):
                own.copy_(given)
            self._outer.load_state_dict(state["outer"])
            self._samples_most = state["samples_most"]
            self.version = version

    # --- the engine's side ---

    def _opened(self, group: FaninProcessGroup) -> StaleJob:
        """The job, founded with all clients or, at a newcomer, entered with the weights of a peer."""
        terms = StaleTerms(
            policy=POLICY,
            options=self._options,
            elements=self._elements,
            end=self._rounds,
            on_result=self._apply,
            weigh=self._weigh,
        )
        if group.outside:
            return come_in(group, terms, self)
        # No client has trained yet, so the first scale follows from the weights, which all clients have alike.
        largest = max([1.0, *(float(each.detach().abs().max()) for each in self.shared if each.numel())])
        return StaleJob.found(group, terms, largest=largest, first_epoch=self._options.epoch_rounds)

    def _elements(self, chunk_elements: int) -> int:
        self._chunks = WeightedChunks(self._count, chunk_elements)
        return self._chunks.elements

    def _write(self, out: Floats, delta: Values) -> None:
        assert self._chunks is not None
        self._chunks.write(out, delta, UNIT)

    def _weigh(self, age: int) -> float:
        """The factor of a delta and of its weight; the runner asks when it contributes."""
        round = self.job.runner.rounds.base
        return self._weigh_at(round - age, round) / self._samples_most

    def _apply(self, result: Result) -> None:
        """Take an outer step with a round's weighted mean, none if nobody contributed; on the runner's thread."""
        assert self._chunks is not None
        if not result.empty:
            self._chunks.mean(result.gradient, self._mean, UNIT)
            parts = torch.from_numpy(self._mean).split(self._sizes)
        with self.lock:
            if not result.empty:
                for parameter, part in zip(self.shared, parts, strict=True):
                    parameter.grad = part.view_as(parameter).to(parameter.dtype)
                self._outer.step()
            self.version += 1
            version = self.version
        self._on_round(version)
