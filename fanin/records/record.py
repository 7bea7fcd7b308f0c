"""The record of a run: what `fanin emulate` and `fanin bench` write as JSON, and what the report draws.

Rules
-----
* Times are seconds since the start of the run, on one clock for all workers (they are on one machine, or their clocks
  were aligned).
* Whoever writes a record fills in what was measured. A part that was not measured is empty or None, never invented.
* A record is read strictly: an unknown or missing field, or one of another type, is a ConfigurationError. A reader
  takes its own `VERSION` only.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fanin import files
from fanin.errors import ConfigurationError, FaninError
from fanin.protocol import strict
from fanin.records.dataclass_files import load_json, read_dataclass

VERSION = 1
PROCESSORS_BUSY, LINKS_BUSY = 0.9, 0.9
"""Shares of busy time from which on processors, or links, count as the limit of a measurement."""
MAX_SPANS = 20_000
"""Spans of one worker. A longer run keeps the first ones and says so in `notes`."""

Kind = Literal["emulate", "bench", "compose", "demo", "job", "comparison"]
Activity = Literal["compute", "quantize", "send", "wait"]
Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One stretch of a worker's time line."""

    activity: Activity
    """compute: between communication. quantize: making packets out of gradients. send: words are on their way out.
    wait: all is sent, results are not in."""
    start_s: float
    end_s: float
    step: int | None = None
    """Optimizer steps finished before it; None for a program without an optimizer."""
    bytes: int = 0
    """Bytes of the tensors concerned; 0 for compute."""
    waited_for: tuple[int, ...] = ()
    """Ranks whose contributions came last while this worker waited, the most frequent one first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """One worker of the run."""

    rank: int
    place: str
    """Place of the process: a namespace, a container."""
    outcome: str
    """`finished`, or how it ended otherwise, for people."""
    slowdown: float = 1.0
    """How much slower than the others it was made."""
    spans: tuple[Span, ...] = ()
    counters: dict[str, float] = dataclasses.field(default_factory=dict)
    """The engine's counters at the end: packets_out, bytes_out, retransmissions, gaps, timeouts, srtt_us, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSample:
    """Counters of a link at one moment; all grow from 0 at the start of the run."""

    time_s: float
    up_bytes: int
    """From the worker (or the lower switch) into the switch, with Ethernet, IP and UDP headers."""
    down_bytes: int
    dropped: int = 0
    """Frames that the link lost, on purpose (loss) or because its queue was full, both ways together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRecord:
    """One link and what went over it."""

    name: str
    """`worker 3`, `rack 1`."""
    rate_bit_s: float | None
    """Rate of the link each way; None for no limit."""
    delay_s: float = 0.0
    """Delay in one direction, in seconds."""
    loss: float = 0.0
    """Probability per frame and direction."""
    mtu: int = 1500
    samples: tuple[LinkSample, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchSample:
    """A switch's counters (as `fanin stats` names them) at one moment."""

    time_s: float
    counters: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchRecord:
    """One switch of the run."""

    name: str
    target: str
    """native, python, p4, bmv2."""
    description: str = ""
    samples: tuple[SwitchSample, ...] = ()
    last_arrivals: dict[str, int] = dataclasses.field(default_factory=dict)
    """By rank: how often it was the last to contribute to a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One report of a training program (a JSON object on its standard output)."""

    time_s: float
    rank: int
    epoch: int | None = None
    step: int | None = None
    loss: float | None = None
    accuracy: float | None = None
    """0..1, on the test set."""
    step_s: float | None = None
    """Median time of a step."""
    communication_s: float | None = None
    label: str = ""
    """Name of the run that the point belongs to; empty where there is only one run."""
    group: str = ""
    """Name of the runs that are compared with each other: every group has axes of its own. Empty where there is only
    one.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to the cluster: a fault injected, a process that ended, a message."""

    time_s: float
    kind: Literal["fault", "end", "note"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a benchmark's table."""

    backend: str
    """Name of the backend: fanin, gloo, mpi-tcp."""
    lanes: int
    """Bits per element on the wire."""
    workers: int
    bytes: int
    """Bytes of float32 per worker."""
    rate_bit_s: float | None
    """Rate of every link, each way."""
    measures: Literal["allreduce", "step"]
    """Meaning of `median_s`: one all-reduce, or a whole training step."""
    median_s: float
    fastest_s: float
    slowest_s: float
    samples: int
    ideal_s: float | None
    """Time that the links alone need: bytes with all headers over the rate. None for whole steps."""
    ratio_to_gloo: float | None
    """gloo's median time over this row's."""
    max_error: float | None
    """Largest error relative to the largest contribution; None where it is not defined."""
    retransmissions: int | None = None
    """Packets sent again during all samples, all workers together; None for rivals."""
    switch: str = ""
    """Place of fanin's switch, in words; empty if it was not noted."""
    ranks_per_host: int = 1
    processor: float | None = None
    """Share of the machine's processors that was busy while this was timed, 0..1; None: not known."""

    @property
    def processor_bound(self) -> bool:
        """Whether this machine's processors, and not the links, set the time: they were busy, and links were not."""
        links_were_busy = self.ideal_s is not None and self.ideal_s >= LINKS_BUSY * self.median_s
        return self.processor is not None and self.processor >= PROCESSORS_BUSY and not links_were_busy


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One figure that stands beside others of its kind: a bar."""

    plot: str
    """Title of the plot that the quantity belongs to: all quantities of one plot have one unit."""
    name: str
    """Name of the owner, such as a worker."""
    value: float | None
    """None: it was measured without a result (a target that was not reached)."""
    unit: Literal["s", "bit/s", "share"]
    group: str = ""
    """Condition under which it was measured; every group has axes of its own."""
    limit: float | None = None
    """A bound or a target, drawn as a dashed line; `caption` says which."""
    caption: str = ""
    """Caption of the plot; that of its first quantity is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Everything about one run."""

    version: int
    kind: Kind
    title: str
    command: str
    started: str
    """Start of the run: ISO 8601, UTC."""
    duration_s: float
    outcome: Literal["finished", "failed", "interrupted"]
    error: str = ""
    """Why it failed, as the first failing worker said."""
    software: str = ""
    """fanin's version during the run."""
    kernel: str = ""
    machine: str = ""
    """Processor and number of cores, for people."""
    settings: dict[str, Scalar] = dataclasses.field(default_factory=dict)
    """The scenario, flat, by option name."""
    workers: tuple[WorkerRecord, ...] = ()
    links: tuple[LinkRecord, ...] = ()
    switches: tuple[SwitchRecord, ...] = ()
    progress: tuple[Progress, ...] = ()
    events: tuple[Event, ...] = ()
    rows: tuple[Row, ...] = ()
    quantities: tuple[Quantity, ...] = ()
    notes: tuple[str, ...] = ()
    """Remarks that a reader needs: data that was cut off, conditions that could not be emulated."""

    def write(self, path: Path) -> None:
        """Write the record as JSON. FaninError if the file cannot be written; it names the temporary file that has the
        record.
        """
        text = json.dumps(dataclasses.asdict(self), indent=1) + "\n"
        try:
            files.write(path, text, "the record")
        except FaninError as error:
            raise type(error)(f"{error}. {_kept_elsewhere(text)}") from None

    @classmethod
    def read(cls, path: Path) -> RunRecord:
        """Read what `write` wrote; ConfigurationError says what is wrong with it."""
        return parse(load_json(path, "the record"))


def _kept_elsewhere(text: str) -> str:
    try:
        descriptor, path = tempfile.mkstemp(prefix="fanin-record-", suffix=".json")
        os.close(descriptor)
        try:
            files.put(Path(path), text.encode())
        except OSError:
            os.unlink(path)
            raise
    except OSError as error:
        return f"It is lost: {tempfile.gettempdir()} cannot be written to, either ({error.strerror})"
    return f"It is in {path}"


def parse(body: object) -> RunRecord:
    """A record from what `json.loads` made of it; ConfigurationError names the field that is wrong."""
    if not isinstance(body, dict) or "version" not in body:
        raise ConfigurationError("no record of a run: no object with a field 'version'. Remedy: see --record")
    version = body["version"]
    if type(version) is not int:
        raise ConfigurationError(
            f"record.version = {strict.shown(version)}; expected a whole number. "
            "Remedy: take a record as `--record` writes it"
        )
    if version != VERSION:
        raise ConfigurationError(
            f"a record of version {version}; this fanin reads version {VERSION}. Remedy: read it with the fanin that "
            "wrote it"
        )
    return read_dataclass(body, RunRecord, "record")
