"""The process group behind `init_process_group("fanin")`: its parts, and what it has beside torch's collectives.

The collectives are in torch_calls.py, under the names that torch looks for.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from fanin.endings import at_end
from fanin.errors import FaninError
from fanin.host.session.any_session import AnySession
from fanin.host.session.leased import LeasedSession
from fanin.host.session.threads import WORK, started
from fanin.host.torch.collectives.arguments import Arguments, refuse_in_capture
from fanin.host.torch.collectives.exchanges import Exchanges, carries
from fanin.host.torch.collectives.first_cause import FirstCause
from fanin.host.torch.collectives.flight_recorder import Ring, ring_for
from fanin.host.torch.collectives.group_codec import codec_of_group
from fanin.host.torch.collectives.group_resources import GroupResources
from fanin.host.torch.collectives.inside import Inside
from fanin.host.torch.collectives.profiler_ranges import named_ranges
from fanin.host.torch.collectives.reduce_collectives import ReduceCollectives
from fanin.host.torch.collectives.timeline import Timeline
from fanin.host.torch.collectives.torch_calls import TorchCalls
from fanin.host.torch.collectives.two_levels import TwoLevels
from fanin.host.torch.device.arithmetic import Arithmetic
from fanin.host.torch.device.encoder import Contribution
from fanin.host.torch.handles.call import SUM, Call, Tensors, number_of
from fanin.host.torch.handles.failures import STOP_TIMEOUT_S, WATCH
from fanin.host.torch.handles.host_tensor import beneath_layers, concrete, layers_active
from fanin.host.torch.handles.nonfinite import NonFinite
from fanin.host.torch.handles.timeouts import of_group
from fanin.host.torch.handles.work import FaninWork
from fanin.host.torch.meeting.levels import Levels, agree
from fanin.host.torch.meeting.meeting import Meeting
from fanin.host.torch.meeting.store_host import StoreHost
from fanin.options import Options, SwitchAddress
from fanin.protocol.seal import Credentials

_AVG = dist.ReduceOp(dist.ReduceOp.AVG)
_GROUPS: weakref.WeakSet[FaninProcessGroup] = weakref.WeakSet()
"""Open groups, which are left in order at exit."""
_ABANDONED: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""Threads that leave jobs for groups without references; exit waits for them."""
LEAVE_S = 10.0
"""Longest time for which a group waits for the switch to confirm that it has left."""
FINISH_S = 5.0
"""Longest time for which a group that is destroyed waits for its collectives under way. gloo has no limit but the
group's timeout; here a rank that destroys its group after an error is not to keep the others waiting for that long."""


@named_ranges
class FaninProcessGroup(TorchCalls):
    """A group of ranks whose sums go through a switch."""

    flight: Ring | None = None
    """The latest collectives of the group, where they are recorded (Options.flight_recorder)."""

    def __init__(
        self,
        store: c10d.Store,
        rank: int,
        size: int,
        timeout: timedelta,
        *,
        group_name: str,
        global_ranks: Sequence[int] = (),
        options: Options | None = None,
        world: FaninProcessGroup | None = None,
        parts_with_store: bool = False,
        has_gloo: bool = True,
        may_fall_back: bool = True,
    ) -> None:
        """Meet the other ranks and join the switch. `global_ranks` is empty for the world.

        `world`: the group whose switch this one shares, where it is given none. `parts_with_store`: the store may be
        rank 0's own and end with its group, as that of torch's world does. `has_gloo`: False for a group of what goes
        through the switch alone, whose ranks need not reach each other. `may_fall_back`: whether errors may offer
        fallback="gloo" as a remedy. A group without references leaves its job.

        Raises what `Session.join` raises (AdmissionError for more ranks than a switch takes), and torch's own errors
        when ranks do not come.
        """
        timeout = of_group(timeout, rank, store)
        super().__init__(store, rank, size, group_name, timeout)
        self._openings = itertools.count()
        """Numbers of the calls of `open_two_levels`, alike on all ranks."""
        self._counters: Counter[str] = Counter()
        self._attached: list[Callable[[float], None]] = []
        made_with = options or Options()
        # A bad codec is refused before ranks meet: a rank that is refused afterwards closes its connections while
        # others still open theirs, and those end with an error of gloo's.
        text = made_with.codec
        codec = None if text is None else codec_of_group(text, rank, size)
        self._codec = codec if size > 1 else None
        shared: Meeting | None = None if world is None or world.session is None else world._resources.meeting_now
        self._resources: GroupResources = GroupResources(
            store, group_name, rank, size, timeout, made_with, list(global_ranks), shared,
            None if world is None else world._resources.failures, has_gloo=has_gloo,
            may_fall_back=may_fall_back,
        )  # fmt: skip
        weakref.finalize(self, _abandon, self._resources).atexit = False  # at exit `_leave_all` closes it
        self._arguments = Arguments(rank, size, partial(_made_as, weakref.ref(self)))
        self._world = world
        if self.options.inside is not None:
            try:
                self._resources.two_levels = self.open_two_levels(self.options.inside)
            except BaseException:
                self._resources.close()
                raise
        self._use_resources()
        ranks = list(global_ranks) or list(range(size))
        self.flight = ring_for(made_with, rank, ranks, os.environ)
        if self.flight is not None:
            self._resources.failures.on_error = self.flight.recorder.failed
            self._resources.on_close = self.flight.recorder.closed
            self.flight.job_name = "" if self.session is None else self.job_name
            self._renamed()
        self._store_host = StoreHost(store, rank) if parts_with_store else None
        if world is not None and self._resources.side is not None:
            world._resources.side = self._resources.side  # for the groups after this one, too
        _GROUPS.add(self)

    # --- what fanin adds ---

    @property
    def options(self) -> Options:
        """The options that this group was made with."""
        return self._resources.options

    @property
    def job_name(self) -> str:
        """The name of the group's job at the switch."""
        return self._resources.meeting.job_name

    @property
    def switch(self) -> SwitchAddress:
        """The switch that serves the group; of several the first shard that is not lost, which every rank may join."""
        meeting = self._resources.meeting_now
        return next(shard for number, shard in enumerate(meeting.shards) if number not in meeting.lost)

    @property
    def switch_options(self) -> Options:
        """Options for a separate job at `switch`: without shared memory where the switch is on another host."""
        shared = self.options.shared_memory if self.meeting.is_local(self.switch) else False
        return replace(self.options, shared_memory=shared)

    @property
    def secret(self) -> str:
        """Secret that only the ranks of the group's job share."""
        return self._resources.meeting.secret

    @property
    def meeting(self) -> Meeting:
        """The ranks' agreement: switch, job and secret."""
        return self._resources.meeting

    @property
    def credentials(self) -> Credentials:
        """Keys that seal the ranks' requests to the switch."""
        return self._resources.meeting.credentials

    @property
    def outside(self) -> bool:
        """Whether this process came into a job that ran, and the group takes no collectives till `renew`."""
        return self._resources.outside

    def renew(self, name: str) -> None:
        """Make the group whole again, with a new job and a new gloo group: every rank calls it at the same point.

        `name` tells this renewal from others. Raises what making a group raises.
        """
        self._resources.renew(self._store, self._name, timedelta(seconds=self.timeout_s), name)
        self._use_resources()

    def _use_resources(self) -> None:
        """Make the collectives anew, over the present session and gloo group."""
        self._reductions = ReduceCollectives(self._resources, self._counters, self._arguments, self._codec)
        self._exchanges = Exchanges(self._resources) if carries(self._resources) else None

    def _renamed(self) -> None:
        self._resources.failures.group_name = self._name
        if self.flight is not None:
            self.flight.recorder.rename(self.flight, self._name, self._description)

    @property
    def timeline(self) -> Timeline | None:
        """The rank's time line (Options.timeline), which only the world's group writes; None without one."""
        return self._resources.timeline

    @property
    def session(self) -> AnySession | None:
        """The membership in the group's job at the switch; None for a group of one, or where gloo does everything."""
        return self._resources.session

    def counters(self) -> dict[str, int | float]:
        """How often each collective took which path (`switch.all_reduce`, `gloo.broadcast`, ...), bytes per path, and
        the engine's own counters (`engine.packets_out`, `engine.bytes_out`, ...). Of sums of two levels
        `two_levels.*`, and `between.*`: the same of the group between hosts."""
        counted: dict[str, int | float] = dict(self._counters) | self._resources.failures.nonfinite.counters()
        if self._resources.session is not None:
            counted |= {f"engine.{name}": value for name, value in self._resources.session.counters().items()}
        if self._resources.two_levels is not None:
            counted |= self._resources.two_levels.counters_between()
        return counted

    @property
    def nonfinite(self) -> NonFinite:
        """Sums that NaN and infinities have reached."""
        return self._resources.failures.nonfinite

    def describe(self) -> str:
        """One line for people: job, switch, engine, window; and how CUDA tensors go, once there was one."""
        session = self._resources.session
        if session is None:
            return f"group {self._name!r}: no switch in use"
        levels = self._resources.two_levels
        parts = (session.description, self._resources.meeting_now.in_words, self._resources.device_in_words)
        return "".join(parts) + (levels.in_words if levels else "")

    def all_reduce_lanes(
        self, tensor: torch.Tensor, *, lanes: int | str | None = None, average: bool = False,
        residual: torch.Tensor | None = None, operator: Any = SUM, scale_code: int = 0,
    ) -> FaninWork:  # fmt: skip
        """Sum or average in place, with lanes of its own (0: exactly, docs/numerics.md) and error feedback.

        `lanes` may be any word codec's number (docs/codecs.md), or bits up / bits down ("4/8": `Options.lanes`).
        `operator`: another reduction, with lanes = 0.
        `residual`: contiguous float32 with as many elements, read and updated, on the host, or where
        `residual_device` says; the same bits need not be on every rank. `scale_code`: of all elements, known to all
        ranks (docs/numerics.md, *Scale codes*); larger ones are clipped, and sums that are exact have none. Raises
        UnsupportedError for element types that do not go through the switch.
        """
        op = _AVG if average else operator
        with beneath_layers() if layers_active() else contextlib.nullcontext():
            tensor = concrete(tensor)
            call = self._call("all_reduce", tensor, [tensor], op)
            return self._in_lanes(call.but(lanes=number_of(lanes), residual=residual, scale_code=scale_code))

    def average_encoded(self, asked: Sequence[Contribution]) -> list[FaninWork]:
        """Start averages of a bucket's pieces, as DeviceEncoders have encoded them: a handle for each piece."""
        refuse_in_capture("all_reduce")
        calls = [
            self._call("all_reduce", each.values, [each.output], _AVG).but(
                lanes=each.lanes, residual=each.residual, adds=each.adds, draws=each.draws, finish=each.finish
            )
            for each in asked
        ]
        large = [call for call in calls if self._reductions.takes_together(call)]
        if len(large) < 2:
            return [self._in_lanes(call) for call in calls]
        self._sequence += 1
        work = self._reductions.average_together(large)
        return [work if call in large else self._in_lanes(call) for call in calls]

    def _in_lanes(self, call: Call) -> FaninWork:
        self._sequence += 1
        return self._reductions.all_reduce_in_lanes(call)

    def all_of(self, works: list[FaninWork], outputs: Tensors) -> FaninWork:
        """One handle for several collectives that are under way."""
        return self._combined(works, outputs, self.default_timeout)

    def arithmetic_on(self, device: torch.device) -> Arithmetic[torch.Tensor] | None:
        """Arithmetic that makes scale codes and words of sums where tensors on that device lie; None: the host does.

        Every rank asks at the same point of the program, or has had tensors on devices before.
        """
        return self._resources.arithmetic_on(device)

    def residual_device(self, tensor: torch.Tensor, lanes: int | str | None = None) -> torch.device:
        """Device of a residual of sums of `tensor` in these lanes; every rank asks, as for `arithmetic_on`."""
        return self._reductions.residual_device(tensor, number_of(lanes))

    def reduce_scatter_lanes(
        self, output: torch.Tensor, tensor: torch.Tensor, *, op: Any = SUM, lanes: int | str | None = None,
        residual: torch.Tensor | None = None,
    ) -> FaninWork:  # fmt: skip
        """Reduce and scatter like `dist.reduce_scatter_tensor`, unawaited, with lanes and a residual as in
        `all_reduce_lanes`.

        The residual has as many elements as `tensor`.
        """
        call = self._call("reduce_scatter", tensor, [output], op)
        with beneath_layers() if layers_active() else contextlib.nullcontext():
            return self._reduce_scatter(call.but(lanes=number_of(lanes), residual=residual))

    def open_two_levels(self, kind: str) -> TwoLevels | None:
        """Open groups inside this rank's host and between hosts (docs/gpu.md); every rank calls it at the same point.

        `kind`: "nccl" or "gloo", of the group inside. Returns the levels that `Options.inside` made, where they are of
        that kind. None: every host has one rank, or, in a group of new_group, hosts have unlike numbers of ranks.
        Raises ConfigurationError, alike on every rank, where a rank cannot take part or the hosts of a world have
        unlike numbers of ranks.
        """
        made = self._resources.two_levels
        if made is not None and made.inside.kind == kind:
            return made
        if self.size() == 1 or self.outside:
            return None
        rank, timeout = self.rank(), timedelta(seconds=self.timeout_s)
        opening = next(self._openings)
        store = c10d.PrefixStore(f"fanin/levels/{kind}/{opening}", self._store)
        is_world = not self._resources.global_ranks
        levels = agree(store, rank, self.size(), kind, self.options, timeout, is_world=is_world)
        if levels is None or len(levels.inside) == 1:
            return None
        host = c10d.PrefixStore(f"host/{levels.inside[0]}", store)
        inside = Inside(kind, host, levels.inside.index(rank), len(levels.inside), timeout)
        between = self._between(levels, store, timeout) if levels.hosts > 1 else None
        resources = self._resources
        cause = FirstCause(store, f"{self.job_name}/{kind}/{opening}", resources.failures)
        opened = TwoLevels(levels, inside, between, resources.failures, resources.completion, self._counters, cause)
        resources.opened_levels.append(opened)
        return opened

    def _between(self, levels: Levels, store: c10d.Store, timeout: timedelta) -> FaninProcessGroup:
        """The group of the ranks with this rank's place on their hosts, one per host: a job at the world's switches."""
        place = levels.inside.index(self.rank())
        ranks = self._resources.global_ranks
        return FaninProcessGroup(
            c10d.PrefixStore(f"place/{place}", store), levels.between.index(self.rank()), levels.hosts, timeout,
            group_name=f"{self._name}-place-{place}",
            global_ranks=[ranks[rank] if self._world is not None else rank for rank in levels.between],
            options=replace(self.options, inside=None),
            world=self._world or self,
            may_fall_back=False,  # `inside` and two_level_hook refuse a fallback
        )  # fmt: skip

    # --- its end ---

    def attach(self, close: Callable[[float], None]) -> None:
        """Have `close` called before the group leaves its job, with the longest time that it may take, in seconds.

        For what has jobs and threads of its own (stale training): it would last until the process ends.
        """
        self._attached.append(close)

    def detach(self, close: Callable[[float], None]) -> None:
        """Forget what was attached, since it is closed."""
        if close in self._attached:
            self._attached.remove(close)

    def _close(self, timeout_s: float = LEAVE_S, *, breaking: bool = False, finish_s: float = 0.0) -> None:
        """Close what was attached, the last first, and then the resources; an interrupted step leaves none out."""
        with contextlib.ExitStack() as steps:
            steps.callback(self._resources.close, timeout_s, breaking=breaking, finish_s=finish_s)
            for close in list(self._attached):
                steps.callback(close, timeout_s)

    def abort(self, reason: FaninError | None = None) -> None:
        """Drop out at once; whatever waits raises. `reason`: a failure elsewhere, in the words that others are told."""
        if reason is not None and isinstance(self._resources.session, LeasedSession):
            self._resources.session.abandon(reason)
        self._close(0.0, breaking=True)
        if self._store_host is not None:
            self._store_host.close()

    def shutdown(self) -> None:
        """Leave the job; the other ranks are told. Returns when the next world can be made at the same port.

        Collectives under way may end first, within FINISH_S: the other ranks may be about to call them.
        """
        self._close(finish_s=FINISH_S)
        if self._store_host is not None:
            self._store_host.wait_until_gone()

    def leave_at_exit(self) -> None:
        """Shut down in a process that makes no further group, so without waiting for the store's port."""
        self._close()
        if self._store_host is not None:
            self._store_host.close()


def _made_as(group: weakref.ref[FaninProcessGroup]) -> str:
    """The backends of a group by device, as torch was told, such as `cpu:fanin,cuda:fanin`."""
    held = group()
    return "fanin" if held is None else str(dist.distributed_c10d._world.pg_backend_config.get(held, "fanin"))


def _abandon(resources: GroupResources) -> None:
    """Leave for a group without references that was not shut down, as gloo does, so that no rank waits for this one.

    In a thread of its own, since the garbage collector calls this at any place, whatever locks are held there. Where no
    thread can be started, the end of the process tells the others.
    """
    if not resources.closed and (leaving := started(resources.close, name="fanin-abandoned")) is not None:
        _ABANDONED.add(leaving)


def _forget_all() -> None:
    """Forget all groups in a child of fork(): they are its parent's, which goes on with them."""
    _GROUPS.clear()
    _ABANDONED.clear()
    WATCH.forget()


os.register_at_fork(after_in_child=_forget_all)


def _leave_all() -> None:
    """A program that ends without destroy_process_group leaves in order, so that its peers need not miss it."""
    for group in list(_GROUPS):
        group.leave_at_exit()
    for leaving in list(_ABANDONED):
        leaving.join()  # for as long as `close` may take, which is bounded
    WATCH.stop()
    WORK.end(STOP_TIMEOUT_S)


at_end(_leave_all)
