"""The process group behind `init_process_group("fanin")`: torch's calls by the names that torch looks for.

torch reaches a Python process group from Python (`dist.all_reduce` and so on) and from C++ (DDP's reducer, functional
collectives). Its option objects live on a C++ stack: every field is read before a method returns. Ranks in them are
group ranks. An unset timeout is -1 ms and means the group's. Several names exist twice, for older and newer torch.
"""

from __future__ import annotations

import atexit
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
from itertools import compress
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from fanin.errors import ArgumentError, FaninError, UnsupportedError
from fanin.host.session.leased import AnySession, LeasedSession
from fanin.host.session.threads import started
from fanin.host.torch.collectives.arguments import Arguments
from fanin.host.torch.collectives.exchanges import Exchanges, carries
from fanin.host.torch.collectives.first_cause import FirstCause
from fanin.host.torch.collectives.group_resources import GroupResources
from fanin.host.torch.collectives.inside import Inside
from fanin.host.torch.collectives.layers import devices_of, layered, through
from fanin.host.torch.collectives.profiler_ranges import named_ranges
from fanin.host.torch.collectives.reduce_collectives import ReduceCollectives
from fanin.host.torch.collectives.routing import SUM
from fanin.host.torch.collectives.two_levels import TwoLevels
from fanin.host.torch.device.arithmetic import Arithmetic
from fanin.host.torch.device.encoder import Contribution
from fanin.host.torch.gloo.inner import Inner
from fanin.host.torch.handles.failures import WATCH
from fanin.host.torch.handles.host_tensor import beneath_layers, concrete, layers_active
from fanin.host.torch.handles.nonfinite import NonFinite
from fanin.host.torch.handles.registered import wanted as notes_wanted
from fanin.host.torch.handles.work import CombinedWork, DefaultTimeout, FaninWork, LocalWork, Tensors
from fanin.host.torch.meeting.levels import Levels, agree
from fanin.host.torch.meeting.meeting import Meeting
from fanin.host.torch.meeting.parting import StoreHost
from fanin.options import Options, SwitchAddress
from fanin.protocol.seal import Credentials

_ProcessGroup: Any = dist.ProcessGroup
_ZERO = timedelta(0)
_SUM = dist.ReduceOp(SUM)
_GROUPS: weakref.WeakSet[FaninProcessGroup] = weakref.WeakSet()
"""Open groups, to be left in order at exit."""
_ABANDONED: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""Threads that leave for groups that nobody holds any more; exit waits for them."""


@named_ranges
class FaninProcessGroup(_ProcessGroup):  # type: ignore[misc]
    """A group of ranks whose sums go through a switch."""

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
    ) -> None:
        """Meet the other ranks and join the switch. `global_ranks` is empty for the world.

        `world`: the group whose switch this one shares, where it is given none. `parts_with_store`: the store may be
        rank 0's own and end with its group, as that of torch's world does. A group that nobody holds any more leaves.

        Raises what `Session.join` raises (AdmissionError for more ranks than a switch takes), and torch's own errors
        when ranks do not come.
        """
        super().__init__(rank, size)
        self._store = store
        self._name = group_name
        self._description = "undefined"
        self._sequence = 0
        self._default_timeout = DefaultTimeout(timeout.total_seconds())
        self._bound_device: torch.device | None = None
        self._coalescing: list[FaninWork] | None = None
        self._openings = itertools.count()
        """Numbers of the calls of `open_two_levels`, alike on all ranks."""
        self._narrowed: tuple[torch.Tensor, int | str, torch.Tensor | None] | None = None
        """Arguments of `narrow_next`, until the next call takes them."""
        self._counters: Counter[str] = Counter()
        shared: Meeting | None = None if world is None or world.session is None else world._resources.meeting_now
        self._resources: GroupResources = GroupResources(
            store, group_name, rank, size, timeout, options or Options(), list(global_ranks), shared,
            None if world is None else world._resources.failures,
        )  # fmt: skip
        weakref.finalize(self, _abandon, self._resources).atexit = False  # then `_leave_all` sees to it
        self._arguments = Arguments(rank, size, partial(_made_as, weakref.ref(self)))
        self._world = world
        if self.options.inside is not None:
            try:
                self._resources.two_levels = self.open_two_levels(self.options.inside)
            except BaseException:
                self._resources.close()
                raise
        self._use_resources()
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
        """The switch that serves the group; of several the first that is left, to which every rank may come itself."""
        meeting = self._resources.meeting_now
        return next(shard for number, shard in enumerate(meeting.shards) if number not in meeting.lost)

    @property
    def switch_options(self) -> Options:
        """For a job of its own at `switch`: without the shared memory of another host."""
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
        """The keys of their requests to the switch."""
        return self._resources.meeting.credentials

    @property
    def outside(self) -> bool:
        """Whether this process came into a job that ran, and the group takes no collectives till `renew`."""
        return self._resources.outside

    def renew(self, name: str) -> None:
        """Make the group whole again, with a new job and a new gloo group: every rank calls it at the same point.

        `name` tells this renewal from others. Raises what making a group raises.
        """
        self._resources.renew(self._store, self._name, timedelta(seconds=self._timeout_s), name)
        self._use_resources()

    def _use_resources(self) -> None:
        """Collectives over what there is now."""
        self._reduce_collectives = ReduceCollectives(self._resources, self._counters, self._arguments)
        through_switch = carries(self._resources)
        self._exchanges = Exchanges(self._resources) if through_switch else None
        self._exchanges_at_once = Exchanges(self._resources, at_once=True) if through_switch else None

    @property
    def _inner(self) -> Inner:
        return self._resources.inner

    @property
    def timeout_s(self) -> float:
        """The timeout of collectives that come without one."""
        return self._default_timeout.of_collective

    _timeout_s = timeout_s

    @property
    def store(self) -> c10d.Store:
        """The store through which the group's ranks found each other."""
        return self._store

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
        parts = (session.description, self._resources.meeting.in_words, self._resources.device_in_words)
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
        self._sequence += 1
        with beneath_layers() if layers_active() else contextlib.nullcontext():
            return self._reduce_collectives.all_reduce_lanes(
                concrete(tensor), self._timeout_s, lanes=lanes, average=average, residual=residual, operator=operator,
                scale_code=scale_code,
            )  # fmt: skip

    def average_encoded(self, asked: Contribution) -> FaninWork:
        """Average what a DeviceEncoder has made of a bucket, unawaited."""
        self._sequence += 1
        return self._reduce_collectives.average_encoded(asked, self._timeout_s)

    def all_of(self, works: list[FaninWork], outputs: Tensors) -> FaninWork:
        """One handle for several collectives that are under way."""
        return self._combined(works, outputs, self._timeout_s)

    def arithmetic_on(self, device: torch.device) -> Arithmetic[torch.Tensor] | None:
        """Arithmetic that makes scale codes and words of sums where tensors on that device lie; None: the host does.

        Every rank asks at the same point of the program, or has had tensors on devices before.
        """
        return self._resources.arithmetic_on(device)

    def residual_device(self, tensor: torch.Tensor, lanes: int | str | None = None) -> torch.device:
        """Device of a residual of sums of `tensor` in these lanes; every rank asks, as for `arithmetic_on`."""
        return self._reduce_collectives.residual_device(tensor, lanes)

    def reduce_scatter_lanes(
        self, output: torch.Tensor, tensor: torch.Tensor, *, op: Any = _SUM, lanes: int | str | None = None,
        residual: torch.Tensor | None = None,
    ) -> FaninWork:  # fmt: skip
        """Reduce and scatter like `dist.reduce_scatter_tensor`, unawaited, with lanes and a residual as in
        `all_reduce_lanes`.

        The residual has as many elements as `tensor`.
        """
        self._sequence += 1
        if not self._arguments.of_parts("reduce_scatter_tensor", tensor, output, output):
            return self._nothing([output])
        with beneath_layers() if layers_active() else contextlib.nullcontext():
            return self._reduce_collectives.reduce_scatter(
                output, tensor, _op(op), self._timeout_s, lanes=lanes, residual=residual
            )

    def open_two_levels(self, kind: str) -> TwoLevels | None:
        """Groups inside this rank's host and between hosts (docs/gpu.md); every rank calls it at the same point.

        `kind`: "nccl" or "gloo", of the group inside. The one that `Options.inside` made, where it is that kind. None:
        every host has one rank, or, of a group of new_group, unlike numbers of ranks. Raises ConfigurationError, alike
        on every rank, where a rank cannot take part or the hosts of a world have unlike numbers of ranks.
        """
        made = self._resources.two_levels
        if made is not None and made.inside.kind == kind:
            return made
        if self.size() == 1 or self.outside:
            return None
        rank, timeout = self.rank(), timedelta(seconds=self._timeout_s)
        store = c10d.PrefixStore(f"fanin/levels/{kind}/{next(self._openings)}", self._store)
        is_world = not self._resources.global_ranks
        levels = agree(store, rank, self.size(), kind, self.options, timeout, is_world=is_world)
        if levels is None or len(levels.inside) == 1:
            return None
        host = c10d.PrefixStore(f"host/{levels.inside[0]}", store)
        inside = Inside(kind, host, levels.inside.index(rank), len(levels.inside), timeout)
        between = self._between(levels, store, timeout) if levels.hosts > 1 else None
        resources = self._resources
        cause = FirstCause(store, resources.failures)
        opened = TwoLevels(levels, inside, between, resources.failures, resources.completion, self._counters, cause)
        resources.opened_levels.append(opened)
        return opened

    def _between(self, levels: Levels, store: c10d.Store, timeout: timedelta) -> FaninProcessGroup:
        """The group of the ranks at this rank's place of all hosts: a job of its own, at the world's switches."""
        place = levels.inside.index(self.rank())
        ranks = self._resources.global_ranks
        return FaninProcessGroup(
            c10d.PrefixStore(f"place/{place}", store), levels.between.index(self.rank()), levels.hosts, timeout,
            group_name=f"{self._name}-place-{place}",
            global_ranks=[ranks[rank] if self._world is not None else rank for rank in levels.between],
            options=replace(self.options, inside=None),
            world=self._world or self,
        )  # fmt: skip

    def narrow_next(self, tensor: torch.Tensor, lanes: int | str, residual: torch.Tensor | None) -> None:
        """The next all-reduce of this group goes through these lanes, if it is of `tensor`.

        For callers whose all-reduce is called by torch (HSDP's, over the replicas).
        """
        self._narrowed = (tensor, lanes, residual)

    # --- reductions ---

    def allreduce(self, tensors: Any, opts: Any = _SUM, timeout: timedelta | None = None) -> FaninWork:
        """All-reduce the tensors in place."""
        if layered(tensors):
            return self._through_layers("allreduce_", self.allreduce, (_list(tensors),), opts, timeout)
        self._sequence += 1
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        tensor = _single(tensors)
        if self._narrowed is not None:
            (narrowed, lanes, residual), self._narrowed = self._narrowed, None
            if narrowed is tensor or narrowed.data_ptr() == tensor.data_ptr():
                op, timeout_s = self._reducing(opts, timeout)
                return self._noted(
                    self._reduce_collectives.all_reduce_narrowed(tensor, op, timeout_s, lanes=lanes, residual=residual)
                )
        if self._waits(opts):
            done = self._reduce_collectives.sum_at_once(
                tensor, _operator(opts), lambda: self._seconds(getattr(opts, "timeout", timeout))
            )
            if done is not None:
                return done
        op, timeout_s = self._reducing(opts, timeout)
        return self._noted(self._reduce_collectives.all_reduce(tensor, tensors, op, timeout_s))

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = _SUM) -> FaninWork:
        """All-reduce several tensors in place, one after the other without waiting in between."""
        if layered(tensors):
            return self._through_layers("allreduce_coalesced_", self.allreduce_coalesced, (tensors,), opts)
        op, timeout_s = self._reducing(opts)
        tensors = _all(tensors)
        if not self._arguments.of_several("all_reduce_coalesced", tensors):
            return self._nothing(tensors)
        self._reduce_collectives.check(tensors, op)
        self._sequence += 1
        works = [self._reduce_collectives.all_reduce(tensor, [tensor], op, timeout_s) for tensor in tensors]
        return self._combined(works, tensors, timeout_s)

    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = _SUM, timeout: timedelta | None = None, *, root: int = 0
    ) -> FaninWork:
        """Reduce to one rank."""
        if layered(tensors):
            options = _options(c10d.ReduceOptions, opts, timeout, root, op)
            return self._through_layers("reduce_", self.reduce, (_list(tensors),), options)
        if opts is None or isinstance(opts, int):
            root, timeout_s = opts or root, self._seconds(timeout)
        else:
            op, root, timeout_s = opts.reduceOp, opts.rootRank, self._seconds(opts.timeout)
        self._sequence += 1
        tensor = _single(tensors)
        if not self._arguments.of_one("reduce", tensor, root):
            return self._nothing([tensor])
        return self._noted(self._reduce_collectives.reduce(tensor, root, _op(op), timeout_s), [tensor])

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = _SUM, timeout: timedelta | None = None
    ) -> FaninWork:
        """Reduce a list of parts and keep one's own."""
        if layered((outputs, inputs)):
            lists = (_list(outputs), _lists(inputs))
            return self._through_layers("reduce_scatter_", self.reduce_scatter, lists, opts, timeout)
        op, timeout_s = self._reducing(opts, timeout)
        inputs = _all(inputs if isinstance(outputs, torch.Tensor) else inputs[0])
        outputs = _single(outputs)
        self._sequence += 1
        if not self._arguments.of_list("reduce_scatter", inputs, outputs, gathers=False, uneven=True):
            return self._nothing([outputs])
        return self._noted(self._reduce_collectives.reduce_scatter_list(outputs, inputs, op, timeout_s))

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> FaninWork:
        """Reduce one tensor and keep one's own part."""
        if layered((output, tensor)):
            opts = _SUM if opts is None else opts
            return self._through_layers("_reduce_scatter_base_", self.reduce_scatter_single, (output, tensor), opts)
        op, timeout_s = self._reducing(_SUM if opts is None else opts)
        self._sequence += 1
        output, tensor = concrete(output), concrete(tensor)
        if not self._arguments.of_parts("reduce_scatter_tensor", tensor, output, output):
            return self._nothing([output])
        return self._noted(self._reduce_collectives.reduce_scatter(output, tensor, op, timeout_s))

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> FaninWork:
        """Several of them, one after the other without waiting in between."""
        if layered((outputs, inputs)):
            opts, method = _SUM if opts is None else opts, self.reduce_scatter_single_coalesced
            return self._through_layers("reduce_scatter_tensor_coalesced_", method, (outputs, inputs), opts)
        op, timeout_s = self._reducing(_SUM if opts is None else opts)
        outputs, inputs = _all(outputs), _all(inputs)
        there = self._arguments.of_pairs("reduce_scatter_tensor_coalesced", inputs, outputs, outputs)
        self._reduce_collectives.check(list(compress(inputs, there)), op)
        self._sequence += 1
        works = [
            self._reduce_collectives.reduce_scatter(output, tensor, op, timeout_s)
            for output, tensor in compress(zip(outputs, inputs, strict=True), there)
        ]
        return self._combined(works, outputs, timeout_s)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> FaninWork:
        """Wait for every rank."""
        self._sequence += 1
        timeout_s = self._seconds(timeout if opts is None else opts.timeout)
        return self._noted(self._reduce_collectives.barrier(timeout_s, self._waits(opts)))

    # --- exchanges ---

    def broadcast(self, tensors: Any, opts: Any = 0, timeout: timedelta | None = None, *, root: int = 0) -> FaninWork:
        """Copy one rank's tensor to all."""
        if layered(tensors):
            options = _options(c10d.BroadcastOptions, opts, timeout, root)
            return self._through_layers("broadcast_", self.broadcast, (_list(tensors),), options)
        root = opts or root if isinstance(opts, int) else opts.rootRank
        timeout_s = self._seconds(timeout if isinstance(opts, int) else opts.timeout)
        tensor = _single(tensors)
        if not self._arguments.of_one("broadcast", tensor, root):
            return self._nothing([tensor])
        moving = self._moving("broadcast", tensor, self._waits(opts))
        return self._noted(moving.broadcast(tensor, root, timeout_s))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> FaninWork:
        """Gather every rank's tensor on all."""
        if layered((outputs, inputs)):
            lists = (_lists(outputs), _list(inputs))
            return self._through_layers("allgather_", self.allgather, lists, opts, timeout)
        timeout_s = self._seconds(timeout if opts is None else getattr(opts, "timeout", opts))
        tensor = _single(inputs)
        outputs = _all(outputs if isinstance(outputs[0], torch.Tensor) else outputs[0])
        uneven = self._exchanges is not None  # gloo takes parts of one size alone
        if not self._arguments.of_list("all_gather", outputs, tensor, gathers=True, uneven=uneven):
            return self._nothing(outputs)
        return self._noted(self._moving("all_gather", tensor).all_gather(outputs, tensor, timeout_s))

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> FaninWork:
        """Gather every rank's tensor into one."""
        if layered((output, tensor)):
            return self._through_layers("_allgather_base_", self.all_gather_single, (output, tensor), opts)
        timeout_s = self._seconds(None if opts is None else opts.timeout)
        output, tensor = concrete(output), concrete(tensor)
        if not self._arguments.of_parts("all_gather_into_tensor", output, tensor, output):
            return self._nothing([output])
        moving = self._moving("all_gather_into_tensor", tensor, self._waits(opts))
        return self._noted(moving.all_gather_single(output, tensor, timeout_s))

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> FaninWork:
        """Several of them behind one handle."""
        if layered((outputs, inputs)):
            method = self.all_gather_single_coalesced
            return self._through_layers("allgather_into_tensor_coalesced_", method, (outputs, inputs), opts)
        timeout_s = self._seconds(None if opts is None else opts.timeout)
        outputs, inputs = _all(outputs), _all(inputs)
        there = self._arguments.of_pairs("all_gather_into_tensor_coalesced", outputs, inputs, outputs)
        works = []
        for output, tensor in compress(zip(outputs, inputs, strict=True), there):
            moving = self._moving("all_gather_into_tensor", tensor)
            works.append(moving.all_gather_single(output, tensor, timeout_s))
        return self._combined(works, outputs, timeout_s)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> FaninWork:
        """Gather several tensors: `outputs[r][i]` becomes rank r's `inputs[i]`."""
        if layered((outputs, inputs)):
            return self._through_layers("allgather_coalesced_", self.allgather_coalesced, (outputs, inputs), opts)
        timeout_s = self._seconds(None if opts is None else opts.timeout)
        outputs, inputs = [_all(of_rank) for of_rank in outputs], _all(inputs)
        if any(len(of_rank) != len(inputs) for of_rank in outputs):
            raise ArgumentError(f"all_gather_coalesced: {len(inputs)} tensors, and lists of outputs of other lengths")
        lists = [[of_rank[index] for of_rank in outputs] for index in range(len(inputs))]
        there = [self._arguments.of_list("all_gather", *pair, gathers=True) for pair in zip(lists, inputs, strict=True)]
        works = []
        for of_tensor, tensor in compress(zip(lists, inputs, strict=True), there):
            works.append(self._moving("all_gather", tensor).all_gather(of_tensor, tensor, timeout_s))
        return self._combined(works, [tensor for of_rank in outputs for tensor in of_rank], timeout_s)

    def gather(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None, root: int = 0
    ) -> FaninWork:
        """Gather every rank's tensor on one."""
        if layered((outputs, inputs)):
            lists = (_lists(outputs), _list(inputs))
            return self._through_layers(
                "gather_", self.gather, lists, _options(c10d.GatherOptions, opts, timeout, root)
            )
        if opts is not None and not isinstance(opts, int):
            root, timeout = opts.rootRank, opts.timeout
        elif opts is not None:
            root = opts
        tensor = _single(inputs)
        outputs = _all(outputs if not outputs or isinstance(outputs[0], torch.Tensor) else outputs[0])
        if not self._arguments.of_list("gather", outputs, tensor, gathers=True, root=root):
            return self._nothing(outputs)
        self._exchanging("gather", tensor)
        return self._noted(self._inner.gather(outputs, tensor, root, self._seconds(timeout)))

    def scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None, root: int = 0
    ) -> FaninWork:
        """Give every rank one of the root's tensors."""
        if layered((outputs, inputs)):
            lists = (_list(outputs), _lists(inputs))
            return self._through_layers(
                "scatter_", self.scatter, lists, _options(c10d.ScatterOptions, opts, timeout, root)
            )
        if opts is not None and not isinstance(opts, int):
            root, timeout = opts.rootRank, opts.timeout
        elif opts is not None:
            root = opts
        output = _single(outputs)
        inputs = _all(inputs if not inputs or isinstance(inputs[0], torch.Tensor) else inputs[0])
        if not self._arguments.of_list("scatter", inputs, output, gathers=False, root=root):
            return self._nothing([output])
        self._exchanging("scatter", output)
        return self._noted(self._inner.scatter(output, inputs, root, self._seconds(timeout)))

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> FaninWork:
        """Rows of one tensor to all ranks."""
        if layered((output, tensor)):
            rest = (output_splits, input_splits, opts, timeout)
            return self._through_layers("alltoall_base_", self.all_to_all_single, (output, tensor), *rest)
        timeout_s = self._seconds(timeout if opts is None else getattr(opts, "timeout", opts))
        output, tensor = concrete(output), concrete(tensor)
        if not self._arguments.of_rows("all_to_all_single", output, tensor, output_splits, input_splits):
            return self._nothing([output])
        self._exchanging("all_to_all_single", tensor)
        return self._noted(self._inner.all_to_all_single(output, tensor, output_splits, input_splits, timeout_s))

    alltoall_base = all_to_all_single

    def alltoall(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None, timeout: timedelta | None = None
    ) -> FaninWork:
        """One tensor to each rank; sizes may differ."""
        if layered((outputs, inputs)):
            return self._through_layers("alltoall_", self.alltoall, (outputs, inputs), opts, timeout)
        timeout_s = self._seconds(timeout if opts is None else getattr(opts, "timeout", opts))
        outputs, inputs = _all(outputs), _all(inputs)
        if not self._arguments.of_lists("all_to_all", outputs, inputs):
            return self._nothing(outputs)
        self._exchanging("all_to_all", *inputs)
        return self._noted(self._inner.all_to_all(outputs, inputs, timeout_s))

    def send(self, tensors: Tensors, destination: int, tag: int) -> FaninWork:
        """Send one tensor to a rank."""
        if layered(tensors):
            return self._through_layers("send", self.send, (_list(tensors),), destination, tag)
        tensor = _single(tensors)
        if not self._arguments.of_peer("send", tensor, destination):
            return self._nothing([tensor])
        self._exchanging("send", tensor)
        return self._noted(self._inner.send(tensor, destination, tag, self._timeout_s))

    def recv(self, tensors: Tensors, source: int, tag: int) -> FaninWork:
        """Receive one tensor from a rank."""
        if layered(tensors):
            return self._through_layers("recv_", self.recv, (_list(tensors),), source, tag)
        tensor = _single(tensors)
        if not self._arguments.of_peer("recv", tensor, source):
            return self._nothing([tensor])
        self._exchanging("recv", tensor)
        return self._noted(self._inner.recv(tensor, source, tag, self._timeout_s))

    def recv_anysource(self, tensors: Tensors, tag: int) -> FaninWork:
        """Receive one tensor from whoever sends first."""
        if layered(tensors):
            return self._through_layers("recv_any_source_", self.recv_anysource, (_list(tensors),), tag)
        tensor = _single(tensors)
        if not self._arguments.of_one("recv", tensor):
            return self._nothing([tensor])
        self._exchanging("recv", tensor)
        return self._noted(self._inner.recv_anysource(tensor, tag, self._timeout_s))

    # --- coalescing ---

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalescing = []

    def _end_coalescing(self, device: torch.device) -> FaninWork:
        works, self._coalescing = self._coalescing or [], None
        return self._combined(works, [], self._timeout_s)

    def _noted(self, work: FaninWork, tensors: Tensors | None = None) -> FaninWork:
        """Every collective that may still run when its method returns passes here.

        Between `_start_coalescing` and `_end_coalescing` it is noted; so it is by torch, where the program has said
        that graphs are given results in flight. `tensors`: those that are not free before, if not the outputs.
        """
        if self._coalescing is not None:
            self._coalescing.append(work)
        if notes_wanted():
            work.note(work.result() if tensors is None else tensors)
        return work

    def _through_layers(
        self, operator: str, method: Callable[..., FaninWork], tensors: tuple[Any, ...], *rest: Any
    ) -> FaninWork:
        """Call `method(*tensors, *rest)` beneath torch's modes, transforms and tensor subclasses (layers.py)."""
        self._arguments.check_devices(operator, list(devices_of(tensors)))
        work: FaninWork = through(self, operator, method, tensors, rest)
        return work

    def _nothing(self, outputs: Tensors) -> FaninWork:
        """A collective of tensors without memory."""
        return self._noted(LocalWork(self._resources.completion, outputs))

    def _combined(self, works: list[FaninWork], outputs: Tensors, timeout_s: float) -> FaninWork:
        completion = self._resources.completion
        if not works:
            return LocalWork(completion, outputs)
        return self._noted(CombinedWork(works, completion, outputs, timeout_s))

    # --- reading what torch gives ---

    def _reducing(self, opts: Any, timeout: timedelta | None = None) -> tuple[Any, float]:
        """Operator and timeout from an options object or a bare operator."""
        return _operator(opts), self._seconds(getattr(opts, "timeout", timeout))

    def _waits(self, opts: Any) -> bool:
        """Whether the caller waits for this collective before it does anything else."""
        return self._coalescing is None and not getattr(opts, "asyncOp", True)

    def _seconds(self, timeout: timedelta | None) -> float:
        return self._timeout_s if timeout is None or timeout < _ZERO else timeout.total_seconds()

    def _moving(self, name: str, tensor: torch.Tensor, waits: bool = False) -> Exchanges | Inner:
        """The carrier of an exchange, which is counted: the switch, or gloo."""
        exchanges = self._exchanges_at_once if waits else self._exchanges
        if exchanges is None:
            self._exchanging(name, tensor)
            return self._inner
        self._sequence += 1
        self._counters[f"switch.{name}"] += 1
        self._counters["switch.bytes"] += tensor.nbytes
        return exchanges

    def _exchanging(self, name: str, *tensors: torch.Tensor) -> None:
        """Count an exchange by gloo; raise the group's failure instead of starting on a broken group."""
        failure = self._resources.failures.failure
        if failure is not None:
            raise self._resources.failures.explain(failure, name, self._timeout_s)
        self._sequence += 1
        self._counters[f"gloo.{name}"] += 1
        self._counters["gloo.bytes"] += sum(tensor.nbytes for tensor in tensors)

    # --- identity and life ---

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return the backend's name."""
        return "fanin"

    name = _get_backend_name = getBackendName

    def getGroupName(self) -> str:  # noqa: N802 - torch's name
        """The name under which functional collectives find this group."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802 - torch's name
        """Set by torch once the group is made."""
        self._name = name
        self._resources.failures.group_name = name

    _set_group_name = setGroupName
    group_name = property(getGroupName)

    def getGroupDesc(self) -> str:  # noqa: N802 - torch's name
        """The caller's description of the group."""
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802 - torch's name
        """Set by torch once the group is made."""
        self._description = description

    _set_group_desc = setGroupDesc
    group_desc = property(getGroupDesc)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), torch.device("cuda")] if torch.cuda.is_available() else [torch.device("cpu")]

    @property
    def bound_device_id(self) -> torch.device | None:
        """The device that `init_process_group(device_id=...)` names."""
        return self._bound_device

    @bound_device_id.setter
    def bound_device_id(self, device: torch.device | None) -> None:
        self._bound_device = device

    supports_splitting = supports_coalescing = supports_time_estimate = False

    def _get_backend(self, device: torch.device) -> FaninProcessGroup:
        return self

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """No memory of ours is quicker than torch's: FSDP2 asks (`set_allocate_memory_from_process_group_for_comm`)."""
        return False

    def _has_hooks(self) -> bool:
        return False

    def get_group_store(self) -> c10d.Store:
        """The store that the ranks met through."""
        return self._store

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _set_sequence_number_for_group(self) -> None:
        """Ranks count alike from 0: nothing to agree on."""

    def set_timeout(self, timeout: timedelta) -> None:
        """The timeout of collectives that come without one, for waits that begin after this."""
        self._default_timeout.set(timeout.total_seconds())

    _set_default_timeout = set_timeout

    def abort(self, reason: FaninError | None = None) -> None:
        """Drop out at once; whatever waits raises. `reason`: a failure elsewhere, in the words that others are told."""
        if reason is not None and isinstance(self._resources.session, LeasedSession):
            self._resources.session.abandon(reason)
        self._resources.close(timeout_s=0.0, breaking=True)
        if self._store_host is not None:
            self._store_host.close()

    def shutdown(self) -> None:
        """Leave the job; the other ranks are told. Returns when the next world can be made at the same port."""
        self._resources.close()
        if self._store_host is not None:
            self._store_host.wait_until_gone()

    def leave_at_exit(self) -> None:
        """Shut down in a process that makes no group any more."""
        self._resources.close()
        if self._store_host is not None:
            self._store_host.close()


def _made_as(group: weakref.ref[FaninProcessGroup]) -> str:
    """The backends of a group by device, as torch was told."""
    held = group()
    return "fanin" if held is None else str(dist.distributed_c10d._world.pg_backend_config.get(held, "fanin"))


def _abandon(resources: GroupResources) -> None:
    """Nobody holds the group any more, and it was not shut down: leave, as gloo does, so that nobody waits for it.

    In a thread of its own, since the collector of garbage calls this at any place, whatever locks are held there. Where
    none can be started, the end of the process tells the others.
    """
    if not resources.closed and (leaving := started(resources.close, name="fanin-abandoned")) is not None:
        _ABANDONED.add(leaving)


def _single(tensors: Any) -> torch.Tensor:
    if isinstance(tensors, torch.Tensor):
        return concrete(tensors)
    if len(tensors) != 1:
        raise UnsupportedError(f"{len(tensors)} tensors in one collective; fanin takes one per rank")
    return concrete(tensors[0])


def _all(tensors: Sequence[torch.Tensor] | None) -> list[torch.Tensor]:
    """Every one of a list, of which there may be none."""
    return [concrete(tensor) for tensor in tensors or ()]


def _list(tensors: Any) -> list[torch.Tensor]:
    """The list of tensors that torch's C++ passes, of one tensor too."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _lists(tensors: Any) -> list[list[torch.Tensor]]:
    """The list of lists that torch's C++ passes, of one list too."""
    return [list(tensors)] if tensors and isinstance(tensors[0], torch.Tensor) else list(tensors or ())


def _options(kind: Any, opts: Any, timeout: timedelta | None, root: int, op: Any = None) -> Any:
    """An options object for what may have come as bare arguments."""
    if opts is not None and not isinstance(opts, int):
        return opts
    options = kind()
    options.rootRank = opts or root
    if timeout is not None:
        options.timeout = timeout
    if op is not None:
        options.reduceOp = _op(op)
    return options


def _operator(opts: Any) -> Any:
    """The operator of an options object, or a bare operator itself."""
    op = getattr(opts, "reduceOp", None)
    return _op(opts) if op is None else op


def _op(op: Any) -> Any:
    """The operator as an object. Members of torch's enum (ReduceOp.SUM) pass for instances of ReduceOp, without its
    attributes.
    """
    return op if type(op) is dist.ReduceOp else dist.ReduceOp(op)


def _forget_all() -> None:
    """In a child of fork(): the groups are its parent's, who goes on with them."""
    _GROUPS.clear()
    _ABANDONED.clear()
    WATCH.forget()


os.register_at_fork(after_in_child=_forget_all)


@atexit.register
def _leave_all() -> None:
    """A program that ends without destroy_process_group leaves in order, so that its peers need not miss it."""
    for group in list(_GROUPS):
        group.leave_at_exit()
    for leaving in list(_ABANDONED):
        leaving.join()  # for as long as `close` may take, which is bounded
    WATCH.stop()
