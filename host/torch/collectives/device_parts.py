"""A group's parts for CUDA tensors, made for its first CUDA tensor, so that groups without any do not pay for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch._C import _distributed_c10d as c10d

from fanin.errors import FaninError, UnsupportedError
from fanin.host.session.any_session import AnySession
from fanin.host.session.failures import MemberNames
from fanin.host.session.leased import LeasedSession
from fanin.host.session.shards import JoinedSession
from fanin.host.torch.device import device_agreement
from fanin.host.torch.handles.failures import WATCH
from fanin.host.torch.meeting.ballot import StoreBallot
from fanin.host.torch.meeting.side_store import SideStore, asked_at, bare, side_of
from fanin.numerics.reduction import QUANTIZED_LANES
from fanin.options import Options

if TYPE_CHECKING:
    from fanin.host.torch.collectives.switch_reducer import SwitchReducer
    from fanin.host.torch.device.arithmetic import Arithmetic, Plan
    from fanin.host.torch.device.reducer import DeviceReducer
    from fanin.host.torch.handles.completion import Completion
    from fanin.host.torch.handles.failures import Failures

log = logging.getLogger("fanin")

CODES = ".codes"
"""Suffix of the job that carries a group's scale codes, after the name of the group's job."""
CODE_WINDOW = 64
"""Slots of the job for codes: few packets on their way suffice, since codes are a hundredth of the words."""
LARGE = 1 << 20
"""Number of elements for which kernels are planned: a sum of these fills whole packets, as any worth a kernel does."""

JoinJob = Callable[[str, Options, Callable[[], None]], JoinedSession]
"""Joins the job of that name with these options. Calls the third argument repeatedly meanwhile; it raises to cancel."""


class DeviceParts:
    """Makes one group's parts for CUDA tensors."""

    def __init__(
        self, store: c10d.Store, job_name: str, rank: int, size: int, timeout: timedelta, options: Options,
        failures: Failures, completion: Completion,
    ) -> None:  # fmt: skip
        """Tell the other ranks in the store whether this one has a CUDA device. `job_name`: of the group's job."""
        self._job_name = job_name
        self._store, self._rank, self._size, self._timeout = store, rank, size, timeout
        self._options, self._failures, self._completion = options, failures, completion
        self._codes: LeasedSession | None = None
        device_agreement.tell(bare(store), job_name, rank, device_agreement.DEVICE, device_agreement.has_device())

    def make(
        self,
        switch: SwitchReducer,
        device: torch.device,
        join: JoinJob,
        failed: Callable[[FaninError], None],
    ) -> DeviceReducer | None:
        """Make the group's reducer of CUDA memory; None where some rank has no device: then all tensors go by the host.

        Waits for the other ranks, who come to their first CUDA tensor as well.
        """
        from fanin.host.torch.device import cuda
        from fanin.host.torch.device.lines import LEASED_SLOTS, SLOTS
        from fanin.host.torch.device.reducer import DeviceReducer, Means

        side, name = asked_at(self._store), self._job_name
        if not device_agreement.all_say(side, name, self._rank, self._size, device_agreement.DEVICE, self._timeout):
            log.warning("rank %d: some rank of the group has no CUDA device, so tensors go by the host", self._rank)
            return None
        asked, because = cuda.asked_by(self._options)
        arithmetic = None if because else self._arithmetic(side, switch, device)
        means = Means(
            words=switch.session,
            codes=None if arithmetic is None else lambda: self._join_codes(switch.session, join, failed),
            arithmetic=arithmetic,
            make_device=lambda device, told: cuda.make_device(device, asked, told),
            waits=lambda device: cuda.describe(device, self._options),
            divisor=switch.divisor,
            slots=LEASED_SLOTS if isinstance(switch.session, LeasedSession) else SLOTS,
        )
        return DeviceReducer(means, self._failures, self._completion)

    def _arithmetic(
        self, side: SideStore, switch: SwitchReducer, device: torch.device
    ) -> Arithmetic[torch.Tensor] | None:
        """The device's arithmetic, with the kernels of the group's own lanes, if it works on every rank, else None.

        Raises the session's failure: CollectiveMismatchError where another rank's tensor is in host memory.
        """
        from fanin.host.torch.device.announcement import FIRST_DEVICE_TENSOR, announcement
        from fanin.host.torch.device.triton_arithmetic import triton_arithmetic

        session = switch.session
        ticket = session.submit(announcement(FIRST_DEVICE_TENSOR))
        arithmetic = None
        try:
            arithmetic = triton_arithmetic(device, self._plans(switch), marks=self._options.on_nonfinite != "warn")
        except UnsupportedError as error:
            log.warning("rank %d: %s", self._rank, error)
        name, rank, works = self._job_name, self._rank, arithmetic is not None
        side.ask(rank, lambda store: device_agreement.tell(store, name, rank, device_agreement.NUMBERS, works))
        everywhere = device_agreement.all_say(
            side, name, rank, self._size, device_agreement.NUMBERS, self._timeout, partial(_raise_failure, session)
        )
        session.wait(ticket, self._timeout.total_seconds())
        if arithmetic is not None and not everywhere:
            log.warning("rank %d: Triton does not work on another rank, so all quantize on their hosts", self._rank)
        return arithmetic if everywhere else None

    def _plans(self, switch: SwitchReducer) -> Iterator[Plan]:
        """The plans of large averages in the group's lanes."""
        from fanin.host.torch.device.arithmetic import ELEMENTS, plan_of

        if self._options.lanes_number in QUANTIZED_LANES:
            for element in ELEMENTS:
                plan = plan_of(
                    element, self._options.lanes_number, LARGE, switch.session.spec, contributors=self._size,
                    divisor=switch.divisor,
                )  # fmt: skip
                if plan is not None:
                    yield plan

    def _join_codes(self, words: AnySession, join: JoinJob, failed: Callable[[FaninError], None]) -> AnySession:
        name = words.job_name + CODES
        options = replace(self._options, slots=CODE_WINDOW, timeline=None, pcap=None, trace=None)
        gives_back = options.idle_return_s > 0 and isinstance(words, LeasedSession)
        side = side_of(self._store) if gives_back else None
        self._codes = LeasedSession(
            lambda lease, interrupted: join(lease, options, interrupted),
            MemberNames(address=words.address, job_name=name, rank=self._rank, size=self._size),
            ballot=None if side is None else StoreBallot(side, name, self._rank, self._size),
            idle_s=options.idle_return_s,
        )
        WATCH.add(self._codes, failed, self._codes.return_if_idle)
        return self._codes

    def close(self, timeout_s: float) -> None:
        """Leave the job of codes."""
        if self._codes is not None:
            WATCH.remove(self._codes)
            self._codes.close(timeout_s)
            self._codes = None


def _raise_failure(session: AnySession) -> None:
    if (failure := session.failure) is not None:
        raise failure
