"""Every transition of a tensor among Shard, Replicate and Partial, exact, with the path that each takes.

    torchrun --nproc-per-node 4 -m fanin.examples.parallel.layouts --check

OneFlow (Yuan et al., 2021) names the layouts split, broadcast and partial sum; DTensor has the same three. A tensor
that is a partial sum on every rank becomes whole, or sharded, by a sum, and sums go through the switch.
`--check` compares every result with the whole tensor, bit for bit, for rows that the ranks divide and that they do not,
and says which transitions the switch carried.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

from fanin.examples.parallel import launcher
from fanin.examples.parallel.launcher import Asked, Figures, counted, expect

LAYOUTS: dict[str, Placement] = {"shard": Shard(0), "replicate": Replicate(), "partial": Partial()}
COLUMNS = 3000
"""Number of columns, enough that a row is no small tensor."""


def whole_tensor(rows: int) -> Tensor:
    """A tensor of whole numbers, which sums in float32 keep exactly."""
    return torch.arange(float(rows * COLUMNS)).reshape(rows, COLUMNS) % 1021


def laid_out(whole: Tensor, mesh: DeviceMesh, layout: Placement) -> DTensor:
    """The tensor in a layout; as a partial sum, every rank has a summand of its own."""
    if not isinstance(layout, Partial):
        return distribute_tensor(whole, mesh, [layout])
    rank, ranks = mesh.get_local_rank(), mesh.size()
    drawn = [torch.randint(-50, 50, whole.shape, generator=torch.Generator().manual_seed(i)) for i in range(ranks)]
    own = drawn[rank].float() if rank else whole - torch.stack(drawn[1:]).sum(0)
    return DTensor.from_local(own, mesh, [Partial()])


def moved_to(tensor: DTensor, layout: Placement, mesh: DeviceMesh) -> DTensor:
    """The tensor in another layout; torch itself makes no partial sums from other layouts."""
    source = tensor.placements[0]
    if not isinstance(layout, Partial) or isinstance(source, Partial):
        return tensor.redistribute(mesh, [layout])
    own, rank = torch.zeros(tensor.shape), mesh.get_local_rank()
    if isinstance(source, Shard):
        rows = [len(part) for part in own.chunk(mesh.size())]
        offset = sum(rows[:rank])
        own[offset : offset + len(tensor.to_local())] = tensor.to_local()
    elif rank == 0:
        own = tensor.to_local().clone()
    return DTensor.from_local(own, mesh, [Partial()])


def value_of(tensor: DTensor) -> Tensor:
    """The whole tensor, gathered or summed without DTensor's own collectives."""
    local, layout = tensor.to_local(), tensor.placements[0]
    if isinstance(layout, Partial):
        local = local.clone()
        dist.all_reduce(local)
    elif isinstance(layout, Shard):
        parts: list[Tensor | None] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, local)
        local = torch.cat([part for part in parts if part is not None])
    return local


def play(asked: Asked) -> Figures:
    """Make all nine transitions, for a number of rows that the ranks divide and for one more."""
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,))
    carried: dict[str, str] = {}
    wrong = []
    for rows in (2 * ranks, 2 * ranks + 1):
        whole = whole_tensor(rows)
        for source, start in LAYOUTS.items():
            for target, end in LAYOUTS.items():
                before = laid_out(whole, mesh, start)
                with counted() as bytes_moved:
                    after = moved_to(before, end, mesh)
                    local = after.to_local()
                    local = local.wait() if hasattr(local, "wait") else local
                name = f"{source} to {target}"
                carried[name] = ", ".join(path for path, count in bytes_moved.items() if count) or "nothing moves"
                if not torch.equal(value_of(after), whole):
                    wrong.append(f"{name} of {rows} rows")
    if asked.check:
        expect(not wrong, f"not exact: {', '.join(wrong)}")
        for target in ("replicate", "shard"):
            path = carried[f"partial to {target}"]
            expect(path in ("switch", "shards"), f"partial to {target} went by {path}, and not through the switch")
    return carried


if __name__ == "__main__":
    launcher.run(play, "layouts", __doc__)
