"""A process comes into stale training that runs already, in the place of one that is gone (docs/staleness.md).

Rules of this file
------------------
* The process first compares what it trains with what the ranks have posted in the group's store, so that a process that
  does not fit asks no peer for anything.
* Then it joins the stale job at the switch, as soon as its place is free, and asks a peer for its state, from the base
  on with which it begins. Ranks below its own are asked first, so rank 0, which everybody else needs, comes late.
* A peer first says where it stands. From then on rounds are under way here too, and hold nobody up. When the peer's
  state has come, what was heard meanwhile is applied to it.
* A peer that dies or is silent costs connect_timeout_s at most; then the next one is asked. When nobody is left, this
  process leaves the job, and the others go on without it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import time
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from fanin.errors import AdmissionError, ConfigurationError, HandoverError
from fanin.host.session.control import RUNNING, job_state
from fanin.host.session.handover import PURPOSE, Giver, GiverAddress, Source
from fanin.host.session.joining import JoinTerms
from fanin.host.session.session import Session
from fanin.host.stale.account import PASSED_ABSENT, Account
from fanin.host.stale.policies import make_policy
from fanin.host.stale.rounds import StaleRounds
from fanin.host.stale.scale import ScaleEpochs
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.meeting.reachable import reachable_host
from fanin.host.torch.training.accounts import count_newcomer
from fanin.host.torch.training.packed_state import packed, unpacked
from fanin.host.torch.training.stale import StaleJob, StaleTerms, check_shape, layout_for, next_job_name
from fanin.protocol.control import Refusal
from fanin.protocol.seal import derived

RETRY_S = 0.5
"""Time between two attempts, while the switch still takes this rank's previous process for alive."""
ATTEMPT_TIMEOUT_S = 10.0
"""Time limit of one attempt to join. The job runs already, so a longer wait would not help."""

log = logging.getLogger("fanin.stale")


class Training(Protocol):
    """State that newcomers are given, and facts that they must share."""

    def facts(self) -> dict[str, Any]:
        """Facts that must be the same at every rank, as JSON takes them; `parameters`: name, shape and type of each."""

    def state(self) -> dict[str, Any]:
        """State that has the same bits at every replica, and what belongs to it; rounds wait meanwhile."""

    def load(self, state: dict[str, Any], version: int) -> None:
        """Load what a peer's `state` has returned, of that version."""


class Welcome:
    """Gives this rank's state to newcomers that ask for it, until it is closed."""

    def __init__(self, job: StaleJob, training: Training) -> None:
        store, name, rank = job.group.store, job.session.job_name, job.session.rank
        self._runner = job.runner
        self._training = training
        self._giver = Giver(reachable_host(), self._snapshot, derived(job.group.secret, PURPOSE))
        store.set(facts_key(name), json.dumps(training.facts()))
        store.set(_giver_key(name, rank), str(self._giver.address))
        self._group = job.group
        self._group.attach(self.close)

    def close(self, timeout_s: float = 0.0) -> None:
        """Stop answering newcomers, at once. Idempotent."""
        self._group.detach(self.close)
        self._giver.close()

    def _snapshot(self, base: int, timeout_s: float) -> tuple[bytes, bytes] | None:
        return self._runner.between_rounds(base, self._pack, timeout_s)

    def _pack(self, rounds: StaleRounds) -> tuple[bytes, bytes]:
        account, scale = rounds.account, rounds.scale
        standing = {
            "version": rounds.base,
            "scale": scale.state(),
            "contributors": list(account.contributors),
            "accepted_chunks": torch.from_numpy(account.accepted_chunks),
        }
        return packed(standing), packed({"version": rounds.base, "state": self._training.state()})


def come_in(group: FaninProcessGroup, terms: StaleTerms, training: Training) -> StaleJob:
    """Join the running stale job in the place of a lost rank, with the weights of a peer loaded into `training`.

    Raises ConfigurationError naming what differs from what the others train, AdmissionError when the job is over or the
    place stays taken for join_timeout_s, HandoverError when nobody gives the weights.
    """
    options, end = terms.options, terms.end
    assert end is not None, "trainings that newcomers come into end by their number of rounds"
    decides = make_policy(terms.policy)
    name, started_s = next_job_name(group), time.monotonic()
    compare(group, name, training.facts())
    session = _take_place(group, terms, name)
    try:
        layout = layout_for(group, terms, session.spec.words_per_packet, (session.flows,))
        check_shape(session, layout)
        if session.first_base > end + options.largest_staleness:
            raise _over(group, name)
        first, scale_options = session.first_base, (options.largest_staleness, options.epoch_rounds)
        everyone = (session.tune().quorum or session.size) >= len(session.members)
        peers = _Peers(group, session)
        source, standing = peers.ask(first)
        account = Account(session.rank, layout.chunks, bases=[PASSED_ABSENT] * first)
        account.contributors += standing["contributors"]
        account.accepted_chunks += standing["accepted_chunks"].numpy()
        rounds = StaleRounds(
            decides,
            options.oldest,
            ScaleEpochs(*scale_options, **standing["scale"]),
            account,
            base=first,
            end=end,
            absent=True,
            known_from=standing["version"],
            waited_for=everyone,
        )
        job = StaleJob(group, session, layout, rounds, terms, newcomer=True)
    except BaseException:
        session.close()
        raise
    try:
        version, state = peers.finish(source, standing["version"])
        training.load(state, version)
        job.runner.arrive(version)
    except BaseException:
        job.close()
        raise
    log.warning(
        "rank %d came into job %r at round %d, with weights from rank %d, within %.1f s",
        session.rank,
        name,
        version,
        peers.gave,
        time.monotonic() - started_s,
    )
    return job


def parameter_facts(module: torch.nn.Module, parameters: Sequence[torch.Tensor]) -> list[tuple[Any, ...]]:
    """Name, shape and type of each parameter, for `Training.facts`."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return [(names.get(id(each), ""), tuple(each.shape), str(each.dtype).removeprefix("torch.")) for each in parameters]


def compare(group: FaninProcessGroup, name: str, own: dict[str, Any]) -> None:
    """Raise ConfigurationError where this process's facts are not those of the job, AdmissionError without a job."""
    key = facts_key(name)
    if not group.store.check([key]):
        raise _over(group, name)
    theirs = json.loads(group.store.get(key))
    own = json.loads(json.dumps(own))  # tuples become lists
    for mine, there in zip_longest(own.pop("parameters"), theirs.pop("parameters")):
        if mine != there:
            raise _differs(group, f"parameter {(mine or there)[0]!r} is {_shape(mine)} here and {_shape(there)} there")
    for fact, value in own.items():
        if theirs.get(fact) != value:
            raise _differs(group, f"{fact} is {value} here and {theirs.get(fact)} there")


def _shape(parameter: list[Any] | None) -> str:
    if parameter is None:
        return "absent"
    name, shape, kind = parameter
    return f"{name!r}, {kind} of {tuple(shape)},"


def _differs(group: FaninProcessGroup, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"rank {group.rank()} cannot come into job {group.job_name!r}, which trains something else: {what}. Remedy: "
        "start this process with the program and the options of the others"
    )


def _over(group: FaninProcessGroup, name: str) -> AdmissionError:
    return AdmissionError(
        f"rank {group.rank()} cannot come into job {name!r} at {group.switch}: it has not begun, or is over. Remedy: "
        "see the output of the other ranks; a job that lost a rank before its first round must be started anew",
        Refusal.UNKNOWN_JOB.value,
    )


def _take_place(group: FaninProcessGroup, terms: StaleTerms, name: str) -> Session:
    """Join the running job as soon as the switch has given the predecessor up."""
    given, size = group.switch_options, dist.get_world_size(group)
    deadline = time.monotonic() + given.join_timeout_s
    joins = JoinTerms(
        options=dataclasses.replace(given, join_timeout_s=min(given.join_timeout_s, ATTEMPT_TIMEOUT_S)),
        switch=group.switch,
        job_name=name,
        rank=group.rank(),
        size=size,
        rounds=terms.rounds_of(size),
        credentials=group.credentials,
        starts_switch=not group.options.switches,
    )
    while True:
        if job_state(group.switch, name, given, group.credentials, rank=group.rank()) != RUNNING:
            raise _over(group, name)
        try:
            session = Session.join(joins)
        except AdmissionError as error:
            if error.code != Refusal.RANK_TAKEN.value or time.monotonic() >= deadline:
                raise
            time.sleep(RETRY_S)
            continue
        count_newcomer(group.store, name)
        return session


class _Peers:
    """The other ranks, which are asked for their state in turn, each once."""

    def __init__(self, group: FaninProcessGroup, session: Session) -> None:
        self._store: c10d.Store = group.store
        self._key = derived(group.secret, PURPOSE)
        self._session = session
        self._silence_s = group.options.connect_timeout_s
        self._patience_s = group.options.join_timeout_s
        size = session.size
        self._left = [(session.rank - distance) % size for distance in range(1, size)]
        self._failures: list[str] = []
        self.gave = -1
        """The rank that was asked last."""

    def ask(self, base: int) -> tuple[Source, dict[str, Any]]:
        """The next peer that answers, and its standing, at `base` or later. HandoverError when none is left."""
        while self._left:
            self.gave = self._left.pop(0)
            key = _giver_key(self._session.job_name, self.gave)
            with contextlib.ExitStack() as opened:
                try:
                    if not self._store.check([key]):
                        raise ConnectionError("it gives nothing")
                    source = Source(GiverAddress.parse(self._store.get(key)), base, self._silence_s, self._key)
                    opened.callback(source.close)
                    standing = unpacked(source.read(self._patience_s))
                except (OSError, EOFError) as error:
                    self._note(error)
                    continue
                opened.pop_all()
                return source, standing
        raise HandoverError(
            f"rank {self._session.rank} came into job {self._session.job_name!r}, and nobody gave it the weights: "
            f"{'; '.join(self._failures)}. Remedy: see the output of those ranks; start this one again while others run"
        )

    def finish(self, source: Source, base: int) -> tuple[int, dict[str, Any]]:
        """Version and state of `source`, or of the next peer, at `base` or later, where it fails."""
        while True:
            try:
                with contextlib.closing(source):
                    whole = unpacked(source.read(self._patience_s))
                return whole["version"], whole["state"]
            except (OSError, EOFError) as error:
                self._note(error)
            source, _ = self.ask(base)

    def _note(self, error: Exception) -> None:
        log.warning("rank %d: rank %d gave no weights: %s", self._session.rank, self.gave, error)
        self._failures.append(f"rank {self.gave}: {error}")


def facts_key(job_name: str) -> str:
    """Key of the facts about a job's training in the store."""
    return f"fanin/training/{job_name}"


def _giver_key(job_name: str, rank: int) -> str:
    return f"fanin/giver/{job_name}/{rank}"
