"""The page and its plots: what a record has is drawn, what it lacks is not, and nothing is fetched or left open."""

from __future__ import annotations

import dataclasses
import io
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fanin.emulation.report import publish, write_report
from fanin.emulation.report.drawing import bytes_label, rate_label, time_label
from fanin.emulation.report.link_plots import busiest_share, rates_of
from fanin.emulation.report.page import plots_of, render, setting_label, tables_of
from fanin.emulation.report.palette import DARK, LIGHT, NAMES, Palette, style_sheet
from fanin.emulation.report.steady import waited_s
from fanin.emulation.report.timeline import shares_of, window_of
from fanin.errors import ConfigurationError, FaninError
from fanin.records.record import VERSION, RunRecord, Scalar
from tests.report.colour_vision import VISIONS, lab, linear, luminance
from tests.report.records import compared, emulated, measured

MIN_DIFFERENCE = 20.0
"""Euclidean, in CIELAB; about 2 is just seen when two colours touch."""
WCAG_AA = 4.5
"""Contrast of text, which stands on bars too."""
EMPTY = RunRecord(
    version=VERSION, kind="emulate", title="nothing", command="true", started="", duration_s=0.0, outcome="failed"
)


@pytest.fixture(scope="module")
def page() -> str:
    record = emulated(workers=3, steps=30)
    return render(record, plots_of(record))


def test_an_emulated_run_has_every_plot() -> None:
    keys = [plot.key for plot in plots_of(emulated(workers=2, steps=10))]
    assert keys == ["accuracy", "loss", "links", "timeline", "shares", "waited-for", "retransmissions", "duplicates"]


def test_a_benchmark_has_a_plot_per_rate_and_one_for_steps() -> None:
    assert [plot.key for plot in plots_of(measured())] == ["allreduce", "allreduce-1", "steps"]


def test_one_size_is_shown_against_workers_and_one_row_each_as_bars() -> None:
    rows = [row for row in measured().rows if row.bytes == 1 << 20 and row.rate_bit_s == 1e9]
    against_workers = dataclasses.replace(EMPTY, rows=tuple(rows))
    assert "time against workers" in plots_of(against_workers)[0].title
    bars = dataclasses.replace(EMPTY, rows=tuple(row for row in rows if row.workers == 4))
    (plot,) = plots_of(bars)
    assert "8.72 ms" not in plot.svg(narrow=False)
    assert time_label(rows[0].median_s) in plot.svg(narrow=False)


def test_quantities_have_a_plot_per_kind_and_axes_per_condition() -> None:
    plots = plots_of(compared())
    assert [plot.key for plot in plots] == ["quantity-0", "accuracy", "loss"]
    for plot in plots:
        drawn = plot.svg(narrow=True)
        assert "even workers" in drawn
        assert "one of them 3 times slower, always" in drawn
    assert ">none<" in plots[0].svg(narrow=False), "a target that was not reached is said, not left out"


def test_columns_of_numbers_stand_to_the_right_and_words_to_the_left() -> None:
    table = next(table for table in tables_of(emulated(workers=2, steps=10)) if table.title == "Workers")
    assert dict(zip(table.headings, table.numeric, strict=True)) == {
        "worker": False,
        "where": False,
        "ended": False,
        "slowed down": True,
        "packets": True,
        "sent again": True,
        "round trip": True,
    }


def test_a_long_table_is_folded_and_a_short_one_is_not() -> None:
    assert "<details>" in render(measured(), [])
    assert "<details>" not in render(emulated(workers=2, steps=10), [])


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        (("delay_s", 5e-5), ("delay", "50 µs")),
        (("rate_bit_s", 1e8), ("rate", "100 Mbit/s")),
        (("rate_bit_s", None), ("rate bit s", "–")),
        (("step_ms", 20.0), ("step", "20 ms")),
        (("bytes", 1 << 20), ("bytes", "1 MiB")),
        (("checksum", True), ("checksum", "yes")),
    ],
)
def test_settings_are_shown_with_their_units(setting: tuple[str, Scalar], shown: tuple[str, str]) -> None:
    assert setting_label(*setting) == shown


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("vision", VISIONS)
def test_colours_can_be_told_apart_whatever_eyes_see_them(palette: Palette, vision: str) -> None:
    seen = [lab(VISIONS[vision] @ linear(colour)) for colour in palette.series]
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(one - other) >= MIN_DIFFERENCE


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_stand_out_from_the_paper(palette: Palette) -> None:
    paper = luminance(palette.paper)
    for colour in (*palette.series, palette.ink, palette.muted, palette.good, palette.bad):
        darker, lighter = sorted((paper, luminance(colour)))
        assert (lighter + 0.05) / (darker + 0.05) >= WCAG_AA


def test_a_record_without_measurements_gives_a_page_that_says_so() -> None:
    assert plots_of(EMPTY) == []
    assert "nothing that could be drawn" in render(EMPTY, [])


def test_the_page_fetches_nothing(page: str) -> None:
    addresses = set(re.findall(r"https?://[^\s\"'<]+", page))
    assert all(address.startswith("http://www.w3.org/") for address in addresses), addresses  # names, not places
    assert "<script" not in page
    assert "<link" not in page


def test_every_colour_of_a_plot_is_a_variable_that_the_page_defines(page: str) -> None:
    drawn = page[page.index("<main>") :]
    assert not re.findall(r"#[0-9a-f]{6}\b", drawn)
    defined = set(re.findall(r"(--[\w-]+):", style_sheet()))
    assert set(re.findall(r"var\((--[\w-]+)\)", page)) <= defined
    assert len(set(NAMES.roles().values())) == len(NAMES.roles())


def test_text_from_outside_cannot_become_markup() -> None:
    record = dataclasses.replace(EMPTY, title="<script>alert(1)</script>", error="a < b & c")
    text = render(record, [])
    assert "<script>" not in text
    assert "a &lt; b &amp; c" in text


def test_identifiers_on_the_page_are_unique(page: str) -> None:
    found = re.findall(r'\bid="([^"]+)"', page)
    assert len(found) == len(set(found))


def test_the_same_record_gives_the_same_page(page: str) -> None:
    record = emulated(workers=3, steps=30)
    assert render(record, plots_of(record)) == page


def test_pictures_are_written_beside_the_page(tmp_path: Path) -> None:
    written = write_report(measured(), tmp_path / "report.html", tmp_path / "plots")
    assert [path.name for path in written] == ["report.html", "allreduce.png", "allreduce-1.png", "steps.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written[1:])


def test_a_saved_record_gives_the_same_page(tmp_path: Path, page: str) -> None:
    emulated(workers=3, steps=30).write(tmp_path / "record.json")
    write_report(RunRecord.read(tmp_path / "record.json"), tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text() == page


def test_rates_are_bits_over_intervals() -> None:
    link = emulated(workers=1, steps=20).links[0]
    times, rates = rates_of(link, "up")
    first, second = link.samples[:2]
    assert times[0] == pytest.approx(0.25)
    assert rates[0] == pytest.approx((second.up_bytes - first.up_bytes) * 8 / 0.5)


def test_the_busiest_link_is_a_share_of_its_rate() -> None:
    share = busiest_share(emulated(workers=2, steps=100))
    assert share is not None
    assert 0.5 < share < 0.8  # 8e7 bytes per second of 1.25e8, and a ripple


def test_waiting_is_charged_to_the_rank_that_came_last() -> None:
    workers = list(emulated(workers=3, steps=10).workers)
    assert waited_s(workers) == {2: pytest.approx(2 * 8 * 0.024)}  # without the first step and the last


def test_a_long_run_shows_its_middle_and_shares_are_of_all_of_it() -> None:
    workers = list(emulated(workers=2, steps=1000).workers)
    start_s, end_s = window_of(workers)
    assert 40 < start_s < end_s < 60
    assert sum(share for _, share in shares_of(workers[0])) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (time_label(0.0015), "1.5 ms"),
        (time_label(0), "0"),
        (time_label(2e-7), "0.2 µs"),
        (time_label(3725.0), "3,725 s"),
        (bytes_label(26_214_400), "25 MiB"),
        (bytes_label(1500), "1.5 KiB"),
        (bytes_label(12), "12 B"),
        (rate_label(1e8), "100 Mbit/s"),
        (rate_label(None), "no limit"),
    ],
)
def test_quantities_are_written_for_people(text: str, expected: str) -> None:
    assert text == expected


def test_a_record_whose_page_cannot_be_drawn_is_kept_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr("fanin.emulation.report.page.plots_of", lambda record: 1 / 0)
    publish(measured(), tmp_path / "page.html", Console(file=shown, width=200))
    assert "cannot be drawn: ZeroDivisionError" in shown.getvalue()
    assert RunRecord.read(tmp_path / "page.json") == measured()


def test_a_page_that_cannot_be_written_is_a_failure_where_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, page = io.StringIO(), tmp_path / "nowhere" / "page.html"
    monkeypatch.setattr("fanin.emulation.report.DEFAULT_PAGE", page)
    publish(measured(), None, Console(file=shown, width=200))
    assert shown.getvalue().startswith(f"no report: the report {page} cannot be written: No such file")
    with pytest.raises(FaninError, match="cannot be written"):
        publish(measured(), page, Console(file=shown))


def test_without_its_extra_only_a_page_that_was_asked_for_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.StringIO()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fanin.emulation.report.missing", lambda: "matplotlib")
    publish(measured(), None, Console(file=shown))
    assert shown.getvalue() == ""
    with pytest.raises(ConfigurationError, match=r"needs matplotlib.*fanin\[plot\]"):
        publish(measured(), tmp_path / "page.html", Console(file=shown))
    assert not list(tmp_path.iterdir())
