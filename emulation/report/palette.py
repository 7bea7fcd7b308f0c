"""Colours by role, in three palettes: light, dark, and one of placeholders (NAMES).

A plot on the page is drawn once, in NAMES: each of its colours is a number that stands for a role, and `with_variables`
turns these numbers into CSS variables. So one drawing serves light pages, dark pages and paper.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

SERIES = 8
"""Number of colours of series, which stay apart for colour-blind readers, too (tests/report checks the palettes). A
ninth series has the first one's colour again, and another marker."""


@dataclass(frozen=True, slots=True)
class Palette:
    """The colours of a page, each as `#rrggbb`."""

    paper: str
    panel: str
    ink: str
    muted: str
    """Colour of labels of axes, and of captions."""
    grid: str
    good: str
    bad: str
    series: tuple[str, ...]

    def of(self, index: int) -> str:
        """The colour of the index-th series."""
        return self.series[index % len(self.series)]

    def roles(self) -> dict[str, str]:
        """Every colour, by the name of its CSS variable."""
        named = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "series"}
        return {**named, **{f"series-{index}": colour for index, colour in enumerate(self.series)}}


LIGHT = Palette(
    paper="#ffffff", panel="#f5f7f9", ink="#1b1f24", muted="#55606c", grid="#d8dee4", good="#1a7f42", bad="#c3202b",
    series=("#133e80", "#b25f00", "#2d807a", "#b147cc", "#8800ff", "#806c46", "#660000", "#4c1b35"),
)  # fmt: skip
DARK = Palette(
    paper="#0f1318", panel="#181d24", ink="#e6e9ed", muted="#a3adb8", grid="#303843", good="#56d089", bad="#ff8a83",
    series=("#8cbaff", "#e6be22", "#00e6b8", "#ad62b2", "#9c59ff", "#009900", "#cc7070", "#adcc70"),
)  # fmt: skip

_ROLES = tuple(LIGHT.roles())
_NUMBERS = {role: f"#01f0{number:02x}" for number, role in enumerate(_ROLES)}
NAMES = Palette(
    **{role: number for role, number in _NUMBERS.items() if not role.startswith("series-")},
    series=tuple(_NUMBERS[f"series-{index}"] for index in range(SERIES)),
)


def with_variables(drawing: str) -> str:
    """Replace every number of NAMES in an SVG by its CSS variable."""
    for role, number in _NUMBERS.items():
        drawing = drawing.replace(number, f"var(--{role})")
    return drawing


def style_sheet() -> str:
    """CSS that sets the variables: LIGHT, or DARK on a screen whose reader's system asks for dark."""

    def block(palette: Palette) -> str:
        return " ".join(f"--{role}: {colour};" for role, colour in palette.roles().items())

    return (
        f":root {{ color-scheme: light dark; {block(LIGHT)} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {block(DARK)} }} }}"
    )
