"""`fanin trace`: a job as a trace that Perfetto and Chrome show (docs/watching.md).

    trace_of_files(paths)                        # a real job: what FANIN_TIMELINE's files of its ranks say
    trace_of_simulation(scenario, seed)          # the same machines in virtual time, with every packet

    replay_of_simulation(scenario, seed, step=2) # one step of it as an SVG that moves

`trace_events.py` has the format, `clocks.py` the alignment of machines' clocks, `ranks.py` and `simulated.py` a source
each, `replay.py` the SVG, and `records.py` the record of a real job, of which `fanin report` makes a page.
"""

from __future__ import annotations

from fanin.emulation.tracing.ranks import trace_of_files
from fanin.emulation.tracing.simulated import replay_of_simulation, trace_of_simulation
from fanin.emulation.tracing.trace_events import Trace

__all__ = ["Trace", "replay_of_simulation", "trace_of_files", "trace_of_simulation"]
