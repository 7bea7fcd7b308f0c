"""Every collective against its definition, on every rank. Run by rank_main.py; see test_collectives.py."""

from __future__ import annotations

import contextlib
import copy
import os
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import _make_nccl_premul_sum as premultiplied
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from fanin.errors import UnsupportedError
from fanin.host.torch import FaninProcessGroup, counters
from fanin.host.torch.collectives.routing import AVG, ROUTES, SUM
from fanin.options import Options
from tests.support.processes import until
from tests.support.replicas import identical

INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
FLOATS = {torch.float32: 2e-6, torch.float64: 1e-14, torch.float16: 2e-3, torch.bfloat16: 2e-2}
"""Element types and the error that a sum may have, relative to the largest input."""
REDUCERS: dict[str, Any] = {
    "SUM": np.add,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "PRODUCT": np.multiply,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}


def values(dtype: torch.dtype, rank: int, count: int = 1000, seed: int = 1) -> torch.Tensor:
    """The values of `rank`: seeded, so that every rank knows those of every other."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype.is_complex:
        return torch.complex(*(torch.randn(count, generator=generator).to(dtype.to_real()) for _ in range(2)))
    if dtype.is_floating_point:
        return torch.randn(count, generator=generator).to(dtype)
    if dtype is torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).bool()
    low = -20 if dtype.is_signed else 0
    return torch.randint(low, 100, (count,), generator=generator).to(dtype)


def everyone(dtype: torch.dtype, size: int, **named: Any) -> list[torch.Tensor]:
    """The values of all ranks."""
    return [values(dtype, rank, **named) for rank in range(size)]


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 2e-6) -> None:
    """Equal within `tolerance` of the largest expected magnitude; exact for integers."""
    if actual.dtype.is_floating_point or actual.dtype.is_complex:
        bound = tolerance * max(1.0, float(expected.abs().max())) if expected.numel() else 0.0
        error = float((actual.to(expected.dtype) - expected).abs().max()) if expected.numel() else 0.0
        assert error <= bound, f"error {error} above {bound}"
    else:
        assert torch.equal(actual, expected), (actual, expected)


def reference(op: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    """The reduction by numpy, in the element type itself."""
    arrays = [tensor.numpy() for tensor in tensors]
    result = arrays[0]
    for array in arrays[1:]:
        result = REDUCERS[op](result, array)
    return torch.from_numpy(result.astype(arrays[0].dtype))


def check_all_reduce_sums_floats_of_every_width(rank: int, size: int) -> None:
    for dtype, tolerance in FLOATS.items():
        inputs = everyone(dtype, size, count=5000)
        tensor = inputs[rank].clone()
        dist.all_reduce(tensor)
        close(tensor, sum(x.double() for x in inputs), tolerance)  # type: ignore[arg-type]
        identical(tensor)


def check_all_reduce_averages_and_premultiplies(rank: int, size: int) -> None:
    for dtype, tolerance in FLOATS.items():
        inputs = everyone(dtype, size)
        total = torch.stack([x.double() for x in inputs]).sum(0)
        averaged, scaled, by_tensor = (inputs[rank].clone() for _ in range(3))
        dist.all_reduce(averaged, dist.ReduceOp.AVG)
        close(averaged, total / size, tolerance)
        dist.all_reduce(scaled, premultiplied(0.25))
        close(scaled, total / 4, tolerance)
        dist.all_reduce(by_tensor, premultiplied(torch.tensor(3.0)))
        close(by_tensor, total * 3, tolerance)
        identical(averaged)


def check_all_reduce_of_integers_is_exact(rank: int, size: int) -> None:
    for dtype in INTEGERS:
        for op in ("SUM", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR"):
            inputs = everyone(dtype, size)
            tensor = inputs[rank].clone()
            dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
            close(tensor, reference(op, inputs))


def check_all_reduce_of_unsigned_integers_wraps_like_numpy(rank: int, size: int) -> None:
    for dtype in UNSIGNED:
        for op in ("SUM", "PRODUCT", "BAND", "BOR", "BXOR"):
            inputs = everyone(dtype, size)
            tensor = inputs[rank].clone()
            dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
            close(tensor, reference(op, inputs))


def check_all_reduce_of_floats_by_other_operators(rank: int, size: int) -> None:
    for dtype in (torch.float32, torch.float64, torch.float16):
        for op in ("MIN", "MAX"):
            inputs = everyone(dtype, size)
            tensor = inputs[rank].clone()
            dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
            assert torch.equal(tensor, reference(op, inputs))


def check_averages_of_integers_round_toward_zero(rank: int, size: int) -> None:
    for dtype in (*INTEGERS, torch.uint16, torch.uint32):
        inputs = everyone(dtype, size)
        tensor = inputs[rank].clone()
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        total = torch.stack([x.to(torch.int64) for x in inputs]).sum(0)
        close(tensor, total.div(size, rounding_mode="trunc").to(dtype))


def check_logic_on_booleans(rank: int, size: int) -> None:
    inputs = everyone(torch.bool, size)
    stacked = torch.stack(inputs)
    parity = stacked.int().sum(0) % 2 == 1
    expected = {
        "SUM": stacked.any(0),
        "MAX": stacked.any(0),
        "BOR": stacked.any(0),
        "MIN": stacked.all(0),
        "PRODUCT": stacked.all(0),
        "BAND": stacked.all(0),
        "BXOR": parity,
    }
    for op, result in expected.items():
        tensor = inputs[rank].clone()
        dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
        assert torch.equal(tensor, result), op


def check_what_has_no_exact_route_is_refused_before_anything_is_sent(rank: int, size: int) -> None:
    for dtype, op in ((torch.int32, premultiplied(2.0)), (torch.uint64, dist.ReduceOp.MAX)):
        with pytest.raises(UnsupportedError, match=r"docs/torch\.md"):
            dist.all_reduce(torch.zeros(3, dtype=dtype), op)


def check_every_route_is_taken_without_error(rank: int, size: int) -> None:
    for op, dtype in ROUTES:
        tensor = torch.ones(7).to(dtype)
        dist.all_reduce(tensor, premultiplied(1.0) if op == dist.ReduceOp.PREMUL_SUM else op)


def check_complex_numbers_sum_as_pairs(rank: int, size: int) -> None:
    for dtype in (torch.complex64, torch.complex128):
        inputs = everyone(dtype, size)
        tensor = inputs[rank].clone()
        dist.all_reduce(tensor)
        total = torch.stack(inputs).to(torch.complex128).sum(0)
        close(tensor, total)
        output = torch.empty(1000 // size, dtype=dtype)
        group = dist.group.WORLD
        assert isinstance(group, FaninProcessGroup)
        group._reduce_scatter_base(output, inputs[rank]).wait()
        close(output, total.chunk(size)[rank])


def check_non_contiguous_tensors_views_and_empty_ones(rank: int, size: int) -> None:
    base = torch.zeros(6, 8)
    base[:, ::2] = rank + 1.0
    dist.all_reduce(base[:, ::2])
    total = size * (size + 1) / 2
    assert bool((base[:, ::2] == total).all())
    assert bool((base[:, 1::2] == 0).all())
    matrix = torch.full((5, 3), float(rank)).t()
    dist.all_reduce(matrix)
    assert bool((matrix == size * (size - 1) / 2).all())
    part = torch.ones(100)
    dist.all_reduce(part[10:20])
    assert part.sum() == 90 + 10 * size
    for dtype in (torch.float32, torch.int64):
        dist.all_reduce(torch.empty(0, dtype=dtype))
    scalar = torch.tensor(1.5)
    dist.all_reduce(scalar)
    assert float(scalar) == 1.5 * size
    leaf = torch.ones(4, requires_grad=True)
    dist.all_reduce(leaf)
    assert bool((leaf == size).all())


def check_small_sums_keep_every_value(rank: int, size: int) -> None:
    one_rank = float("inf") if rank == 2 else 0.0
    for dtype, op, mine, wanted in (
        (torch.float32, SUM, [1e9, 0.5], [4e9, 2.0]),
        (torch.float32, SUM, [2.31, 1.76e9], [4 * np.float64(np.float32(2.31)), 7.04e9]),
        (torch.float32, SUM, [one_rank, 1.0, 2.0], [float("inf"), 4.0, 8.0]),
        (torch.float32, AVG, [3e38, 1.0], [3e38, 1.0]),
        (torch.float64, SUM, [1e-300, 1.0], [4e-300, 4.0]),
        (torch.float64, AVG, [1.7e308, 1e-10], [1.7e308, 1e-10]),
        (torch.float16, SUM, [30000.0, 1e-7], [float("inf"), 4 * np.float64(np.float16(1e-7))]),
        (torch.bfloat16, SUM, [-0.0, 1e30], [-0.0, 4e30]),
        (torch.complex64, SUM, [complex(1e9, 0.5)], [complex(4e9, 2.0)]),
    ):
        tensor = torch.tensor(mine, dtype=dtype)
        dist.all_reduce(tensor, op)
        assert bits_equal(tensor, torch.tensor(wanted, dtype=dtype)), (tensor, wanted)
    for count in (1, 256, 1024):  # with four ranks
        inputs = [values(torch.float32, peer, count) * 10.0 ** (9 * peer) for peer in range(size)]
        tensor = inputs[rank].clone()
        dist.all_reduce(tensor)
        total = inputs[0].double()
        for each in inputs[1:]:
            total = total + each.double()
        assert bits_equal(tensor, total.float())


def check_means_of_large_tensors_do_not_overflow(rank: int, size: int) -> None:
    for dtype, value in ((torch.float32, 3e38), (torch.float64, 1.7e308), (torch.bfloat16, 3e38)):
        tensor = torch.full((20_000,), value, dtype=dtype)
        dist.all_reduce(tensor, AVG)
        close(tensor / value, torch.ones_like(tensor), 1e-2 if dtype is torch.bfloat16 else 1e-6)


def check_large_float64_keep_their_bits_beside_larger_ones(rank: int, size: int) -> None:
    tensor = torch.tensor([1e-10, 1.0], dtype=torch.float64).repeat(10_000)
    dist.all_reduce(tensor)
    assert bool(((tensor[::2] / (size * 1e-10) - 1).abs() < 3e-16).all())


def check_small_tensors_of_every_operator_go_through_the_switch(rank: int, size: int) -> None:
    before = counters()
    for op in ("MIN", "MAX", "PRODUCT"):
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8):
            inputs = [values(dtype, peer, 256, 3).clamp(max=3) for peer in range(size)]
            tensor = inputs[rank].clone()
            dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
            wide = [each.double() if dtype.is_floating_point else each for each in inputs]
            assert torch.equal(tensor, reference(op, wide).to(dtype)), (op, dtype)
    output = torch.zeros(8, dtype=torch.int64)
    dist.reduce_scatter_tensor(output, torch.arange(8 * size) + rank, dist.ReduceOp.MAX)
    assert torch.equal(output, torch.arange(8 * rank, 8 * rank + 8) + size - 1)
    zeros = torch.tensor([0.0, float("nan") if rank == 1 else 1.0]).copysign(torch.tensor(-1.0 if rank else 1.0))
    dist.all_reduce(zeros, dist.ReduceOp.MAX)
    assert float(zeros[0].copysign(torch.tensor(1.0))) == 0.0
    assert not bool(torch.signbit(zeros[0]))
    assert bool(zeros[1].isnan())
    after = counters()
    assert after.get("gloo.all_reduce", 0) == before.get("gloo.all_reduce", 0)


def check_an_exact_sum_can_be_asked_for(rank: int, size: int) -> None:
    group = dist.group.WORLD
    assert isinstance(group, FaninProcessGroup)
    tensor = torch.tensor([1e9, 0.5]).repeat(10_000)
    group.all_reduce_lanes(tensor, lanes=0).wait()
    assert torch.equal(tensor, torch.tensor([4e9, 2.0]).repeat(10_000))
    wide = dist.new_group(backend="fanin", pg_options=Options(exact_elements=20_000))
    none = dist.new_group(backend="fanin", pg_options=Options(exact_elements=0))
    for made, kept in ((wide, True), (none, False)):
        tensor = torch.tensor([1e9, 0.5]).repeat(10_000)
        dist.all_reduce(tensor, group=made)
        assert torch.equal(tensor, torch.tensor([4e9, 2.0]).repeat(10_000)) == kept
    tensor = torch.tensor([rank])
    dist.all_reduce(tensor, dist.ReduceOp.MAX, group=none)
    assert int(tensor) == size - 1
    assert counters(none)["gloo.all_reduce"] == 1


def check_not_finite_values_reach_every_rank_as_nan(rank: int, size: int) -> None:
    for bad in (float("nan"), float("inf"), float("-inf")):
        tensor = torch.ones(100)
        if rank == size - 1:
            tensor[3] = bad
        dist.all_reduce(tensor)
        assert not bool(torch.isfinite(tensor[3]))


def check_reduce_writes_the_root_alone(rank: int, size: int) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int32, torch.int64, torch.int16):
        for root in range(size):
            inputs = everyone(dtype, size)
            tensor = inputs[rank].clone()
            dist.reduce(tensor, root)
            if rank == root:
                expected = torch.stack([x.double() for x in inputs]).sum(0)
                close(tensor.double(), expected, FLOATS.get(dtype, 0.0))
            else:
                assert torch.equal(tensor, inputs[rank])


def check_reduce_scatter_in_every_form(rank: int, size: int) -> None:
    for dtype in (torch.float32, torch.float16, torch.int32, torch.int64, torch.int16):
        tolerance = FLOATS.get(dtype, 0.0)
        parts = [everyone(dtype, size, count=96, seed=peer) for peer in range(size)]  # parts[peer][part]
        expected = torch.stack([parts[peer][rank].double() for peer in range(size)]).sum(0)
        output = torch.empty(96, dtype=dtype)
        dist.reduce_scatter(output, parts[rank])
        close(output.double(), expected, tolerance)
        output = torch.empty(96, dtype=dtype)
        dist.reduce_scatter_tensor(output, torch.cat(parts[rank]))
        close(output.double(), expected, tolerance)
    flat = torch.arange(8.0 * size)
    own = flat[8 * rank : 8 * rank + 8]
    dist.reduce_scatter_tensor(own, flat, dist.ReduceOp.AVG)  # each element over itself
    close(own, torch.arange(8.0 * size)[8 * rank : 8 * rank + 8])
    flat = torch.arange(8.0 * size)
    shifted = flat[4:12]
    dist.reduce_scatter_tensor(shifted, flat, dist.ReduceOp.AVG)  # over other ranks' parts
    close(shifted, torch.arange(8.0 * size)[8 * rank : 8 * rank + 8])
    uneven = [torch.full((peer + 1,), float(rank)) for peer in range(size)]
    output = torch.empty(rank + 1)
    dist.reduce_scatter(output, uneven)
    assert bool((output == size * (size - 1) / 2).all())


def check_reduce_scatter_of_integers_by_every_operator(rank: int, size: int) -> None:
    for dtype in (*INTEGERS, *UNSIGNED):
        for op in ("SUM", "PRODUCT", "BAND", "BOR", "BXOR"):
            for count in (12, 500):  # summed exactly through the switch, and by gloo
                inputs = everyone(dtype, size, count=count * size)
                expected = reference(op, inputs)[count * rank : count * (rank + 1)]
                output = torch.empty(count, dtype=dtype)
                dist.reduce_scatter_tensor(output, inputs[rank].clone(), getattr(dist.ReduceOp, op))
                close(output, expected)


def check_gathering_collectives_move_every_element_type(rank: int, size: int) -> None:
    dtypes = (
        torch.float32,
        torch.bfloat16,
        torch.int16,
        torch.uint16,
        torch.bool,
        torch.complex64,
        torch.float8_e4m3fn,
    )
    for dtype in dtypes:
        brought = [
            torch.arange(12).remainder(2).add(peer % 2).clamp(max=1).to(dtype).reshape(3, 4) for peer in range(size)
        ]
        mine = brought[rank]
        outputs = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(outputs, mine)
        assert all(bits_equal(a, b) for a, b in zip(outputs, brought, strict=True))
        flat = torch.empty(size * 3, 4, dtype=dtype)
        dist.all_gather_into_tensor(flat, mine)
        assert bits_equal(flat, torch.cat(brought))
        copy = mine.clone()
        dist.broadcast(copy, src=size - 1)
        assert bits_equal(copy, brought[size - 1])
        gathered = [torch.empty_like(mine) for _ in range(size)] if rank == 1 else None
        dist.gather(mine, gathered, dst=1)
        assert gathered is None or all(bits_equal(a, b) for a, b in zip(gathered, brought, strict=True))
        part = torch.empty_like(mine)
        dist.scatter(part, brought if rank == 0 else None, src=0)
        assert bits_equal(part, brought[rank])


def check_moving_any_size_through_the_switch(rank: int, size: int) -> None:
    before = counters()
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int64):
        for count in (0, 1, 7, 50_001):
            brought = [values(dtype, peer, count=count) for peer in range(size)]
            mine = brought[rank]
            outputs = [torch.empty_like(mine) for _ in range(size)]
            dist.all_gather(outputs, mine)
            assert all(bits_equal(a, b) for a, b in zip(outputs, brought, strict=True))
            flat = torch.empty(size * count, dtype=dtype)
            place = flat[rank * count : (rank + 1) * count]  # as FSDP does: the input is its place in the output
            place.copy_(mine)
            dist.all_gather_into_tensor(flat, place)
            assert bits_equal(flat, torch.cat(brought))
            every_other = torch.zeros(count, 2, dtype=dtype)
            every_other[:, 0] = mine
            dist.broadcast(every_other[:, 0], src=1)
            assert bits_equal(every_other[:, 0].clone(memory_format=torch.contiguous_format), brought[1])
            assert not every_other[:, 1].any()
    after = counters()
    assert after["switch.all_gather"] - before.get("switch.all_gather", 0) == 20
    assert after["switch.broadcast"] - before.get("switch.broadcast", 0) == 20
    assert after.get("gloo.broadcast", 0) == before.get("gloo.broadcast", 0)


def check_parts_of_different_sizes(rank: int, size: int) -> None:
    for unit in (0, 3, 30_000):
        parts = [torch.full((peer * unit,), -1.0) for peer in range(size)]
        dist.all_gather(parts, torch.full((rank * unit,), float(rank)))
        assert all(bool((part == peer).all()) for peer, part in enumerate(parts))


def check_moving_and_summing_interleave(rank: int, size: int) -> None:
    total = torch.ones(70_000)
    works = [dist.all_reduce(total, async_op=True)]
    gathered = [torch.empty(size * 9_000) for _ in range(3)]
    for index, output in enumerate(gathered):
        works.append(dist.all_gather_into_tensor(output, torch.full((9_000,), float(rank + index)), async_op=True))
    everywhere = torch.full((40_000,), float(rank))
    works.append(dist.broadcast(everywhere, src=size - 1, async_op=True))
    for work in reversed(works):
        work.wait()
    assert bool((total == size).all())
    assert bool((everywhere == size - 1).all())
    for index, output in enumerate(gathered):
        assert torch.equal(output.reshape(size, -1)[:, 0], torch.arange(size) + float(index))


def check_two_threads_move_and_sum_on_two_groups(rank: int, size: int) -> None:
    groups = [dist.new_group(), dist.new_group()]
    failures: list[BaseException] = []

    def work(index: int) -> None:
        try:
            for turn in range(10):
                output = torch.empty(size * 5_000)
                dist.all_gather_into_tensor(output, torch.full((5_000,), float(rank + turn)), group=groups[index])
                assert torch.equal(output.reshape(size, -1)[:, 7], torch.arange(size) + float(turn))
                tensor = torch.full((20_000,), float(rank))
                dist.broadcast(tensor, src=turn % size, group=groups[index])
                assert bool((tensor == turn % size).all())
                part = torch.empty(3_000)
                dist.reduce_scatter_tensor(part, torch.ones(3_000 * size), group=groups[index])
                assert bool((part == size).all())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for group in groups:
        dist.destroy_process_group(group)
    assert not failures, failures


def bits_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors hold the same bits."""
    return torch.equal(a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8))


def check_methods_of_the_group_take_a_root_by_name(rank: int, size: int) -> None:
    """The methods of torch's own ProcessGroup do so."""
    group = dist.group.WORLD
    assert isinstance(group, FaninProcessGroup)
    reduced, copied = torch.ones(3), torch.full((3,), float(rank))
    group.reduce(reduced, root=1).wait()
    group.broadcast(copied, root=1).wait()
    assert reduced.tolist() == [size if rank == 1 else 1] * 3
    assert copied.tolist() == [1.0] * 3


def check_what_was_made_in_inference_mode_is_written_outside_of_it(rank: int, size: int) -> None:
    """Results are brought into place by whoever waits, on a thread of the pool for a future."""
    with torch.inference_mode():
        flat = [torch.empty(6) for _ in range(size)]
        strided = [torch.empty(3, 2).t() for _ in range(size)]
        counts, mean = torch.full((5,), rank, dtype=torch.int16), torch.full((5,), 2 * rank)
        root = torch.full((3, 2), float(rank)).t()
        works = [
            dist.all_gather(flat, torch.full((6,), float(rank)), async_op=True),
            dist.all_reduce(counts, dist.ReduceOp.AVG, async_op=True),
            dist.broadcast(root, 1, async_op=True),
        ]
    for work in works:
        assert work is not None
        work.wait()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    later = dist.all_gather(strided, torch.full((2, 3), float(rank)), async_op=True)
    assert later is not None
    later.get_future().wait()
    for each in (flat, strided):
        assert [float(part[0] if part.dim() == 1 else part[0, 0]) for part in each] == list(range(size))
    assert counts.tolist() == [(size - 1) // 2] * 5
    assert mean.tolist() == [size - 1] * 5
    assert float(root[1, 2]) == 1


def check_gathering_into_strided_tensors(rank: int, size: int) -> None:
    wide = torch.zeros(4, 2 * size)
    outputs = [wide[:, 2 * peer] for peer in range(size)]
    dist.all_gather(outputs, torch.full((4,), float(rank)))
    assert all(bool((wide[:, 2 * peer] == peer).all()) for peer in range(size))
    column = torch.zeros(4, 2)
    column[:, 0] = rank
    dist.broadcast(column[:, 0], src=1)
    assert bool((column[:, 0] == 1).all())


def check_all_to_all_even_and_uneven(rank: int, size: int) -> None:
    for dtype in (torch.float32, torch.int16, torch.bool):
        even = torch.arange(size * 2).remainder(rank + 2).to(dtype)
        output = torch.empty_like(even)
        dist.all_to_all_single(output, even)
        expected = torch.cat(
            [torch.arange(size * 2).remainder(p + 2).to(dtype)[2 * rank : 2 * rank + 2] for p in range(size)]
        )
        assert torch.equal(output, expected)
        sends = [torch.full((peer + rank, 3), rank).to(dtype) for peer in range(size)]
        receives = [torch.empty((peer + rank, 3), dtype=dtype) for peer in range(size)]
        dist.all_to_all(receives, sends)
        assert all(torch.equal(got, torch.full((p + rank, 3), p).to(dtype)) for p, got in enumerate(receives))
        flat = torch.empty(sum(peer + rank for peer in range(size)), 3, dtype=dtype)
        splits = [peer + rank for peer in range(size)]
        dist.all_to_all_single(flat, torch.cat(sends), splits, splits)
        assert torch.equal(flat, torch.cat(receives))


def check_point_to_point_with_tags_any_source_and_batches(rank: int, size: int) -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    first, second = torch.full((5,), float(rank)), torch.full((7,), 10.0 + rank)
    sends = [dist.isend(first, right, tag=1), dist.isend(second, right, tag=2)]
    got_second, got_first = torch.empty(7), torch.empty(5)
    dist.recv(got_second, left, tag=2)
    dist.recv(got_first, left, tag=1)
    for work in sends:
        assert work is not None
        work.wait()
    assert bool((got_first == left).all())
    assert bool((got_second == 10 + left).all())
    if rank == 0:
        seen = set()
        for _ in range(size - 1):
            tensor = torch.empty(1)
            sender = dist.recv(tensor, tag=3)
            assert float(tensor) == sender
            seen.add(sender)
        assert seen == set(range(1, size))
    else:
        dist.send(torch.full((1,), float(rank)), 0, tag=3)
    received = torch.empty(4, dtype=torch.int16)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.full((4,), rank, dtype=torch.int16), right),
            dist.P2POp(dist.irecv, received, left),
        ]
    )
    for work in works:
        work.wait()
    assert bool((received == left).all())


def check_object_collectives(rank: int, size: int) -> None:
    mine = {"rank": rank, "text": "x" * (rank * 100)}
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, mine)
    assert [item["rank"] for item in gathered] == list(range(size))
    shared = [mine if rank == 2 else None]
    dist.broadcast_object_list(shared, src=2)
    assert shared[0] == {"rank": 2, "text": "x" * 200}
    collected: list[Any] | None = [None] * size if rank == 0 else None
    dist.gather_object(mine, collected, dst=0)
    assert collected is None or [len(item["text"]) for item in collected] == [100 * peer for peer in range(size)]
    part: list[Any] = [None]
    dist.scatter_object_list(part, [f"for {peer}" for peer in range(size)] if rank == 0 else None, src=0)
    assert part == [f"for {rank}"]


def check_coalesced_collectives(rank: int, size: int) -> None:
    tensors = [torch.full((count,), float(rank)) for count in (3, 1000, 50)]
    dist.all_reduce_coalesced(tensors)
    assert all(bool((tensor == size * (size - 1) / 2).all()) for tensor in tensors)
    tensors = [torch.full((count,), 1.0) for count in (3, 1000)]
    with _coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert all(bool((tensor == size).all()) for tensor in tensors)
    outputs = [torch.empty(2 * size), torch.empty(3 * size)]
    with _coalescing_manager():
        for output, count in zip(outputs, (2, 3), strict=True):
            dist.all_gather_into_tensor(output, torch.full((count,), float(rank)))
    assert all(torch.equal(output.chunk(size)[2], torch.full((output.numel() // size,), 2.0)) for output in outputs)
    outputs = [torch.empty(2), torch.empty(3)]
    with _coalescing_manager():
        for output in outputs:
            dist.reduce_scatter_tensor(output, torch.ones(output.numel() * size))
    assert all(bool((output == size).all()) for output in outputs)
    with _coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.all_to_all_single(outputs[0].repeat(size), outputs[0].repeat(size))
    manager.wait()


def check_futures_run_callbacks_that_issue_collectives(rank: int, size: int) -> None:
    tensor, again = torch.ones(1000), torch.ones(10)

    def then(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        assert float(future.value()[0][0]) == size
        work = dist.all_reduce(again, async_op=True)
        assert work is not None
        inner: torch.Tensor = work.get_future().wait()[0]
        return inner

    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    assert float(work.get_future().then(then).wait()[0]) == size
    gathered = [torch.empty(2) for _ in range(size)]
    work = dist.all_gather(gathered, torch.full((2,), float(rank)), async_op=True)
    assert work is not None
    work.get_future().wait()
    assert [float(item[0]) for item in gathered] == list(range(size))


def check_ranks_need_not_agree_on_who_waits_at_once(rank: int, size: int) -> None:
    for step in range(6):
        tensor = torch.full((50,), float(rank + step))
        if (rank + step) % 2:
            dist.all_reduce(tensor)
        else:
            work = dist.all_reduce(tensor, async_op=True)
            assert work is not None
            assert work.wait()
        assert bool((tensor == sum(range(size)) + step * size).all())


def check_many_unawaited_collectives_finish_in_any_order_of_waiting(rank: int, size: int) -> None:
    tensors = [torch.full((100 + 37 * index,), float(index)) for index in range(40)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for index in reversed(range(40)):
        work = works[index]
        assert work is not None
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
        assert bool((tensors[index] == index * size).all())


def check_subgroups_are_jobs_of_their_own(rank: int, size: int) -> None:
    evens = dist.new_group(list(range(0, size, 2)))
    odds = dist.new_group(list(range(1, size, 2)))
    alone = [dist.new_group([peer]) for peer in range(size)]
    mine = evens if rank % 2 == 0 else odds
    tensor = torch.full((10,), float(rank))
    dist.all_reduce(tensor, group=mine)
    assert float(tensor[0]) == sum(range(rank % 2, size, 2))
    dist.all_reduce(tensor.zero_().add_(1))
    dist.all_reduce(tensor, premultiplied(2.0), group=alone[rank])
    assert float(tensor[0]) == 2 * size
    dist.barrier(alone[rank])
    output = torch.empty(10)
    dist.reduce_scatter_tensor(output, tensor, group=alone[rank])
    assert torch.equal(output, tensor)
    root = rank % 2
    copy = torch.full((3,), float(rank))
    dist.broadcast(copy, src=root, group=mine)
    assert float(copy[0]) == root
    assert counters(mine)["switch.all_reduce"] == 1
    assert dist.get_backend(mine) == "fanin"
    dist.destroy_process_group(mine)


def threads() -> Counter[str]:
    """Threads of this process, by name. One that was joined may be there for another moment (pthread_join(3))."""
    names: Counter[str] = Counter()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # one that ends at this moment
            names[(task / "comm").read_text().strip()] += 1
    return names


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def check_groups_cost_one_thread_each_and_descriptors_when_they_sum(rank: int, size: int) -> None:
    before, open_before = threads(), descriptors()
    groups = [dist.new_group(range(size)) for _ in range(12)]
    assert (threads() - before).total() <= len(groups), "gloo's, one for each"
    opened = descriptors() - open_before
    for _ in range(2):
        for index, group in enumerate(groups):
            tensor = torch.full((5000,), float(rank + index))
            dist.all_reduce(tensor, group=group)
            assert float(tensor[0]) == sum(range(size)) + size * index
    dist.barrier()
    added = threads() - before
    assert added["fanin-worker"] <= 4
    assert added.total() <= len(groups) + 4
    assert descriptors() - open_before > opened
    for group in groups:
        dist.destroy_process_group(group)
    dist.barrier()
    until(lambda: (threads() - before).total() == 0)
    del groups, group
    until(lambda: descriptors() <= open_before)  # the switch in rank 0 closes connections when it notices their ends


def check_a_group_that_is_destroyed_finishes_what_is_under_way(rank: int, size: int) -> None:
    count = 500_000
    total = float(sum(range(1, size + 1)))

    def own(elements: int = count) -> torch.Tensor:
        return torch.full((elements,), rank + 1.0)

    def destroyed(begin: Callable[[Any], tuple[torch.Tensor, Any]]) -> torch.Tensor:
        group = dist.new_group()
        dist.barrier(group=group)
        tensor, work = begin(group)
        dist.destroy_process_group(group)
        work.wait()
        return tensor

    for elements in (3000, count):
        summed = own(elements)
        assert (destroyed(lambda g, x=summed: (x, dist.all_reduce(x, group=g, async_op=True))) == total).all()  # type: ignore[misc]
    sent = own()
    assert (destroyed(lambda g: (sent, dist.broadcast(sent, 1, group=g, async_op=True))) == 2.0).all()
    moved = torch.zeros(size * 4)
    given = own(size * 4)
    assert (
        destroyed(lambda g: (moved, dist.all_to_all_single(moved, given, group=g, async_op=True)))
        == torch.arange(1.0, size + 1).repeat_interleave(4)
    ).all()
    parts = [torch.zeros(count) for _ in range(size)] if rank == 0 else None
    destroyed(lambda g: (own(), dist.gather(own(), parts, 0, group=g, async_op=True)))
    assert parts is None or [float(part[-1]) for part in parts] == [float(peer + 1) for peer in range(size)]
    peer = own()
    if rank < 2:
        destroyed_pair = dist.isend(peer, 1) if rank == 0 else dist.irecv(peer, 0)
        assert destroyed_pair is not None
        assert rank == 0 or destroyed_pair._source_rank() == 0
        destroyed_pair.wait()
        assert float(peer[-1]) == 1.0


def check_groups_that_come_and_go_leave_nothing_behind(rank: int, size: int) -> None:
    def come_and_go() -> None:
        group = dist.new_group(range(size))
        tensor = torch.ones(5000)
        dist.all_reduce(tensor, group=group)
        assert float(tensor[0]) == size
        dist.destroy_process_group(group)

    come_and_go()
    before, open_before = threads(), descriptors()
    for _ in range(10):
        come_and_go()
    until(lambda: (threads() - before).total() == 0)
    until(lambda: descriptors() <= open_before)  # the switch in rank 0 closes connections when it notices their ends


def check_two_threads_sum_over_two_groups_at_once_while_a_third_goes(rank: int, size: int) -> None:
    first, second, third = (dist.new_group(range(size)) for _ in range(3))

    def sums(group: Any, value: float) -> None:
        for _ in range(20):
            tensor = torch.full((20_000,), value)
            dist.all_reduce(tensor, group=group)
            assert float(tensor[0]) == value * size

    dist.all_reduce(torch.ones(5000), group=third)
    with ThreadPoolExecutor(2) as pool:
        works = [pool.submit(sums, group, value) for group, value in ((first, 1.0), (second, 2.0))]
        dist.destroy_process_group(third)
        for work in works:
            work.result()
    dist.destroy_process_group(first)
    dist.destroy_process_group(second)


def check_tensor_parallel_and_data_parallel_share_a_mesh(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(11)
    whole = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
    parts = parallelize_module(copy.deepcopy(whole), mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    given = torch.randn(8, 64, generator=torch.Generator().manual_seed(rank // (size // 2)))
    expected, result = whole(given), parts(given)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    result.sum().backward()
    expected.sum().backward()
    metric = torch.tensor([float(result.detach().sum())])
    dist.all_reduce(metric, group=mesh["dp"].get_group())
    gradient, reference = (model.get_submodule("2").weight.grad for model in (parts, whole))
    assert isinstance(gradient, DTensor)
    torch.testing.assert_close(gradient.full_tensor(), reference, rtol=1e-4, atol=1e-5)


def check_sparse_tensors_sum(rank: int, size: int) -> None:
    indices = torch.tensor([[rank, size]])
    tensor = torch.sparse_coo_tensor(indices, torch.tensor([1.0, 2.0]), (size + 1,))
    dist.all_reduce(tensor)
    expected = torch.ones(size + 1)
    expected[size] = 2.0 * size
    assert torch.equal(tensor.to_dense(), expected)


def check_barrier_and_counters_say_which_path_was_taken(rank: int, size: int) -> None:
    before = counters()
    dist.barrier()
    dist.all_reduce(torch.ones(256))
    dist.all_reduce(torch.ones(5000, dtype=torch.int64))
    after = counters()
    delta = {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}
    assert delta["switch.barrier"] == 1
    assert delta["switch.all_reduce"] == 1
    assert delta["gloo.all_reduce"] == 1
    assert delta["switch.bytes"] == 1024 + 4
    assert delta["gloo.bytes"] == 40_000
    assert any(name.startswith("engine.") for name in delta)


def check_results_do_not_depend_on_the_run(rank: int, size: int) -> None:
    results = []
    for _ in range(3):
        tensor = values(torch.float32, rank, count=20000)
        dist.all_reduce(tensor)
        results.append(tensor)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    identical(results[0])
