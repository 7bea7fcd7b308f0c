"""Local steps: workers train alone, and meet every so many steps (docs/meetings.md).

    training = LocalSteps(model, optimizer, period=Every(16), outer=Outer(lr=0.7, momentum=0.9, nesterov=True),
                          fragments=4, overlap=2, mix=0.5, codec="8/8")
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss_of(model(inputs), targets).backward()
        training.step()
    training.flush()                      # the replicas have the same bits from here on

Rules
-----
* A meeting hands in what training has subtracted from the weights that all ranks started from: a delta, never weights.
  All get the mean of the deltas, and take the same outer step (outer.py); the optimizer's state stays local.
* When fragments meet is decided by `Schedule`, which knows no tensor.
* A meeting is collected whole, its roll included, before anything of the model or of the outer state changes. After an
  error nothing has changed: the local weights and those of the last meeting are both there (`roll_back`).
* A rank whose delta cannot count (not finite; no step since the last meeting, in `flush`) hands in zeros and says so:
  sums keep their shape, and the mean is over the others.
* A rank in `flush` takes part in meetings until every rank is in `flush`: so inputs may be uneven.

Members that come and go are served by ElasticLocalSteps (elastic.py), by a new group for each change of them. A group
that goes on without lost ranks (on_worker_loss="continue") is refused: a mean needs the same contributors in all of its
chunks.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch._C import _distributed_c10d as c10d

from fanin.errors import CollectiveTimeoutError, ConfigurationError, DivergedError, FaninError
from fanin.host.codecs.codec import Codec, Floats
from fanin.host.stale.account import Account
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.training.meetings import parameters, roll
from fanin.host.torch.training.meetings.buffers import Buffers
from fanin.host.torch.training.meetings.exchange import Exchange
from fanin.host.torch.training.meetings.fragments import divide, local
from fanin.host.torch.training.meetings.late import LateMeetings
from fanin.host.torch.training.meetings.outer import Outer, take
from fanin.host.torch.training.meetings.parts import Part, codec_of, load, parts_of, state_of
from fanin.host.torch.training.meetings.period import Every, Period
from fanin.host.torch.training.meetings.plan import ALIKE, Plan
from fanin.host.torch.training.meetings.schedule import Action, Land, Launch, Next, Schedule
from fanin.host.torch.training.meetings.totals import Totals
from fanin.host.torch.training.replicas import check_replicas
from fanin.host.torch.training.same_settings import compare
from fanin.interruptions import interrupts

log = logging.getLogger("fanin")
TRAININGS: weakref.WeakSet[LocalSteps] = weakref.WeakSet()
"""All LocalSteps of this process, for `describe_training`."""


class LocalSteps:
    """Meetings around an optimizer.

    `model`, `optimizer`: any module, DDP inside a host and FSDP2 over shards included, and what trains it. `period`:
    the rule of the steps between meetings, or their number. `outer`: the outer optimizer. `fragments`: parts of the
    model that meet one after the other within a period. `overlap`: local steps for which a meeting travels, 0: training
    waits for it. `mix`: weight of a worker's own weights when an overlapped meeting lands, "keep": what it has learned
    meanwhile is kept and handed in next. `codec`: of the deltas, with
    its residual ("8/8", "rotated:4/8", docs/codecs.md); None: the lanes of the group, without one. `quorum`: deltas
    that close a meeting, where late ones join the next, by at most `staleness` meetings; None: all. `group`: the ranks
    that meet, of backend fanin; None: the world's. `init_sync`: start from rank 0's weights and buffers; False: they
    must be alike.

    Collective: every rank makes it with the same arguments. Raises ConfigurationError and UnsupportedError for what
    does not go together, CollectiveMismatchError for ranks that differ, ReplicasDifferError for unlike weights.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        period: Period | int,
        outer: Outer | None = None,
        fragments: int = 1,
        overlap: int = 0,
        mix: float | Literal["keep"] = 0.0,
        codec: Codec | str | None = None,
        quorum: int | None = None,
        staleness: int = 1,
        group: c10d.ProcessGroup | None = None,
        init_sync: bool = True,
    ) -> None:
        self.group = _fanin(group)
        made = codec_of(codec, self.group.options)
        self.plan = Plan(
            period=Every(period) if isinstance(period, int) else period,
            outer=outer or Outer(),
            fragments=fragments,
            overlap=overlap,
            mix=mix,
            codec=str(made),
            quorum=quorum,
            staleness=staleness,
        )
        if quorum is not None and self.group.size() > 1 and quorum > self.group.size():
            ranks = self.group.size()
            raise ConfigurationError(f"quorum = {quorum}; the group has {ranks} ranks. Remedy: a quorum in 1..{ranks}")
        self.model, self.optimizer = model, optimizer
        found = parameters.trained(optimizer)
        parameters.check(model, found, self.group)
        self._facts = parameters.facts(model, optimizer)
        self._inside = parameters.replicas_inside(found, self.group)
        divided = divide(found, fragments)
        self._begin_alike(found, init_sync=init_sync)
        self._parts = parts_of(divided, made, self.plan.outer, self.group)
        self._buffers = Buffers(model)
        self._schedule = Schedule(fragments, overlap)
        self._todo: deque[Action] = deque()
        """Actions that are due and not done, since an error came between."""
        self._exchanges: dict[int, Exchange] = {}
        self._failure: Exception | None = None
        self._period = 0
        """Steps of the period that is under way, or was last."""
        self._furthest_step = 0
        """Steps of the rank that had made most at the last meeting."""
        self._flushing = False
        self._quiet = 0
        """Meetings of a flush, one after the other, in which every rank was in `flush`."""
        self.totals = Totals()
        self._late: LateMeetings | None = None
        if quorum is not None and self.group.size() > 1:
            self._late = LateMeetings(
                self.group, self.plan.outer, self._parts[0].fragment, self._parts[0].outer,
                quorum=quorum, staleness=staleness, lanes=made.lanes if "/" in made.lanes else int(made.lanes),
            )  # fmt: skip
        TRAININGS.add(self)

    def _begin_alike(self, found: list[torch.Tensor], *, init_sync: bool) -> None:
        """Compare settings, and start from the same weights and buffers."""
        compare(self.group, self.plan.facts() | parameters.shapes(found), *ALIKE)
        if init_sync:
            self._send_weights()
        else:
            check_replicas(self.model, self.group)
        self._compare_inside()

    def _send_weights(self) -> None:
        """Send rank 0's parameters and buffers to all ranks."""
        for tensor in (*self.model.parameters(), *self.model.buffers()):
            dist.broadcast(local(tensor), group_src=0, group=self.group)

    def _compare_inside(self) -> None:
        """Raise ReplicasDifferError where replicas inside a site, which meet in groups of their own, are not alike."""
        for each in self._inside:
            check_replicas(self.model, each, buffers=False)

    # --- training ---

    @property
    def param_groups(self) -> Any:
        """Raises ConfigurationError: a GradScaler that took this for an optimizer would skip steps, and meetings."""
        raise ConfigurationError(
            "LocalSteps is no optimizer. Remedy: training.step(scaler=scaler) in place of scaler.step(training); "
            "schedulers, clipping and scaler.unscale_ take the optimizer itself"
        )

    def step(self, closure: Callable[[], Any] | None = None, *, scaler: torch.amp.GradScaler | None = None) -> Any:
        """Take a step of the optimizer, and the meetings that are due after it; returns what the optimizer returns.

        `scaler`: steps the optimizer; a step that it skips counts, so that all ranks meet after the same number.
        With accumulation, call it once per step of the optimizer. Every rank calls it as often from one meeting to the
        next. Raises what a collective raises, and what roll.check and DivergedError say: then no meeting counted, and
        the weights are this rank's own.
        """
        self._go_on()
        schedule = self._schedule
        if schedule.period is None:
            schedule.begin(self.plan.period.steps(schedule.step, self._learning_rate()))
        assert schedule.period is not None
        self._period = schedule.period
        if scaler is not None:
            result = scaler.step(self.optimizer, *(() if closure is None else (closure,)))
        else:
            result = self.optimizer.step() if closure is None else self.optimizer.step(closure)
        self._todo.extend(schedule.stepped())
        self._go_on()
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, as the optimizer does."""
        self.optimizer.zero_grad(set_to_none)

    def flush(self) -> list[Account]:
        """End the period: everything lands, and every rank has the same weights and buffers. Collective.

        A rank whose data have ended calls it while others train, and takes part in their meetings. Training may go on
        afterwards. Returns the accounts of all ranks with a quorum, which balance; without one, an empty list. Raises
        as `step` does, and may then be called again.
        """
        self._go_on()
        if self._late is not None:
            return self._flush_late(self._late)
        self._flushing = True
        try:
            self._todo.extend(self._schedule.recall())
            self._go_on()
            while self._quiet < self.plan.fragments:
                launch = self._schedule.closing()
                self._todo.extend((launch, Land(launch.number, launch.fragment)))
                self._go_on()
        finally:
            self._flushing = False
        self._quiet = 0
        self._schedule.go_to(self._furthest_step)
        for each in self._parts:
            each.met_step = self._schedule.step
        self._compare_inside()
        return []

    def roll_back(self) -> None:
        """Set the model to the weights and buffers of the last meetings that counted; local steps since are dropped.

        For a checkpoint after an error. Every rank has the same weights if every rank does it, unless the error came
        to some of them alone.
        """
        self._schedule.recall()
        self._todo.clear()
        self._exchanges.clear()
        self._failure = None
        for each in self._parts:
            each.handed_in = None
            each.set_weights(0.0)
            each.met_step = self._schedule.step
        if self._late is not None:
            self._late.close()
            self._late.begin()
        self._buffers.reset()

    # --- checkpoints ---

    @property
    def in_step(self) -> bool:
        """Whether every rank has the same weights: right after a flush, or a meeting of the whole model."""
        schedule = self._schedule
        return (
            self._failure is None
            and not self._todo
            and not schedule.under_way
            and all(each.met_step == schedule.step for each in self._parts)
            and (self._late is None or self._late.in_step)
        )

    def state_dict(self) -> dict[str, Any]:
        """Steps, start weights, momentum and residuals of this rank. ConfigurationError before a flush."""
        if not self.in_step:
            raise ConfigurationError(
                f"{self._schedule.step - min(each.met_step for each in self._parts)} local steps have not met, so this "
                "rank's weights are its own. Remedy: training.flush() on every rank before a checkpoint"
            )
        place = (self.group.rank(), self.group.size())
        return state_of(self._parts, self.plan, place, self._schedule.step, self._schedule.number)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, by the same rank; the model gets the state's weights.

        ConfigurationError, and nothing changed, for a state of other settings or of another model, and for what is no
        such state. On another number of ranks, or by another
        rank, what the codec owed is dropped with a warning.
        """
        step, number = load(state, self._parts, self.plan, (self.group.rank(), self.group.size()))
        self._schedule = Schedule(self.plan.fragments, self.plan.overlap)
        self._schedule.step, self._schedule.number = step, number
        self.roll_back()
        self._buffers.begin_anew()

    # --- what is due ---

    def _go_on(self) -> None:
        if self._failure is not None:
            raise self._failure
        while self._todo:
            action = self._todo[0]
            if self._late is not None:
                self._meet_late(self._late, action)
            elif isinstance(action, Launch):
                self._launch(action)
            else:
                self._land(action)
            self._todo.popleft()

    def _launch(self, action: Launch) -> None:
        part = self._parts[action.fragment]
        for under_way in self._exchanges.values():
            if under_way.fragment == action.fragment:
                under_way.collect()  # a residual belongs to one step at a time
        try:
            self._exchanges[action.number] = self._exchange(action, part)
        except BaseException as error:  # some of it may have been sent, so nothing can go on after it
            if interrupts(error) or not isinstance(error, Exception):
                self._failure = FaninError(
                    f"a meeting was interrupted while it was launched: {error!r}. Remedy: start again from a checkpoint"
                )
            else:
                self._failure = error
            raise
        part.met_step = self._schedule.step
        part.handed_in = part.fragment.weights() if self.plan.overlap else None

    def _exchange(self, action: Launch, part: Part) -> Exchange:
        changed = parameters.facts(self.model, self.optimizer) != self._facts
        delta = torch.zeros(part.fragment.count, device="cpu") if changed else part.delta()
        finite = bool(delta.isfinite().all())
        contributes = finite and not changed
        if self._flushing:
            contributes = contributes and self._schedule.step > part.met_step and bool(delta.any())
        if not contributes:
            delta.zero_()
        own = roll.Entry(
            contributes=int(contributes),
            finite=int(finite),
            ended=int(self._flushing),
            step=self._schedule.step,
            period=0 if self._flushing else self._period,
            number=action.number,
            fault=roll.MODEL_CHANGED if changed else 0,
            base=part.outer.landed,
            met=0 if self._flushing else self._schedule.met,
            renews=int(self._renews()),
        )
        last = action.fragment == self.plan.fragments - 1
        return Exchange(
            self.group,
            own,
            part.bucket,
            delta,
            self._buffers if last and self._buffers.any else None,
            fragment=action.fragment,
            waits_for_roll=self._flushing,
        )

    def _renews(self) -> bool:
        """Whether processes wait to take part."""
        return False

    def _land(self, action: Land) -> None:
        exchange = self._exchanges[action.number]
        try:
            exchange.collect()
            said = exchange.roll
            roll.check(said)
            mean = exchange.mean()
            missing = [rank for rank, each in enumerate(said) if not each.finite]
            if mean is None and missing:
                raise DivergedError(
                    f"no rank has a finite delta at meeting {action.number} ({roll.named(missing)}): training has "
                    "diverged. Remedy: training.roll_back() gives the weights of the last meeting; then a lower "
                    "learning rate, or clipped gradients"
                )
        except CollectiveTimeoutError:
            raise  # the meeting is under way still, and may be waited for again
        except Exception as error:
            if not interrupts(error):
                self._failure = error
            raise
        self._take(action, exchange, mean, missing)

    def _take(self, action: Land, exchange: Exchange, mean: Floats | None, missing: list[int]) -> None:
        """Change the model and the outer state by a meeting that counts. `missing`: ranks that were not finite."""
        part, said = self._parts[action.fragment], exchange.roll
        if mean is not None:
            take(part.outer, mean, self.plan.outer, roll.base(said))
        left_out = self.group.rank() in missing
        part.set_weights(0.0 if left_out else "keep" if self._flushing else self.plan.mix)
        exchange.take_buffers()
        del self._exchanges[action.number]
        self._furthest_step = max(each.step for each in said)
        self._quiet = self._quiet + 1 if self._flushing and roll.all_ended(said) else 0
        self.totals.meetings += 1
        self.totals.payload_bytes += exchange.payload_bytes
        self.totals.waited_s += exchange.waited_s
        if left_out:
            self._left_out(action)

    def _left_out(self, action: Land) -> None:
        """Count and log that this rank's weights were not finite, and drop its optimizer's state that is not."""
        self.totals.left_out += 1
        log.warning(
            "rank %d: its weights were not finite at meeting %d, which was held without it; it goes on from the "
            "others' weights, and its optimizer without the state that is not finite",
            self.group.rank(),
            action.number,
        )
        for parameter, state in list(self.optimizer.state.items()):
            if any(
                isinstance(each, torch.Tensor) and not bool(local(each).isfinite().all()) for each in state.values()
            ):
                del self.optimizer.state[parameter]

    def _meet_late(self, late: LateMeetings, action: Action) -> None:
        if isinstance(action, Land):
            return  # the launch has waited for its result
        if parameters.facts(self.model, self.optimizer) != self._facts:
            raise ConfigurationError(f"rank {self.group.rank()}: {roll.CHANGED}")
        late.meet()
        self._parts[0].met_step = self._schedule.step
        self.totals.meetings += 1

    def _flush_late(self, late: LateMeetings) -> list[Account]:
        part, step = self._parts[0], self._schedule.step
        self._schedule.recall()
        if part.met_step < step:
            late.meet()
            part.met_step = step
        accounts = late.flush()
        if self._buffers.any:
            sums = self._buffers.start(self.group, contributes=True)
            sums.wait()
            sums.take(1.0)
        self._compare_inside()
        return accounts

    def _learning_rate(self) -> float:
        return max(float(group["lr"]) for group in self.optimizer.param_groups)

    # --- what is next ---

    @property
    def schedule(self) -> Schedule:
        """The meetings; to be read only."""
        return self._schedule

    @property
    def parts(self) -> list[Part]:
        """The fragments, with outer state and codec; to be read only."""
        return self._parts

    def next_meeting(self) -> Next | None:
        """The next meeting to be launched; None where that is not known before the next step."""
        schedule = self._schedule
        period = None
        if schedule.period is None:
            period = self.plan.period.steps(schedule.step, self._learning_rate())
        return schedule.next_meeting(period)


def _fanin(group: c10d.ProcessGroup | None) -> FaninProcessGroup:
    found = group if group is not None else dist.group.WORLD
    if not isinstance(found, FaninProcessGroup):
        raise ConfigurationError(
            "LocalSteps needs a group whose backend is 'fanin'. Remedy: init_process_group('fanin'), or group="
        )
    if found.options.on_worker_loss == "continue":
        raise ConfigurationError(
            "local steps are for groups that end with the first rank that is lost (on_worker_loss='raise'): a mean "
            "needs the same deltas in all of its parts. Remedy: ElasticLocalSteps with Members, which makes a new "
            "group for each change of its members"
        )
    return found
