"""A policy, a codec and a switch from another package: pyproject.toml registers them, and fanin itself is unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fanin.errors import ConfigurationError
from fanin.host.codecs.codec import Codec, Encoder, Floats, Place, Stages, State, Sum, energy_of, levels
from fanin.host.stale.policies.policy import Fate, RoundPolicy
from fanin.schemes import SwitchEnd, scheme_of
from fanin.switch.controller.data_plane import DataPlane
from fanin.switch.controller.job_shape import SwitchBuffers
from fanin.switch.machine.switch_machine import SwitchMachine
from fanin.switch.server.pump_server import PumpServer

RECEIVE_BUFFER_BYTES = 1 << 18
MEMORY_BYTES = 1 << 26
TIMEOUT_S = 5.0


class Newest(RoundPolicy):
    """Contributes gradients of the newest weights alone, and drops those that a round has overtaken."""

    name = "newest"
    passes_over = True

    def fate(self, age: int, bound: int, *, over: bool) -> Fate:
        """Decide by the age alone, whatever the bound."""
        return Fate.CONTRIBUTE if age == 0 else Fate.DROP


@dataclass(frozen=True, slots=True)
class Clipped(Codec):
    """Lanes for gradients that are clipped first, so that few large elements do not cost all others their precision."""

    name: ClassVar[str] = "clipped"
    limit: float = 3.0
    """Largest magnitude that is sent in a step, in root mean squares of the worker's own bucket; the rest is owed."""

    def __post_init__(self) -> None:
        Codec.__post_init__(self)
        if not self.limit > 0:
            raise ConfigurationError(f"limit = {self.limit}; must be above 0", "limit")

    def encoder(self, place: Place) -> Encoder:
        """The encoder of one bucket at one worker; ConfigurationError if the lanes hold no level of so many workers."""
        levels(self.bits, place.size)
        return ClippedEncoder(self, place)


class ClippedEncoder(Encoder):
    """Clips with error feedback: what clipping and rounding cut off is added to the next step."""

    def __init__(self, codec: Clipped, place: Place) -> None:
        super().__init__(place, codec.seed)
        self._codec = codec
        self._owed: Floats = np.zeros(place.count, np.float32)

    def reduce(self, x: Floats, step: int) -> Stages:
        """One sum: of the clipped elements, in the codec's lanes."""
        with np.errstate(invalid="ignore", over="ignore"):
            whole = x + self._owed
            self.energy = energy_of(whole)
            bound = self._codec.limit * np.sqrt(self.energy / max(len(x), 1))
            if not np.isfinite(whole).all():
                bound = np.inf  # a NaN has to reach every worker, so that a loss scaler sees it there
            x[:] = np.clip(whole, -bound, bound)
            cut = np.where(np.isfinite(whole), whole - x, 0).astype(np.float32)
        rounded = np.zeros_like(x)
        yield Sum(x, self._codec.bits, residual=rounded)
        self._owed = cut + rounded
        self.lost = energy_of(self._owed)

    def state(self) -> State:
        """The correction that is owed to the next step."""
        return {"owed": self._owed.copy()}

    def _load(self, state: State) -> None:
        self._owed[:] = state["owed"]


class Reversed(SwitchMachine):
    """The Python switch machine, which sends its datagrams in reverse order, as a network may deliver them."""

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, int]]:
        """The datagrams that are due, the last first."""
        return super().datagrams_to_send(now)[::-1]


def open_reversed(host: str, port: int) -> DataPlane:
    """Serve the machine over UDP, for `fanin switch --target reversed`."""
    end = SwitchEnd(host=host, port=port, curve_secret_key=None, curve_clients=None, liveness_timeout_s=TIMEOUT_S)
    transport = scheme_of("udp").open_switch(end)
    server = PumpServer([(Reversed(MEMORY_BYTES), transport)], ports=(transport.port,), description="reversed")
    return DataPlane(server, SwitchBuffers(receive_buffer_bytes=RECEIVE_BUFFER_BYTES, shared=True))
