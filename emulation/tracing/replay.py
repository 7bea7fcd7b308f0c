"""A replay of packets that meet in a switch: one animated SVG without a script.

Workers stand on the left, the switch on the right. A packet is a dot that travels from its sender to its receiver. The
switch lights up while a round is open, and flashes when it closes. Times are those of the simulation, slowed down. The
animation is SMIL (https://www.w3.org/TR/SVG11/animate.html), which browsers support.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, ROW, TOP, FOOT = 720, 56, 64, 34
LEFT, RIGHT = 96, 560
REPLAY_S = 12.0
"""Seconds of the replay, which then begins again."""
PAUSE_S = 1.5
"""Seconds at its end in which nothing moves."""
DOT = 5
COLOURS = ("#b25f00", "#2d807a", "#b147cc", "#8800ff", "#806c46", "#133e80", "#660000", "#4c1b35")
MAX_MOVES = 1500
"""Most packets in a replay; later ones are left out, and the caption says so."""


@dataclass(frozen=True, slots=True)
class Move:
    """One packet between a worker and the switch, in simulated seconds."""

    worker: int
    """Row of the worker, from 0."""
    up: bool
    """Whether it goes to the switch."""
    start_s: float
    end_s: float | None
    """Time of its arrival; None if it never came."""
    name: str


@dataclass(frozen=True, slots=True)
class Closing:
    """One round at the switch, from its opening to its end."""

    start_s: float
    end_s: float


def replay(workers: Sequence[str], moves: Sequence[Move], rounds: Sequence[Closing], title: str) -> str:
    """Draw the SVG. The earliest move is at the start of the replay, whatever its time."""
    shown = sorted(moves, key=lambda move: move.start_s)[:MAX_MOVES]
    begins_s = min(move.start_s for move in shown)
    ends_s = max(move.end_s or move.start_s for move in shown)
    scale = (REPLAY_S - PAUSE_S) / max(ends_s - begins_s, 1e-9)
    height = TOP + ROW * len(workers) + FOOT

    def at(time_s: float) -> float:
        return min(max((time_s - begins_s) * scale, 0.0), REPLAY_S)

    caption = f"{(ends_s - begins_s) * 1e6:,.0f} µs, slowed down {scale:,.0f} times"
    if len(shown) < len(moves):
        caption += f"; the first {len(shown):,} of {len(moves):,} packets"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title, quote=True)}">',
        f"<title>{escape(title)}</title>",
        "<style>text{font:14px system-ui,'DejaVu Sans',sans-serif;fill:#1b1f24}.muted{fill:#55606c;font-size:12px}"
        ".wire{stroke:#d8dee4}.box{fill:#f5f7f9;stroke:#55606c}.paper{fill:#fff}@media(prefers-color-scheme:dark)"
        "{text{fill:#e6e9ed}.muted{fill:#a3adb8}.wire{stroke:#303843}.box{fill:#181d24}.paper{fill:#0f1318}}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
        f'<text x="16" y="26">{escape(title)}</text><text x="16" y="46" class="muted">{escape(caption)}</text>',
        *_stage(workers, height),
        *(part for each in rounds for part in _flash(each, len(workers), at)),
        *(_dot(move, at) for move in shown),
        f'<text x="16" y="{height - 12}" class="muted">dot: a packet to the switch; ring: one from it; cross: one that '
        "never came</text>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _stage(workers: Sequence[str], height: int) -> Iterator[str]:
    for row, name in enumerate(workers):
        y = TOP + ROW * row + ROW // 2
        yield f'<line class="wire" x1="{LEFT}" y1="{y}" x2="{RIGHT}" y2="{y}" stroke-width="2"/>'
        yield f'<text x="16" y="{y + 5}">{escape(name)}</text>'
    inside = height - TOP - FOOT - 8
    yield f'<rect class="box" x="{RIGHT}" y="{TOP + 4}" width="120" height="{inside}" rx="8"/>'
    yield f'<text x="{RIGHT + 60}" y="{TOP + 24}" text-anchor="middle">switch</text>'


def _flash(each: Closing, workers: int, at: Callable[[float], float]) -> Iterator[str]:
    y = TOP + ROW * workers // 2 + 8
    began, ended = at(each.start_s) / REPLAY_S, at(each.end_s) / REPLAY_S
    after = min(ended + 0.02, 1.0)
    if not 0.0 < began < ended < after:
        return
    yield (
        f'<circle cx="{RIGHT + 60}" cy="{y}" r="16" fill="{COLOURS[5]}" opacity="0"><animate attributeName="opacity" '
        f'dur="{REPLAY_S}s" repeatCount="indefinite" values="0;0;0.35;1;0;0" '
        f'keyTimes="0;{began:.5f};{began:.5f};{ended:.5f};{after:.5f};1"/></circle>'
    )


def _dot(move: Move, at: Callable[[float], float]) -> str:
    y = TOP + ROW * move.worker + ROW // 2
    colour = COLOURS[move.worker % len(COLOURS)]
    first, last = (LEFT, RIGHT) if move.up else (RIGHT, LEFT)
    lost = move.end_s is None
    if lost:
        last = (first + last) // 2
    began = at(move.start_s)
    ended = max(at(move.start_s if move.end_s is None else move.end_s), began) + (REPLAY_S * 0.01 if lost else 0.0)
    times = [min(each / REPLAY_S, 1.0) for each in (began, max(ended, began + 0.02))]
    keys = f"0;{times[0]:.5f};{times[1]:.5f};1"
    style = f'fill="{colour}"' if move.up else f'fill="none" stroke="{colour}" stroke-width="2"'
    shape = f'<circle r="{DOT}" cy="{y}" {style} opacity="0">'
    if lost:
        shape = f'<path d="M-5 {y - 5}L5 {y + 5}M5 {y - 5}L-5 {y + 5}" stroke="#c3202b" stroke-width="2.5" opacity="0">'
    moved = (
        f'<animate attributeName="cx" values="{first};{first};{last};{last}" keyTimes="{keys}" dur="{REPLAY_S}s" '
        'repeatCount="indefinite"/>'
        if not lost
        else f'<animateTransform attributeName="transform" type="translate" values="{first} 0;{first} 0;{last} 0;'
        f'{last} 0" keyTimes="{keys}" dur="{REPLAY_S}s" repeatCount="indefinite"/>'
    )
    seen = (
        f'<animate attributeName="opacity" calcMode="discrete" values="0;1;0;0" keyTimes="{keys}" dur="{REPLAY_S}s" '
        'repeatCount="indefinite"/>'
    )
    end = "</path>" if lost else "</circle>"
    return f"{shape}<title>{escape(move.name)}</title>{moved}{seen}{end}"
