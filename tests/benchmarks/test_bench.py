"""`fanin bench allreduce` and `fanin bench codecs` with sizes that show that it works, not how fast."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fanin import cli
from fanin.benchmarks import mpi
from fanin.benchmarks.codecs import Plan as CodecsPlan
from fanin.benchmarks.codecs_texts import split
from fanin.benchmarks.collectives import COLLECTIVES, copies, table_of
from fanin.benchmarks.collectives import Plan as CollectivesPlan
from fanin.benchmarks.collectives import Row as CollectivesRow
from fanin.benchmarks.cost import Plan as CostPlan
from fanin.benchmarks.cost import link_bits
from fanin.benchmarks.process_times import Spent, spent
from fanin.benchmarks.rivals import Rival
from fanin.benchmarks.thc import COMPARED, PAPER, Thc
from fanin.benchmarks.watching import STEPS, SUMS
from fanin.emulation.network.switch_place import OWN, SwitchPlace
from fanin.errors import ConfigurationError
from tests.support.forks import fork_jobs

pytestmark = pytest.mark.processes

FIELDS = {"backend", "lanes", "workers", "bytes", "median_s", "ratio_to_gloo", "max_error"}


@dataclass(frozen=True)
class Measured:
    """Files and output that a benchmark has left behind."""

    rows: list[dict[str, Any]]
    said: str


Bench = Callable[..., Measured]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bench:
    """`fanin bench ...`, run in a folder, with ranks that are forks; its rows as `--json` writes them."""
    monkeypatch.chdir(tmp_path)
    fork_jobs(monkeypatch)

    def run(*arguments: str) -> Measured:
        status = cli.run(["bench", *arguments, "--json", "rows.json"])
        said, errors = capsys.readouterr()
        assert status == 0, errors
        return Measured(json.loads(Path("rows.json").read_text()), said)

    return run


@pytest.mark.slow
def test_rows_have_a_time_a_ratio_and_an_error_for_every_rival(bench: Bench, tmp_path: Path) -> None:
    done = bench("allreduce", "--workers", "2", "--bytes", "4096", "--lanes", "32,8", "--loss", "1")
    assert "fanin-report.html" in done.said
    assert "All-reduce of 4 KiB" in (tmp_path / "fanin-report.html").read_text()
    assert [(row["backend"], row["lanes"], row["loss_percent"]) for row in done.rows] == [
        ("fanin", 32, None),
        ("fanin", 8, None),
        ("fanin", 32, 1.0),
        ("gloo", 32, None),
    ]
    for row in done.rows:
        assert set(row) >= FIELDS
        assert row["median_s"] > 0
        assert row["ratio_to_gloo"] > 0
        assert row["samples"] == 11
        assert row["max_error"] <= Rival(row["backend"], row["lanes"]).tolerated_error(2)


@pytest.mark.thorough
@pytest.mark.slow
def test_codecs_have_an_error_bytes_and_times_on_drawn_values_and_captured_gradients(bench: Bench) -> None:
    size = ("--workers", "2", "--bytes", "262144", "--steps", "3")
    done = bench("codecs", *size, "--codecs", "rotated:8,low_rank:32:rank=2")
    rows = {(row["codec"], row["distribution"]): row for row in done.rows}
    codecs = ("lanes:32", "rotated:8", "low_rank:32:rank=2")
    assert set(rows) == {(codec, values) for codec in codecs for values in ("normal", "student", "digits@50")}
    assert rows["lanes:32", "digits@50"]["elements"] == 151_306
    for row in rows.values():
        assert row["bytes_out"] > 0
        assert row["encode_ms"] + row["decode_ms"] > 0
    assert rows["lanes:32", "normal"]["nmse"] < 1e-12
    assert "THC's tables" in done.said
    for values in ("normal", "student"):
        assert rows["rotated:8", values]["nmse_of_steps"] < rows["rotated:8", values]["nmse"] < 0.01


@pytest.mark.parametrize(
    ("choice", "nmse"), list(zip(PAPER, (0.0268, 0.0203, 0.0205, 0.0232, 0.0661, 0.342), strict=True)), ids=str
)
def test_thc_tables_have_the_errors_that_the_page_on_codecs_has(choice: Thc, nmse: float) -> None:
    assert choice.nmse() == pytest.approx(nmse, rel=0.03)
    table = choice.table()
    assert len(table) == 2**choice.bits
    assert (table[0], table[-1]) == (0, choice.granularity)


@pytest.mark.parametrize("choice", [each for each in COMPARED if each.released], ids=str)
def test_no_table_of_ours_has_a_larger_error_than_the_one_that_thcs_authors_released(choice: Thc) -> None:
    released = choice.released
    assert released is not None
    assert choice.nmse() <= released * (1 + 1e-3)  # four digits of which are written down
    assert choice.nmse() == pytest.approx(released, rel=0.03), "the construction is another one"
    assert choice.nmse() <= choice.uniform.nmse() * (1 + 1e-12)


def test_codecs_are_separated_by_commas_that_no_rule_has() -> None:
    rules = "by_layer:8:rules=dims<2=>lanes,32;*=>low_rank,16,rank=2"
    assert split(f"lanes:8,{rules},rotated") == ("lanes:8", rules, "rotated")
    assert split("power_sgd:fanin:rank=2,low_rank,power_sgd:gloo") == (
        "power_sgd:fanin:rank=2",
        "low_rank",
        "power_sgd:gloo",
    )
    assert split("") == ()


def test_torchs_hook_is_for_trainings() -> None:
    with pytest.raises(ConfigurationError, match="bench codecs --train"):
        CodecsPlan(workers=(2,), bytes=4096, steps=3, codecs=("power_sgd:fanin",))


@pytest.mark.parametrize("values", ["gauss", "digits@0", "digits@", "nothing@5"])
def test_values_that_nobody_can_draw_are_refused(values: str) -> None:
    with pytest.raises(ConfigurationError, match="digits@50"):
        CodecsPlan(workers=(2,), bytes=4096, steps=3, values=(values,))


@pytest.mark.slow
def test_sharded_training_has_times_bytes_and_losses_for_every_rival(bench: Bench) -> None:
    size = ("--workers", "2", "--rate", "none", "--steps", "1")
    done = bench("sharded", *size, "--rivals", "gloo,nccl,fanin-32,fanin-8")
    gloo, exact, narrow = done.rows
    assert "nccl did not run: rank 0: RuntimeError: " in done.said
    assert gloo["to_gloo"] == gloo["host_of_gloo"] == 1
    assert exact["median_s"] > 0
    assert exact["host_s"] > 0
    assert exact["share_of_exact"] == 1
    assert narrow["share_of_exact"] <= 0.27


@pytest.mark.thorough
@pytest.mark.slow
def test_sharded_training_goes_on_from_a_file_of_runs(bench: Bench) -> None:
    plan = (
        "sharded",
        "--workers",
        "2",
        "--rate",
        "none",
        "--steps",
        "0",
        "--epochs",
        "1",
        "--epoch-steps",
        "8",
        "--runs",
        "runs.json",
    )
    first = bench(*plan, "--rivals", "gloo,fanin-8")
    gloo, narrow = first.rows
    assert narrow["losses"] == pytest.approx(gloo["losses"], rel=0.01)
    assert 0 < narrow["apart_step"] < 1
    assert 0 < narrow["apart"] < 1
    assert gloo["apart"] == 0
    again = bench(*plan, "--rivals", "gloo,fanin-8")
    assert again.rows == first.rows
    assert "epoch 1 of 1" not in again.said


@pytest.mark.thorough
@pytest.mark.slow
def test_collectives_have_a_time_and_an_error_for_every_rival(bench: Bench) -> None:
    size = ("--workers", "2", "--bytes", "65536", "--samples", "1", "--lanes", "8")
    done = bench("collectives", *size, "--which", ",".join(COLLECTIVES))
    assert [(row["collective"], row["rival"]) for row in done.rows] == [
        (collective, rival) for collective in COLLECTIVES for rival in ("gloo", "fanin-8")
    ]
    for row in done.rows:
        assert row["fastest_s"] > 0
        assert row["to_gloo"] == 1 or row["rival"] != "gloo"
        assert row["max_error"] == 0 or row["collective"] != "broadcast"


@pytest.mark.parametrize(
    ("place", "collective", "tensors"),
    [
        ("own", "broadcast", 1),
        ("own", "all_gather", 0.75),
        ("own", "reduce_scatter", 1),
        ("hosts", "broadcast", 1.5),
        ("hosts", "all_gather", 0.75),
        ("hosts", "reduce_scatter", 0.75),
        ("rank0", "all_gather", 2.25),
        ("rank0", "reduce", 3),
    ],
)
def test_the_ideal_counts_what_the_busiest_link_carries(place: str, collective: str, tensors: float) -> None:
    assert copies(SwitchPlace.parse(place), collective, 4) == tensors


@pytest.mark.parametrize(("share", "told"), [(0.97, "97%*"), (0.62, "62%"), (None, "")])
def test_rows_that_processors_bound_are_marked(share: float | None, told: str) -> None:
    plan = CollectivesPlan(workers=2, switch_at=OWN, collectives=("reduce",), sizes=(64,), lanes=(32,), samples=1)
    row = CollectivesRow(
        collective="reduce", bytes=64, rival="gloo", workers=2, rate_bit_s=None, switch_at="own", device="cpu",
        median_s=1.0, fastest_s=1.0, to_gloo=1.0, ideal_s=None, max_error=0.0, processor=share,
    )  # fmt: skip
    console = Console(width=120, file=io.StringIO())
    with console.capture() as shown:
        console.print(table_of(plan, [row]))
    line = next(line for line in shown.get().splitlines() if line.startswith("reduce"))
    assert line.split()[-1] == (told or "1.00")


@pytest.mark.parametrize("label", ["fanin-32", "fanin-4", "fanin-32-0.5", "gloo", "mpi-tcp", "mpi-shm"])
def test_labels_are_read_back(label: str) -> None:
    assert Rival.parse(label).label == label


def test_a_rival_with_narrower_lanes_may_err_more_and_sends_less() -> None:
    wide, narrow = Rival("fanin", 32), Rival("fanin", 8)
    assert wide.tolerated_error(4) < 1e-5 < narrow.tolerated_error(4)
    assert narrow.bytes_through_wire(4) == wide.bytes_through_wire(4) / 4


@pytest.mark.parametrize(
    "label", ["gloo", "fanin-32", "fanin-4/8", "fanin-32-1.5", "fanin-8-open", "fanin-8-siphash", "mpi-shm"]
)
def test_rivals_are_read_back_from_their_labels(label: str) -> None:
    assert Rival.parse(label).label == label


def test_a_rival_without_tags_says_so_in_its_options() -> None:
    assert Rival.parse("fanin-8-open").options(0, {}).authenticate is False
    assert Rival.parse("fanin-8").options(0, {"FANIN_AUTHENTICATE": "1"}).authenticate is True


def test_a_rival_with_tags_of_one_algorithm_says_so_in_its_options() -> None:
    assert Rival.parse("fanin-8-siphash").options(0, {}).tag == "siphash"
    assert Rival.parse("fanin-8").options(0, {}).tag is None


@pytest.mark.parametrize(
    ("changes", "named"), [({"hosts": (1,)}, "hosts"), ({"bytes": 6}, "multiple of 4"), ({"mtus": ()}, "mtu")]
)
def test_costs_that_cannot_be_measured_are_refused(changes: dict[str, Any], named: str) -> None:
    plan: dict[str, Any] = {"hosts": (2,), "mtus": (1500,), "bytes": 4096, "lanes": (32,), **changes}
    with pytest.raises(ConfigurationError, match=named):
        CostPlan(**plan)


def test_a_link_carries_as_many_bits_for_two_hosts_with_shards_as_for_a_ring() -> None:
    gloo, exact, narrow = (link_bits(Rival.parse(label), 2, 1500, 1 << 20) for label in ("gloo", "fanin-32", "fanin-8"))
    assert exact == pytest.approx(gloo, rel=0.06)
    assert narrow == pytest.approx(exact / 4, rel=0.02)


def test_processor_time_divides_as_the_ticks_do() -> None:
    before, after = Spent(1.0, 0.4, 0.6), Spent(3.0, 1.9, 1.1)
    assert after.since(before) == pytest.approx((1.5, 0.5))
    assert before.since(before) == (0.0, 0.0)


def test_processor_time_of_children_counts_while_they_live() -> None:
    program = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True); input()"
    before = spent()
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert sum(spent().since(before)) >= 0.2
        assert sum(spent(without=[child.pid]).since(before)) < 0.2
        child.communicate(b"\n")


@pytest.mark.thorough
def test_who_watches_is_beside_what_it_costs(bench: Bench) -> None:
    size = ("--workers", "2", "--bytes", "65536", "--samples", "1", "--calls", "10")
    rows = {row["way"]: row for row in bench("watching", *size).rows}
    assert set(rows) == {*SUMS, *STEPS}
    assert rows["off"]["processor_ratio"] == rows["step"]["wall_ratio"] == 1
    assert {way for way, row in rows.items() if row["look_s"] is not None} == {"metrics", "top"}
    # Those two look once per second, and a sample here may be over sooner.
    looked = {way for way, row in rows.items() if row["looks"]}
    assert {"timeline", "watch_ranks"} <= looked <= {"timeline", "watch_ranks", "metrics", "top"}


def test_an_mpi_without_its_headers_is_named_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's openmpi-bin brings mpicc and mpirun, and mpicc finds no mpi.h."""
    for name in ("mpicc", "mpirun"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'mpi.h: No such file or directory' >&2\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert mpi.missing() == ("mpicc cannot compile: mpi.h: No such file or directory. Remedy: Debian's libopenmpi-dev")
    (tmp_path / "mpirun").unlink()
    assert mpi.missing() == "mpirun not found"
