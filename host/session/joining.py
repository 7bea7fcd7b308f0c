"""Joining a job: from a switch's address to an engine whose every peer is reachable.

Asks the controller again and again (each answer is about the present), starts the engine as soon as the job is
admitted, and returns when the controller says that every rank's data path works. Every wait has a bound.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import fanin
from fanin.errors import ConfigurationError, FaninError, JoinTimeoutError
from fanin.extension import tag_algorithms
from fanin.host.codecs import make
from fanin.host.engines.engine import Engine, SwitchEndpoint, make_engine
from fanin.host.session.accounting import accountant
from fanin.host.session.control import ControlClient
from fanin.host.session.failures import (
    MemberNames,
    data_path_closed,
    engine_stopped,
    join_refused,
    packet_refused,
    path_too_narrow,
    superseded,
    with_forgeries,
    workers_gone,
)
from fanin.host.session.line import Line
from fanin.host.session.path import PathFacts, discover, exposed
from fanin.host.session.port_probes import longest_answered
from fanin.host.transports.stack import open_bare
from fanin.numerics.reduction import WIDE_SUMS
from fanin.options import SYNCHRONOUS, Options, Rounds, SwitchAddress
from fanin.protocol import control
from fanin.protocol.events import (
    EngineStopped,
    MembersChanged,
    PacketRefused,
    Ready,
    Stands,
    SwitchSilent,
    WorkerEvent,
    WorkersGone,
)
from fanin.protocol.job import Agreed, Asked, AskedRounds, JobRounds, JobSpec, Shape, facts_of
from fanin.protocol.seal import OPEN, Credentials
from fanin.protocol.tag_algorithm import TagAlgorithm
from fanin.protocol.wire import VERSION as WIRE_VERSION
from fanin.protocol.wire import datagram_bytes
from fanin.schemes import scheme_of

MAX_EVENT_WAIT_S = 0.05
"""Longest wait for an event of the engine, after which the controller's replies are read."""
ENTRY_MARGIN = 1
"""A newcomer's reductions begin that many bases after the latest that any of its slots stands at."""
FIRST_WARNING_S = 5.0
"""A join that waits for others says so after this long, and again each time the wait has doubled."""

log = logging.getLogger("fanin")


@dataclass(frozen=True, slots=True)
class Joined:
    """The result of a join."""

    engine: Engine
    spec: JobSpec
    who: MemberNames
    flows: int
    """Sockets that the job is spread over."""
    nonce: str
    """Random text in Join and Leave, which shows that a Leave comes from this session."""
    line: Line | None = None
    """The control connection, open for as long as the session is. None only in tests that bring their own engine."""
    path: PathFacts | None = None
    """The way to the switch when this rank joined, as far as the system knew."""
    newcomer: bool = False
    """Whether the job ran already."""
    first_base: int = 0
    """The base of every slot with which this worker's reductions begin."""
    events: Sequence[WorkerEvent] = ()
    """Events that the engine has reported meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinTerms:
    """The job that a rank is to join, and as whom (`Session.join`)."""

    options: Options
    switch: SwitchAddress
    job_name: str
    """Name by which the job's ranks find each other, with `credentials`."""
    rank: int
    size: int
    rounds: Rounds = SYNCHRONOUS
    """The job's K and S."""
    credentials: Credentials | None = None
    """Keys of the rank's requests; None: those that follow from options.secret."""
    interrupted: Callable[[], None] | None = None
    """Called about twice per second while joining; it raises to cancel."""
    shards: int = 1
    """Number of switches over which the job is spread."""
    share: float = 1.0
    """This switch's part of a large sum, above 0 and at most 1."""
    falls_back: bool = False
    """Whether errors may offer fallback="gloo" as a remedy: a group of torch's that might have had it."""
    starts_switch: bool = False
    """Whether ranks of the job have started its switch."""
    succeeds: control.Predecessor | None = None
    """The job, and those of its ranks, that continue as this job; None: it succeeds no other."""


def join(terms: JoinTerms) -> Joined:
    """Join; raises the errors that Session.join names. Leaves nothing behind when it fails."""
    who = MemberNames(
        address=terms.switch, job_name=terms.job_name, rank=terms.rank, size=terms.size, falls_back=terms.falls_back,
        starts_switch=terms.starts_switch,
    )  # fmt: skip
    options = terms.options
    connect_by = time.monotonic() + options.connect_timeout_s
    client = ControlClient(
        terms.switch,
        curve_server_key=options.curve_server_key,
        timeout_s=options.connect_timeout_s,
        patient=True,
        credentials=terms.credentials or OPEN,
        asker=who.in_words,
    )
    with contextlib.ExitStack() as opened:
        opened.callback(client.close)
        joining = _Joining(terms, who, client, connect_by)
        try:
            joined = joining.run()
        except BaseException as error:  # KeyboardInterrupt too: the others must not wait for this rank
            joining.give_up(error)
            raise
        opened.pop_all()
        return joined


class _Joining:
    """One join under way."""

    def __init__(self, terms: JoinTerms, who: MemberNames, client: ControlClient, connect_by: float) -> None:
        options, rounds = terms.options, terms.rounds
        self._path = facts = discover(who.address.scheme, client.reached, who.address.port)
        self._options = options
        self._credentials = terms.credentials or OPEN
        self._interrupted = terms.interrupted
        self._who = who
        self._client = client
        self._request = control.Join(
            job=who.job_name,
            rank=who.rank,
            size=who.size,
            nonce=secrets.token_hex(8),
            wire_version=WIRE_VERSION,
            software=fanin.__version__,
            process=control.one_line(f"{socket.gethostname()}:{os.getpid()}"),
            scheme=who.address.scheme,
            path_mtu=facts.path_mtu,
            receive_buffer_bytes=facts.receive_buffer_bytes,
            shards=terms.shards,
            share=terms.share,
            checksum=bool(options.checksum) or (options.checksum is None and options.corrupts),
            tags=tags_taken(options),
            accumulators=accumulators_wished(options, rounds),
            exposed=exposed(facts, who.address.scheme, curve=options.curve_server_key is not None),
            succeeds=terms.succeeds,
            **facts_of(rounds, AskedRounds),
            **facts_of(options, Asked),
        )
        self._engine: Engine | None = None
        self._start: control.Started | None = None
        """Kept, since it may come while the data path is still opening, and the job may be over when asked again."""
        self._next_join_s = 0.0
        self._started_s = time.monotonic()
        self._warn_s = self._started_s + FIRST_WARNING_S
        self._answer_by = connect_by
        """When a controller that has not answered counts as silent."""

    def run(self) -> Joined:
        admitted = self._wait_for_admission()
        worker, spec = worker_of(admitted), spec_of(admitted, self._credentials)
        if self._options.authenticate and not admitted.authenticate:
            raise ConfigurationError(
                f"{self._who.in_words}: switch {self._who.address} tags no packets. Remedy: leave "
                "FANIN_AUTHENTICATE unset, or use another"
            )
        if admitted.authenticate and admitted.tag_algorithm not in self._request.tags:
            raise ConfigurationError(
                f"{self._who.in_words}: switch {self._who.address} tags packets by {admitted.tag_algorithm}, this rank "
                f"by {' or '.join(self._request.tags)}. Remedy: use a switch of the same version of fanin"
            )
        flows, asked = len(admitted.ports), self._options.flows
        if asked is not None and asked != flows:
            log.warning("FANIN_FLOWS is %d; the switch at %s decides: %d", asked, self._who.address, flows)
        liveness_s = self._options.liveness_timeout_s
        if liveness_s is not None and liveness_s != admitted.liveness_timeout_s:
            log.warning(
                "FANIN_LIVENESS_TIMEOUT_S is %g; the switch at %s decides: %g",
                liveness_s,
                self._who.address,
                admitted.liveness_timeout_s,
            )
        shared = () if self._options.shared_memory is False else admitted.shared_memory
        host = admitted.data_host or self._client.host
        endpoint = SwitchEndpoint(admitted.scheme, host, admitted.ports, shared)
        self._who = replace(self._who, worker_ranks=admitted.ranks)
        self._engine = make_engine(self._options, spec, worker, admitted.token, endpoint, newcomer=admitted.running)
        changes = self._wait_for_data_path(self._engine, admitted, Ready)
        started = self._wait_for_start(self._engine, admitted)
        first_base = 0
        if admitted.running:
            changes += self._wait_for_data_path(self._engine, admitted, Stands)
            stands = changes.pop()
            assert isinstance(stands, Stands)
            first_base = stands.base + ENTRY_MARGIN
            self._engine.begin(first_base)
        who = replace(self._who, processes=started.processes)
        engine, nonce = self._engine, self._request.nonce

        def heard() -> int:
            # A switch that was restarted answers each HELLO, without a tag, with a refusal: a sign of another life.
            counters = engine.counters()
            return int(counters["packets_in"] - counters.get("dropped_tag", 0))

        line = Line(
            self._client,
            serves_data=not admitted.data_host,
            question=control.Explain(job=who.job_name, generation=spec.generation),
            heard=heard,
            spent=accountant(engine, who, nonce),
        )
        path = self._path
        return Joined(self._engine, spec, who, flows, nonce, line, path, admitted.running, first_base, changes)

    def give_up(self, error: BaseException) -> None:
        """Stop the engine and send the controller a Leave, whose reason is this error."""
        if self._engine is not None:
            self._engine.close()
        reason = str(error) if isinstance(error, FaninError) else type(error).__name__
        who = self._who
        leave = control.Leave(
            job=who.job_name, rank=who.rank, nonce=self._request.nonce, reason=control.one_line(reason)
        )
        self._client.send(leave)

    def _wait_for_admission(self) -> control.Admitted:
        missing: tuple[int, ...] = ()
        deadline = self._started_s + self._options.join_timeout_s + self._options.connect_timeout_s
        while (now := time.monotonic()) < deadline:
            reply = self._exchange(control.JOIN_INTERVAL_S)
            if isinstance(reply, control.Admitted):
                return reply
            if isinstance(reply, control.Waiting):
                missing = reply.missing
                self._warn(now, f"waiting for {self._who.name(missing)} to join")
        # The controller has the same deadline, less the allowance, and refuses then; this is for one that does not.
        waited = f"{deadline - self._started_s:.0f} s"
        ranks = ", ".join(map(str, missing)) or "that the switch has not named"
        text = (
            f"job {self._who.job_name!r} at {self._who.address} did not form in the {waited} that rank "
            f"{self._who.rank} has waited: ranks {ranks} are missing. "
            "Remedy: see the output of those ranks, and whether their launcher has started them"
        )
        raise JoinTimeoutError(missing, text)

    def _wait_for_data_path(
        self, engine: Engine, admitted: control.Admitted, awaited: type[Ready | Stands]
    ) -> list[WorkerEvent]:
        """Wait until the engine reports `awaited`; return what it has reported, that event last.

        Ready is the first answer of the switch; the engine itself gives up waiting for it after connect_timeout_s.
        """
        events: list[WorkerEvent] = []
        while True:
            event = engine.next_event(MAX_EVENT_WAIT_S)
            if isinstance(event, Ready | Stands | MembersChanged):
                events.append(event)
                if isinstance(event, awaited):
                    return events
            elif event is not None or engine.failed:
                raise self._failure(engine, event, admitted)
            self._look_for_another_job(self._exchange(0.0), admitted)

    def _wait_for_start(self, engine: Engine, admitted: control.Admitted) -> control.Started:
        while self._start is None:  # ends: a controller that is silent, and a start that takes too long, raise
            reply = self._exchange(control.JOIN_INTERVAL_S)
            if engine.failed:
                while isinstance(event := engine.next_event(MAX_EVENT_WAIT_S), Ready | MembersChanged | Stands):
                    pass
                raise self._failure(engine, event, admitted)
            self._look_for_another_job(reply, admitted)
            self._warn(time.monotonic(), "waiting for the data paths of other ranks")
        return self._start

    def _look_for_another_job(self, reply: control.Reply | None, admitted: control.Admitted) -> None:
        """Raise if this rank, which has not heard of a start, is in another job by now: its switch was restarted."""
        another = isinstance(reply, control.Admitted) and reply.generation != admitted.generation
        if another and self._start is None:
            raise superseded(self._who)

    def _exchange(self, timeout_s: float) -> control.Reply | None:
        """Say Join if it is time to, and take one reply in. Raises for a refusal, and for a silent controller."""
        now = time.monotonic()
        if now >= self._next_join_s:
            if self._interrupted is not None:
                self._interrupted()
            self._client.send(self._request)
            self._next_join_s = now + control.JOIN_INTERVAL_S
        reply = self._client.receive(timeout_s)
        now = time.monotonic()
        if isinstance(reply, control.Refused):
            raise join_refused(self._who, reply)
        if isinstance(reply, control.Started):
            self._start = reply
        if reply is not None:
            self._answer_by = now + max(self._options.connect_timeout_s, 2 * control.JOIN_INTERVAL_S)
        elif now >= self._answer_by:
            raise self._client.silent(self._options.connect_timeout_s)
        return reply

    def _failure(self, engine: Engine, event: WorkerEvent | None, admitted: control.Admitted) -> FaninError:
        if isinstance(event, WorkersGone):
            lost, left = self._who.ranks(event.lost), self._who.ranks(event.left)
            return workers_gone(self._who, lost, left, admitted.liveness_timeout_s)
        if isinstance(event, PacketRefused):
            return packet_refused(self._who, event.reason, None, admitted.liveness_timeout_s)
        if isinstance(event, EngineStopped):
            return engine_stopped(self._who, event.text)
        silent_s = event.silent_s if isinstance(event, SwitchSilent) else 0.0
        wanted = datagram_bytes(admitted.codes_per_packet, admitted.words_per_packet)
        if silent_s and 0 < (longest := self._longest_answered(admitted, wanted)) < wanted:
            return path_too_narrow(self._who, admitted, wanted, longest)
        trouble = with_forgeries(engine.trouble, engine.counters().get("dropped_tag", 0))
        return data_path_closed(self._who, admitted, silent_s, trouble)

    def _longest_answered(self, admitted: control.Admitted, wanted_bytes: int) -> int:
        """The longest packet that the switch's data port answers, in bytes; 0 where it is not known.

        A job that succeeds another does not ask: packets as long have passed there, and the other ranks wait.
        """
        if self._request.succeeds is not None or not scheme_of(admitted.scheme).packets_are_datagrams:
            return 0
        host = admitted.data_host or self._client.host
        try:
            with contextlib.closing(open_bare(self._options, admitted.scheme, host, admitted.ports[0])) as transport:
                return longest_answered(transport, wanted_bytes)
        except FaninError:
            return 0

    def _warn(self, now: float, what: str) -> None:
        if now >= self._warn_s:
            who, waited_s = self._who, now - self._started_s
            log.warning("rank %d of job %r at %s: %s for %.0f s", who.rank, who.job_name, who.address, what, waited_s)
            self._warn_s = now + waited_s


def accumulators_wished(options: Options, rounds: Rounds) -> bool | None:
    """Whether a rank needs an accumulator for each lane (None: can use them).

    In a job with staleness each chunk of the model owns a slot and all lanes are of one width: what is not needed would
    take the memory of several copies of the gradient.
    """
    codec = None if options.codec is None else make(options.codec)
    if options.lanes_number in WIDE_SUMS or (codec is not None and codec.needs_accumulators):
        return True
    return None if rounds == SYNCHRONOUS else False


def tags_taken(options: Options) -> tuple[TagAlgorithm, ...]:
    """Algorithms of keyed tags that this rank can compute; ConfigurationError if options.tag is none of them."""
    able = tag_algorithms(options.native)
    if options.tag is None:
        return able
    if options.tag not in able:
        raise ConfigurationError(
            f"tag = {options.tag!r}: this processor lacks AES or carry-less multiplication, or native code is not "
            "in use. Remedy: leave FANIN_TAG unset on every rank, or siphash"
        )
    return (options.tag,)


def worker_of(admitted: control.Admitted) -> int:
    """Number of this rank's worker at its switch: the rank itself, or at a leaf its place among the leaf's ranks."""
    return admitted.ranks.index(admitted.rank) if admitted.ranks else admitted.rank


def spec_of(admitted: control.Admitted, credentials: Credentials = OPEN) -> JobSpec:
    """The job's facts for this worker; other ranks' tokens, which it is not told, are 0.

    `credentials`: those of its requests, from which the key of the packets' tags follows.
    """
    own = worker_of(admitted)
    return JobSpec(
        job=admitted.index,
        generation=admitted.generation,
        workers=admitted.workers,
        tokens=tuple(admitted.token if worker == own else 0 for worker in range(admitted.workers)),
        data_key=admitted.data_key(credentials.key),
        tag=admitted.tag_algorithm,
        liveness_timeout_s=admitted.liveness_timeout_s,
        total_workers=admitted.total_workers or 0,
        places=admitted.ranks,
        **facts_of(admitted, Agreed, JobRounds, Shape),
    )
