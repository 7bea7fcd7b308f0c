"""Reinforcement learning through the switch, after iSwitch's evaluation: PPO balances CartPole on four workers.

    torchrun --nproc-per-node 4 -m fanin.examples.cartpole                   # synchronous
    torchrun --nproc-per-node 4 -m fanin.examples.cartpole --staleness 2     # workers up to two gradients apart
    torchrun --nproc-per-node 4 -m fanin.examples.cartpole --reward shaped   # a step is worth more near the middle

Every worker plays its own episodes; gradients meet in the switch. Rank 0 prints a JSON object per look at the returns,
and every rank one at the end with a hash of its replica: they must be equal. Solved means a mean return of 475 over the
last episodes of all workers (Gymnasium's own threshold for CartPole-v1).

PPO after Schulman et al., 2017, with generalized advantage estimation (Schulman et al., 2016).
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from dataclasses import dataclass

import gymnasium
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn.parallel import DistributedDataParallel

from fanin.examples.faults import add_fault_option, inject
from fanin.examples.option_numbers import finite, seed, whole
from fanin.examples.train import replica_hash, report
from fanin.host.torch import StaleOptions, StaleSynchronousState, stale_synchronous_hook
from fanin.protocol.job import MAX_STALENESS

SOLVED_RETURN = 475.0
EPISODES_COUNTED = 20
"""Number of each worker's newest episodes that count."""
MOST_OFF = np.array([2.4, 12 * 2 * np.pi / 360])
"""Position (m) and angle (rad) at which CartPole-v1 ends an episode."""
LOOK_EVERY = 5
"""Number of iterations between two exchanges of returns, for which all workers wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """PPO's settings, per worker."""

    environments: int = 2
    steps: int = 128
    """Steps of each environment per iteration."""
    epochs: int = 4
    minibatches: int = 4
    learning_rate: float = 1e-3
    discount: float = 0.99
    smoothing: float = 0.95
    """Lambda of generalized advantage estimation."""
    clip: float = 0.2
    entropy_weight: float = 0.01
    value_weight: float = 0.5
    max_norm: float = 0.5
    shaped: bool = False
    """Whether a step's reward falls from 1 in the middle and upright to 0 at the end of both, so that rewards lead the
    way; otherwise the reward is the game's, 1 per step."""


class Agent(nn.Module):
    """Policy and value function, two small networks."""

    def __init__(self) -> None:
        super().__init__()

        def network(outputs: int, gain: float) -> nn.Sequential:
            layers = [nn.Linear(4, 64), nn.Linear(64, 64), nn.Linear(64, outputs)]
            for layer, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
                nn.init.orthogonal_(layer.weight, scale)
                nn.init.zeros_(layer.bias)
            return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])

        self.policy, self.value = network(2, 0.01), network(1, 1.0)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [n, 2] and values [n] of observations [n, 4]."""
        return self.policy(observations), self.value(observations).squeeze(-1)


@dataclass(slots=True)
class Experience:
    """Samples of one iteration, all of shape [steps * environments, ...]."""

    observations: Tensor
    actions: Tensor
    log_probabilities: Tensor
    advantages: Tensor
    returns: Tensor


class Player:
    """This worker's environments, and the returns of its episodes."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self._plan = plan
        self._games = [gymnasium.make("CartPole-v1") for _ in range(plan.environments)]
        first = [game.reset(seed=seed + index)[0] for index, game in enumerate(self._games)]
        self._observations = torch.tensor(np.stack(first), dtype=torch.float32)
        self._scores = [0.0] * plan.environments
        self.returns: deque[float] = deque(maxlen=EPISODES_COUNTED)

    @torch.no_grad()
    def play(self, agent: nn.Module) -> Experience:
        """Play one iteration and return its samples."""
        plan = self._plan
        shape = (plan.steps, plan.environments)
        observations = torch.zeros(*shape, 4)
        actions = torch.zeros(shape, dtype=torch.int64)
        log_probabilities, rewards, values, over = (torch.zeros(shape) for _ in range(4))
        for step in range(plan.steps):
            logits, values[step] = agent(self._observations)
            policy = Categorical(logits=logits)
            observations[step], actions[step] = self._observations, policy.sample()
            log_probabilities[step] = policy.log_prob(actions[step])
            for index, game in enumerate(self._games):
                seen, reward, terminated, truncated, _ = game.step(int(actions[step, index]))
                self._scores[index] += float(reward)
                rewards[step, index] = (
                    1 - float(np.mean(np.abs(seen[[0, 2]]) / MOST_OFF)) if plan.shaped else float(reward)
                )
                if truncated and not terminated:  # cut off by the time limit: add the estimated value of the rest
                    last = torch.tensor(seen, dtype=torch.float32).unsqueeze(0)
                    rewards[step, index] += plan.discount * float(agent(last)[1])
                if terminated or truncated:
                    self.returns.append(self._scores[index])
                    self._scores[index] = 0.0
                    over[step, index] = 1.0
                    seen, _ = game.reset()
                self._observations[index] = torch.tensor(seen, dtype=torch.float32)
        advantages = self._advantages(rewards, values, over, agent(self._observations)[1])
        flat = (observations.flatten(0, 1), actions.flatten(), log_probabilities.flatten(), advantages.flatten())
        return Experience(*flat, (advantages + values).flatten())

    def _advantages(self, rewards: Tensor, values: Tensor, over: Tensor, following: Tensor) -> Tensor:
        advantages = torch.zeros_like(rewards)
        running = torch.zeros(self._plan.environments)
        for step in reversed(range(self._plan.steps)):
            alive = 1.0 - over[step]
            error = rewards[step] + self._plan.discount * following * alive - values[step]
            running = error + self._plan.discount * self._plan.smoothing * alive * running
            advantages[step], following = running, values[step]
        return advantages


def improve(model: nn.Module, optimizer: torch.optim.Optimizer, experience: Experience, plan: Plan) -> None:
    """Take the gradient steps of one iteration, equally many on every worker."""
    count = len(experience.actions)
    for _ in range(plan.epochs):
        for chosen in torch.randperm(count).split(count // plan.minibatches):
            advantages = experience.advantages[chosen]
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            logits, values = model(experience.observations[chosen])
            policy = Categorical(logits=logits)
            ratio = (policy.log_prob(experience.actions[chosen]) - experience.log_probabilities[chosen]).exp()
            clipped = ratio.clamp(1 - plan.clip, 1 + plan.clip)
            gain = torch.minimum(ratio * advantages, clipped * advantages).mean()
            error = (values - experience.returns[chosen]).square().mean()
            loss = plan.value_weight * error - gain - plan.entropy_weight * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), plan.max_norm)
            optimizer.step()


def mean_return(player: Player) -> float:
    """Mean return of the newest episodes of all workers; a worker without a finished episode counts as 0."""
    own = torch.tensor([sum(player.returns) / max(len(player.returns), 1)], dtype=torch.float64)
    dist.all_reduce(own)
    return float(own) / dist.get_world_size()


def train(staleness: int | None, iterations: int, target: float, seed: int, *, shaped: bool = False) -> None:
    """Train with the process group that the environment describes. `staleness` None: synchronously.

    The returns that are reported are the game's, even if the agent learns from shaped rewards.
    """
    plan = Plan(shaped=shaped)
    torch.set_num_threads(1)
    dist.init_process_group("fanin")
    rank = dist.get_rank()
    torch.manual_seed(seed)
    agent = Agent()
    model = DistributedDataParallel(agent)
    state: StaleSynchronousState | None = None
    if staleness is not None:
        state = StaleSynchronousState(StaleOptions(staleness=staleness))
        model.register_comm_hook(state, stale_synchronous_hook)
    optimizer = torch.optim.Adam(model.parameters(), plan.learning_rate, eps=1e-5)
    torch.manual_seed(1000 * seed + rank + 1)
    player = Player(plan, seed=100_000 * seed + 100 * rank)
    started_s, reached, best = time.monotonic(), None, 0.0
    for iteration in range(1, iterations + 1):
        for group in optimizer.param_groups:
            group["lr"] = plan.learning_rate * (1 - (iteration - 1) / iterations)
        improve(model, optimizer, player.play(agent), plan)
        if iteration % LOOK_EVERY == 0:
            mean = mean_return(player)
            best = max(best, mean)
            if rank == 0:
                report(event="returns", iteration=iteration, mean_return=mean, seconds=time.monotonic() - started_s)
            if mean >= target:
                reached = iteration
                break
    account = ""
    if state is not None:
        account = str(state.flush(optimizer)[rank])
    report(event="end", solved_after=reached, best_return=best, replica=replica_hash(agent), account=account)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--staleness", type=whole(0, MAX_STALENESS), help="S; without it training is synchronous")
    parser.add_argument("--iterations", type=whole(1), default=300, help="at most; it ends when solved")
    parser.add_argument("--target", type=finite, default=SOLVED_RETURN)
    parser.add_argument("--seed", type=seed, default=0)
    parser.add_argument("--reward", choices=("simple", "shaped"), default="simple", help="simple: 1 for every step")
    add_fault_option(parser)
    arguments = parser.parse_args()
    inject(parser, arguments.fault)
    shaped = arguments.reward == "shaped"
    train(arguments.staleness, arguments.iterations, arguments.target, arguments.seed, shaped=shaped)


if __name__ == "__main__":
    main()
