"""Groups of threads whose sums go the way of a device, on host memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from fanin.host.torch.device.reducer import DeviceReducer, Means
from fanin.host.torch.device.threads import ThreadedDevice
from fanin.options import Options
from tests.support.host_device import HostDevice, TensorArithmetic
from tests.torch.groups import Groups, groups_of


@contextmanager
def reducers_of(options: Options | None = None) -> Iterator[tuple[Groups, list[DeviceReducer]]]:
    with groups_of(options) as groups:
        made = [_reducer(group) for group in groups]
        yield groups, made
        for each in made:
            each.drain()
            each.close()


def _reducer(group: Any) -> DeviceReducer:
    resources = group._resources
    parts = resources._device_parts
    switch = resources._switch_reducer

    def join(name: str, options: Options, interrupted: Callable[[], None]) -> Any:
        meeting = replace(resources.meeting, job_name=name, holds_switch=False)
        return resources._join_meeting(meeting, interrupted, options)

    return DeviceReducer(
        Means(
            words=switch.session,
            codes=lambda: parts._join_codes(switch.session, join, resources._failed),
            arithmetic=TensorArithmetic(),
            make_device=lambda _device, told: ThreadedDevice(HostDevice(), told),
            waits=lambda _device: "in the host's memory",
            divisor=switch.divisor,
        ),
        resources.failures,
        resources.completion,
    )
