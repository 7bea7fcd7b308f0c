"""The latest collectives of a rank, as torch's flight recorder has those of NCCL: what was called, and how far it is.

`Options.flight_recorder` names the files that get them, `PREFIX` and the rank, in the format of torch's own recorder
(torch/csrc/distributed/c10d/FlightRecorder.hpp, version 2.10), which `torchfrtrace` reads: from the files of all ranks
it names the collective that not all of them called, or called alike. torch's own recorder is reached from C++ alone.

Rules
-----
* Every collective is recorded at its call, by `named_ranges` (profiler_ranges.py), and never asked for again until its
  wait ends, or somebody wants a dump. A record holds no tensor, and its handle by a weak reference.
* Each group has a ring of its own, so that a busy group pushes out no record of another. Numbers of records count
  through all groups of a rank, so a rank's records are ordered.
* A dump is written when a collective raises, when the watch thread learns that a rank or the switch is lost, also where
  the job goes on without it, and when a rank's last group ends without either, since the ranks that did nothing wrong
  are needed for a comparison. The end of the last group does not overwrite a dump that followed a failure.
* Writing never raises where a collective fails: the log has a line instead.
* `Options.otel` makes spans of the same records, when they end (fanin/watching/telemetry.py), and of optimizer steps.

| state | meaning |
|---|---|
| scheduled | the call was refused: nothing was started |
| started | the call was made, and its result has not come |
| completed | the result is there |
"""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import socket
import sys
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d
from torch.optim.optimizer import register_optimizer_step_post_hook

from fanin import __version__, files
from fanin.errors import ArgumentError, ConfigurationError, FaninError, UnsupportedError
from fanin.host.session.outputs import flight_recorder_file
from fanin.host.torch.handles.nonfinite import STEPS
from fanin.host.torch.handles.timeouts import Timeout, at_present
from fanin.host.torch.handles.work import FaninWork
from fanin.options import Options
from fanin.watching.telemetry import Telemetry

log = logging.getLogger("fanin")

FORMAT = "2.10"
"""Version of torch's format: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/distributed/c10d/FlightRecorder.hpp"""
READ_AS = "gloo"
"""Backend that dumps name: torch's analyzer refuses unknown ones, and gloo's collectives take what ours do."""
SIZE_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""torch's variables of how many collectives are kept; the first that is set counts, 0 keeps none."""
DEFAULT_SIZE = 2000
"""Number that torch's recorder keeps where no variable says another."""
MAX_GROUPS = 256
"""Groups whose rings are kept; beyond these the oldest ring is dropped."""
MAX_FRAMES = 32
"""Frames of a call that are kept, from its caller outwards."""
PEERS = ("send", "recv")
REDUCING = ("all_reduce", "reduce")
"""Beginnings of the names of collectives whose floating point tensors travel in lanes."""
ANALYZER_NAMES = {
    "all_reduce_coalesced": "allreduce_coalesced",
    "all_gather_coalesced": "ALLGATHER_coalesced",
    "all_gather_into_tensor": "_all_gather_base",
    "reduce_scatter_tensor": "_reduce_scatter_base",
}
"""The analyzer's names of collectives (flight_recorder/components/types.py) by ours, where they differ."""
LISTS = {"all_gather": "all_gather_v", "reduce_scatter": "reduce_scatter_v"}
"""Collectives of lists, which the analyzer wants as one tensor, and their names where parts differ."""
OURS = str(Path(__file__).parents[1]) + os.sep
"""Prefix of the file names of our own frames, which dumps leave out."""

Shape = tuple[torch.Size, torch.dtype]


class Record:
    """One collective, send or receive of one group at this rank. Times are time.time_ns()."""

    __slots__ = (
        "collectives", "completed_ns", "created_ns", "frames", "group_timeout", "inputs", "lanes", "messages", "name",
        "number", "outputs", "peer", "refused", "ring", "thread", "work",
    )  # fmt: skip

    def __init__(
        self, ring: Ring, number: int, counts: tuple[int, int], name: str, inputs: list[Shape], outputs: list[Shape],
        peer: int, timeout: Timeout, lanes: int | str | None,
    ) -> None:  # fmt: skip
        """`number`: among all records of the rank, from 0. `counts`: the group's collectives and messages so far, this
        one included. `peer`: the other rank of a send or receive, else -1. `timeout`: the group's. `lanes`: those of
        this call alone, or None."""
        self.ring, self.number, self.name, self.lanes = ring, number, name, lanes
        self.collectives, self.messages = counts
        self.inputs, self.outputs, self.peer = inputs, outputs, peer
        self.group_timeout = timeout
        self.created_ns = time.time_ns()
        self.completed_ns: int | None = None
        self.refused = False
        self.work: weakref.ref[FaninWork] | None = None
        self.frames: list[tuple[CodeType, int]] = _frames()
        self.thread = threading.current_thread().name

    def begun(self, work: FaninWork) -> None:
        """The call has returned this handle."""
        if work.arrived():
            self.complete()
        else:
            self.work = weakref.ref(work)
            work.record = self

    def ended(self, error: BaseException) -> None:
        """The call has raised."""
        self.refused = isinstance(error, ArgumentError | UnsupportedError)
        self.failed(error)

    def failed(self, error: BaseException) -> None:
        """The call, or a wait, has raised. A result may still come."""
        self.ring.tell(self, error)

    def complete(self) -> None:
        """The result is known to have come; later calls have no effect."""
        if self.completed_ns is None:
            self.completed_ns = time.time_ns()
            self.ring.tell(self, None)

    def poll(self) -> None:
        """Find out, without waiting, whether the result has come."""
        work = None if self.work is None else self.work()
        if self.completed_ns is None and work is not None and work.arrived():
            self.complete()

    @property
    def state(self) -> str:
        """The state by torch's name; see the table above."""
        if self.completed_ns is not None:
            return "completed"
        return "scheduled" if self.refused else "started"

    @property
    def timeout_s(self) -> float:
        """The timeout of the collective's handle, if that still exists, else the group's."""
        work = None if self.work is None else self.work()
        return at_present(self.group_timeout) if work is None else work.timeout_s


class Ring:
    """The latest collectives of one group at this rank."""

    def __init__(self, recorder: FlightRecorder, number: int, rank: int, global_ranks: Sequence[int]) -> None:
        """`number`: of the group among those of this rank. `rank`: this one's in the group."""
        self.recorder = recorder
        self.number, self.rank, self.global_ranks = number, rank, list(global_ranks)
        self.name, self.description = "", "undefined"
        self.job_name, self.lanes = "", ""
        """The group's job at the switch, if it has one, and the lanes of its options."""
        self._records: deque[Record] = deque(maxlen=recorder.size)
        self._counts = (0, 0)
        """How many collectives, and how many sends and receives, there were."""

    def begin(
        self, name: str, paired: bool, given: Sequence[Any], timeout: Timeout, lanes: int | str | None = None
    ) -> Record:
        """Note that a collective is called. `paired`: whether its tensors are outputs, and then inputs. `lanes`: those
        of this call alone."""
        outputs = list(_tensors(given[0])) if given and name != "barrier" else []
        inputs = list(_tensors(given[1])) if paired and len(given) > 1 else outputs
        collectives, messages = self._counts
        peer = -1
        if name in PEERS:
            peer = given[1] if len(given) > 2 else self.rank  # a receive from any source has no known peer
            messages += 1
        else:
            collectives += 1
        self._counts = collectives, messages
        number = next(self.recorder.numbers)
        record = Record(self, number, self._counts, name, inputs, outputs, peer, timeout, lanes)
        self._records.append(record)
        return record

    def tell(self, record: Record, error: BaseException | None) -> None:
        """Make a span of a collective that has ended, with `error` if it failed; nothing without `Options.otel`."""
        telemetry = self.recorder.telemetry
        if telemetry is None:
            return
        attributes: dict[str, str | int] = {
            "fanin.job": self.job_name,
            "fanin.group": self.name,
            "fanin.rank": self.rank,
            "fanin.ranks": len(self.global_ranks),
            "fanin.collective": record.messages if record.name in PEERS else record.collectives,
            "fanin.bytes": sum(shape.numel() * dtype.itemsize for shape, dtype in record.inputs),
            "fanin.dtype": ", ".join(sorted({_dtype(dtype) for _, dtype in record.inputs})),
        }
        if record.name.startswith(REDUCING):
            attributes["fanin.lanes"] = str(self.lanes if record.lanes is None else record.lanes)
        telemetry.collective(record.name, record.created_ns, record.completed_ns or time.time_ns(), attributes, error)

    @property
    def newest(self) -> int:
        """Number of the record that was made last; -1 where there is none."""
        try:
            return self._records[-1].number
        except IndexError:
            return -1

    def records(self) -> list[Record]:
        """The kept records, oldest first, with their states brought up to date."""
        kept = list(self._records)
        for record in kept:
            record.poll()
        return kept

    def entry(self, record: Record) -> dict[str, Any]:
        """A record in torch's format."""
        name, inputs, outputs = _as_analyzed(record)
        is_peer, done = name in PEERS, record.completed_ns
        if is_peer:
            name += f" {self.rank}{'->' if name == 'send' else '<-'}{record.peer}"
        return {
            "record_id": record.number,
            "pg_id": self.number,
            "process_group": (self.name, self.description),
            "collective_seq_id": record.collectives,
            "p2p_seq_id": record.messages,
            "op_id": record.number,
            "profiling_name": f"{READ_AS}:{name}",
            "time_created_ns": record.created_ns,
            "duration_ms": None if done is None else (done - record.created_ns) / 1e6,
            "input_sizes": inputs,
            "input_dtypes": [_dtype(dtype) for _, dtype in record.inputs],
            "output_sizes": outputs,
            "output_dtypes": [_dtype(dtype) for _, dtype in record.outputs],
            "state": record.state,
            "time_discovered_started_ns": None if record.refused else record.created_ns,
            "time_discovered_completed_ns": done,
            "retired": record.work is None or record.work() is None,
            "timeout_ms": round(record.timeout_s * 1000),
            "is_p2p": is_peer,
            "frames": [_frame(*frame) for frame in record.frames if not frame[0].co_filename.startswith(OURS)],
            "thread_id": "",
            "thread_name": record.thread,
        }  # fmt: skip

    def status(self, records: Sequence[Record]) -> dict[str, str]:
        """The last collectives by state, in torch's format."""
        collectives = [record for record in records if record.name not in PEERS]
        completed = max((record.collectives for record in collectives if record.state == "completed"), default=-1)
        last = self._counts[0] or -1
        return {
            "last_enqueued_collective": str(last),
            "last_started_collective": str(last),
            "last_completed_collective": str(completed),
        }


class FlightRecorder:
    """The rings of all groups of one rank of a process, and their file."""

    def __init__(self, prefix: str | None, rank: int, size: int, *, otel: bool = False) -> None:
        """`prefix`: of the file's path, before the rank among all ranks; None: no file but on request. `size`:
        collectives of a group that are kept. `otel`: whether spans are made of them.

        ConfigurationError where there is no such folder, or it cannot be written.
        """
        self.path = None if prefix is None else flight_recorder_file(prefix, rank)
        self.size = size
        self.numbers = itertools.count()
        self.telemetry: Telemetry | None = None
        """The maker of spans, where they are wanted, while there is a group."""
        self._rank, self._otel = rank, otel
        self._hook: Any = None
        self._step = 0
        self._rings: OrderedDict[str, Ring] = OrderedDict()
        """Rings by name of the group: a later group of the same name replaces the ring."""
        self._ring_numbers = itertools.count()
        self._open = 0
        self._lock = threading.Lock()
        """The lock of the rings and of the file."""
        self._told_at: int | None = None
        """The newest record of the last dump that followed a failure."""

    def ring(self, rank: int, global_ranks: Sequence[int]) -> Ring:
        """A ring for a group that is made now; `named` brings it into dumps."""
        with self._lock:
            if self._otel and self.telemetry is None:
                self._observe()
            self._open += 1
            return Ring(self, next(self._ring_numbers), rank, global_ranks)

    def _observe(self) -> None:
        self.telemetry = Telemetry(
            {"service.instance.id": str(self._rank), "host.name": socket.gethostname(), "process.pid": os.getpid()}
        )
        self._stepped()
        self._hook = register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, *_: object) -> None:
        """Tell the telemetry that a step has ended. Of several optimizers the busiest counts (handles/nonfinite.py)."""
        if self.telemetry is not None and STEPS.begun != self._step:
            self._step = STEPS.begun
            self.telemetry.step(self._step, time.time_ns())

    def rename(self, ring: Ring, name: str, description: str) -> None:
        """Give the ring its group's name and description. Rings beyond MAX_GROUPS are forgotten, the oldest first."""
        with self._lock:
            if self._rings.get(ring.name) is ring:
                del self._rings[ring.name]
            ring.name, ring.description = name, description
            self._rings[name] = ring
            while len(self._rings) > MAX_GROUPS:
                self._rings.popitem(last=False)

    def closed(self) -> None:
        """Count a group as left. When the last one is left, write the file, unless a failure has already written it."""
        with self._lock:
            self._open -= 1
            over, telemetry = self._open == 0, self.telemetry
            if over and telemetry is not None:
                self._hook.remove()
                self.telemetry = None
        if over and telemetry is not None:
            telemetry.close(time.time_ns())
        if over and self._told_at is None:
            self._try("the group's end")

    def failed(self, error: FaninError) -> None:
        """A collective, or the group, has failed: write the file, once until something else is called."""
        with self._lock:
            newest = max((ring.newest for ring in self._rings.values()), default=-1)
            if newest == self._told_at:
                return
            self._told_at = newest
        self._try(str(error))

    def _try(self, why: str) -> None:
        if self.path is None:
            return
        try:
            self.dump(self.path)
        except OSError as error:
            log.warning("flight recorder: %s cannot be written: %s", files.name(self.path), files.in_words(error))
        else:
            log.info("flight recorder: %s is written after: %s", files.name(self.path), why)

    def dump(self, path: Path) -> None:
        """Write all records of this rank, in one piece. OSError where that cannot be done."""
        with self._lock:
            files.put(path, pickle.dumps(self.trace(), protocol=2))

    def trace(self) -> dict[str, Any]:
        """All records of this rank, in the format in which `torch.distributed` has those of NCCL."""
        entries, groups, statuses = [], {}, {}
        for ring in list(self._rings.values()):
            records = ring.records()
            entries += [ring.entry(record) for record in records]
            ranks = str(ring.global_ranks)
            groups[ring.name] = {"name": ring.name, "desc": ring.description, "ranks": ranks}
            statuses[str(ring.number)] = ring.status(records)
        return {
            "version": FORMAT,
            "pg_config": groups,
            "comm_lib_version": f"fanin {__version__}",
            "pg_status": statuses,
            "entries": sorted(entries, key=lambda entry: int(entry["record_id"])),
        }


_RECORDERS: weakref.WeakValueDictionary[tuple[str | None, bool, int], FlightRecorder] = weakref.WeakValueDictionary()
"""Recorders by prefix, whether spans are made, and rank, since ranks may be threads of one process."""
_MAKING = threading.Lock()


def ring_for(options: Options, rank: int, global_ranks: Sequence[int], environment: Mapping[str, str]) -> Ring | None:
    """A ring of the recorder of this rank, for a group that is made; None where nothing is to be recorded.

    `rank`: in the group. `global_ranks`: of all its members. Raises ConfigurationError.
    """
    prefix, otel = options.flight_recorder, options.otel
    size = DEFAULT_SIZE if prefix is None else _size(environment)  # a recorder that is off reads no variable
    if (prefix is None or size == 0) and not otel:
        return None
    own = global_ranks[rank]
    with _MAKING:
        recorder = _RECORDERS.get((prefix, otel, own))
        if recorder is None:
            recorder = _RECORDERS[prefix, otel, own] = FlightRecorder(prefix, own, size, otel=otel)
        ring = recorder.ring(rank, global_ranks)
    ring.lanes = str(options.lanes)
    return ring


def dump_flight_recorder(group: c10d.ProcessGroup | None = None, path: str | os.PathLike[str] | None = None) -> Path:
    """Write the latest collectives of this rank, of all its groups, and return the file's path.

    `group`: any group of ours with a recorder; None: the world's. `path`: None: what `Options.flight_recorder` names,
    with the rank. For `torchfrtrace`, a path ends with the rank. Nothing waits: what has not come by now counts as
    started. Raises ConfigurationError where nothing is recorded, and FaninError where the file cannot be written.
    """
    found: Any = torch.distributed.group.WORLD if group is None else group
    ring: Ring | None = getattr(found, "flight", None)
    target = None if ring is None else ring.recorder.path if path is None else Path(path)
    if ring is None or target is None:
        raise ConfigurationError(
            "no collectives are recorded. Remedy: Options(flight_recorder='/tmp/fanin_rank_'), or FANIN_FLIGHT_RECORDER"
        )
    try:
        ring.recorder.dump(target)
    except OSError as error:
        raise FaninError(f"flight recorder: {files.name(target)} cannot be written: {files.in_words(error)}") from None
    return target


def _size(environment: Mapping[str, str]) -> int:
    for name in SIZE_VARIABLES:
        text = environment.get(name, "")
        if text:
            if not (text.isascii() and text.isdigit()):
                raise ConfigurationError(f"{name}={text!r}: expected a number of collectives, 0 for none", name)
            return int(text)
    return DEFAULT_SIZE


def _tensors(given: Any) -> Iterator[Shape]:
    """Shapes and element types of a tensor, a list of them, or a list of lists."""
    if isinstance(given, torch.Tensor):
        yield given.shape, given.dtype
    elif isinstance(given, list | tuple):
        for each in given:
            yield from _tensors(each)


def _as_analyzed(record: Record) -> tuple[str, list[list[int]], list[list[int]]]:
    """Name and sizes as the analyzer wants them: lists of parts as one tensor, and no tensor as one without a shape."""
    name = record.name
    inputs, outputs = ([list(shape) for shape, _ in shapes] for shapes in (record.inputs, record.outputs))
    parts = outputs if name == "all_gather" else inputs
    if name in LISTS and len(parts) > 1:
        if any(part != parts[0] for part in parts):  # all ranks must show the same sizes
            name = LISTS[name]
            inputs = outputs = [[sum(map(_count, parts))]]
        elif name == "all_gather":
            outputs = [[len(parts), *parts[0]]]
        else:
            inputs = [[len(parts), *parts[0]]]
    return ANALYZER_NAMES.get(name, name), inputs or [[]], outputs or [[]]


def _count(shape: Sequence[int]) -> int:
    return torch.Size(shape).numel()


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _frames() -> list[tuple[CodeType, int]]:
    """Code and line of the calls that lead here, the innermost first; as cheap as can be: formatted when dumped."""
    found: list[tuple[CodeType, int]] = []
    frame = sys._getframe(2)
    while frame is not None and len(found) < MAX_FRAMES:
        found.append((frame.f_code, frame.f_lineno))
        if (outer := frame.f_back) is None:
            break
        frame = outer
    return found


def _frame(code: CodeType, line: int) -> dict[str, Any]:
    return {"name": code.co_name, "filename": code.co_filename, "line": line}
