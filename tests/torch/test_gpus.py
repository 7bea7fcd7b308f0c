"""Tests of what doctor and advise say of GPUs, from facts of devices that this machine does not have."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fanin.advice.forecasts import Choice, Forecast, Network, Profile
from fanin.advice.gpu_notes import gpu_notes, nccl_sum_s
from fanin.benchmarks import collectives, sharded
from fanin.benchmarks.harness import Output
from fanin.cli import doctor
from fanin.errors import ConfigurationError
from fanin.host.diagnosis import Check
from fanin.host.torch import gpus
from fanin.host.torch.device import cuda
from fanin.host.torch.gpus import Gpu, checks_of, waiting_way
from fanin.options import Options

SIZE = 25 << 20
STEP = Profile(((0.0, SIZE),))


def gpu(**facts: object) -> Gpu:
    usual: dict[str, object] = {
        "name": "H100", "memory_bytes": 80 << 30, "out_bytes_s": 50e9, "in_bytes_s": 52e9,
        "waits": "value: streams wait in the device's queue",
    }  # fmt: skip
    return Gpu(**{**usual, **facts})  # type: ignore[arg-type]


def states(found: Iterator[Check]) -> dict[str, str]:
    return {check.name: check.state for check in found}


def test_a_gpu_as_it_should_be_is_well_and_names_rate_way_and_triton() -> None:
    found = list(checks_of([gpu()], "3.7.1"))
    assert [check.state for check in found] == ["ok"] * 3
    assert "PCIe 50.0 GB/s out, 52.0 GB/s in" in found[0].result
    assert found[1].result == "value: streams wait in the device's queue"
    assert found[2].result.startswith("3.7.1")


def test_a_narrow_slot_a_thread_that_waits_and_no_triton_are_warnings_with_remedies() -> None:
    found = list(checks_of([gpu(in_bytes_s=1.6e9, waits="block: wait() blocks the calling thread", mig=True)], None))
    assert states(iter(found)) == {
        "gpu 0": "warning", "gpu 0 waiting": "warning", "gpu 0 MIG": "ok", "triton": "warning",
    }  # fmt: skip
    assert all(check.remedy for check in found if check.state == "warning")


def test_of_no_gpu_nothing_is_said() -> None:
    assert list(checks_of([], None)) == []


def test_without_a_driver_doctor_says_nothing_and_imports_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanin.host.diagnosis.GPU_DRIVERS", ())
    monkeypatch.setitem(sys.modules, "fanin.host.torch.gpus", None)  # importing it would raise
    assert list(doctor.examine_gpus(Options())) == []


def test_a_driver_whose_devices_pytorch_does_not_see_is_told_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pytest.TempPathFactory
) -> None:
    monkeypatch.setattr("fanin.host.diagnosis.GPU_DRIVERS", (tmp_path,))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    (check,) = doctor.examine_gpus(Options())
    assert check.state == "warning"
    assert "sees no CUDA device" in check.result
    assert "build of PyTorch for CUDA" in check.remedy


def test_the_way_of_waiting_is_the_one_that_the_device_module_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "way_for", lambda device, asked: ("kernel", ""))
    monkeypatch.setattr(cuda, "describe", lambda device, options: f"a kernel waits, {options.device_wait}")
    assert waiting_way(torch.device("cuda", 0), Options(device_wait="kernel")) == "kernel: a kernel waits, kernel"


def test_triton_is_looked_up_without_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "TRITON", "numpy")
    assert gpus.triton_version() == sys.modules["numpy"].__version__
    monkeypatch.setattr(gpus, "TRITON", "no_such_package")
    assert gpus.triton_version() is None


# --- bench ---


@pytest.mark.parametrize(
    ("benchmark", "plan"),
    [(collectives, collectives.Plan(device="cuda")), (sharded, sharded.Plan(device="cuda"))],
    ids=["collectives", "sharded"],
)
def test_benchmarks_on_a_gpu_are_refused_by_name_where_there_is_none(
    benchmark: Any, plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigurationError, match=r"no CUDA device here\. Remedy: --device cpu"):
        benchmark.bench(plan, Output())


# --- advise ---


def cluster(hosts: int, ranks: int, rate: float) -> Network:
    return Network(
        ranks=(ranks,) * hosts, rates=(rate,) * hosts, cores=(8.0,) * hosts, round_trip_s=1e-4, mtu=1500
    )  # fmt: skip


def best(lanes: int) -> Forecast:
    return Forecast(Choice("hosts", lanes), 1.0)


def test_a_ring_of_nccls_moves_two_tensors_less_one_part_over_each_link() -> None:
    network = cluster(4, 1, 1e9)
    assert nccl_sum_s(network, SIZE) == pytest.approx(1.5 * SIZE * 8 / 1e9, rel=0.01)


@pytest.mark.parametrize("rate", [1e9, 1e10, 1e11])
def test_in_32_bits_over_one_level_nccl_is_as_good_and_says_so(rate: float) -> None:
    notes = " ".join(gpu_notes(cluster(4, 1, rate), [gpu()] * 4, STEP, best(32)))
    assert "stay with NCCL, since 32-bit lanes move as many bytes" in notes


def test_over_a_slow_network_narrow_lanes_are_said_to_be_faster_by_how_much() -> None:
    notes = " ".join(gpu_notes(cluster(4, 1, 1e9), [gpu()] * 4, STEP, best(8)))
    assert "stay with NCCL" not in notes
    factor = float(notes.split(" times as fast as NCCL")[0].split()[-1])
    assert 3.5 < factor < 4.2


def test_where_pcie_is_narrower_than_the_network_narrow_lanes_gain_nothing() -> None:
    slow = [gpu(out_bytes_s=0.4e9)] * 4
    notes = " ".join(gpu_notes(cluster(4, 1, 1e11), slow, STEP, best(16)))
    assert "stay with NCCL, since the links are not what bounds a step" in notes


def test_hosts_of_several_gpus_are_told_of_two_levels_unless_these_are_mig_instances() -> None:
    network = cluster(2, 8, 1e10)
    assert any("FANIN_INSIDE=nccl" in note for note in gpu_notes(network, [gpu()] * 16, STEP, best(8)))
    assert not any("FANIN_INSIDE" in note for note in gpu_notes(network, [gpu(mig=True)] * 16, STEP, best(8)))


def test_ranks_that_share_a_gpu_are_not_told_of_two_levels() -> None:
    shared = [gpu(uuid=f"GPU-{rank // 4}") for rank in range(8)]
    notes = " ".join(gpu_notes(cluster(2, 4, 1e10), shared, STEP, best(8)))
    assert "ranks share a GPU: they sum over one level" in notes
    assert "FANIN_INSIDE" not in notes
    own = [gpu(uuid=f"GPU-{rank}") for rank in range(8)]
    assert any("FANIN_INSIDE=nccl" in note for note in gpu_notes(cluster(2, 4, 1e10), own, STEP, best(8)))


def test_one_host_and_ranks_without_a_gpu_among_others() -> None:
    assert "stay with NCCL" in gpu_notes(cluster(1, 4, 0.0), [gpu()] * 4, STEP, best(8))[-1]
    (mixed,) = gpu_notes(cluster(2, 1, 1e9), [gpu(), None], STEP, best(8))
    assert mixed.startswith("ranks 1 have no GPU")
    assert gpu_notes(cluster(2, 1, 1e9), [None, None], STEP, best(8)) == ()
