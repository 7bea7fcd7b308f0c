"""The hash of weights by which replicas are compared every few steps."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'fanin[torch]'")

from torch import nn  # noqa: E402

from fanin.host.torch.training.rank_watch import hash_of  # noqa: E402


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("count", [0, 1, 3, 8, 33])
def test_a_hash_depends_on_each_weight_and_not_on_where_the_weights_lie(kind: str, count: int) -> None:
    weights = torch.arange(1, count + 2).to(getattr(torch, kind))[1:]
    alike = hash_of([nn.Parameter(weights)])
    assert alike == hash_of([nn.Parameter(weights.clone())])
    for changed in range(count):
        other = weights.clone()
        other[changed] *= -1
        assert hash_of([nn.Parameter(other)]) != alike
