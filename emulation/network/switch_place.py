"""The switch's place in an emulated cluster: with a port per host, beside rank 0, on every host, or on spare hosts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from fanin.errors import ConfigurationError
from fanin.settings import Text

MAX_SPARES = 32
EXPECTED = f"own, rank0, hosts, spare:1 to spare:{MAX_SPARES}, or spare-only:1 to spare-only:{MAX_SPARES}"
SPARE = re.compile(r"(spare|spare-only):([1-9][0-9]?)")

Kind = Literal["own", "rank0", "hosts", "spare", "spare-only"]


@dataclass(frozen=True, slots=True)
class SwitchPlace:
    """Place of the switch, by `kind`:

    * `own`: a switch in the middle, with a port of its own towards every host, as hardware has it;
    * `rank0`: a process that rank 0 starts, behind the link of its host;
    * `hosts`: a shard on every host, started by the host's first rank, behind the host's link;
    * `spare`: shards as with `hosts`, and on each of `spares` further hosts, each behind its own link;
    * `spare-only`: shards on the `spares` further hosts alone.
    """

    kind: Kind = "own"
    spares: int = 0

    @classmethod
    def parse(cls, text: str) -> SwitchPlace:
        """Parse `own`, `rank0`, `hosts`, `spare:4` or `spare-only:4`. ConfigurationError for anything else."""
        if text in ("own", "rank0", "hosts"):
            return cls(text)  # type: ignore[arg-type]
        match = SPARE.fullmatch(text)
        if match is None or int(match[2]) > MAX_SPARES:
            raise ConfigurationError(f"{text[:40]!r} is no place for a switch; expected {EXPECTED}", "the place")
        return cls(match[1], int(match[2]))  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{self.kind}:{self.spares}" if self.spares else self.kind

    @property
    def on_hosts(self) -> bool:
        """Whether every host with workers has a shard."""
        return self.kind in ("hosts", "spare")

    @property
    def started_by_ranks(self) -> bool:
        """Whether ranks start all switches, and the emulator none."""
        return self.kind in ("rank0", "hosts")

    @property
    def in_words(self) -> str:
        """The place in words, for tables."""
        if self.spares:
            spare = f"on {self.spares} spare host{'s' * (self.spares != 1)}"
            return f"a shard on every host and {spare}" if self.on_hosts else spare
        return {"own": "a port per host", "rank0": "beside rank 0", "hosts": "a shard on every host"}[self.kind]


OWN = SwitchPlace()

Place = Annotated[SwitchPlace, Text(lambda _, text: SwitchPlace.parse(text))]
"""Type of a dataclass field for the switch's place, with its form as text."""
