"""`fanin trace`: a job as a trace that Perfetto and Chrome show (docs/watching.md).

    trace_of_files(paths)                        # a real job, from its ranks' files of FANIN_TIMELINE
    trace_of_simulation(scenario, seed)          # the same machines in virtual time, with every packet

    replay_of_simulation(scenario, seed, step=2) # one step of it as an animated SVG

`trace_events.py` writes the format, `clocks.py` aligns the machines' clocks, `rank_files.py` and `simulated.py` read
one source each, `replay.py` draws the SVG, and `records.py` makes the record of a real job for `fanin report`.
"""

from __future__ import annotations

from fanin.emulation.tracing.rank_files import trace_of_files
from fanin.emulation.tracing.simulated import replay_of_simulation, trace_of_simulation
from fanin.emulation.tracing.trace_events import Trace

__all__ = ["Trace", "replay_of_simulation", "trace_of_files", "trace_of_simulation"]
