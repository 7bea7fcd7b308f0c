"""Codecs of DDP's gradients on a device, on host memory: bits and states are those of the host's encoders."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from fanin.host.codecs.philox import Randomness
from fanin.host.codecs.shifted_weights import ShiftedWeights
from fanin.host.torch import CodecState, LanesState, codec_hook, lanes_hook
from fanin.host.torch.device import lines
from fanin.host.torch.device.arithmetic import Plan
from fanin.host.torch.device.courier import CourierThreads, Parcel
from fanin.host.torch.device.device import Stream
from fanin.host.torch.device.together import Together
from fanin.host.torch.handles.call import Call
from fanin.host.torch.training import codec_buckets, pieced_gather
from fanin.host.torch.training.shard_groups import Segment
from fanin.numerics.reduction import Element
from fanin.options import Options
from tests.support.buckets import Bucket
from tests.support.host_device import HostDevice, TensorArithmetic, TensorWeights
from tests.torch.device_groups import reducers_of
from tests.torch.groups import SIZE, Groups, groups_of, on_every_rank

SMALL = 700
"""Elements whose sum is exact."""
COUNT = 9_001
"""Elements whose sum is quantized."""
PIECE = 8_192
"""Elements from which a bucket has several encoders, in these tests."""
STEPS = 3


@contextmanager
def groups_with_devices(options: Options | None = None) -> Iterator[Groups]:
    """Groups that take the host's memory for a device's."""
    with reducers_of(options) as (groups, reducers):
        for group, reducer in zip(groups, reducers, strict=True):
            group._reductions._submit = reducer.submit
            resources: Any = group._resources
            resources.arithmetic_on = lambda _device: TensorArithmetic()
        yield groups


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Groups, Groups]]:
    """Groups that take the host's memory for a device's, and groups that do not."""
    with groups_with_devices() as devices, groups_of(None) as hosts:
        yield devices, hosts


def gradients_of(rank: int, step: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    made = torch.randn(count, generator=torch.Generator().manual_seed(100 * rank + step)) ** 3
    if step == 1 and rank == 0:
        made[count // 2] = float("inf")
    return made.to(dtype)


def bits(tensor: torch.Tensor) -> Any:
    """The bits of a tensor, with all NaN made equal."""
    return torch.where(tensor.isnan(), torch.full_like(tensor, torch.nan), tensor).view(torch.uint8).numpy()


def steps(
    state: CodecState | LanesState, rank: int, count: int, dtype: torch.dtype, last: int = STEPS
) -> Iterator[Any]:
    parameter = torch.zeros(count)
    for step in range(state.step if isinstance(state, CodecState) else 0, last):
        gradients = gradients_of(rank, step, count, dtype)
        hook: Any = codec_hook if isinstance(state, CodecState) else lanes_hook
        averaged = hook(state, Bucket(parameter, gradients)).wait()
        yield averaged.clone()


CASES = [
    ("lanes:8", COUNT, torch.float32), ("lanes:4", PIECE + COUNT, torch.float32),
    ("lanes:16", COUNT, torch.bfloat16), ("lanes:8:feedback=False", COUNT, torch.float16),
    ("lanes:8", SMALL, torch.float16),
    ("rotated:8", COUNT, torch.float32), ("rotated:4", PIECE + COUNT, torch.float32),
    ("rotated:8", COUNT, torch.bfloat16), ("rotated:8:feedback=False", COUNT, torch.float32),
    ("rotated:8", SMALL, torch.float32), ("rotated:32", COUNT, torch.float32),
    ("lanes:4/8", PIECE + COUNT, torch.float32), ("lanes:8/8", COUNT, torch.bfloat16),
    ("rotated:4/8", PIECE + COUNT, torch.float32), ("rotated:2/4", COUNT, torch.float16),
    ("lanes:8:stochastic=True", PIECE + COUNT, torch.float32), ("lanes:4/8:stochastic=True", COUNT, torch.bfloat16),
    ("lanes:8:stochastic=True:feedback=False", COUNT, torch.float32), ("lanes:8:stochastic=True", SMALL, torch.float32),
]  # fmt: skip


@pytest.mark.parametrize(("codec", "count", "dtype"), CASES)
def test_averages_residuals_and_states_have_the_bits_of_the_hosts_encoders(
    codec: str, count: int, dtype: torch.dtype, both: tuple[Groups, Groups], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec_buckets, "PIECE", PIECE)

    def act(rank: int) -> list[Any]:
        state = CodecState(codec, group=groups[rank])
        averaged = list(steps(state, rank, count, dtype))
        owed = state.state_dict()["buckets"][0]["state"]
        (row,) = state.statement()
        return [*map(bits, averaged), *(owed[name].numpy().view(np.uint8) for name in sorted(owed)), sorted(owed), row]

    groups, hosts = both
    on_device: list[Any] = on_every_rank(act)
    groups = hosts
    on_host: list[Any] = on_every_rank(act)
    for mine, theirs in zip(on_device, on_host, strict=True):
        assert mine[-2] == theirs[-2]
        assert all(np.array_equal(a, b) for a, b in zip(mine[:-2], theirs[:-2], strict=True))
        # The host agrees on the bucket's scale by an exact sum of one float32; a device by scale codes, as ever.
        agreement = 4 * SIZE if "stochastic" in codec and count > SMALL else 0
        assert mine[-1].payload_bytes == theirs[-1].payload_bytes - agreement
        assert mine[-1].residual_norm == pytest.approx(theirs[-1].residual_norm, rel=1e-5)
        if not (codec.startswith("lanes") and "feedback=False" in codec):
            assert mine[-1].nmse == pytest.approx(theirs[-1].nmse, rel=1e-4 if "rotated" in codec else 0.5, abs=1e-12)


def test_a_bucket_of_several_pieces_agrees_on_codes_once_and_fills_its_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """On groups of its own, whose rings have smaller slots: those of other tests are cut for larger pieces."""
    monkeypatch.setattr(codec_buckets, "PIECE", PIECE)
    monkeypatch.setattr(lines, "SLOT_BYTES", PIECE)  # a piece in 8-bit lanes fills one
    put: list[tuple[str, str]] = []
    carry = CourierThreads.put

    def noted(threads: CourierThreads, parcel: Parcel) -> None:
        put.append((threading.current_thread().name, threads._name))
        carry(threads, parcel)

    monkeypatch.setattr(CourierThreads, "put", noted)

    def act(rank: int) -> dict[str, int]:
        state = CodecState("rotated:8", group=groups[rank])
        averaged = steps(state, rank, 3 * PIECE + 5_000, torch.float32)
        next(averaged)
        mine = threading.current_thread().name
        before = len(put)
        next(averaged)
        return Counter(name for thread, name in put[before:] if thread == mine)

    with groups_with_devices() as groups:
        counts = on_every_rank(act)
    for counted in counts:
        assert counted == {"codes": 1, "words": 4 + 1}  # and an announcement of the codes


@pytest.mark.parametrize("seed", range(20))
def test_blocks_of_parts_are_decoded_once_each_behind_their_last_word(seed: int) -> None:
    drawn = random.Random(seed)
    parts = drawn.randint(1, 5)
    calls = [Call("all_reduce", torch.zeros(drawn.randint(1, 900))) for _ in range(parts)]
    lanes = [drawn.choice((32, 16, 8, 4)) for _ in range(parts)]
    wide = drawn.random() < 0.5  # two blocks of 32 elements, 8 bits each, and four words behind them
    plans = [
        Plan(Element.FLOAT32, 4, 8, 1, 32, 2, 0, packet_words=20)
        if wide
        else Plan(Element.FLOAT32, each, each, 1, drawn.choice((32, 48, 80)), 1, 0)
        for each in lanes
    ]
    every = Together(calls, plans)
    owners: list[list[int]] = [[] for _ in range(every.words)]
    for number, part in enumerate(every.parts):
        assert part.first_code * 2 % 16 == part.first_word * 4 % 16 == 0
        for word in range(every.words)[part.first_word : part.first_word + part.plan.words(part.count)]:
            owners[word].append(number)
    assert all(len(each) <= 1 for each in owners)
    assert every.has_gaps == (not all(owners) or every.codes > sum(p.plan.blocks(p.count) for p in every.parts))
    slot, decoded = every.words_within(drawn.randint(20, 200) if wide else drawn.randint(1, 200)), [0] * parts
    assert slot % 20 == 0 or not wide
    for first in range(0, every.words, slot):
        last = min(first + slot, every.words)
        for each in every.decodings(first, last):
            number, block = every.parts.index(each.part), each.part.plan.block_elements
            assert each.elements.start == decoded[number] == each.first_block * block
            assert each.words.stop <= last
            assert each.words.start == each.part.first_word + each.part.plan.words(each.elements.start)
            decoded[number] = each.elements.stop
    assert decoded == [part.count for part in every.parts]


def test_a_state_goes_on_where_the_other_kind_of_memory_left_it(both: tuple[Groups, Groups]) -> None:
    count = COUNT
    saved: dict[int, Any] = {}
    later: dict[int, Any] = {}

    def begin(rank: int) -> None:
        state = CodecState("rotated:8", group=groups[rank])
        averaged = steps(state, rank, count, torch.float32, 2 * STEPS)
        for _ in range(STEPS):
            next(averaged)
        saved[rank] = state.state_dict()
        later[rank] = [bits(each) for each in averaged]

    def go_on(rank: int) -> None:
        state = CodecState("rotated:8", group=groups[rank])
        state.load_state_dict(saved[rank])
        averaged = [bits(each) for each in steps(state, rank, count, torch.float32, 2 * STEPS)]
        assert all(np.array_equal(a, b) for a, b in zip(averaged, later[rank], strict=True))

    devices, groups = both
    on_every_rank(begin)
    groups = devices
    on_every_rank(go_on)


def test_gradients_that_overflowed_reach_every_rank_and_leave_what_is_owed(both: tuple[Groups, Groups]) -> None:
    count = COUNT

    def act(rank: int) -> None:
        state, parameter = LanesState(lanes=8, error_feedback=True, group=groups[rank]), torch.zeros(count)
        lanes_hook(state, Bucket(parameter, torch.ones(count) * (rank + 0.3))).wait()  # type: ignore[arg-type]
        owed = state.residual_norm()
        overflowed = torch.full((count,), torch.inf if rank == 0 else 1.0)
        averaged = lanes_hook(state, Bucket(parameter, overflowed)).wait()  # type: ignore[arg-type]
        assert averaged.isnan().all()
        assert state.residual_norm() == owed > 0

    groups, _ = both
    on_every_rank(act)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_grad_scaler_leaves_out_a_step_that_one_rank_has_spoiled_on_every_rank(
    dtype: torch.dtype, both: tuple[Groups, Groups]
) -> None:
    groups, _ = both
    largest = torch.finfo(dtype).max

    def act(rank: int) -> list[float]:
        parameter, place = torch.nn.Parameter(torch.ones(COUNT)), torch.zeros(COUNT)
        optimizer = torch.optim.SGD([parameter], lr=0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=largest / 2, growth_interval=1000)
        state, scales = CodecState("lanes:8", group=groups[rank]), []
        for _ in range(3):  # the first scale is too large for rank 0's gradients alone, the second for none
            (scaler.scale(parameter.to(dtype) * (3.0 if rank == 0 else 1.0)).sum(dtype=torch.float32)).backward()
            assert parameter.grad is not None
            gradients = parameter.grad.to(dtype)
            averaged = codec_hook(state, Bucket(place, gradients)).wait()  # type: ignore[arg-type]
            parameter.grad = averaged.float()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale() / largest)
        assert bool(parameter.isfinite().all())
        return [*scales, float(parameter.detach().mean())]

    found: list[Any] = on_every_rank(act)
    mean = (3.0 + SIZE - 1) / SIZE
    for *scales, value in found:
        assert scales == [0.25, 0.25, 0.25]
        assert value == pytest.approx(1.0 - 2 * 0.5 * mean, rel=0.02)


class CountingDevice(HostDevice):
    """Counts the bytes of the buffers that it is asked for."""

    def __init__(self) -> None:
        self.allocated = 0

    def allocate(self, stream: Stream, count_bytes: int) -> torch.Tensor:
        self.allocated += count_bytes
        return super().allocate(stream, count_bytes)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_16_bits_take_no_copy_in_float32(dtype: torch.dtype, both: tuple[Groups, Groups]) -> None:
    groups, _ = both
    devices = [CountingDevice() for _ in range(SIZE)]
    count = 40_000

    def act(rank: int) -> None:
        x = gradients_of(rank, 0, count, dtype)
        groups[rank].all_reduce_lanes(x, lanes=8).wait()
        submit: Any = groups[rank]._reductions._submit
        (line,) = submit.__self__._lines.values()
        below, line.device._below = line.device._below, devices[rank]
        groups[rank].all_reduce_lanes(x, lanes=8).wait()
        line.device._below = below

    on_every_rank(act)
    for each in devices:
        assert 2 * count < each.allocated < 2.05 * count  # words there and words back, a byte each, and codes


def test_lanes_with_error_feedback_keep_their_residual_where_words_are_made(both: tuple[Groups, Groups]) -> None:
    count = COUNT

    def act(rank: int) -> list[Any]:
        state = LanesState(lanes=8, error_feedback=True, group=groups[rank])
        averaged = [bits(each) for each in steps(state, rank, count, torch.float32)]
        return [*averaged, state.residual_norm()]

    groups, hosts = both
    on_device: list[Any] = on_every_rank(act)
    groups = hosts
    on_host: list[Any] = on_every_rank(act)
    assert len(on_device) == SIZE
    for mine, theirs in zip(on_device, on_host, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("codec", ["rotated:8", "lanes:4"])
def test_a_groups_own_codec_works_where_the_tensor_lies(codec: str) -> None:
    options = Options(codec=codec)

    def act(rank: int) -> Any:
        group, found = groups[rank], []
        for step in range(2):
            x = gradients_of(rank, 2 * step, COUNT, torch.bfloat16)
            group.allreduce([x]).wait()
            found.append(bits(x))
        return found

    with groups_of(options) as groups:
        on_host: list[Any] = on_every_rank(act)
    with groups_with_devices(options) as groups:
        on_device: list[Any] = on_every_rank(act)
    for mine, theirs in zip(on_device, on_host, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_a_bucket_of_several_pieces_names_who_has_spoiled_it_and_the_next_step_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(codec_buckets, "PIECE", PIECE)
    count, bad = 2 * PIECE + 1_000, PIECE + 77

    def act(rank: int) -> None:
        state, parameter = CodecState("lanes:8", group=groups[rank]), torch.zeros(count)
        for step in range(3):
            gradients = torch.full((count,), rank + 0.3)
            gradients[bad] += torch.inf if step == 1 and rank == 1 else 0.0
            future = codec_hook(state, Bucket(parameter, gradients))  # type: ignore[arg-type]
            if step == 1:
                with pytest.raises(RuntimeError, match=r"NonFiniteError.*rank 1 contributed"):  # of torch's future
                    future.wait()
            else:
                assert bool(future.wait().isfinite().all())
        (report,) = groups[rank].nonfinite.reports
        (culprit,) = report.culprits
        assert culprit.first <= bad < culprit.first + culprit.count

    with groups_with_devices(Options(on_nonfinite="raise")) as groups:
        on_every_rank(act)


class OneRank:
    """A group whose gathers are done when they are called."""

    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0

    def wait(self) -> None:
        """Return at once: the gather is done."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gather_on_a_device_has_the_weights_and_the_loss_of_the_hosts(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieced_gather, "all_gather", lambda *_, **__: OneRank())
    codec = ShiftedWeights()
    size = dtype.itemsize
    layout = [
        Segment(0, 3000, dtype, True),
        Segment(3000 * size, 5, dtype, False),
        Segment(3005 * size, 77, dtype, True),
    ]
    part = torch.randn(3082, generator=torch.Generator().manual_seed(1)).to(dtype)
    gathered = []
    for coder in (None, TensorWeights(codec.device_plan())):
        gather = pieced_gather.PiecedGather(codec, layout, coder)
        losses = gather.start(part, OneRank(), Randomness(1, 2), 3, 0)
        output = torch.zeros_like(part)
        gather.finish(output)
        gathered.append((bits(output), losses.nmse))
    (by_host, lost), (by_device, lost_there) = gathered
    assert np.array_equal(by_host, by_device)
    assert lost > 0
    assert lost_there == pytest.approx(lost)
