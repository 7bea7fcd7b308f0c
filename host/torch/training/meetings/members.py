"""The processes that meet, as they come and go: their agreement in a store, and a process group for each epoch.

    members = Members.from_environment(founders=4)
    training = ElasticLocalSteps(model, optimizer, members, period=16)

Rules of this file
------------------
* A process has a number, in the order in which processes came; one that is started again has a new one.
* A thread says in the store, every BEAT_S, that this process lives, and hears who else does. Who is waited for and who
  is taken in is decided in agreement.py.
* A group is made for each record, with a part of the store of its own. Making it is bounded by FORM_TIMEOUT_S: a member
  that died after the agreement costs that once.
* A group sums through the switch alone, and has no gloo: members behind address translation reach the switch and the
  store, and not each other.
* Settings are compared in the store before a process asks to be taken in.
* The store is the only place at which the two halves of a divided network could agree on different members, and there
  is one. A process whose store is gone trains on until its members change, and ends with StoreSilentError then.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

from torch._C import _distributed_c10d as c10d

from fanin import json_log
from fanin.endings import at_end
from fanin.errors import AdmissionError, ConfigurationError, HandoverError, StoreSilentError
from fanin.host.session.threads import started
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.meeting.side_store import apart
from fanin.host.torch.meeting.store_host import AGENT_STORE
from fanin.host.torch.training.meetings.agreement import (
    BEGINNING,
    LEFT,
    NOTHING,
    Adopt,
    Agreement,
    Notice,
    Patience,
    Propose,
    Pulse,
    Record,
    Wait,
    notice_of,
    record_of,
    to_text,
    waits,
)
from fanin.host.torch.training.meetings.plan import ALIKE
from fanin.host.torch.training.same_settings import difference
from fanin.options import Options

BEAT_S = 0.5
"""A process says this often that it lives."""
POLL_S = 0.05
"""The store is read this often while the members agree."""
FORM_TIMEOUT_S = 15.0
"""Longest that members wait for each other when a group is made."""
GROUP_TIMEOUT_S = 600.0
"""Default timeout of a meeting's sums."""
STORE_TIMEOUT = timedelta(minutes=5)
"""Longest that a question to the store waits for a key, as torch has it."""
MOST_OTHERS = 64
"""Most processes that are looked at beside the members, the newest ones: those that came earlier count as gone."""

STOP_TIMEOUT_S = 5.0
"""Longest wait for this process's own thread to come out of a question to the store."""

log = logging.getLogger("fanin")
_OPEN: weakref.WeakSet[Members] = weakref.WeakSet()
"""All Members of this process, stopped at exit: a thread in torch's store would abort the interpreter's end."""


class Members:
    """One process among those that meet."""

    def __init__(
        self,
        store: c10d.Store,
        *,
        founders: int,
        least: int = 1,
        name: str = "members",
        options: Options | None = None,
        timeout_s: float = GROUP_TIMEOUT_S,
        patience: Patience | None = None,
    ) -> None:
        """`store`: reachable by every process that may ever come, and served by one that stays. `founders`: processes
        that begin together. `least`: members without which nobody trains. `name`: of this training in the store.
        `options`: of the groups; None: the environment's. `timeout_s`: of a meeting's sums. `patience`: times of the
        agreement.

        Connects to the store a second time. Raises ConfigurationError for numbers below 1.
        """
        _check(founders, least)
        given = Options.from_environment(os.environ) if options is None else options
        self.options = replace(
            given, on_worker_loss="raise", fallback="raise", join_timeout_s=min(given.join_timeout_s, FORM_TIMEOUT_S)
        )
        self.patience = patience or Patience()
        self._longest_s = given.join_timeout_s
        self._timeout_s = timeout_s
        self._name, self._founders, self._least = name, founders, least
        self._store = c10d.PrefixStore(f"fanin/{name}", store)
        self._beside = c10d.PrefixStore(f"fanin/{name}", apart(store))
        self._pulse = Pulse(self.patience.silent_s)
        self._lock = threading.Lock()
        """Guards the pulse and the record, which the thread reads."""
        self._known: list[int] = []
        """Numbers of the processes whose notices and beats are read."""
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self.id = -1
        """Number of this process; -1 before `come`."""
        self.record: Record = BEGINNING
        """The epoch that this process has adopted last."""
        self.group: FaninProcessGroup | None = None
        """The process group of this epoch; None between two."""
        self.somebody_waits = False
        """Whether processes that live ask to be taken in."""

    @classmethod
    def from_environment(cls, *, founders: int | None = None, **given: object) -> Members:
        """Members that meet at MASTER_ADDR and MASTER_PORT, where torchrun's agent, or else rank 0, serves the store.

        `founders`: None: WORLD_SIZE. `given`: what `Members` takes. Raises ConfigurationError without these variables,
        where one is no number, and where rank 0 cannot serve the store; StoreSilentError where nobody serves it for
        join_timeout_s.
        """
        host, port = _variable("MASTER_ADDR"), _number("MASTER_PORT")
        count = _number("WORLD_SIZE") if founders is None else founders
        options = given.get("options") or Options.from_environment(os.environ)
        assert isinstance(options, Options)
        _check(count, given.get("least", 1))
        if not 0 < port < 1 << 16:
            raise ConfigurationError(
                f"Members.from_environment: MASTER_PORT={port}; must be in 1..65535", "MASTER_PORT"
            )
        serves = os.environ.get("RANK") == "0" and os.environ.get(AGENT_STORE) != "True"
        within = timedelta(seconds=options.join_timeout_s)
        try:
            store = c10d.TCPStore(
                host, port, is_master=serves, wait_for_workers=False, multi_tenant=True, timeout=within
            )  # fmt: skip
        except RuntimeError as error:  # torch's errors of stores, and of names and ports
            where, why = f"MASTER_ADDR={host}, MASTER_PORT={port}", str(error).partition("\n")[0]
            if serves:
                raise ConfigurationError(
                    f"this process, RANK=0, cannot serve the store at {where}: {why}. Remedy: another MASTER_PORT"
                ) from error
            raise StoreSilentError(
                f"nobody serves the store at {where}, which was tried for {options.join_timeout_s:g} s ({why}). "
                "Remedy: start the program with torchrun, or a process with RANK=0"
            ) from error
        store.set_timeout(STORE_TIMEOUT)
        return cls(store, founders=count, **given)  # type: ignore[arg-type]

    # --- coming and going ---

    def come(self, facts: dict[str, str]) -> None:
        """Get a number, and begin to post beats. `facts`: settings that all must share.

        Raises ConfigurationError naming the first that differs, or for FANIN_LOG, and StoreSilentError.
        """
        with _asking(self.id):
            said = json.dumps(facts, sort_keys=True)
            theirs = self._store.compare_set("facts", "", said).decode()
            if theirs != said:
                raise ConfigurationError(
                    f"this process (rank 1 below; rank 0 is whoever began) cannot take part in training "
                    f"{self._name!r}: {difference([json.loads(theirs), facts], *ALIKE)}"
                )
            self._store.compare_set("record", "", to_text(BEGINNING))
            self.id = self._store.add("came", 1) - 1
            self._store.set(f"notice/{self.id}", to_text(Notice(id=self.id)))
            self._store.set(f"beat/{self.id}", "1")
        json_log.configure(os.environ, self.id)
        self._thread = started(self._beat, name="fanin-members")
        _OPEN.add(self)

    def leave(self) -> None:
        """Announce the departure, so that the others go on without this process at once. A second call does nothing."""
        if self._closing.is_set():
            return
        self.stop()
        if self.id >= 0:
            with contextlib.suppress(RuntimeError):
                self._store.set(f"beat/{self.id}", str(LEFT))
        if self.group is not None:
            self.group.shutdown()

    def stop(self) -> None:
        """End the thread: to the others this process is silent from now on."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)

    # --- the next epoch ---

    def agree(self, notice: Notice) -> Record:
        """Wait for the next epoch that this process is in.

        Raises AdmissionError where nobody takes it in within join_timeout_s, or too few members are left; HandoverError
        where nobody is left who holds the weights; StoreSilentError.
        """
        with _asking(self.id):
            self._store.set(f"notice/{self.id}", to_text(notice))
        began_s = time.monotonic()
        agreement = Agreement(notice, self._founders, self._least, self.patience, self._pulse, began_s)
        while True:
            with _asking(self.id):
                text, record, notices, beats = self._read(self._store)
            now_s = time.monotonic()
            with self._lock:
                self._pulse.hear(now_s, beats)
                decision = agreement.decide(now_s, record, notices)
            if isinstance(decision, Adopt):
                with _asking(self.id):
                    settled = replace(notice, epoch=decision.record.number, asks=False)
                    self._store.set(f"notice/{self.id}", to_text(settled))
                with self._lock:
                    self.record, self.somebody_waits = decision.record, False
                return decision.record
            if isinstance(decision, Propose):
                with _asking(self.id):
                    self._store.compare_set("record", text, to_text(decision.record))
                continue
            if now_s - began_s > self._longest_s + self.patience.longest_s:
                raise self._not_taken(notice, record, decision)
            time.sleep(POLL_S)

    def form(self, record: Record, *, broken: bool) -> FaninProcessGroup:
        """Make the group of an epoch, in the place of the one before. `broken`: whether the one before has failed.

        Raises what making a group raises, within FORM_TIMEOUT_S for each of its waits.
        """
        self.close_group(broken=broken)
        store = c10d.PrefixStore(f"epoch/{record.number}", self._store)
        group = FaninProcessGroup(
            store,
            record.members.index(self.id),
            len(record.members),
            timedelta(seconds=min(FORM_TIMEOUT_S, self._timeout_s)),
            group_name=f"{self._name}-{record.number}",
            options=self.options,
            has_gloo=False,
        )
        group.set_timeout(timedelta(seconds=self._timeout_s))
        self.group = group
        return group

    def close_group(self, *, broken: bool) -> None:
        """Leave the group, if there is one; `broken`: at once, without waiting for other ranks."""
        group, self.group = self.group, None
        if group is not None:
            group.abort() if broken else group.shutdown()

    @property
    def store(self) -> c10d.Store:
        """The store, with a prefix of this training's; keys of one's own must not be those of this file."""
        return c10d.PrefixStore("program", self._store)

    @property
    def epoch_store_beside(self) -> c10d.Store:
        """The part of the store that belongs to the present epoch, over the connection that threads use."""
        return c10d.PrefixStore(f"state/{self.record.number}", self._beside)

    def ids(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """Numbers of processes by their ranks in the present epoch."""
        return tuple(self.record.members[rank] for rank in ranks)

    def _not_taken(self, notice: Notice, record: Record, waited: Wait) -> AdmissionError | HandoverError:
        waited_s = self._longest_s + self.patience.longest_s
        where = f"process {self.id} of training {self._name!r} waited {waited_s:g} s for the next meeting's members"
        if notice.epoch == record.number > 0 and notice.landed == NOTHING and not record.founding:
            return HandoverError(
                f"{where}, and nobody who is left holds the weights. Remedy: start the training anew, with another "
                "name or store, from a checkpoint"
            )
        return AdmissionError(
            f"{where}: {waited.why}. Remedy: see the output of the other processes; join_timeout_s is how long "
            "processes wait"
        )

    def _read(self, store: c10d.Store) -> tuple[str, Record, dict[int, Notice], dict[int, int]]:
        """The record as text and as an object, and notices and beats by process."""
        came = store.add("came", 0)
        record = record_of(store.get("record"))
        known = set(self._known)
        for each in range(max(0, came - MOST_OTHERS), came):
            if each not in known and store.check([f"notice/{each}", f"beat/{each}"]):
                known.add(each)
        others = sorted(known - set(record.members))[-MOST_OTHERS:]
        ids = sorted({*others, *(known & set(record.members)), *({self.id} if self.id in known else ())})
        self._known = ids
        keys = ["record", *(f"{kind}/{each}" for each in ids for kind in ("notice", "beat"))]
        text, *values = (value.decode() for value in store.multi_get(keys))
        notices = {each: notice_of(value) for each, value in zip(ids, values[::2], strict=True)}
        beats = {each: int(value) for each, value in zip(ids, values[1::2], strict=True)}
        return text, record_of(text), notices, beats

    def _beat(self) -> None:
        """Post a beat and read those of others, every BEAT_S; on a thread of its own."""
        count = 1
        while not self._closing.wait(BEAT_S):
            count += 1
            try:
                self._beside.set(f"beat/{self.id}", str(count))
                _, record, notices, beats = self._read(self._beside)
            except RuntimeError as error:
                log.warning("process %d: the store of %r is gone: %s", self.id, self._name, error)
                return
            now_s = time.monotonic()
            with self._lock:
                self._pulse.hear(now_s, beats)
                self.somebody_waits = record.number == self.record.number and any(
                    waits(each, record, self._pulse, now_s) for each in notices.values()
                )


def _check(founders: object, least: object) -> None:
    if not all(isinstance(each, int) and each >= 1 for each in (founders, least)):
        raise ConfigurationError(f"founders = {founders}, least = {least}; must be at least 1", "founders and least")


def _variable(name: str) -> str:
    text = os.environ.get(name)
    if not text:
        raise ConfigurationError(
            f"Members.from_environment: {name} is not set. Remedy: start the program with torchrun, or give Members a "
            "store"
        )
    return text


def _number(name: str) -> int:
    text = _variable(name)
    if not (text.isascii() and text.isdigit()):
        raise ConfigurationError(f"Members.from_environment: {name}={text!r} is no number. Remedy: correct it")
    return int(text)


@contextlib.contextmanager
def _asking(member: int) -> Iterator[None]:
    """Raise the store's errors as StoreSilentError."""
    try:
        yield
    except (ConfigurationError, StoreSilentError):
        raise
    except RuntimeError as error:
        raise StoreSilentError(
            f"process {member}: the store through which the members agree does not answer ({error}). Remedy: serve it "
            "by a process that stays, such as torchrun's agent; start this process again once it is back",
            ended=True,
        ) from error


def _stop_all() -> None:
    for each in list(_OPEN):
        each.stop()


at_end(_stop_all)
