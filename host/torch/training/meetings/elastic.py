"""Local steps whose members come and go at meetings (docs/meetings.md, *Members that come and go*).

    members = Members.from_environment()
    training = ElasticLocalSteps(model, optimizer, members, period=16, outer=Outer(lr=0.7, momentum=0.9, nesterov=True))
    while training.meetings < MEETINGS:
        optimizer.zero_grad()
        loss_of(model(inputs), targets).backward()
        training.step()
    training.flush()
    training.leave()

Rules
-----
* Members change between meetings alone, and each change is an epoch with a group of its own. In an epoch all meetings
  are of all its members.
* A member that is lost ends the epoch: what is under way counts if a member of the next epoch has landed it, else it is
  handed in anew (ledger.py).
* The roll tells all members that processes wait; the epoch then ends after the last meeting that any member may have
  launched by then. None are taken in while a member of the epoch still waits for its state.
* A process without the state takes part with nothing of its own, so nobody waits for it, and keeps the means that it
  hears; the state comes meanwhile, from a peer.
* Every epoch begins a period, at the step of the member that has made most.
* Residuals of lanes stay with a member; those of other codecs, whose state ranks share, begin anew with each epoch.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from fanin.errors import (
    CollectiveMismatchError,
    ConfigurationError,
    FaninError,
    SwitchLostError,
    UnsupportedError,
    WorkerLostError,
)
from fanin.host.codecs.codec import Codec, Floats
from fanin.host.torch.training.meetings import parameters, roll
from fanin.host.torch.training.meetings.agreement import NOTHING, Record
from fanin.host.torch.training.meetings.exchange import Exchange
from fanin.host.torch.training.meetings.ledger import Arrived, Ledger, Settled
from fanin.host.torch.training.meetings.local_steps import LocalSteps
from fanin.host.torch.training.meetings.members import Members
from fanin.host.torch.training.meetings.outer import Outer, take
from fanin.host.torch.training.meetings.parts import Part, bucket_of, codec_of
from fanin.host.torch.training.meetings.period import Every, Period
from fanin.host.torch.training.meetings.plan import Plan
from fanin.host.torch.training.meetings.schedule import Land, Launch, Schedule
from fanin.host.torch.training.meetings.state_transfer import Fetch, Offer, State

LOST = (WorkerLostError, SwitchLostError)
"""Errors of a meeting after which members agree anew."""
MOST_TRIES = 8
"""Attempts in a row to form a group before this member gives up."""
FETCH_TIMEOUT_S = 600.0
"""Time limit for a newcomer to fetch the training state from another member."""

log = logging.getLogger("fanin")


@dataclass(frozen=True, slots=True)
class Heard:
    """A meeting in which a listener took part."""

    exchange: Exchange
    mean: Floats | None
    said: roll.Roll


class ElasticLocalSteps(LocalSteps):
    """Local steps among members that come and go.

    `members`: this process among them, which has not come yet. The other arguments are those of LocalSteps; `overlap`
    must be below the shortest period, and the model whole in each process (no FSDP).

    Founders wait for each other, and begin with the weights and buffers of the first of them. A process that comes
    later waits until it is taken in and has the weights; then `steps` and `meetings` say how far training is, and the
    optimizer's own state begins anew. Raises what LocalSteps raises, and what `Members.come` and `Members.agree` do.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        members: Members,
        *,
        period: Period | int,
        outer: Outer | None = None,
        fragments: int = 1,
        overlap: int = 0,
        mix: float | Literal["keep"] = 0.0,
        codec: Codec | str | None = None,
    ) -> None:
        made = codec_of(codec, members.options)
        rule = Every(period) if isinstance(period, int) else period
        plan = Plan(
            period=rule, outer=outer or Outer(), fragments=fragments, overlap=overlap, mix=mix, codec=str(made),
            quorum=None, staleness=1,
        )  # fmt: skip
        if overlap >= rule.shortest and overlap:
            raise ConfigurationError(
                f"overlap = {overlap}; with members that come and go it must be below the shortest period, "
                f"{rule.shortest}, so that a fragment has one meeting under way",
                "overlap",
            )
        trained = parameters.trained(optimizer)
        if any(isinstance(each, DTensor) for each in trained):
            raise UnsupportedError(
                "members that come and go hold the whole model each, and this one is sharded (FSDP). Remedy: "
                "LocalSteps among the replicas of each shard"
            )
        self._members = members
        self._ledger = Ledger(fragments)
        self._lock = threading.Lock()
        """Held while a meeting changes the state, and while the state is copied for a newcomer."""
        self._codec = made
        self._carries = str(made).startswith("lanes:")
        """Whether residuals are this member's own and may go on in another group."""
        self._owed: dict[int, dict[str, torch.Tensor]] = {}
        """State of the codec before each meeting under way, by the meeting's number."""
        self._last: int | None = None
        """The epoch's last meeting, once a roll has said that processes wait."""
        self._listeners = False
        """Whether a member of this epoch has no state yet."""
        self._offer: Offer | None = None
        self._schedule = Schedule(fragments, overlap)
        try:
            members.come(plan.facts() | parameters.shapes(trained))
            settled = self._enter((), broken=True)
            super().__init__(
                model, optimizer, period=rule, outer=outer, fragments=fragments, overlap=overlap, mix=mix, codec=made,
                group=members.group,
            )  # fmt: skip
            try:
                self._begin_with(settled)
            except LOST as error:
                self._reform(error)
        except BaseException:
            self.leave()
            raise

    def _begin_alike(self, found: list[torch.Tensor], *, init_sync: bool) -> None:
        """Do nothing: settings were compared in the store, and weights come with the epoch."""

    # --- for programs ---

    @property
    def members(self) -> int:
        """Number of the members of this epoch."""
        return len(self._members.record.members)

    @property
    def meetings(self) -> int:
        """Meetings that have landed since training began, each of one fragment; alike on all members."""
        return self._ledger.next

    @property
    def steps(self) -> int:
        """Local steps of the member that has made most, since training began."""
        return self._schedule.step

    def leave(self) -> None:
        """Leave the members, which go on; local steps since the last meeting are dropped. Idempotent."""
        self._withdraw()
        self._members.leave()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, as LocalSteps does: on every founder, before training."""
        super().load_state_dict(state)
        with self._lock:
            self._ledger.next = self._schedule.number

    # --- meetings ---

    def _go_on(self) -> None:
        try:
            failure = None if self.group.session is None else self.group.session.failure
            if failure is not None and self._failure is None:
                raise failure
            super()._go_on()
            if self._last is None or self._schedule.number <= self._last:
                return
            self._todo.extend(self._schedule.recall())
            super()._go_on()
        except LOST as error:
            self._reform(error)
        else:
            self._reform(None)

    def _renews(self) -> bool:
        return self._members.somebody_waits and not self._listeners

    def _exchange(self, action: Launch, part: Part) -> Exchange:
        if self._carries:
            self._owed[action.number] = {name: each.clone() for name, each in part.bucket.state().items()}
        self._ledger.launched(action.number)
        return super()._exchange(action, part)

    def _take(self, action: Land, exchange: Exchange, mean: Floats | None, missing: list[int]) -> None:
        said = exchange.roll
        with self._lock:
            super()._take(action, exchange, mean, missing)
            self._ledger.note_landed(action.number)
        self._owed.pop(action.number, None)
        self._hear(action.number, said)

    def _hear(self, number: int, said: roll.Roll) -> None:
        self._listeners = any(each.listens for each in said)
        if self._last is None and any(each.renews for each in said):
            self._last = number + (self.plan.fragments if self.plan.overlap else 0)

    # --- epochs ---

    def _reform(self, error: FaninError | None) -> None:
        """Go on with other members. `error`: what ended the epoch; None: processes wait to be taken in."""
        while True:
            lost = self._members.ids(error.ranks) if isinstance(error, WorkerLostError) else ()
            if error is not None:
                log.warning("members of %r change: %s", self.group.group_name, error)
            try:
                self._begin_with(self._enter(lost, broken=error is not None))
            except LOST as again:
                error = again
                continue
            return

    def _enter(self, lost: tuple[int, ...], *, broken: bool) -> Settled:
        """Agree on the next epoch, and make its group; agree again, MOST_TRIES times in all, where that fails."""
        self._withdraw()
        for tried in range(MOST_TRIES):
            notice = self._ledger.notice(self._members.id, self._schedule.step, lost)
            record = self._members.agree(notice)
            settled = self._ledger.adopt(notice, record)
            self._hand_in_again(settled)
            try:
                self._members.form(record, broken=broken or tried > 0)
                return settled
            except (ConfigurationError, UnsupportedError, CollectiveMismatchError):
                raise
            except RuntimeError as error:  # torch's store and gloo have no narrower type
                if tried == MOST_TRIES - 1:
                    raise
                log.warning("the group of epoch %d did not form: %s", record.number, error)
                lost = ()
        raise AssertionError

    def _withdraw(self) -> None:
        if self._offer is not None:
            self._offer.close()
            self._offer = None

    def _hand_in_again(self, settled: Settled) -> None:
        for number in settled.again:
            part = self._parts[number % self.plan.fragments]
            part.handed_in = None
            if number in self._owed:
                part.bucket.load(self._owed.pop(number))

    def _begin_with(self, settled: Settled) -> None:
        """Begin an epoch whose group is made."""
        record, group = self._members.record, self._members.group
        assert group is not None
        self.group = group
        self._failure, self._last, self._quiet = None, None, 0
        self._listeners = not record.founding and len(record.holders) < len(record.members)
        self._exchanges.clear()
        self._todo.clear()
        self._schedule = Schedule(self.plan.fragments, self.plan.overlap)
        self._schedule.step, self._schedule.number = record.step, record.landed
        for number, part in enumerate(self._parts):
            owed = part.bucket.state() if self._carries and settled.standing == "holds" else None
            part.bucket = bucket_of(self._codec, group, part.fragment, number)
            if owed is not None:
                part.bucket.load(owed)
            part.met_step = min(part.met_step, record.step - 1)
        self._owed.clear()
        if settled.standing == "founds":
            self._found()
        elif self._ledger.listens:
            if not self._listen(record):
                self._begin_with(self._enter((), broken=False))
        elif self._listeners:
            listeners = tuple(rank for rank, each in enumerate(record.members) if each not in record.holders)
            self._offer = Offer(
                self._members.epoch_store_beside, group.rank(), group.secret, self._copy,
                through_store=listeners if self._members.id == record.holders[0] else (),
            )  # fmt: skip
        log.info("epoch %d: %d members, from meeting %d", record.number, len(record.members), record.landed)

    def _found(self) -> None:
        self._send_weights()
        for part in self._parts:
            part.outer.start[:] = part.fragment.weights()
        self._buffers.begin_anew()
        self._ledger.founded()

    def _copy(self, base: int) -> tuple[int, State] | None:
        """Version and a copy of the state, for a newcomer; None before version `base`. On a thread of the offer."""
        with self._lock:
            if self._ledger.listens or self._ledger.next < base:
                return None
            parts = [
                {
                    "start": torch.from_numpy(each.outer.start.copy()),
                    "momentum": torch.from_numpy(each.outer.momentum.copy()),
                    "moves": (each.outer.landed, each.outer.last_move, each.outer.typical_move),
                }
                for each in self._parts
            ]
            return self._ledger.next, {"parts": parts, "buffers": self._buffers.state()}

    # --- a process without the state ---

    def _listen(self, record: Record) -> bool:
        """Take part in meetings with nothing until the state is here; False where the epoch ended before that."""
        ranks = tuple(record.members.index(each) for each in record.holders)
        fetch = Fetch(
            self._members.epoch_store_beside, self.group.rank(), ranks, self.group.secret, record.landed,
            FETCH_TIMEOUT_S,
        )  # fmt: skip
        heard: list[Heard] = []
        try:
            while True:
                if self._ledger.full:
                    fetch.wait(FETCH_TIMEOUT_S)
                trainer = roll.trainer(heard[-1].said) if heard else None
                starts = fetch.over and (trainer is not None or self._ledger.full)
                if starts and self._arrive(*fetch.result(), heard, record):
                    self._align(heard[-1].said)
                    return True
                number = record.landed + len(heard)
                if self._last is not None and number > self._last:
                    return False
                heard.append(self._take_part(number))
                self._ledger.heard(number)
                self._hear(number, heard[-1].said)
        except LOST:
            fetch.wait(self._members.patience.lost_s)
            if fetch.has_come:  # then what has landed lives on with this member
                self._arrive(*fetch.result(), heard, record)
            raise
        finally:
            fetch.close()

    def _take_part(self, number: int) -> Heard:
        fragment = number % self.plan.fragments
        part = self._parts[fragment]
        own = roll.Entry(contributes=0, ended=1, step=self._schedule.step, period=0, number=number, listens=1)
        last = fragment == self.plan.fragments - 1
        exchange = Exchange(
            self.group,
            own,
            part.bucket,
            torch.zeros(part.fragment.count, device="cpu"),
            self._buffers if last and self._buffers.any else None,
            fragment=fragment,
            waits_for_roll=True,
        )
        exchange.collect()
        roll.check(exchange.roll)
        return Heard(exchange, exchange.mean(), exchange.roll)

    def _arrive(self, version: int, state: State, heard: list[Heard], record: Record) -> bool:
        """Take a peer's state and bring it up to date by the means heard; False where it is ahead of these."""
        with self._lock:
            new = self._ledger.next == NOTHING
            arrived = self._ledger.arrived(version)
            if arrived is None:
                return False
            own = [None if new else self._not_handed_in(number, arrived) for number in range(len(self._parts))]
            for part, given in zip(self._parts, state["parts"], strict=True):
                part.outer.start[:] = given["start"].numpy()
                part.outer.momentum[:] = given["momentum"].numpy()
                part.outer.landed, part.outer.last_move, part.outer.typical_move = given["moves"]
            self._buffers.load(state["buffers"])
            for number in arrived.apply:
                met = heard[number - record.landed]
                if met.mean is not None:
                    outer = self._parts[number % self.plan.fragments].outer
                    take(outer, met.mean, self.plan.outer, roll.base(met.said))
                met.exchange.take_buffers()
            for part, kept in zip(self._parts, own, strict=True):
                part.handed_in = None
                part.fragment.write(part.outer.start if kept is None else part.outer.start - kept.numpy())
        return True

    def _not_handed_in(self, fragment: int, arrived: Arrived) -> torch.Tensor:
        """Change of a fragment by local steps of this member that no meeting has counted, shape (count,)."""
        part = self._parts[fragment]
        counted = any(number % self.plan.fragments == fragment for number in arrived.counted)
        if counted and part.handed_in is None:  # without overlap: nothing was learned since
            return torch.zeros(part.fragment.count, device="cpu")
        return part.delta()

    def _align(self, said: roll.Roll) -> None:
        """Set the schedule to that of ranks that train, right after the last meeting that this member has heard."""
        number, trainer, rule = self._ledger.next - 1, roll.trainer(said), self.plan.period
        self._schedule.number = number + 1
        if trainer is not None:
            following = rule.count if isinstance(rule, Every) else None
            self._schedule.resume(
                number, trainer.step, trainer.period, trainer.met, skipped=self.plan.overlap, following=following
            )
        for part in self._parts:
            part.met_step = self._schedule.step
