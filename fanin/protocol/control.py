"""The control protocol: what workers and tools say to a switch's controller, and what it answers.

Rules of this file
------------------
* One message is one JSON object in one ZeroMQ frame: `{"fanin": VERSION, "type": "join", ...fields, "seal": {...},
  "tag": "..."}`. The client (DEALER) asks, the controller (ROUTER) answers; it may answer more than once, since a join
  takes a while.
* Every request is sealed: `seal` names the key (fanin/protocol/seal.py), the challenge that the controller drew for
  this connection and a number that grows with each request; `tag` comes last and is the keyed hash of all bytes before
  it. A request with another challenge is answered by `Challenge`, and sent again. Replies are sealed with the request's
  key, challenge and number; only `Challenge`, and refusals of what could not be understood, are not.
* `parse` is the only way from bytes to a message, and raises nothing but `ControlError`. It is strict: every field must
  be there with its exact type, none may be unknown, sizes are bounded and texts are printable
  (fanin/protocol/strict.py). Whether a value makes sense (is this rank taken?) is the controller's to judge, since
  its answer has a reason and a remedy.
* Facts that a message shares with a job's other records are fields of its bases in fanin/protocol/job.py. The order of
  a message's fields means nothing.
* `Refused` keeps its layout in every version, and is read from any version: a refusal for the version must be readable.

    client                         controller
    (anything, sealed without the challenge) -> Challenge
    Join  (again every JOIN_INTERVAL_S)  ->  Waiting: ranks are missing
                                   <-  Admitted: what the job is, and this rank's token      | Refused
    HELLO over the data path ...
    Join                           ->  Started: every rank's data path works               | Refused
    ... the job runs; control is silent, but for ...
    Spent (every SPENT_INTERVAL_S)  ->  Noted        (a rank's account of its time: `fanin top`, `fanin stats`)
    Join  (of a rank that was lost, in a job that goes on without) -> Admitted(running) ... Started
    Leave                          ->  Left          (BYE on the data path comes first; this is for what BYE cannot say)
    Ask                            ->  Stats         (`fanin stats`, `fanin doctor`)
    Enlist  (a leaf, for each Join) -> Relayed       (to a parent: docs/control.md)
    Attach  (a leaf, again and again) -> Attached    (the parent is there and no leaf itself)   | Refused
    Tune                           ->  Tuned         (K and S of a running job: `fanin tune`, Session.tune)  | Refused
    Explain                        ->  Explanation   (a worker whose job is gone asks what became of it)
    Regroup (again and again)      ->  Waiting: ranks have not said it
                                   <-  Regrouped: how a job over several shards goes on without some   | Refused
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import typing
from dataclasses import dataclass
from typing import Any, TypeAlias

from fanin.errors import FaninError
from fanin.protocol import strict
from fanin.protocol.job import Agreed, Asked, AskedRounds, JobRounds, Shape
from fanin.protocol.seal import TAG_BYTES, data_key, tag, tag_holds
from fanin.protocol.strict import MAX_TEXT_CHARACTERS
from fanin.protocol.tag_algorithm import SIPHASH, TagAlgorithm

VERSION = 5
"""Version of this protocol. A controller refuses every other one, with the reason."""
DEFAULT_PORT = 4919
"""0x1337: TCP for control and UDP for data."""
JOIN_INTERVAL_S = 0.5
"""A worker that waits repeats its Join this often, so that the controller knows that it still waits."""
JOIN_LEASE_S = 4.0
"""A waiting worker that is silent for this long is forgotten: eight repetitions."""
MAX_MESSAGE_BYTES = 1 << 16
"""Longest message a controller reads: a Join has about 500 bytes."""
SPENT_INTERVAL_S = 1.0
"""A rank tells how it has spent its time at most this often, where its engine counts that."""
SUCCESSOR = "~"
"""Separates, in the name of a job's successor, the job's own name from the number of the successor: 1, 2, ..."""
DECIDED_AT = "@"
"""Separates that number from the shard that has decided: if one dies, a second may decide, and not alike."""
NOBODY = -1
"""In `Regrouped.holders`: no rank has the result, so it is summed anew."""
MAX_REPLY_BYTES = 1 << 24
"""Longest message a client reads: Stats of a switch with very many jobs."""

Scheme: TypeAlias = str
"""The name of a row of fanin/schemes.py. A controller refuses one that it does not serve."""


class ControlError(FaninError):
    """Bytes that are no control message of this version. `version` is the other side's, where it could be read."""

    def __init__(self, text: str, version: int | None = None) -> None:
        super().__init__(text)
        self.version = version


class Refusal(str, enum.Enum):
    """Why a controller refuses. Values are on the wire: never rename."""

    VERSION = "version"
    MALFORMED = "malformed"
    SIZE = "size"
    RANK = "rank"
    RANK_TAKEN = "rank-taken"
    TOO_MANY_WORKERS = "too-many-workers"
    TOO_MANY_JOBS = "too-many-jobs"
    QUORUM = "quorum"
    STALENESS = "staleness"
    DISAGREEMENT = "disagreement"
    SCHEME = "scheme"
    SHAPE = "shape"
    MEMORY = "memory"
    JOIN_TIMEOUT = "join-timeout"
    MEMBER_LOST = "member-lost"
    EVICTED = "evicted"
    """The rank was taken out of the job at this switch, and may be a member at others (Regroup)."""
    UNKNOWN_JOB = "unknown-job"
    PARENT = "parent"
    KEY = "key"
    QUOTA = "quota"
    DEVICE_GONE = "device-gone"
    """Said, unasked, by a controller whose device is gone, before it ends."""
    INTERNAL = "internal"


UNSEALED = frozenset((Refusal.VERSION.value, Refusal.MALFORMED.value, Refusal.KEY.value, Refusal.INTERNAL.value))
"""Refusals that may come without a seal, since the request had no seal that holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predecessor:
    """The job that a new job succeeds, and the ranks that go on (see Regrouped)."""

    job: str
    """Name of the job before."""
    ranks: tuple[int, ...]
    """Rank in the job before of each rank of the new job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Asked, AskedRounds):
    """Request of a worker to be `rank` of `job`, with its abilities and wishes; None lets the controller choose."""

    job: str
    rank: int
    size: int
    nonce: str
    """Chosen at random by the worker: tells a repetition from another process that wants the same rank."""
    wire_version: int
    """Version of the sender's wire format (fanin.protocol.wire.VERSION)."""
    software: str
    """The sender's fanin.__version__, for people."""
    process: str
    """`host:pid`, for people."""
    scheme: Scheme
    path_mtu: int
    """Bytes that one IP packet towards the switch can have, as far as the worker's own machine knows."""
    receive_buffer_bytes: int
    """Receive buffer that the system grants a socket of this worker."""
    shards: int = 1
    """Switches that the job is spread over, for people."""
    share: float = 1.0
    """Part of a large sum that comes to this switch, and so of the window that this worker's switches share."""
    checksum: bool = False
    exposed: bool = False
    """Whether packets of this rank leave its machine, and nothing else protects them."""
    tags: tuple[str, ...] = (SIPHASH,)
    """Algorithms of keyed tags (fanin/protocol/tag_algorithm.py) that this rank takes and its leaf, if it has one, can
    compute. Unknown names are passed over."""
    accumulators: bool | None = False
    """Whether this rank needs an accumulator for each lane at the switch (JobSpec.accumulators). None: it can use
    them."""
    succeeds: Predecessor | None = None
    """The job before, if its ranks have agreed to go on as this one: ranks that the switch misses there are not waited
    for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Your place is kept; these ranks have not asked yet (or, once there are none, not reached the data path)."""

    job: str
    missing: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Placement(Shape):
    """Facts of an admitted job for one of its workers, and where its data goes."""

    __slots__ = ()

    index: int
    generation: int
    token: int
    """Token of this worker, 64 bits."""
    ports: tuple[int, ...]
    """UDP ports, one per flow."""
    liveness_timeout_s: float
    authenticate: bool = False
    """Whether packets carry a keyed tag: its key is derived from the one that this message is sealed with."""
    tag_algorithm: TagAlgorithm = SIPHASH
    """Algorithm of that tag."""

    def data_key(self, control_key: bytes) -> bytes:
        """Derive the job's data key from its control key; empty where packets carry no keyed tag."""
        return data_key(control_key, self.index, self.generation, self.tag_algorithm) if self.authenticate else b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted(Agreed, JobRounds, Placement):
    """The job is on the switch: what fanin.protocol.job.JobSpec says of it, and where the data goes."""

    job: str
    rank: int
    workers: int
    scheme: Scheme
    shared_memory: tuple[str, ...] = ()
    """Paths, one per flow, where a worker on the switch's own machine finds rings for its datagrams; none if empty."""
    ranks: tuple[int, ...] = ()
    """At a leaf of a tree: the ranks that are its workers 0, 1, ...; empty where the worker's number is its rank."""
    total_workers: int | None = None
    """At a leaf of a tree: the ranks at all leaves, which lanes are sized for."""
    running: bool = False
    """Whether the job runs already, and this rank comes into a place that is free."""
    data_host: str = ""
    """Address for data, of a switch that this controller programs from outside; empty: the controller's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Every rank's data path works."""

    job: str
    processes: tuple[str, ...]
    """`host:pid` of every rank, for errors that name one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """No: why, and what to do about it. Same layout in every version of this protocol."""

    code: str
    """A `Refusal`, or one that a later version knows."""
    reason: str
    remedy: str
    ranks: tuple[int, ...] = ()
    """The ranks it is about: missing ones, lost ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """Say that again, sealed with this: no request is taken that was recorded on another connection."""

    challenge: str
    key: str
    """Fingerprint that the request named."""
    known: bool
    """Whether the controller has that key; where it has not, the key must be disclosed."""
    closed: bool
    """Whether the controller takes no keys but those that it was started with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enlist:
    """A leaf to its parent: one of my ranks says Join."""

    leaf: str
    """Chosen at random by the leaf: tells it from others, and from itself after a restart."""
    address: str
    """`udp://host:port` of the leaf, for people."""
    join: Join
    """The rank's Join, bounded by the path from the leaf to its parent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach:
    """A leaf to its parent: are you there, and am I a leaf of yours?"""

    leaf: str
    """The leaf's name, as in Enlist."""
    address: str
    """The leaf's address, as in Enlist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """Yes. The other answer is Refused."""

    leaf: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed(Placement):
    """The job is on the parent: who the leaf is there, and what its own part must look like."""

    branch: int
    ranks: tuple[int, ...]
    """The ranks at this leaf, ascending: its workers 0, 1, ..."""
    size: int
    """Ranks at all leaves: what lanes are sized for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relayed:
    """A parent to its leaf: what to do with one of its ranks, or to tell it. One of the last four fields is set."""

    job: str
    rank: int
    waiting: Waiting | None = None
    placed: Placed | None = None
    started: Started | None = None
    refused: Refused | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """I am done with the job; `reason` is for the others, empty when all is well."""

    job: str
    rank: int
    nonce: str
    reason: str = ""
    lost: bool = False
    """Whether a leaf says this to its parent for a rank that is lost."""
    own: bool = False
    """Whether the reason is the rank's own, not that others are lost: then the other ranks are told it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The switch has taken the rank's Leave in."""

    job: str
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explain:
    """My packets are refused: what became of this job?"""

    job: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """`known` is whether the controller remembers the job; `text` what became of it; lost and left: ranks."""

    known: bool
    text: str
    lost: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    gave_up: str = ""
    """The rank that gave the job up for a reason of its own, with the reason, in words."""
    generation: int = 0
    """Generation in the question, by which a leaf knows whose question to its parent this answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regroup:
    """My job is spread over several switches, this is one of them, and others are lost: who is left, and how far?"""

    job: str
    rank: int
    nonce: str
    """The nonce of the rank's Join."""
    shard: int
    """The number of the switch that is asked."""
    lost: tuple[int, ...]
    """Numbers of the shards that this rank has lost."""
    dead: tuple[int, ...]
    """Shards among them that are known to have died, since nothing listens at their ports any more."""
    members: tuple[int, ...]
    """Ranks that some shard still has, of those that this rank has not lost, as far as it knows."""
    first: int
    """The first reduction that is not done here."""
    last: int
    """The last reduction that was submitted here."""
    done: tuple[int, ...] = ()
    """Reductions in between that are done here, as ranges: first, last, first, last, ..."""
    held_back: tuple[int, ...] = ()
    """Reductions in between, as ranges, whose sums have come and are not done: they lack a rank that some shard may
    have."""
    decided: Regrouped | None = None
    """The decision of another switch, which is lost since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regrouped:
    """The ranks go on as the workers of another job, at the shards that none of them has lost."""

    job: str
    successor: str
    """Name of that other job."""
    ranks: tuple[int, ...]
    """Ranks that are left; worker i of the successor is ranks[i]."""
    lost: tuple[int, ...]
    """Numbers of the shards that are left out."""
    dead: tuple[int, ...]
    """Shards among them that any rank knows to have died."""
    first: int
    """Reductions before this one are done by all."""
    again: tuple[int, ...] = ()
    """Reductions from `first` on that some rank has submitted, and that no rank has done or some rank lacks."""
    holders: tuple[int, ...] = ()
    """For each of `again`, a rank that has done it, and whose result counts; NOBODY: none has, so it is summed anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A question for the switch's statistics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tune:
    """Let the rounds of a running job close under another K or S; None leaves that one as it is."""

    job: str
    quorum: int | None = None
    staleness: int | None = None
    index: int | None = None
    """Index of the job at the switch, where an operator means one of several jobs of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned(JobRounds):
    """The conditions under which the job's rounds close from here on.

    K is as asked for; no more than there are live workers are ever waited for.
    """

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """How a rank has spent its time since it joined, by its own account. Microseconds, all of which only grow."""

    age_us: int
    """The whole time since it joined."""
    communicating_us: int
    """Time for which a sum was under way; the rest is computing."""
    quantizing_us: int
    """Processor time, over all threads, for making packets."""
    sending_us: int
    """Processor time, over all threads, in sending system calls."""
    decoding_us: int
    """Processor time, over all threads, for results that came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """How the rank has spent its time so far."""

    job: str
    rank: int
    nonce: str
    """The nonce of its Join."""
    spending: Spending


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """The account has come."""

    job: str
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReport:
    """One rank of one job. States: missing, waiting, joined, registered, lost, left."""

    rank: int
    process: str
    state: str
    counters: dict[str, int] = dataclasses.field(default_factory=dict)
    """Counts of this rank alone (switch/machine/member_tally.py); empty for one behind a leaf, and at a target that
    counts by job only."""
    spending: Spending | None = None
    """The rank's own account, as of up to SPENT_INTERVAL_S ago; None where its engine keeps none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport(Agreed, JobRounds):
    """One job. States: forming (ranks are missing), starting (data paths open), running, ending (a rank is gone)."""

    name: str
    state: str
    index: int | None
    """None while it forms."""
    generation: int | None
    scheme: Scheme
    size: int
    slots: int
    words_per_packet: int
    flows: int
    memory_bytes: int
    """Memory of the switch that the job holds, its rings in shared memory included."""
    ring_bytes: int
    """Bytes of the job's rings; 0 if it has none."""
    wanted_ring_bytes: int
    """Bytes of rings that the job would use; if they were not free at its admission, it has none and uses sockets."""
    age_s: float
    members: tuple[MemberReport, ...]
    counters: dict[str, int]
    key: str = ""
    """Fingerprint of the key that its ranks speak with."""
    authenticated: bool = False
    """Whether its packets carry keyed tags."""
    tag_algorithm: TagAlgorithm = SIPHASH
    """Algorithm of these tags."""
    accumulators: bool = False
    """Whether it has an accumulator for each lane, for wide sums."""
    shards: int = 1
    """Switches that the job is spread over, this one included."""
    share: float = 1.0
    """Part of a large sum that comes to this switch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReport:
    """One data server of the switch."""

    scheme: Scheme
    description: str
    ports: tuple[int, ...]
    counters: dict[str, int]
    tags: tuple[str, ...] = (SIPHASH,)
    """Algorithms of keyed tags that it computes, the preferred one first; none for a pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentReport:
    """A leaf's view of its parent. States: unknown (so far), answers, silent, refuses."""

    address: str
    state: str
    text: str
    """The state in words, with both addresses."""
    silent_s: float
    """Seconds since the parent was last heard, or since the leaf started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Everything that `fanin stats` shows."""

    software: str
    wire_version: int
    engine: str
    """`native`, or `twin` and why."""
    uptime_s: float
    memory_bytes: int
    """0: no limit of the controller's; the device says when it has room for no more."""
    memory_used_bytes: int
    curve: bool
    data: tuple[DataReport, ...]
    jobs: tuple[JobReport, ...]
    refused: dict[str, int]
    """Refusals so far by code."""
    parent: ParentReport | None = None
    """A leaf's view of its parent; None if this is no leaf."""
    job_count: int = 0
    """Jobs that some worker takes part in or waits for, whoever asks."""
    operator: bool = True
    """Whether `jobs` has all of them: with the switch's own key. Otherwise it has those of the key that asks."""


Request = Join | Leave | Explain | Regroup | Ask | Tune | Enlist | Attach | Spent
Reply = (
    Waiting | Admitted | Started | Refused | Left | Explanation | Regrouped | Stats | Tuned | Relayed | Attached
    | Challenge | Noted
)  # fmt: skip
Message = Request | Reply

_TYPES: dict[str, type[Any]] = {kind.__name__.lower(): kind for kind in typing.get_args(Message)}
_ENVELOPE = ("fanin", "type", "seal", "tag")
_TAIL = re.compile(rb',"tag":"([0-9a-f]{%d})"}' % (2 * TAG_BYTES))
_TAIL_BYTES = len(',"tag":""}') + 2 * TAG_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """Facts that a keyed hash covers besides the message."""

    key: str
    """Fingerprint of the key."""
    challenge: str
    """The controller's, for this connection; empty as long as it is not known."""
    number: int
    """Grows with every request of the connection, from a random beginning; a reply has that of the last request."""
    disclosed: str | None = None
    """The key itself, for a controller that does not know it."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """A message as it came, with its seal, which `holds` checks."""

    message: Message
    seal: Seal | None
    covered: bytes
    """The bytes under the keyed hash."""
    tag: bytes

    def holds(self, key: bytes) -> bool:
        """Whether the keyed hash is the one that `key` gives."""
        return tag_holds(key, self.covered, self.tag, reply=not isinstance(self.message, Request))


def successor_of(job: str, shard: int) -> str:
    """Name of the job that succeeds `job`, as decided by `shard`: `j~1@0`, `j~2@3`, ..."""
    name, _, tail = job.rpartition(SUCCESSOR)
    number = tail.partition(DECIDED_AT)[0]
    name, number = (name, number) if name and number.isdigit() else (job, "0")
    return f"{name}{SUCCESSOR}{int(number) + 1}{DECIDED_AT}{shard}"


def one_line(text: str) -> str:
    """`text` as a message may carry it: printable, on one line, no longer than the limit."""
    # Nearly every text is printable as it is, and a switch under a flood writes thousands of them.
    line = text if text.isprintable() else "".join(letter if letter.isprintable() else " " for letter in text)
    return line if len(line) <= MAX_TEXT_CHARACTERS else line[: MAX_TEXT_CHARACTERS - 3] + "..."


def to_bytes(message: Message, version: int = VERSION, *, seal: Seal | None = None, key: bytes = b"") -> bytes:
    """The frame that carries `message`, sealed if a `seal` is given. `version` is for tests between versions."""
    body = {"fanin": version, "type": type(message).__name__.lower(), **_fields(message)}
    if seal is not None:
        body["seal"] = seal
    data = json.dumps(body, allow_nan=False, separators=(",", ":"), default=_fields).encode()
    if seal is None:
        return data
    covered = data[:-1]
    return b'%b,"tag":"%b"}' % (covered, tag(key, covered, reply=not isinstance(message, Request)).hex().encode())


def _fields(record: Any) -> dict[str, Any]:
    """A message, or a record in one, as JSON has it. Not asdict, which copies everything deeply first."""
    return {name: getattr(record, name) for name in record.__slots__}


def parse(data: bytes, limit_bytes: int = MAX_MESSAGE_BYTES) -> Message:
    """Read one frame, whoever sealed it; ControlError for anything that is not exactly a message of this version (or a
    refusal)."""
    return read(data, limit_bytes).message


def read(data: bytes, limit_bytes: int = MAX_MESSAGE_BYTES) -> Sealed:
    """Read one frame with its seal, which is not checked; ControlError as for `parse`."""
    if len(data) > limit_bytes:
        raise ControlError(f"{len(data)} bytes; a control message has at most {limit_bytes}")
    try:
        body = strict.load_json(data)
        message = _read_message(body)
        assert isinstance(body, dict)
        if body["fanin"] != VERSION or ("seal" not in body and "tag" not in body):
            return Sealed(message, None, data, b"")
        if not isinstance(body.get("seal"), dict) or (tail := _TAIL.fullmatch(data[-_TAIL_BYTES:])) is None:
            raise ControlError("a seal without a tag at its end")
        seal = strict.read_message(body["seal"], Seal, "seal")
        return Sealed(message, seal, data[:-_TAIL_BYTES], bytes.fromhex(tail[1].decode()))
    except strict.RecordError as error:
        raise ControlError(str(error)) from None


def _read_message(body: object) -> Message:
    if not isinstance(body, dict) or type(version := body.get("fanin")) is not int:
        raise ControlError("not a fanin control message: no object with an integer `fanin`")
    name = body.get("type")
    if name == "refused" and version != VERSION:
        known = {field.name for field in dataclasses.fields(Refused)}
        return strict.read_message({key: value for key, value in body.items() if key in known}, Refused, "refused")
    if version != VERSION:
        raise ControlError(f"control protocol version {version}; this side speaks {VERSION}", version)
    if not isinstance(name, str) or name not in _TYPES:
        raise ControlError(f"unknown message type {strict.shown(name)}")
    message = strict.read_message({key: body[key] for key in body if key not in _ENVELOPE}, _TYPES[name], name)
    return typing.cast("Message", message)
