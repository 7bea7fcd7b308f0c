"""The examples of the gallery by name: the papers that each reproduces, and the worlds in which it runs. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from fanin.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Example:
    """An example of the gallery: a module of fanin.examples.parallel."""

    name: str
    """Name of the module in this package."""
    systems: str
    """The published systems that it reproduces."""
    text: str
    """One line on the reproduced part."""
    workers: tuple[int, ...]
    """Numbers of workers with which it can run; the first is the default."""
    extra: str = "torch"
    """Extra of pyproject.toml that it needs."""

    @property
    def module(self) -> str:
        """Full name of the module."""
        return f"fanin.examples.parallel.{self.name}"

    def require(self, workers: int) -> None:
        """Raise ConfigurationError unless it can run with that number of workers."""
        if workers not in self.workers:
            fitting = " or ".join(map(str, self.workers))
            raise ConfigurationError(
                f"{self.name} does not run on {workers} workers. Remedy: {fitting}, "
                f"as with `torchrun --nproc-per-node {self.workers[0]} -m {self.module}`"
            )


CATALOGUE: dict[str, Example] = {
    each.name: each
    for each in (
        Example(
            "mixture", "DeepSpeed-TED, DeepSpeed-MoE, SE-MoE",
            "experts over data x expert x tensor groups; duplicate tokens stay at home", (8,),
        ),
        Example(
            "lsh_mixture", "LSH-MoE",
            "experts that are sent the centroids of similar tokens", (4, 2),
        ),
        Example(
            "skipped_stages", "SkipPipe",
            "pipelines whose microbatches skip and swap stages", (12, 6, 8),
        ),
        Example(
            "linear_attention", "LASP, LASP-2",
            "a sequence in unequal parts: states by messages, or by one gather", (4, 2, 3),
        ),
        Example(
            "sequence_groups", "FlexSP",
            "groups of 1, 2 and 4 ranks per batch, chosen from the lengths of its sequences", (8,), "demo",
        ),
        Example(
            "feedback_alignment", "photonic direct feedback alignment",
            "all layers learn from one ternary error, without backpropagation", (4, 1, 2), "demo",
        ),
        Example(
            "several_tasks", "multi-task learning, PCGrad",
            "one trunk, two losses, gradients per task summed apart and projected", (4, 2), "demo",
        ),
        Example(
            "layouts", "OneFlow",
            "every transition among Shard, Replicate and Partial", (4, 2),
        ),
        Example(
            "transformer", "Megatron-LM, GPipe",
            "data x tensor x pipeline, by four schedules", (8,),
        ),
        Example(
            "sharded_states", "Colossal-AI, PatrickStar",
            "optimizer states and weights in shards, offloaded where there is a GPU", (4, 2),
        ),
        Example(
            "local_filters", "YUAN 2.0",
            "attention over filtered queries and keys, in stages of unlike depth", (4,),
        ),
        Example(
            "saddle_point",
            "MASHA",
            "a variational inequality over random coordinates that all ranks draw alike",
            (4, 2),
        ),
        Example(
            "jobs_beside", "ATP, A2TP",
            "three jobs at a switch with memory for two: these train side by side, the third over gloo", (6,), "demo",
        ),
    )
}  # fmt: skip


def named(name: str) -> Example:
    """The example of that name; ConfigurationError if there is none."""
    if name not in CATALOGUE:
        raise ConfigurationError(f"{name!r} is no example. Remedy: one of {', '.join(CATALOGUE)}")
    return CATALOGUE[name]
