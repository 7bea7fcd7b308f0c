"""Is a pipeline without a flush faster than 1F1B? Both pipelines of the example in virtual time, without processes.

    python -m fanin.benchmarks.ampnet_virtual --seeds 5

Rules of this file
------------------
* Durations are those of examples/ampnet.py: a stage's forward pass takes FORWARD_S, its backward pass twice as long,
  and one microbatch in ten SLOW_FACTOR times as long at a stage. A message and a sum take EXCHANGE_S each.
* AMPNet: a first stage has at most `in_flight` microbatches under way. Gradient k of a stage is under way once the
  stage has the result of round k - 1; a stage goes on once its previous gradient is under way (host/stale/runner.py);
  round k closes with gradient k of every replica: the policy `wait` with a quorum of all.
* 1F1B: torch's order, and at the end of each step a sum over the replicas of each stage.
* Both use the same random durations. Nothing else takes time; in particular, ranks do not compete for processors.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence

from fanin.benchmarks.codecs_train_rows import half_interval
from fanin.examples.ampnet import FORWARD_S, SLOW_FACTOR, SLOW_PROBABILITY, STAGES

REPLICAS, IN_FLIGHT = 2, 4
EXCHANGE_S = 0.0005
BACKWARD = 2.0
"""Duration of a backward pass, as a multiple of the forward pass."""
PER_STEP = (4, 8, 16)
"""Microbatches per step of 1F1B; more of them make its flush cheaper, and its steps fewer."""

Durations = list[list[list[float]]]
"""Seconds of each forward pass, by replica, stage and microbatch."""


def durations(count: int, seed: int, slow_probability: float) -> Durations:
    """Draw the durations of `count` microbatches; each is slow at a stage with `slow_probability`."""
    dice = random.Random(seed)
    return [
        [
            [FORWARD_S[stage] * (SLOW_FACTOR if dice.random() < slow_probability else 1.0) for _ in range(count)]
            for stage in range(STAGES)
        ]
        for _ in range(REPLICAS)
    ]


def ampnet_s(forward_s: Durations, in_flight: int = IN_FLIGHT) -> float:
    """Virtual seconds until every stage has handed in its last gradient."""
    count = len(forward_s[0][0])
    now = [[0.0] * STAGES for _ in range(REPLICAS)]
    under_way = [[0.0] * STAGES for _ in range(REPLICAS)]
    """By replica and stage, the time at which the stage's last gradient got under way."""
    closed = [0.0] * STAGES
    """By stage, the time at which replicas have the result of its last round."""
    arrives = [[0.0] * count for _ in range(REPLICAS)]
    """By replica and microbatch, the arrival of the gradient at the first stage."""

    def hand_in(stage: int) -> None:
        for replica in range(REPLICAS):
            now[replica][stage] = max(now[replica][stage], under_way[replica][stage])
            under_way[replica][stage] = max(now[replica][stage], closed[stage])
        closed[stage] = max(each[stage] for each in under_way) + EXCHANGE_S

    def finish(number: int) -> None:
        for replica in range(REPLICAS):
            backward_s = BACKWARD * forward_s[replica][0][number]
            now[replica][0] = max(now[replica][0], arrives[replica][number]) + backward_s
        hand_in(0)

    for number in range(count):
        for replica in range(REPLICAS):
            now[replica][0] += forward_s[replica][0][number]
            starts_s = max(now[replica][1], now[replica][0] + EXCHANGE_S)
            now[replica][1] = starts_s + (1 + BACKWARD) * forward_s[replica][1][number]
            arrives[replica][number] = now[replica][1] + EXCHANGE_S
        hand_in(1)
        if number >= in_flight - 1:
            finish(number - in_flight + 1)
    for number in range(max(count - in_flight + 1, 0), count):
        finish(number)
    return max(map(max, now))


def one_f_one_b_s(forward_s: Durations, per_step: int) -> float:
    """Virtual seconds of torch's Schedule1F1B with a sum over the replicas at the end of each step."""
    starts = [0.0] * STAGES
    for first in range(0, len(forward_s[0][0]), per_step):
        ends = [_step(starts, [stage[first : first + per_step] for stage in replica]) for replica in forward_s]
        starts = [max(each[stage] for each in ends) + EXCHANGE_S for stage in range(STAGES)]
    return max(starts)


def _step(starts: Sequence[float], forward_s: Sequence[Sequence[float]]) -> list[float]:
    """One step of one replica: the times at which its two stages have done their last backward passes.

    The first stage does FF, then B and F in turn; the last stage F and B in turn.
    """
    first, last = starts
    count = len(forward_s[0])
    arrives: list[float] = []
    begun = 0

    def forward() -> None:
        nonlocal first, last, begun
        first += forward_s[0][begun]
        last = max(last, first + EXCHANGE_S) + (1 + BACKWARD) * forward_s[1][begun]
        arrives.append(last + EXCHANGE_S)
        begun += 1

    for _ in range(min(STAGES, count)):
        forward()
    for number in range(count):
        first = max(first, arrives[number]) + BACKWARD * forward_s[0][number]
        if begun < count:
            forward()
    return [first, last]


def main() -> None:
    """Print a table: 1F1B's time over AMPNet's, by condition and microbatches of a step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="draws of slow microbatches")
    parser.add_argument("--microbatches", type=int, default=480, help="microbatches of each replica")
    asked = parser.parse_args()
    print("| slow microbatches | " + " | ".join(f"1F1B, {each} per step" for each in PER_STEP) + " |")
    print("|---:|" + "---:|" * len(PER_STEP))
    for probability in (0.0, SLOW_PROBABILITY):
        drawn = [durations(asked.microbatches, seed, probability) for seed in range(asked.seeds)]
        cells = []
        for per_step in PER_STEP:
            ratios = [one_f_one_b_s(each, per_step) / ampnet_s(each) for each in drawn]
            half = half_interval(ratios)
            cells.append(f"{statistics.mean(ratios):.2f}" + (f" +-{half:.2f}" if half else ""))
        print(f"| {probability:.0%} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
