"""One rank of the codec benchmark: runs every codec on every distribution, reports in JSON lines."""

from __future__ import annotations

import argparse
import json
import zlib
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from fanin.benchmarks.codecs import DISTRIBUTIONS
from fanin.host.codecs import make
from fanin.host.codecs.codec import Floats, Place
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.training.codec_sums import reduce_now

ROWS = 256
"""Of the matrix that the values are, for codecs that look at shapes."""


def values(distribution: str, rank: int, count: int) -> Floats:
    """What a rank puts in, seeded by the rank."""
    generator = np.random.default_rng(rank)
    drawn = generator.normal(size=count) if distribution == "normal" else generator.standard_t(3, size=count)
    return drawn.astype(np.float32)


def run(codecs: list[str], count: int, steps: int) -> None:
    """Every codec, `steps` times on the same values."""
    torch.set_num_threads(1)
    dist.init_process_group("fanin", timeout=timedelta(seconds=120))
    group = dist.group.WORLD
    assert isinstance(group, FaninProcessGroup)
    rank, size = dist.get_rank(), dist.get_world_size()
    for distribution in DISTRIBUTIONS:
        own = values(distribution, rank, count)
        mean = sum(values(distribution, peer, count).astype(np.float64) for peer in range(size)) / size
        for text in codecs:
            figures = measured(group, text, own, np.asarray(mean), steps)
            print(json.dumps({"codec": text, "distribution": distribution, **figures}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def measured(
    group: FaninProcessGroup, text: str, own: Floats, mean: np.ndarray[tuple[int], np.dtype[np.float64]], steps: int
) -> dict[str, object]:
    """One codec's figures as this rank saw them."""
    count = len(own)
    shape = (ROWS, count // ROWS) if count % ROWS == 0 else (count,)
    encoder = make(text).encoder(Place(group.rank(), group.size(), (shape,)))
    applied = np.zeros(count)
    encode_s, decode_s, first, checksum = [], [], 0.0, 0
    dist.barrier()
    before = group.counters()
    for step in range(steps):
        x = own.copy()
        took = reduce_now(group, encoder, x, step)
        encode_s.append(took[0])
        decode_s.append(took[1])
        applied += x
        first = first if step else nmse(x, mean)
        checksum = zlib.crc32(x.tobytes(), checksum)
    after = group.counters()
    return {
        "nmse": first,
        "nmse_of_steps": nmse(applied / steps, mean),
        "encode_s": encode_s,
        "decode_s": decode_s,
        "bytes_out": (after["engine.bytes_out"] - before["engine.bytes_out"]) / steps,
        "bytes_in": (after["engine.bytes_in"] - before["engine.bytes_in"]) / steps,
        "checksum": checksum,
    }


def nmse(x: np.ndarray[tuple[int], np.dtype[np.floating]], mean: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Squared error relative to the exact mean's square."""
    return float(np.sum((x - mean) ** 2) / np.sum(mean**2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--codecs", required=True, help="as docs/codecs.md has them, separated by commas")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    arguments = parser.parse_args()
    run(arguments.codecs.split(","), arguments.count, arguments.steps)
