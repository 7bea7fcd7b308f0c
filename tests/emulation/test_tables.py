"""Tables in terminals: headings and figures are whole at any width, as a table or as lines."""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Callable

import pytest
from rich.console import Console, RenderableType

from fanin.benchmarks import (
    allreduce,
    codecs_train_rows,
    codecs_train_tables,
    fairness,
    network,
    shared_link,
    staleness,
)
from fanin.emulation.announced import announced
from fanin.emulation.figures import FigureTable, milliseconds
from fanin.emulation.network import display
from fanin.examples import demo
from fanin.records.record import LinkSample, Row, Span
from tests.report.records import emulated


def shown(what: RenderableType, width: int) -> str:
    """The text that a terminal of that width shows."""
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as captured:
        console.print(what)
    return captured.get()


def test_a_console_that_leaves_lines_to_the_terminal_cuts_no_figure_off() -> None:
    table = FigureTable("a sum", ("", "predicted ms", "measured ms", "gloo's, beside it", "gloo / ours"))
    table.add("fanin, a shard on every host, 32-bit lanes", "125.2", "123.9", "472.1", "3.8125")
    file = io.StringIO()
    Console(file=file, width=80, soft_wrap=True).print(table)
    assert "gloo / ours 3.8125" in " ".join(file.getvalue().split())


def all_reduces() -> FigureTable:
    """The table of `fanin bench allreduce`, with the longest figures that a run has had."""
    plan = allreduce.Plan(workers=8, bytes=26_214_400, lanes=(32,), against=("gloo",), samples=11, loss_percent=(1.5,))
    row = allreduce.Row(
        backend="mpi-shm",
        lanes=32,
        workers=8,
        bytes=1,
        median_s=123.4567,
        ratio_to_gloo=123.45,
        fastest_s=123.4,
        ideal_ratio_to_gloo=12.34,
        max_error=1.2e-12,
        slowest_s=1234.5,
        samples=11,
        loss_percent=1.5,
    )
    return allreduce.table_of(plan, [row])


def links() -> FigureTable:
    """The table of `fanin bench network`."""
    plan = network.Plan(workers=8, sizes=(4,), rate="100mbit", lanes=(32,), against=("gloo",), samples=5)
    row = Row(
        backend="fanin",
        lanes=32,
        workers=8,
        bytes=26_214_400,
        rate_bit_s=1e8,
        measures="allreduce",
        median_s=12.345,
        fastest_s=1.0,
        slowest_s=2.0,
        samples=5,
        ideal_s=1.2345,
        ratio_to_gloo=12.34,
        max_error=0.0,
        retransmissions=123_456,
        processor=1.0,
    )
    return network.table_of(plan, [row])


def training() -> FigureTable:
    """The table of `fanin bench staleness`."""
    return staleness.table_of(*_uneven())


def training_steps() -> FigureTable:
    """The second table of `fanin bench staleness`."""
    return staleness.steps_of(*_uneven())


def _uneven() -> tuple[staleness.Plan, list[staleness.Row]]:
    plan = staleness.Plan(
        workers=4,
        steps=160,
        step_ms=30.0,
        repeats=2,
        target=0.9,
        modes=("synchronous",),
        conditions=("even",),
        rate_bit_s=4e6,
    )
    row = staleness.Row(
        condition="slow-link",
        mode="synchronous",
        to_target_s=123.45,
        fastest_s=123.45,
        slowest_s=123.45,
        to_target_range=1.23,
        speed_up=12.34,
        seconds=123.4,
        accuracy=0.945,
        accuracy_range=0.012,
        loss=1.23,
        choices=(3, 4),
        points=(),
        step_s=12.345,
        samples_per_s=12.34,
        dropped=0.123,
        step_to_gloo=12.34,
        samples_to_gloo=12.34,
    )
    return plan, [row, dataclasses.replace(row, condition="even", mode="gloo")]


def learning() -> FigureTable:
    """The table of `fanin bench codecs --train`."""
    return codecs_train_tables.tables_of(*_learned())[0]


def over_links() -> FigureTable:
    """The second table of `fanin bench codecs --train`."""
    return codecs_train_tables.tables_of(*_learned())[1]


def bounds_over_links() -> FigureTable:
    """The third table of `fanin bench codecs --train`."""
    return codecs_train_tables.tables_of(*_learned())[2]


def _learned() -> tuple[codecs_train_rows.Plan, list[codecs_train_rows.Row]]:
    plan = codecs_train_rows.Plan(
        tasks=("text",), workers=(8,), steps=100, timed_steps=8, repeats=5, rates_bit_s=(1e8, 1e9)
    )
    row = codecs_train_rows.Row(
        task="text",
        workers=8,
        codec="random_coordinates",
        steps=100,
        repeats=5,
        loss=1.234,
        accuracy=0.987,
        loss_range=0.012,
        accuracy_range=0.003,
        loss_change=0.0123,
        accuracy_change=-0.0012,
        accuracy_change_range=0.0034,
        target_loss=1.234,
        to_target_steps=99.0,
        points=(),
    )
    timed = dataclasses.replace(
        row,
        rate_bit_s=1e8,
        step_s=12.345,
        compute_s=0.234,
        codec_s=0.034,
        without_links_s=1.234,
        processor_s=0.123,
        bytes_out=51_234_567.0,
        bytes_in=51_234_567.0,
        saved=123.4,
        to_target_s=1234.5,
        speed_up=12.3,
        processor=0.95,
    )
    return plan, [row, timed, dataclasses.replace(timed, rate_bit_s=1e9, to_target_s=None)]


def comparison() -> FigureTable:
    """The table of `fanin demo --task text`."""
    plan = demo.Plan(task="text", backend="fanin", workers=32, lanes=16, epochs=10, seed=0, faults="")
    said = {"accuracy": 0.9876, "test_loss": 5.0, "step_s": 1.2345, "communication_s": 1.2345, "epoch": 10, "loss": 1.0}
    run = demo.Run(plan, epochs=[said])
    run.ends = {
        rank: {"wire_bytes_sent": 10**9, "wire_bytes_received": 10**9, "replica": str(rank), "gradient_bytes": 1}
        for rank in range(32)
    }
    return demo.comparison([run, dataclasses.replace(run, plan=dataclasses.replace(plan, backend="gloo"))])


def emulation() -> FigureTable:
    """The table at the end of `fanin emulate`."""
    return display.summary(emulated(workers=4, steps=200))


def traffic() -> FigureTable:
    """The table of `fanin emulate` while it runs."""
    sample = LinkSample(time_s=1.0, up_bytes=10**12, down_bytes=10**12, dropped=10**9)
    return display.links_table(1.0, {"worker 10": [sample]})


def jobs() -> FigureTable:
    """The table of `fanin bench fairness`."""
    row = fairness.Row(second_job="", bytes_per_s=1e9, sums=1, flooded=915_000, of_fair_rate=1.0)
    return fairness.table_of([dataclasses.replace(row, second_job=name) for name in fairness.SECOND_JOBS])


def shared_links() -> FigureTable:
    """The table of `fanin bench network --shared-link` with several queues or numbers of TCP flows."""
    row = _shared(jobs=1)
    return shared_link.overview([row, dataclasses.replace(row, queue_bytes=1 << 16)])


def one_shared_link() -> FigureTable:
    """The table of `fanin bench network --shared-link` with one row."""
    return shared_link.table_of(_shared(jobs=2))


def _shared(jobs: int) -> shared_link.Shares:
    return shared_link.Shares(
        workers=4,
        jobs=jobs,
        tcp_flows=16,
        rate_bit_s=1e8,
        queue_bytes=1 << 20,
        job_shares=(0.25,) * jobs,
        tcp_shares=(0.0123,) * 16,
        fair_share=0.05,
        jain=0.987,
        packets=1_234_567,
        resent=123_456,
        lost=123_456,
        cuts=1234,
        timeouts=1234,
        dropped=12_345,
        dropped_elsewhere=1234,
    )


SHARED = [shared_links, one_shared_link]
TABLES = [all_reduces, links, training, training_steps, comparison, emulation, traffic, jobs, *SHARED]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("make", [*TABLES, learning, over_links, bounds_over_links])
def test_headings_and_figures_are_whole(make: Callable[[], FigureTable], width: int) -> None:
    wide, text = shown(make(), 1000), shown(make(), width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.replace(";", "").split())
    assert all(heading in words for heading in make().headings)
    assert {word.rstrip(";") for word in wide.split() if word.strip("─")} <= set(words.split())


@pytest.mark.parametrize("make", TABLES)
def test_eighty_columns_have_room_for_a_table(make: Callable[[], FigureTable]) -> None:
    assert "──" in shown(make(), 80)


def test_what_a_program_said_is_no_markup() -> None:
    table = FigureTable("[title]", ("a",))
    table.add("[/red] in a cell")
    table.caption = "'[/data]' is not there"
    for width in (10, 80):
        assert "[/red]" in shown(table, width)
    assert "'[/data]' is not there" in shown(table, 80)


def test_a_long_measurement_says_how_far_it_is_where_there_is_no_terminal() -> None:
    file = io.StringIO()
    with announced(Console(file=file), "4 workers, [something]") as tell:
        tell("run 1 of 9 is done")
        tell("run 2 of 9 is done")  # too soon after the first for a line of its own
    assert file.getvalue().splitlines() == ["4 workers, [something] ...", "    0 s  run 1 of 9 is done"]


@pytest.mark.parametrize(
    ("seconds", "digits", "shown"),
    [(12.8901, 4, "12,890"), (0.9999, 4, "999.9"), (4.5678e-3, 4, "4.568"), (1.2345, 3, "1,234"), (0.0, 4, "0")],
)
def test_times_are_whole_numbers_however_long(seconds: float, digits: int, shown: str) -> None:
    assert milliseconds(seconds, digits) == shown


def test_a_worker_that_was_last_itself_is_not_told_to_have_waited_for_a_peer() -> None:
    record = emulated(workers=2, steps=3)
    waits = [Span(activity="wait", start_s=0.0, end_s=1.0, waited_for=(1, 0))]
    workers = [dataclasses.replace(worker, spans=tuple(waits)) for worker in record.workers]
    table = display.summary(dataclasses.replace(record, workers=tuple(workers)))
    text = shown(table, 100)
    assert re.search(r"^0 .* worker 1 ", text, re.MULTILINE)
    assert re.search(r"^1 .* itself ", text, re.MULTILINE)
    assert "itself: the worker's own packets came last" in text


def test_links_are_shown_from_the_first_packet_on() -> None:
    silent = LinkSample(time_s=1.0, up_bytes=0, down_bytes=0)
    assert shown(display.links_now(3.0, {"worker 0": [silent]}), 80).strip() == "3 s: workers start"
    sent = LinkSample(time_s=2.0, up_bytes=1000, down_bytes=0)
    assert "worker 0" in shown(display.links_now(4.0, {"worker 0": [silent, sent], "worker 1": [silent]}), 80)
