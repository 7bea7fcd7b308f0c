"""Draws one slot at work from a run of the simulator: `python -m tools.slot_picture > docs/slot.svg`.

The run has four workers, of which worker 3 computes for longer, with quorum K = 3 and staleness bound S = 1. Every line
of the picture is a packet of that run, at its time: the machines are the real ones (the Python twins), and
tests/documents/test_slot_picture.py draws the picture again and compares.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html import escape

from fanin.emulation.simulator.links import Link
from fanin.emulation.simulator.scenario import JobPlan, Scenario
from fanin.emulation.simulator.simulation import Simulation
from fanin.emulation.simulator.virtual_network import Datagrams
from fanin.protocol.wire import Flag, Kind, Packet, parse

SEED, QUORUM = 1, 3
DELAY_S = 0.004
SCENARIO = Scenario(
    link=Link(delay_s=DELAY_S),
    jobs=(
        JobPlan(
            workers=4, quorum=QUORUM, staleness=1, slots=1, chunks=1, steps=3, think_s=0.012, slow=(1.0, 1.0, 1.0, 2.6)
        ),
    ),
)
WIDTH, LEFT, RIGHT, TOP, LANE, SWITCH_GAP, SWITCH_HEIGHT = 960, 96, 24, 76, 44, 74, 92
COLOURS = ("#2f6db5", "#b0581f", "#2e8b57", "#8a4fae")
"""One colour per worker, which can be told apart on white and on black, and by colour-blind readers."""
ROUNDS = 3
"""Number of rounds shown."""


@dataclass(frozen=True)
class Arrow:
    """One packet: times of sending and arrival, its worker, its label, and whether it goes up to the switch."""

    sent_s: float
    came_s: float
    worker: int
    label: str
    up: bool


@dataclass
class Filmed:
    """Records the packets of slot 0, as a watcher of the network."""

    simulation: Simulation
    arrows: list[Arrow] = field(default_factory=list)
    closed: list[tuple[float, int, int]] = field(default_factory=list)
    """(time, number, contributor bitmap) of each closed round."""
    _left: dict[bytes, float] = field(default_factory=dict)

    def stepped(self, address: int, received: tuple[bytes, int] | None, sent: Datagrams) -> None:
        """Implements the protocol `network.Watcher`."""
        now = self.simulation.queue.now
        if received is not None:
            self._arrived(received[0], now)
        for data, _ in sent:
            packet = parse(data)
            self._left[data] = now
            if packet.kind is Kind.RESULT and packet.base not in [number for _, number, _ in self.closed]:
                self.closed.append((now, packet.base, packet.bitmap))

    def _arrived(self, data: bytes, now: float) -> None:
        packet = parse(data)
        if packet.kind not in (Kind.CONTRIBUTION, Kind.RESULT, Kind.ANSWER):
            return
        up = packet.kind is Kind.CONTRIBUTION
        workers = (packet.worker,) if up or packet.kind is Kind.ANSWER else ()
        for worker in workers or (len([each for each in self.arrows if each.label == label_of(packet)]),):
            self.arrows.append(Arrow(self._left[data], now, worker, label_of(packet), up))


def label_of(packet: Packet) -> str:
    """The packet's meaning in one or two words."""
    if packet.kind is Kind.RESULT:
        return f"result {packet.base}"
    if packet.kind is Kind.ANSWER:
        return f"answer {packet.base}"
    return f"pass {packet.base}" if packet.flags & Flag.PASS else f"base {packet.base}"


def film() -> Filmed:
    """Run the scenario and return the recorded packets."""
    simulation = Simulation(SCENARIO, SEED, kind="python")
    filmed = Filmed(simulation)
    simulation.network.watchers.append(filmed)
    simulation.run()
    return filmed


def drawn(filmed: Filmed) -> str:
    """Return the picture as SVG text."""
    shown = [each for each in filmed.arrows if each.sent_s <= filmed.closed[ROUNDS - 1][0]]
    first, last = min(each.sent_s for each in shown), max(each.came_s for each in shown)
    bar = TOP + 4 * LANE + SWITCH_GAP - LANE // 2
    height = bar + SWITCH_HEIGHT + 30

    def x(time_s: float) -> str:
        return f"{LEFT + 36 + (time_s - first) / (last - first) * (WIDTH - LEFT - RIGHT - 60):.1f}"

    def y(worker: int) -> int:
        return TOP + worker * LANE

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        ' font-family="system-ui, sans-serif" font-size="13">',
        f"<title>{escape(TITLE)}</title>",
        "<style>text{fill:#1f2328}.quiet{fill:#59636e}.line{stroke:#59636e}.bar{fill:#eef1f4}"
        "@media (prefers-color-scheme:dark){text{fill:#e6edf3}.quiet{fill:#9198a1}.line{stroke:#9198a1}"
        ".bar{fill:#21262d}}</style>",
        f'<text x="{LEFT}" y="22" font-weight="600">One slot: 4 workers, quorum K = 3, staleness bound S = 1</text>',
        f'<text x="{LEFT}" y="40" class="quiet">time goes to the right; a line is a packet of a simulated run</text>',
        f'<rect class="bar" x="{LEFT}" y="{bar}" width="{WIDTH - LEFT - RIGHT}" height="{SWITCH_HEIGHT}" rx="6"/>',
        f'<text x="12" y="{bar + 26}" font-weight="600">switch</text>',
    ]
    out += [
        f'<text x="12" y="{y(worker) + 4}" font-weight="600">worker {worker}</text>'
        f'<line class="line" x1="{LEFT}" y1="{y(worker)}" x2="{WIDTH - RIGHT}" y2="{y(worker)}" stroke-width="1"/>'
        for worker in range(4)
    ]
    for each in shown:
        colour = COLOURS[each.worker]
        start, end = (y(each.worker), bar) if each.up else (bar, y(each.worker))
        dash = "" if each.up else ' stroke-dasharray="5 4"'
        out.append(
            f'<line x1="{x(each.sent_s)}" y1="{start}" x2="{x(each.came_s)}" y2="{end}" stroke="{colour}"'
            f' stroke-width="1.8"{dash}/><circle cx="{x(each.came_s)}" cy="{end}" r="3.2" fill="{colour}"/>'
        )
        if each.up:
            out.append(f'<text x="{x(each.sent_s)}" y="{start - 7}" text-anchor="middle">{each.label}</text>')
    out += _rounds(filmed, shown, x, bar)
    late = "Worker 3's base 0 came when round 0 had closed: it counts in round 1, and nothing is lost."
    out.append(f'<text x="{LEFT}" y="{height - 8}" class="quiet">{escape(late)}</text>')
    return "\n".join([*out, "</svg>", ""])


def _rounds(filmed: Filmed, shown: list[Arrow], x: Callable[[float], str], bar: int) -> Iterator[str]:
    """Yield the switch's side: a chip for each contribution, in the round that it joins, and the end of each round."""
    arrivals = sorted((each.came_s, each.worker) for each in shown if each.up)
    for number, (closed_s, _, _) in enumerate(filmed.closed[:ROUNDS]):
        members = arrivals[number * QUORUM : (number + 1) * QUORUM]  # a round closes with its K-th contribution
        for at, (_, worker) in enumerate(members):
            yield (
                f'<rect x="{float(x(closed_s)) - 66 + 22 * at:.1f}" y="{bar + 14}" width="19" height="19" rx="3"'
                f' fill="{COLOURS[worker]}"/><text x="{float(x(closed_s)) - 56.5 + 22 * at:.1f}" y="{bar + 28}"'
                f' text-anchor="middle" style="fill:#fff">{worker}</text>'
            )
        yield (
            f'<line class="line" x1="{x(closed_s)}" y1="{bar}" x2="{x(closed_s)}" y2="{bar + SWITCH_HEIGHT}"'
            f' stroke-width="1.5"/><text x="{float(x(closed_s)) - 6:.1f}" y="{bar + 56}" text-anchor="end">'
            f"round {number} closes</text>"
            f'<text x="{float(x(closed_s)) - 6:.1f}" y="{bar + 74}" class="quiet" text-anchor="end">'
            f"its sum goes to all four</text>"
        )


TITLE = "Contributions of four workers to one slot of the switch, and the results that it multicasts"


if __name__ == "__main__":
    sys.stdout.write(drawn(film()))
