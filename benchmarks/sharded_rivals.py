"""The rivals of the sharding benchmark: ways to move FSDP2's weights and gradients."""

from __future__ import annotations

from dataclasses import dataclass

from fanin.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class ShardedRival:
    """One way to move shards."""

    label: str
    backend: str
    weights: str | None = None
    """Argument `weights` of `shard_codecs`; None: exact moves."""
    gradients: str | None = None
    half: bool = False
    """Whether weights and gradients are bfloat16 (MixedPrecisionPolicy)."""
    keep_codes: bool = False
    """Argument `keep_codes` of `shard_codecs`: weights are gathered once per step."""

    @classmethod
    def parse(cls, label: str) -> ShardedRival:
        """Find the rival of a label; ConfigurationError for no such rival."""
        if label not in RIVALS:
            raise ConfigurationError(f"rivals = {label!r}; there are {', '.join(RIVALS)}", "--rivals")
        return RIVALS[label]


RIVALS = {
    each.label: each
    for each in (
        ShardedRival("gloo", "gloo"),
        ShardedRival("gloo-bfloat16", "gloo", half=True),
        ShardedRival("nccl", "nccl"),
        ShardedRival("nccl-bfloat16", "nccl", half=True),
        ShardedRival("fanin-32", "fanin"),
        ShardedRival("fanin-8", "fanin", "8", "8/8"),
        ShardedRival("fanin-8-kept", "fanin", "8", "8/8", keep_codes=True),
        ShardedRival("fanin-6", "fanin", "6", "8/8"),
        ShardedRival("fanin-4", "fanin", "4", "4/8"),
        ShardedRival("fanin-8-sketched", "fanin", "8", "sketched:4:share=0.2"),
    )
}
"""All rivals, by their labels."""
