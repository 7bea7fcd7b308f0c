"""Numbers of the congestion window and the pace (R-CONGESTION in docs/protocol.md); C++ shares them."""

from __future__ import annotations

INITIAL_WINDOW = 10.0
"""Packets (RFC 6928), or more where they are small: INITIAL_WINDOW_BYTES."""
INITIAL_WINDOW_BYTES = 14_600
"""Bytes of small packets that may be sent before anything is known of the path: ten frames (RFC 6928, section 2)."""
FIRST_SHARE = 1 / 6
"""Share of the pool that goes out at once at most: each of many shards gets a part of one pool, over one link."""
LONGEST_FRAME_BYTES = 9216
"""Longest jumbo frame, as switches count it; longer packets are loopback's, or messages over TCP."""
MIN_WINDOW = 2.0
"""Packets, after a cut; so that one loss can be told from silence."""
DECREASE = 0.7
"""Factor of the window after a loss, at least (RFC 9438, section 4.6)."""
GROWTH = 3 * (1 - DECREASE) / (1 + DECREASE)
"""Packets by which a window that was cut grows per window of results: what is fair beside flows that halve theirs and
grow by one (RFC 9438, section 4.3), and what CUBIC does on links as short as a cluster's."""
DECREASE_MARKED = 0.85
"""Factor of the window after a mark: queues that mark are kept shorter than those that drop (RFC 8511, section 3)."""
QUEUED_PACKETS = 3.0
"""Packets of this flow in queues below which a loss counts as chance (beta of TCP Veno)."""
WINDOWS_WAITING = 1.5
"""Most items that may wait for their results, in windows, whether or not they are still in flight."""
OVERDUE_PER_WINDOW = 3
"""The window does not grow while more than one in so many of its packets is overdue."""
SHORTEST_FOR_S = 10.0
"""How long a shortest round trip counts at least, and half of how long at most: paths change."""
SILENT_TIMEOUTS = 3
"""Timeouts in a row without any answer after which nothing is known of the path any more; fewer may be peers' fault."""
PACING_GAIN_SLOW_START = 2.0
PACING_GAIN = 1.25
"""Rate in windows per round trip, so that pacing alone never limits (Linux: tcp_pacing_ss_ratio, tcp_pacing_ca_ratio).
"""
MIN_PACED_ROUND_TRIP_S = 0.001
LONGEST_UNQUEUED_S = 5 * MIN_PACED_ROUND_TRIP_S
"""No path within a cluster is longer: a shortest round trip beyond that is of a queue that others keep full."""
MAX_PACED_ROUND_TRIP_S = 0.1
"""Most that a round trip of the path counts for: longer ones come from a process that was stopped."""
PATH_DECAY = 7 / 8
"""Factor on the longest round trip of the path with each further measurement."""
BURST_S = 0.001
"""Length of a burst, as time at the rate (Linux's TCP makes its trains that long, too)."""
BURST_PACKETS = 4.0
"""Packets that may go out at once however slow the rate is."""
