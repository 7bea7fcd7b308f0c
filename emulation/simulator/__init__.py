"""A simulator in virtual time: drives the real machines through faults and checks every event.

See docs/simulation.md.
"""

from __future__ import annotations

from fanin.emulation.simulator.links import Link
from fanin.emulation.simulator.scenario import Fault, JobPlan, Scenario
from fanin.emulation.simulator.simulation import Report, simulate
from fanin.emulation.simulator.violations import ViolationError

__all__ = ["Fault", "JobPlan", "Link", "Report", "Scenario", "ViolationError", "simulate"]
