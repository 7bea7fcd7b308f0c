"""Meters between P4Runtime messages and the emulator (specification, sections 9.4 and 9.5)."""

from __future__ import annotations

from typing import Any

from fanin.switch.p4.meters import Meter, MeterRates
from fanin.switch.p4runtime.server.status import Code, StatusError


def read_rates(entry: Any, field: str = "config") -> MeterRates | None:
    """Rates of a meter in an entry; None without any, which make every packet green."""
    if not entry.HasField(field):
        return None
    given = getattr(entry, field)
    rates = MeterRates(given.cir, given.cburst, given.pir, given.pburst)
    if min(rates.committed, rates.committed_burst, rates.peak, rates.peak_burst) < 0:
        raise StatusError(Code.INVALID_ARGUMENT, "rates and bursts of a meter are not negative")
    if rates.committed > rates.peak:
        raise StatusError(
            Code.INVALID_ARGUMENT, f"cir {rates.committed} is above pir {rates.peak}: the peak is the higher rate"
        )
    return rates


def fill_config(config: Any, meter: Meter) -> None:
    """Write a meter's rates, which must not be None, into a MeterConfig."""
    rates = meter.rates
    assert rates is not None
    config.cir, config.cburst, config.pir, config.pburst = (
        rates.committed, rates.committed_burst, rates.peak, rates.peak_burst,
    )  # fmt: skip
