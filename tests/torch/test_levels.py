"""Tests of the ranks that sums of two levels take or refuse, from facts of ranks that this machine does not have."""

from __future__ import annotations

import pytest

from fanin.errors import ConfigurationError
from fanin.host.torch.meeting.levels import Levels, Seat, judge, levels_of, seat_of, unlike_hosts
from fanin.host.torch.meeting.placement import Hosts
from fanin.options import Options


def seats(*hosts: str, **facts: object) -> list[Seat]:
    return [Seat(host=host, **{"devices": 8, **facts}) for host in hosts]  # type: ignore[arg-type]


def test_ranks_at_one_place_of_all_hosts_sum_between_them_however_ranks_are_numbered() -> None:
    hosts = judge(seats("a", "b", "a", "b"), "nccl")
    assert levels_of(hosts, 2) == Levels(inside=(0, 2), between=(2, 3))
    assert levels_of(hosts, 1) == Levels(inside=(1, 3), between=(0, 1))
    assert levels_of(hosts, 3).hosts == 2


def test_a_rank_without_a_gpu_among_others_is_named_with_the_remedy() -> None:
    mixed = [*seats("a", "a", "b"), Seat(host="b", cannot="PyTorch sees no CUDA device")]
    with pytest.raises(ConfigurationError, match=r"rank 3: PyTorch sees no CUDA device\. Remedy: leave out `inside`"):
        judge(mixed, "nccl")


def test_ranks_that_share_a_gpu_are_refused_before_nccl_refuses_them_unless_it_was_told_to_take_them() -> None:
    with pytest.raises(ConfigurationError, match=r"ranks 0, 1 share 1 GPU\(s\) .*Remedy: as many ranks as GPUs"):
        judge(seats("a", "a", devices=1), "nccl")
    assert judge(seats("a", "a", devices=1, shares_gpus=True), "nccl").ranks == ((0, 1),)
    assert judge(seats("a", "a", devices=1), "gloo").ranks == ((0, 1),)


def test_ranks_that_see_a_gpu_each_are_not_taken_for_sharers() -> None:
    own = [Seat(host="a", devices=1, visible=str(rank)) for rank in range(4)]
    assert judge(own, "nccl").ranks == ((0, 1, 2, 3),)


@pytest.mark.parametrize(
    ("name", "environment"),
    [
        ("NVIDIA H100", {"CUDA_VISIBLE_DEVICES": "MIG-5f1a"}),
        ("NVIDIA H100 MIG 1g.10gb", {}),  # in a container, which was given it by NVIDIA_VISIBLE_DEVICES
    ],
)
def test_a_mig_instance_is_named(name: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: name)
    seat = seat_of("nccl", Options(host="a"), environment)
    with pytest.raises(ConfigurationError, match="rank 0: its device is a MIG instance, and NCCL joins none"):
        judge([seat], "nccl")


def test_hosts_with_unlike_numbers_of_ranks_are_told_by_their_ranks() -> None:
    assert unlike_hosts(Hosts(((0, 1), (2,)))) == "ranks 0, 1; ranks 2 are on one host each"
    assert unlike_hosts(Hosts(((0, 1), (2, 3)))) == ""


@pytest.mark.parametrize("name", ["fallback", "on_worker_loss"])
def test_two_levels_end_with_the_first_rank_so_jobs_that_go_on_are_refused(name: str) -> None:
    value = {"fallback": "gloo", "on_worker_loss": "continue"}[name]
    with pytest.raises(ConfigurationError, match=f"inside = 'nccl' with {name} = '{value}'.*Remedy"):
        Options(inside="nccl", **{name: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="inside = 'mpi'; must be"):
        Options(inside="mpi")  # type: ignore[arg-type]
