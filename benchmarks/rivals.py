"""The backends of the all-reduce benchmark, and the largest error that each may make."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from fanin import plugins
from fanin.benchmarks import mpi
from fanin.benchmarks.harness import Output
from fanin.errors import ConfigurationError
from fanin.numerics.reduction import WIDE_SUMS, lanes_number
from fanin.options import Options
from fanin.protocol.tag_algorithm import SIPHASH
from fanin.settings import Text, read_words

FLOAT_BYTES = 4
MAX_BYTES = 1 << 34
"""Largest size per worker. No machine that these benchmarks are meant for has memory for more."""
MAX_SAMPLES = 1_000_000
NCCL = "nccl"
AGAINST = ("gloo", "mpi")
RIVALS = "fanin.rivals"
"""Name of the entry points by which other packages add rivals."""
FLOAT32_EPSILON = 2.0**-23
UNTAGGED = "-open"
"""Suffix of the label of a rival without tags."""
BY_SIPHASH = f"-{SIPHASH}"
"""Suffix of the label of a rival with SipHash tags; without it, the job chooses the algorithm."""


@dataclass(frozen=True, slots=True)
class Rival:
    """One way to sum a tensor over all workers."""

    backend: str
    """`fanin`, `gloo`, `mpi`, or `module:backend`: importing the module registers the backend."""
    lanes: int | str = 32
    """Bits per element on the wire, or bits up / bits down, such as "4/8"."""
    transport: str = ""
    """Transport of OpenMPI: `tcp` or `shm`."""
    loss_percent: float | None = None
    """Percent of datagrams that fanin's fault injector drops, in either direction at every worker. None: no injector,
    since its Python loop and checksums cost time even if it drops nothing.
    """
    tags: bool = True
    """Whether fanin's packets carry keyed tags; False: `authenticate=False`."""
    siphash: bool = False
    """Whether tags are SipHash's even if the processor supports a faster algorithm."""

    @property
    def label(self) -> str:
        """Name without commas, which `parse` reads."""
        lossy = "" if self.loss_percent is None else f"-{self.loss_percent:g}"
        tags = (UNTAGGED if not self.tags else "") + (BY_SIPHASH if self.siphash else "")
        if self.backend == "fanin":
            return f"fanin-{self.lanes}{lossy}{tags}"
        return f"mpi-{self.transport}" if self.backend == "mpi" else self.backend

    @classmethod
    def parse(cls, label: str) -> Rival:
        """Parse the label of a rival; ConfigurationError for no such rival."""
        if ":" in label:
            return cls(label)
        backend, _, detail = label.removesuffix(UNTAGGED).removesuffix(BY_SIPHASH).partition("-")
        if backend == "fanin":
            lanes, _, lossy = detail.partition("-")
            return cls(
                backend,
                lanes=lanes if "/" in lanes else int(lanes),
                loss_percent=float(lossy) if lossy else None,
                tags=not label.endswith(UNTAGGED),
                siphash=label.endswith(BY_SIPHASH),
            )
        return cls(backend, transport=detail)

    def options(self, rank: int, environment: Mapping[str, str]) -> Options:
        """The process group's options for fanin. Options that the rival does not fix come from the environment."""
        given: dict[str, object] = {"lanes": self.lanes}
        if self.loss_percent is not None:
            given["faults"] = f"drop={self.loss_percent}%@seed={rank}"
        if not self.tags:
            given["authenticate"] = False
        if self.siphash:
            given["tag"] = SIPHASH
        return Options.from_environment(environment, **given)

    def bytes_through_wire(self, workers: int) -> float:
        """Bytes that a worker sends per byte of float32: once through a switch, 2 (N - 1) / N times around a ring."""
        return self.widths[0] / 32 if self.backend == "fanin" else 2 * (workers - 1) / workers

    @property
    def name(self) -> str:
        """Name in tables and records, which have a column of their own for packed lanes."""
        wide = f" {self.lanes}" if isinstance(self.lanes, str) else ""
        return self.backend + (f"-{self.transport}" if self.transport else wide)

    @property
    def widths(self) -> tuple[int, int]:
        """Bits per element on the way up and down."""
        if isinstance(self.lanes, str):
            return WIDE_SUMS[lanes_number(self.lanes)]
        return self.lanes, self.lanes

    def tolerated_error(self, workers: int) -> float:
        """Largest acceptable error, relative to the largest contribution of any worker.

        Half a quantum per worker where lanes are narrow (and a quantum is at most twice the ideal one where scales are
        powers of two), and the rounding of float32 sums.
        """
        rounding = workers * workers * FLOAT32_EPSILON
        if self.backend != "fanin":
            return rounding
        if isinstance(
            self.lanes, str
        ):  # half a quantum per worker on the way up, and half a quantum of the narrowed sum on the way down
            from fanin.numerics.wide_sums import largest  # --help must not import numpy

            up, down = map(largest, self.widths)
            return rounding + workers * (1 + 2**-5) * (1 / (2 * up) + 1 / down)
        largest_lane = (2**31 - 1) // workers if self.lanes == 32 else (2**self.lanes - 1) // (2 * workers)
        slack = 4 if self.lanes == 32 else 1 + 2**-5
        return rounding + workers * slack / (2 * largest_lane)


Rivals = Annotated[
    tuple[Rival, ...],
    Text(
        lambda name, text: tuple(map(Rival.parse, read_words(name, text))),
        lambda rivals: ",".join(rival.label for rival in rivals),
    ),
]
"""Type of a dataclass field of rivals, as text by their labels."""


def check_bytes(*sizes: int) -> None:
    """Raise ConfigurationError for a size that is no positive number of float32 elements."""
    for size in sizes:
        if size <= 0 or size % FLOAT_BYTES:
            raise ConfigurationError(f"bytes = {size}; must be a positive multiple of {FLOAT_BYTES}", "--bytes")


def check_rivals(own: Iterable[Rival], against: Sequence[str]) -> None:
    """Raise ConfigurationError for unknown rivals, for options that fanin refuses, and for no rival at all."""
    own = list(own)
    for rival in own:
        rival.options(rank=0, environment={})
    for name, full in zip(against, named(against), strict=True):
        if full != name and not _is_importable(full):
            raise plugins.refused(RIVALS, name, f"{full} is not MODULE:BACKEND with a module that is installed")
    against = named(against)
    strange = [name for name in against if name not in AGAINST and not _is_importable(name)]
    if strange or not (own or against):
        raise ConfigurationError(
            f"against = {','.join(against)!r}. Remedy: name some of {' and '.join(AGAINST)}, or MODULE:BACKEND, whose "
            "module can be imported and registers the backend with torch.distributed, or a name that a package has "
            "registered"
        )


def named(against: Sequence[str]) -> list[str]:
    """The rivals, with `module:backend` in place of names that other packages have registered (fanin/plugins.py)."""
    return [name if name in AGAINST else plugins.written(RIVALS, name) or name for name in against]


def _is_importable(name: str) -> bool:
    """Whether a name is `module:backend` with a module that exists; only the ranks import it."""
    module, _, backend = name.partition(":")
    try:
        return bool(module and backend) and importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def rivals_of(own: Iterable[Rival], against: Sequence[str], transports: Sequence[str], output: Output) -> list[Rival]:
    """`own` and the rivals named in `against`; OpenMPI once per transport, or a line of output if it is missing."""
    against = named(against)
    found = [*own, *(Rival(name) for name in against if name != "mpi")]
    if "mpi" in against:
        absent = mpi.missing()
        if absent:
            output.note(f"OpenMPI is absent from the comparison: {absent}")
        else:
            found += [Rival("mpi", transport=transport) for transport in transports]
    return found
