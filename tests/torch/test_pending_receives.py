"""Receives from any source that are pending when their group is destroyed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from fanin.errors import FaninError
from fanin.host.torch import FaninProcessGroup
from fanin.options import Options
from tests.support.processes import DEADLINE_S, in_thread
from tests.support.services import a_service, address_of
from tests.torch.groups import groups_of


@pytest.fixture(scope="module")
def options() -> Iterator[Options]:
    """For a switch in this process."""
    with a_service(schemes=("udp",), memory_bytes=256 << 20) as service:
        yield Options(switch=str(address_of(service)))


@pytest.mark.parametrize("end", [FaninProcessGroup.shutdown, FaninProcessGroup.abort])
def test_a_receive_from_any_source_ends_with_its_group_in_another_thread(
    options: Options, end: Callable[[FaninProcessGroup], None]
) -> None:
    with groups_of(options) as groups:
        received = groups[0].recv_anysource([torch.ones(3)], 0)
        waiting = in_thread(received.wait)
        end(groups[0])
        with pytest.raises(FaninError, match=r"recv from any rank on rank 0 .* destroyed the group .*Remedy: wait"):
            waiting.result(DEADLINE_S)
        assert received.is_completed()


def test_what_has_arrived_before_its_group_is_destroyed_is_kept(options: Options) -> None:
    with groups_of(options) as groups:
        given = torch.zeros(3)
        received = groups[0].recv_anysource([given], 0)
        groups[1].send([torch.ones(3)], 0, 0).wait()
        received.wait()
        groups[0].shutdown()
        received.wait()
        assert given.tolist() == [1.0] * 3
        assert received._source_rank() == 1
