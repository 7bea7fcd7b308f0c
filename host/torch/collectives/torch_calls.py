"""The collectives of a process group by the names that torch looks for, and the reading of torch's arguments.

torch reaches a Python process group from Python (`dist.all_reduce` and so on) and from C++ (DDP's reducer, functional
collectives). Its option objects live on a C++ stack: every field is read before a method returns. Ranks in them are
group ranks. An unset timeout is -1 ms and means the group's. Several names exist twice, for older and newer torch.

Every method makes one `Call` of its arguments (`_call`), has them checked, and hands the call to its carrier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import compress
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _distributed_c10d as c10d

from fanin.errors import ArgumentError
from fanin.host.torch.collectives.arguments import Arguments, refuse_in_capture
from fanin.host.torch.collectives.exchanges import Exchanges
from fanin.host.torch.collectives.layers import devices_of, layered, through
from fanin.host.torch.collectives.reading import all_of, list_of, lists_of, options_of, read_call, single, timeout_in
from fanin.host.torch.collectives.reduce_collectives import BARRIER, ReduceCollectives
from fanin.host.torch.collectives.torch_identity import TorchIdentity
from fanin.host.torch.gloo.inner import Inner
from fanin.host.torch.handles.call import SUM, TERMS, Call, Tensors, Terms
from fanin.host.torch.handles.host_tensor import concrete
from fanin.host.torch.handles.registered import wanted as notes_wanted
from fanin.host.torch.handles.timeouts import Timeout
from fanin.host.torch.handles.work import CombinedWork, FaninWork, LocalWork

if TYPE_CHECKING:
    from fanin.host.torch.collectives.group_resources import GroupResources


class TorchCalls(TorchIdentity):
    """A process group's collectives, of which `FaninProcessGroup` sets the parts."""

    _resources: GroupResources
    _arguments: Arguments
    _reductions: ReduceCollectives
    _exchanges: Exchanges | None
    """Exchanges through the switch; None: gloo carries them."""
    _counters: Counter[str]
    _coalescing: list[FaninWork] | None = None

    # --- reductions ---

    def allreduce(self, tensors: Any, opts: Any = SUM, timeout: timedelta | None = None) -> FaninWork:
        """All-reduce the tensors in place."""
        if layered(tensors):
            return self._through_layers("allreduce_", self.allreduce, (list_of(tensors),), opts, timeout)
        tensor = single(tensors)
        outputs = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        waits = self._coalescing is None
        call = read_call("all_reduce", tensor, outputs, opts, self.default_timeout, waits, timeout)
        self._sequence += 1
        terms: Terms | None = getattr(tensor, TERMS, None)
        if terms is None:
            work = self._reductions.all_reduce(call)
            return work if call.waits else self._tracked(work)
        call = call.but(lanes=terms.lanes, residual=terms.residual)
        return self._tracked(self._reductions.all_reduce_in_lanes(call))

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = SUM) -> FaninWork:
        """All-reduce several tensors in place, one after the other without waiting in between."""
        if layered(tensors):
            return self._through_layers("allreduce_coalesced_", self.allreduce_coalesced, (tensors,), opts)
        tensors = all_of(tensors)
        if not self._arguments.of_several("all_reduce_coalesced", tensors):
            return self._nothing(tensors)
        calls = [self._call("all_reduce", tensor, [tensor], opts).but(waits=False) for tensor in tensors]
        self._reductions.check(calls)
        self._sequence += 1
        return self._combined([self._reductions.all_reduce(call) for call in calls], tensors, calls[0].timeout)

    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = SUM, timeout: timedelta | None = None, *, root: int = 0
    ) -> FaninWork:
        """Reduce to one rank."""
        if layered(tensors):
            options = options_of(c10d.ReduceOptions, opts, timeout, root, op)
            return self._through_layers("reduce_", self.reduce, (list_of(tensors),), options)
        tensor = single(tensors)
        call = self._call("reduce", tensor, [tensor], opts, timeout, root, op)
        self._sequence += 1
        if not self._arguments.of_one("reduce", tensor, call.root):
            return self._nothing([tensor])
        mine = self.rank() == call.root
        call = call.but(says=call.root + 1)  # or two ranks that each name another would both get nothing
        work = self._reductions.reduce(call if mine else call.but(outputs=()), tensor if mine else None)
        return self._tracked(work, [tensor])

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = SUM, timeout: timedelta | None = None) -> FaninWork:
        """Reduce a list of parts and keep one's own."""
        if layered((outputs, inputs)):
            lists = (list_of(outputs), lists_of(inputs))
            return self._through_layers("reduce_scatter_", self.reduce_scatter, lists, opts, timeout)
        parts = all_of(inputs if isinstance(outputs, torch.Tensor) else inputs[0])
        output = single(outputs)
        call = self._call("reduce_scatter", output, [output], opts, timeout)
        self._sequence += 1
        if not self._arguments.of_list("reduce_scatter", parts, output, gathers=False, uneven=True):
            return self._nothing([output])
        return self._tracked(self._reductions.reduce_scatter_list(call, parts))

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> FaninWork:
        """Reduce one tensor and keep one's own part."""
        if layered((output, tensor)):
            opts = SUM if opts is None else opts
            return self._through_layers("_reduce_scatter_base_", self.reduce_scatter_single, (output, tensor), opts)
        return self._reduce_scatter(self._call("reduce_scatter", concrete(tensor), [concrete(output)], opts))

    _reduce_scatter_base = reduce_scatter_single

    def _reduce_scatter(self, call: Call) -> FaninWork:
        self._sequence += 1
        (output,) = call.outputs
        if not self._arguments.of_parts("reduce_scatter_tensor", call.source, output, output):
            return self._nothing(call.outputs)
        return self._tracked(self._reductions.reduce_scatter(call))

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> FaninWork:
        """Reduce several tensors and keep one's own part of each, one after the other without waiting in between."""
        if layered((outputs, inputs)):
            opts, method = SUM if opts is None else opts, self.reduce_scatter_single_coalesced
            return self._through_layers("reduce_scatter_tensor_coalesced_", method, (outputs, inputs), opts)
        outputs, inputs = all_of(outputs), all_of(inputs)
        there = self._arguments.of_pairs("reduce_scatter_tensor_coalesced", inputs, outputs, outputs)
        calls = self._calls("reduce_scatter", inputs, [[output] for output in outputs], there, opts)
        self._reductions.check(calls)
        self._sequence += 1
        return self._combined(
            [self._reductions.reduce_scatter(call) for call in calls], outputs, timeout_in(opts, self.default_timeout)
        )

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> FaninWork:
        """Wait for every rank."""
        refuse_in_capture("barrier")
        self._sequence += 1
        call = self._call("barrier", BARRIER, (), opts, timeout)
        return self._tracked(self._reductions.barrier(call))

    # --- exchanges ---

    def broadcast(self, tensors: Any, opts: Any = 0, timeout: timedelta | None = None, *, root: int = 0) -> FaninWork:
        """Copy one rank's tensor to all."""
        if layered(tensors):
            options = options_of(c10d.BroadcastOptions, opts, timeout, root)
            return self._through_layers("broadcast_", self.broadcast, (list_of(tensors),), options)
        tensor = single(tensors)
        call = self._call("broadcast", tensor, [tensor], opts, timeout, root)
        if not self._arguments.of_one("broadcast", tensor, call.root):
            return self._nothing([tensor])
        return self._tracked(self._moving(call).broadcast(call))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> FaninWork:
        """Gather every rank's tensor on all."""
        if layered((outputs, inputs)):
            lists = (lists_of(outputs), list_of(inputs))
            return self._through_layers("allgather_", self.allgather, lists, opts, timeout)
        tensor = single(inputs)
        outputs = all_of(outputs if isinstance(outputs[0], torch.Tensor) else outputs[0])
        uneven = self._exchanges is not None  # gloo takes parts of one size alone
        if not self._arguments.of_list("all_gather", outputs, tensor, gathers=True, uneven=uneven):
            return self._nothing(outputs)
        call = self._call("all_gather", tensor, outputs, opts, timeout).but(waits=False)
        return self._tracked(self._moving(call).all_gather(call))

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> FaninWork:
        """Gather every rank's tensor into one."""
        if layered((output, tensor)):
            return self._through_layers("_allgather_base_", self.all_gather_single, (output, tensor), opts)
        output, tensor = concrete(output), concrete(tensor)
        if not self._arguments.of_parts("all_gather_into_tensor", output, tensor, output):
            return self._nothing([output])
        call = self._call("all_gather_into_tensor", tensor, [output], opts)
        return self._tracked(self._moving(call).all_gather_single(call))

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> FaninWork:
        """Gather every rank's tensors, each into one, behind one handle."""
        if layered((outputs, inputs)):
            method = self.all_gather_single_coalesced
            return self._through_layers("allgather_into_tensor_coalesced_", method, (outputs, inputs), opts)
        outputs, inputs = all_of(outputs), all_of(inputs)
        there = self._arguments.of_pairs("all_gather_into_tensor_coalesced", outputs, inputs, outputs)
        calls = self._calls("all_gather_into_tensor", inputs, [[output] for output in outputs], there, opts)
        works = [self._moving(call).all_gather_single(call) for call in calls]
        return self._combined(works, outputs, timeout_in(opts, self.default_timeout))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> FaninWork:
        """Gather several tensors: `outputs[r][i]` becomes rank r's `inputs[i]`."""
        if layered((outputs, inputs)):
            return self._through_layers("allgather_coalesced_", self.allgather_coalesced, (outputs, inputs), opts)
        outputs, inputs = [all_of(of_rank) for of_rank in outputs], all_of(inputs)
        if any(len(of_rank) != len(inputs) for of_rank in outputs):
            raise ArgumentError(
                f"all_gather_coalesced: {len(inputs)} tensors, and lists of outputs of other lengths"
                ". Remedy: give each rank's list an output for each tensor"
            )
        lists = [[of_rank[index] for of_rank in outputs] for index in range(len(inputs))]
        there = [self._arguments.of_list("all_gather", *pair, gathers=True) for pair in zip(lists, inputs, strict=True)]
        calls = self._calls("all_gather", inputs, lists, there, opts)
        works = [self._moving(call).all_gather(call) for call in calls]
        return self._combined(
            works, [tensor for of_rank in outputs for tensor in of_rank], timeout_in(opts, self.default_timeout)
        )

    # --- from rank to rank, by gloo ---

    def gather(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None, root: int = 0
    ) -> FaninWork:
        """Gather every rank's tensor on one."""
        if layered((outputs, inputs)):
            lists = (lists_of(outputs), list_of(inputs))
            return self._through_layers(
                "gather_", self.gather, lists, options_of(c10d.GatherOptions, opts, timeout, root)
            )
        tensor = single(inputs)
        outputs = all_of(outputs if not outputs or isinstance(outputs[0], torch.Tensor) else outputs[0])
        call = self._call("gather", tensor, outputs, opts, timeout, root)
        if not self._arguments.of_list("gather", outputs, tensor, gathers=True, root=call.root):
            return self._nothing(outputs)
        return self._tracked(self._gloo(call).gather(call))

    def scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None, root: int = 0
    ) -> FaninWork:
        """Give every rank one of the root's tensors."""
        if layered((outputs, inputs)):
            lists = (list_of(outputs), lists_of(inputs))
            return self._through_layers(
                "scatter_", self.scatter, lists, options_of(c10d.ScatterOptions, opts, timeout, root)
            )
        output = single(outputs)
        parts = all_of(inputs if not inputs or isinstance(inputs[0], torch.Tensor) else inputs[0])
        call = self._call("scatter", output, [output], opts, timeout, root)
        if not self._arguments.of_list("scatter", parts, output, gathers=False, root=call.root):
            return self._nothing([output])
        return self._tracked(self._gloo(call).scatter(call, parts))

    def all_to_all_single(
        self, output: torch.Tensor, tensor: torch.Tensor, output_splits: Sequence[int], input_splits: Sequence[int],
        opts: Any = None, timeout: timedelta | None = None,
    ) -> FaninWork:  # fmt: skip
        """Send rows of `tensor` to all ranks, and receive rows of `output` from all; empty splits: equal parts."""
        if layered((output, tensor)):
            rest = (output_splits, input_splits, opts, timeout)
            return self._through_layers("alltoall_base_", self.all_to_all_single, (output, tensor), *rest)
        output, tensor = concrete(output), concrete(tensor)
        if not self._arguments.of_rows("all_to_all_single", output, tensor, output_splits, input_splits):
            return self._nothing([output])
        call = self._call("all_to_all_single", tensor, [output], opts, timeout)
        return self._tracked(self._gloo(call).all_to_all_single(call, output_splits, input_splits))

    alltoall_base = all_to_all_single

    def alltoall(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None, timeout: timedelta | None = None
    ) -> FaninWork:
        """Send one tensor to each rank, and receive one from each; sizes may differ."""
        if layered((outputs, inputs)):
            return self._through_layers("alltoall_", self.alltoall, (outputs, inputs), opts, timeout)
        outputs, parts = all_of(outputs), all_of(inputs)
        if not self._arguments.of_lists("all_to_all", outputs, parts):
            return self._nothing(outputs)
        call = self._call("all_to_all", parts[self.rank()], outputs, opts, timeout)
        return self._tracked(self._gloo(call, *parts).all_to_all(call, parts))

    def send(self, tensors: Tensors, destination: int, tag: int) -> FaninWork:
        """Send one tensor to a rank."""
        if layered(tensors):
            return self._through_layers("send", self.send, (list_of(tensors),), destination, tag)
        call = self._message("send", tensors, destination)
        there = self._arguments.of_peer("send", call.source, destination)
        return self._tracked(self._gloo(call).send(call, tag)) if there else self._nothing(call.outputs)

    def recv(self, tensors: Tensors, source: int, tag: int) -> FaninWork:
        """Receive one tensor from a rank."""
        if layered(tensors):
            return self._through_layers("recv_", self.recv, (list_of(tensors),), source, tag)
        call = self._message("recv", tensors, source)
        there = self._arguments.of_peer("recv", call.source, source)
        return self._tracked(self._gloo(call).recv(call, tag)) if there else self._nothing(call.outputs)

    def recv_anysource(self, tensors: Tensors, tag: int) -> FaninWork:
        """Receive one tensor from whoever sends first."""
        if layered(tensors):
            return self._through_layers("recv_any_source_", self.recv_anysource, (list_of(tensors),), tag)
        call = self._message("recv", tensors, 0)
        there = self._arguments.of_one("recv", call.source)
        return self._tracked(self._gloo(call).recv_anysource(call, tag)) if there else self._nothing(call.outputs)

    # --- coalescing ---

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalescing = []

    def _end_coalescing(self, device: torch.device) -> FaninWork:
        works, self._coalescing = self._coalescing or [], None
        return self._combined(works, [], self.default_timeout)

    def _tracked(self, work: FaninWork, tensors: Tensors | None = None) -> FaninWork:
        """Note a collective that may still run when its method returns, and return its work.

        Between `_start_coalescing` and `_end_coalescing` the combined handle waits for it. torch notes it, too, where
        the program allows graphs to be given results in flight (registered.py). `tensors`: those that are in use until
        the work is waited for; None: its outputs.
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
        """The handle of a collective of tensors without memory, which is done at once."""
        return self._tracked(LocalWork(self._resources.completion, outputs))

    def _combined(self, works: list[FaninWork], outputs: Tensors, timeout: Timeout) -> FaninWork:
        completion = self._resources.completion
        if not works:
            return LocalWork(completion, outputs)
        return self._tracked(CombinedWork(works, completion, outputs, timeout))

    # --- reading what torch gives ---

    def _call(
        self, collective: str, source: torch.Tensor, outputs: Tensors, opts: Any = None,
        timeout: timedelta | None = None, root: int = 0, op: Any = SUM,
    ) -> Call:  # fmt: skip
        """The call that torch's arguments mean."""
        waits = self._coalescing is None
        return read_call(collective, source, outputs, opts, self.default_timeout, waits, timeout, root, op)

    def _calls(
        self, collective: str, inputs: Tensors, outputs: Sequence[Tensors], there: Sequence[bool], opts: Any
    ) -> list[Call]:
        """Calls that follow each other unawaited, of those tensors that have memory (`there`)."""
        pairs = compress(zip(inputs, outputs, strict=True), there)
        return [self._call(collective, *pair, opts).but(waits=False) for pair in pairs]

    def _message(self, name: str, tensors: Tensors, peer: int) -> Call:
        tensor = single(tensors)
        return Call(name, tensor, [tensor], timeout_s=self.default_timeout, root=peer)

    # --- who carries an exchange ---

    def _moving(self, call: Call) -> Exchanges | Inner:
        """Count an exchange, and return its carrier: the switch's exchanges, or gloo."""
        if self._exchanges is None:
            return self._gloo(call)
        self._sequence += 1
        self._counters[f"switch.{call.collective}"] += 1
        self._counters["switch.bytes"] += call.source.nbytes
        return self._exchanges

    def _gloo(self, call: Call, *parts: torch.Tensor) -> Inner:
        """Count an exchange by gloo, and return the gloo group. Raises the group's failure where it is broken.

        `parts`: the tensors that are sent, if these are not the source.
        """
        resources = self._resources
        failure = resources.failures.failure
        if failure is not None:
            raise resources.failures.explain(failure, call.collective, self.timeout_s)
        self._sequence += 1
        self._counters[f"gloo.{call.collective}"] += 1
        self._counters["gloo.bytes"] += sum(tensor.nbytes for tensor in parts or (call.source,))
        return resources.inner
