"""How many local steps there are from one meeting to the next.

A period is chosen at the first step after a meeting, from the learning rate of that step, and stays until the next one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from fanin.errors import ConfigurationError

LONGEST_STEPS = 65_536
"""No period is longer, whatever a rule says: at a learning rate near 0 ranks would never meet again."""


class Period(ABC):
    """A rule for periods; the same on every rank."""

    @abstractmethod
    def steps(self, step: int, learning_rate: float) -> int:
        """Steps of the period that begins with step number `step`, from 0 on, at this learning rate; at least 1."""

    @property
    @abstractmethod
    def shortest(self) -> int:
        """Least number of steps of a period that is not cut off by the end of training."""


@dataclass(frozen=True, slots=True)
class Every(Period):
    """A meeting every so many steps."""

    count: int
    """Steps from one meeting to the next, 1..65,536."""

    def __post_init__(self) -> None:
        check_count("Every", self.count)

    def steps(self, step: int, learning_rate: float) -> int:
        """`count` steps, in every period."""
        return self.count

    @property
    def shortest(self) -> int:
        """The period itself, which never changes."""
        return self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Quadratic(Period):
    """The quadratic synchronization rule, QSR (Gu et al., ICLR 2024): longer periods at lower learning rates.

    H = max(min(max(int((alpha / lr)^2), base), steps left), 1). With alpha = 0 that is `base` everywhere; alpha is to
    be tuned for a model and its learning rate, and no value is the paper's default.
    """

    alpha: float
    """Growth coefficient, in units of the learning rate, at least 0."""
    base: int = 4
    """Least period after the warm-up, 1..65,536 steps."""
    init: int = 4
    """Period during the warm-up, 1..65,536 steps."""
    warmup: int = 0
    """Steps of the warm-up, in which the learning rate rises."""
    total: int | None = None
    """Steps of the whole training: the last period ends with it. None: not known."""

    def __post_init__(self) -> None:
        check_count("Quadratic: base", self.base)
        check_count("Quadratic: init", self.init)
        if not (self.alpha >= 0 and self.warmup >= 0 and (self.total is None or self.total >= 1)):
            raise ConfigurationError(
                f"Quadratic: alpha = {self.alpha}, warmup = {self.warmup}, total = {self.total}; alpha and warmup must "
                "be at least 0, and total 1",
                "the rule",
            )

    def steps(self, step: int, learning_rate: float) -> int:
        """`init` in the warm-up, else by the rule; never beyond the end of training."""
        if step < self.warmup:
            wanted = self.init
        elif self.alpha == 0:
            wanted = self.base
        elif learning_rate <= 0:
            wanted = LONGEST_STEPS
        else:
            ratio = min(self.alpha / learning_rate, float(LONGEST_STEPS))  # its square must not overflow
            wanted = min(max(int(ratio**2), self.base), LONGEST_STEPS)
        return wanted if self.total is None else max(min(wanted, self.total - step), 1)

    @property
    def shortest(self) -> int:
        """The least period of the rule: `base`, or with a warm-up the smaller of `base` and `init`."""
        return min(self.base, self.init) if self.warmup else self.base


def check_count(name: str, count: int) -> None:
    """Raise ConfigurationError unless `count` is a whole number of steps in 1..LONGEST_STEPS."""
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= LONGEST_STEPS:
        raise ConfigurationError(f"{name} = {count!r}; must be a whole number of steps in 1..{LONGEST_STEPS}", name)
