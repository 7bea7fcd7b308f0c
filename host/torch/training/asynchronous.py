"""Asynchronous data-parallel training through the switch, after iSwitch (Li et al., ISCA 2019; docs/staleness.md).

    optimizer = AsynchronousOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, rounds=10_000)
    while not optimizer.finished:
        optimizer.zero_grad()
        loss = loss_of(model(next(batches)))
        loss.backward()
        optimizer.step(loss)
    accounts = optimizer.flush()          # the replicas are bit-identical from here on

`step` hands the gradient in and returns at once with the newest weights. Rounds close, and their results are applied to
a second copy of the weights, while the next gradient is computed. A round's result is the mean of what landed in it.
Every replica applies the same results in the same order, each with the same bits, so no parameter server is needed.

With on_worker_loss="continue" a new process may take the place of one that is gone, by the same program: then making
the optimizer brings weights and optimizer state from a peer (host/torch/training/newcomer.py).
"""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from fanin.errors import ConfigurationError, FaninError
from fanin.host.stale.account import Account
from fanin.host.stale.prediction import LossPredictor
from fanin.host.stale.runner import Result
from fanin.host.stale.staleness_rate import staleness_factor
from fanin.host.torch.training.newcomer import Welcome, come_in, parameter_facts
from fanin.host.torch.training.same_settings import compare, options_of, settings_of, state_of
from fanin.host.torch.training.stale import StaleJob, StaleOptions, StaleTerms, fanin_group


class AsynchronousOptimizer:
    """Drives an optimizer by the rounds of a stale job.

    `model`: its parameters are made those of rank 0, as are the optimizer's. `rounds`: results that training takes,
    the same on every rank.
    `policy`: what becomes of late gradients, a name of fanin.host.stale.policies. `schedule` gives the factor of the
    learning rate for a version, so that it is the same everywhere. `staleness_rate`: divide a gradient by its age
    (staleness-aware SGD). `predict_loss`: weigh a gradient by the loss that is predicted for when it lands over the
    loss that it was computed at.

    A parameter of which no contribution to a round has a gradient is left as it is by that round, as torch does where
    `grad` is None. Complex gradients travel as pairs of numbers, sparse ones as dense ones.

    A copy of the optimizer, which holds its state, steps a copy of the weights: load checkpoints, of both, before this
    is made, on every rank. `step` raises where the program has changed the parameters or the optimizer's options.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module,
        *,
        rounds: int,
        policy: str = "skip",
        options: StaleOptions | None = None,
        schedule: Callable[[int], float] | None = None,
        staleness_rate: bool = False,
        predict_loss: bool = False,
        group: c10d.ProcessGroup | None = None,
    ) -> None:
        """Collective: every rank makes it. A newcomer makes it alone, and receives the weights of a peer here.

        Raises ConfigurationError for a group without a switch, and for an optimizer whose step needs a closure or has
        hooks; CollectiveMismatchError when ranks have unlike options or an optimizer of unlike state; at a newcomer
        what newcomer.come_in raises."""
        if rounds < 1:
            raise ConfigurationError(f"rounds = {rounds}; training takes at least one", "rounds")
        _check_steps_alone(optimizer)
        if schedule is not None and not all("lr" in group for group in optimizer.param_groups):
            raise ConfigurationError(
                f"{type(optimizer).__name__} has no learning rate 'lr', of which schedule= gives a factor. Remedy: an "
                "optimizer with one, or no schedule"
            )
        self.rounds = rounds
        self.options = options or StaleOptions(staleness=4)
        self.group = fanin_group(group, newcomers=True)
        self._schedule = schedule
        self._staleness_rate = staleness_rate
        self._predictor = LossPredictor() if predict_loss else None
        self._model = model
        if not self.group.outside:
            everything = (*model.parameters(), *model.buffers(), *_parameters_of(optimizer))
            for tensor in {id(each): each for each in everything}.values():
                dist.broadcast(tensor.data, group_src=0, group=self.group)
        self._optimizer = optimizer
        self._shadow = _copy_of(optimizer)
        self._rates = [group.get("lr", 0.0) for group in optimizer.param_groups]
        self._parameters = _parameters_of(optimizer)
        self._shadow_parameters = _parameters_of(self._shadow)
        self._settings = copy.deepcopy(settings_of(optimizer))
        """The optimizer's options that were seen last, by which a change is noticed."""
        self._given_options = options_of(optimizer)
        self._sizes = [_as_real(parameter.detach()).numel() for parameter in self._parameters]
        self._mean = np.zeros(sum(self._sizes), np.float32)
        self._terms = StaleTerms(
            policy=policy,
            options=self.options,
            elements=sum(self._sizes),
            flags=len(self._sizes),
            end=rounds,
            on_result=self._apply,
            weigh=self._weigh,
        )
        self._lock = threading.Lock()
        """Guards the second copy of the weights and the version."""
        self._version = 0
        self._computed_on = 0
        self._job: StaleJob | None = None
        self._welcome: Welcome | None = None
        self._flushed = False
        if not self.group.outside:
            facts = {name: str(fact) for name, fact in self._settings_facts().items()}
            facts |= {
                "policy": policy,
                "options": str(replace(self.options, tune=None)),
                "optimizer's state": state_of(optimizer),
            }
            same = "the same optimizer, with the state of one checkpoint, and the same AsynchronousOptimizer"
            compare(self.group, facts, "asynchronous training", same)
        self._seen = self._counts_of_changes()
        if self.group.outside:
            self._job = come_in(self.group, self._terms, self)
            self._opened(self._job)
            self._take_weights()

    # --- training's side ---

    @property
    def version(self) -> int:
        """Results applied to the weights so far."""
        return self._version

    @property
    def finished(self) -> bool:
        """Whether all rounds have come: no more gradients are wanted."""
        return self._version >= self.rounds

    @property
    def account(self) -> Account | None:
        """Account of this rank; None before the first step."""
        return self._job.account if self._job is not None else None

    @property
    def description(self) -> str:
        """The stale job in words: at which switches, which engine, packets and slots. Empty before the first step."""
        return self._job.session.description if self._job is not None else ""

    @property
    def choices(self) -> list[int]:
        """Values that `tune` has set so far, at rank 0."""
        return self._job.choices if self._job is not None else []

    @property
    def param_groups(self) -> list[dict[str, object]]:
        """The optimizer's groups of parameters, to look at: `step` raises when an option in them has changed.

        Their learning rate follows `schedule`."""
        return self._optimizer.param_groups

    def state_dict(self) -> dict[str, Any]:
        """State of the optimizer at this version, for a checkpoint beside the model's; the inner optimizer has none.

        To go on from it, load it into the inner optimizer before AsynchronousOptimizer is made, on every rank.
        """
        with self._lock:
            return copy.deepcopy(self._shadow.state_dict())

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients as an optimizer does."""
        self._optimizer.zero_grad(set_to_none)

    def step(self, loss: torch.Tensor | float | None = None) -> None:
        """Hand the parameters' gradients in, and take the newest weights. `loss`: needed for `predict_loss`.

        Raises the session's failure, CollectiveTimeoutError when the engine is stuck, ConfigurationError when somebody
        has changed the optimizer's options, as torch's schedulers do, or the parameters: each replica would do it at
        another version.
        """
        if self._flushed:
            raise ConfigurationError(
                "AsynchronousOptimizer took its rounds, and was flushed. Remedy: make another one to train on"
            )
        self._check_settings()
        _check_hooks(self._optimizer)
        self._check_parameters()
        if self._job is None:
            self._job = self._open()
            self._opened(self._job)
        if isinstance(loss, torch.Tensor):
            loss = float(loss.detach())
        if self._predictor is not None:
            if loss is None:
                raise ConfigurationError("predict_loss needs the loss. Remedy: call step(loss)")
            self._predictor.observe(self._computed_on, loss)
        self._job.stepped(loss)
        present = np.array([parameter.grad is not None for parameter in self._parameters])
        self._job.runner.hand_in(self._write, self._computed_on, present)
        self._take_weights()
        self._job.resumed()

    def flush(self) -> list[Account]:
        """Wait until all rounds have come and nothing is under way; returns the accounts of all ranks, which balance.

        The model then has the same bits on every rank. Collective; call it when `finished`. Where newcomers have come,
        and every place is taken, the group is made whole again: all of its collectives work from here on.
        Raises UnbalancedError, CollectiveTimeoutError, the session's failure; when making the group whole fails, what
        making a group raises.
        """
        if self._job is None or self._flushed:
            return []
        at = f"version {self._version} of {self.rounds}"
        accounts = self._job.flush(f"call flush on every rank, with the same `rounds`, when `finished` (here at {at})")
        self._flushed = True
        self._take_weights()
        if self._welcome is not None:
            self._welcome.close()
        self._job.close()
        if self._job.newcomers and len(accounts) == self._job.size:
            self.group.renew(self._job.session.job_name)
        return accounts

    # --- for newcomers ---

    def facts(self) -> dict[str, Any]:
        """Facts that a newcomer must share with the others."""
        return self._settings_facts() | {"parameters": parameter_facts(self._model, self._parameters)}

    def _settings_facts(self) -> dict[str, Any]:
        schedule, last = self._schedule, self.rounds - 1
        return {
            "rounds": self.rounds,
            "epoch_rounds": self.options.epoch_rounds,
            "lanes": self.group.options.lanes if self.options.lanes is None else self.options.lanes,
            "optimizer": self._given_options,
            "schedule": None if schedule is None else [schedule(version) for version in (0, last // 2, last)],
        }

    def state(self) -> dict[str, Any]:
        """Weights and optimizer state of this version; buffers as they are now, since each replica has its own."""
        with self._lock:
            return {
                "parameters": [parameter.detach() for parameter in self._shadow_parameters],
                "optimizer": self._shadow.state_dict(),
                "buffers": list(self._model.buffers()),
            }

    def load(self, state: dict[str, Any], version: int) -> None:
        """Load what a peer's `state` has returned, of that version."""
        with self._lock, torch.no_grad():
            for parameter, given in zip(self._shadow_parameters, state["parameters"], strict=True):
                parameter.copy_(given)
            for buffer, given in zip(self._model.buffers(), state["buffers"], strict=True):
                buffer.copy_(given)
            self._shadow.load_state_dict(state["optimizer"])
            self._version = version

    def _opened(self, job: StaleJob) -> None:
        """Let newcomers ask this rank for its state, in a job that continues without lost ranks."""
        if job.session.spec.survives_loss:
            self._welcome = Welcome(job, self)

    def _open(self) -> StaleJob:
        gradients = [_dense(p.grad) for p in self._parameters if p.grad is not None and p.grad.numel()]
        largest = float(torch.stack([each.abs().max().float() for each in gradients]).max()) if gradients else 0.0
        return StaleJob.found(self.group, self._terms, largest=largest)

    def _check_settings(self) -> None:
        groups, before = self._optimizer.param_groups, self._settings
        if len(groups) != len(before):
            raise ConfigurationError(
                f"the optimizer had {len(before)} parameter groups and has {len(groups)} now. Remedy: add all of them "
                "before AsynchronousOptimizer is made"
            )
        for number, (settings, group) in enumerate(zip(before, groups, strict=True)):
            for name, value in settings.items():
                if value != group[name]:
                    raise ConfigurationError(
                        f"{name} of the optimizer's parameter group {number} was {value} and is {group[name]}: each "
                        "rank would change it at another version, and the replicas would differ. Remedy: schedule=, "
                        "which gives the learning rate's factor by version, in place of a torch scheduler"
                    )

    def _check_parameters(self) -> None:
        """Raise ConfigurationError if a parameter was changed since it was given the newest weights.

        torch counts changes in place; it does not count those of `parameter.data`.
        """
        for number, (seen, now) in enumerate(zip(self._seen, self._counts_of_changes(), strict=True)):
            if seen != now:
                names = {id(each): name for name, each in self._model.named_parameters()}
                name = names.get(id(self._parameters[number]), f"number {number} of the optimizer")
                raise ConfigurationError(
                    f"the program has changed parameter {name!r} since it had the newest weights, which would be "
                    "undone. Remedy: load weights before AsynchronousOptimizer is made; bound or normalize them by "
                    "torch.nn.utils.parametrize"
                )

    def _counts_of_changes(self) -> list[int]:
        return [parameter._version for parameter in self._parameters]

    def _write(self, out: npt.NDArray[np.float32]) -> None:
        for part, parameter in zip(torch.from_numpy(out).split(self._sizes), self._parameters, strict=True):
            if parameter.grad is None:
                part.zero_()
            else:
                part.copy_(_dense(parameter.grad).reshape(-1))

    def _take_weights(self) -> None:
        with self._lock, torch.no_grad():
            for parameter, newest in zip(self._parameters, self._shadow_parameters, strict=True):
                parameter.copy_(newest)
            if self._schedule is not None:
                groups = zip(self._optimizer.param_groups, self._settings, self._shadow.param_groups, strict=True)
                for own, settings, shadow in groups:
                    own["lr"] = settings["lr"] = shadow["lr"]
            self._computed_on = self._version
        self._seen = self._counts_of_changes()

    # --- the engine's side ---

    def _weigh(self, age: int) -> float:
        factor = staleness_factor(age) if self._staleness_rate else 1.0
        return factor * (self._predictor.ratio(age) if self._predictor is not None else 1.0)

    def _apply(self, result: Result) -> None:
        """Step the second copy by a round's mean; a round without contributions only counts. On the runner's thread."""
        with self._lock:
            if not result.empty:
                try:
                    self._step_shadow(result)
                except Exception as error:
                    raise FaninError(
                        f"{type(self._optimizer).__name__} did not take the mean of round {result.index}: "
                        f"{type(error).__name__}: {error}. Remedy: an optimizer and a schedule that take the model's "
                        "dense gradients in a thread of their own"
                    ) from error
            self._version += 1

    def _step_shadow(self, result: Result) -> None:
        """Give the second copy the round's gradients, and take the optimizer's step.

        A gradient is there if a contribution to the round has it, or if anything of it has landed: the flags are in
        the first chunk, which may have other contributors than the parameter's (docs/staleness.md, *Semantics*).
        """
        result.mean(self._mean)
        parts = torch.from_numpy(self._mean).split(self._sizes)
        for parameter, part, present in zip(self._shadow_parameters, parts, result.present, strict=True):
            parameter.grad = _gradient_of(parameter, part) if present or part.count_nonzero() else None
        if self._schedule is not None:
            factor = self._schedule(self._version)
            for group, rate in zip(self._shadow.param_groups, self._rates, strict=True):
                group["lr"] = rate * factor
        self._shadow.step()


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _copy_of(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """A copy with parameters and state of its own.

    torch's copies have the groups and the state alone, so that attributes of the optimizer's own class are copied here;
    `step` is one where a scheduler has put a counter around it, of the original.
    """
    copies: dict[int, Any] = {}
    made = copy.deepcopy(optimizer, copies)
    for name, value in vars(optimizer).items():
        if name not in vars(made) and name != "step":
            vars(made)[name] = copy.deepcopy(value, copies)
    return made


def _check_hooks(optimizer: torch.optim.Optimizer) -> None:
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise ConfigurationError(
            f"{type(optimizer).__name__} has hooks of its step, which would not run: a copy of it steps. Remedy: "
            "without them, or a subclass whose step does what they do"
        )


def _check_steps_alone(optimizer: torch.optim.Optimizer) -> None:
    _check_hooks(optimizer)
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ConfigurationError(
            f"{type(optimizer).__name__} needs a closure that computes the loss again, and a step is taken here by a "
            "mean that other ranks have a part in. Remedy: an optimizer whose step() needs no closure, as SGD or Adam"
        )


def _as_real(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a complex one as pairs of real numbers."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    """A gradient as real numbers of a dense tensor."""
    return _as_real(gradient.to_dense() if gradient.layout is not torch.strided else gradient)


def _gradient_of(parameter: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """A flat part of the mean in the shape and type of its parameter."""
    if parameter.is_complex():
        pairs = part.clone().view(*parameter.shape, 2)  # a copy, since complex memory begins at an even element
        return torch.view_as_complex(pairs).to(parameter.dtype)
    return part.view_as(parameter).to(parameter.dtype)
