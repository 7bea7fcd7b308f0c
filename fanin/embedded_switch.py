"""The process of a switch that a rank starts beside itself (host/session/embedded.py).

A world's first sum waits for this process, so it imports little: no command line, and neither numpy nor libzmq where
native loops serve (tests/control/test_embedded.py holds it to that).
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading

from fanin import open_files, running_switches
from fanin.addresses import SwitchAddress
from fanin.errors import ConfigurationError, FaninError
from fanin.files import mute
from fanin.key_file import default_path, load_or_create
from fanin.protocol.job import SWITCH_LIVENESS_TIMEOUT_S
from fanin.protocol.seal import key_from_text
from fanin.schemes import tree_scheme
from fanin.switch.service.service import ServiceOptions, SwitchService
from fanin.switch.service.signals import signals
from fanin.switch_order import MAX_LINE_BYTES, SwitchOrder, SwitchReport
from fanin.switch_size import DEFAULT_SOURCE_SHARE, flows_like, flows_of, memory_of
from fanin.transports.polling import READABLE, is_ready

ORDERS = 0
"""The descriptor that the order comes by; its end says that the parent is gone, or has let go of the switch."""
FAILED, ILLEGAL = 1, 2
"""Exit statuses, as those of the command line."""


def main(report: int) -> int:
    """Serve as ordered; `report` is the descriptor that waits for the report. Returns the exit status."""
    line = _ordered()
    if not line.endswith(b"\n"):  # the parent has ended, or needs no switch after all
        return 0
    with contextlib.ExitStack() as closing:
        try:
            open_files.require()
            services = _opened(SwitchOrder.read(line), closing)
        except FaninError as error:
            _say(report, SwitchReport(error=str(error)))
            return FAILED
        closing.enter_context(signals(services[0], embedded=True))
        ports = tuple(service.port for service in services)
        at = [SwitchAddress(each.options.schemes[0], each.options.host, each.port) for each in services]
        closing.enter_context(running_switches.announced(at))
        _say(report, SwitchReport(ports=ports, description=services[0].controller.engine))
        try:
            _serve(services)
        except FaninError as error:
            print(f"fanin: {error}", file=sys.stderr, flush=True)
            return ILLEGAL if isinstance(error, ConfigurationError) else FAILED
    return 0


def _ordered() -> bytes:
    line = b""
    while not line.endswith(b"\n") and len(line) <= MAX_LINE_BYTES and (piece := os.read(ORDERS, 1 << 16)):
        line += piece
    return line


def _say(report: int, what: SwitchReport) -> None:
    with open(report, "wb") as to, contextlib.suppress(BrokenPipeError):
        to.write(what.line())


def _opened(order: SwitchOrder, closing: contextlib.ExitStack) -> list[SwitchService]:
    """Open a switch at each host, or there a leaf of each parent, in the same order. `closing` closes them."""
    key = key_from_text(order.key)
    own_flows = flows_of(order.flows)
    services: list[SwitchService] = []
    parents: list[SwitchAddress | None] = [SwitchAddress.parse(each) for each in order.parents]
    for host, parent in zip(order.hosts, parents or [None] * len(order.hosts), strict=True):
        flows = flows_like(parent, own_flows) if order.flows is None else own_flows
        options = ServiceOptions(
            host=host,
            port=0,
            ports=order.ports,
            memory_bytes=memory_of(None, None, flows),
            flows=flows,
            native=order.native,
            schemes=(order.scheme,) if parent is None else (tree_scheme(),),
            operator_key=_operator_key(),
            job_keys=None if key is None else (key,),
            source_share=DEFAULT_SOURCE_SHARE,
            parent=parent,
            liveness_timeout_s=order.liveness_timeout_s or SWITCH_LIVENESS_TIMEOUT_S,
        )
        services.append(SwitchService(options))
        closing.callback(services[-1].close)
    return services


def _operator_key() -> bytes | None:
    """Return this user's operator key; None where it can be neither read nor made."""
    try:
        return load_or_create(default_path())
    except (ConfigurationError, RuntimeError):  # RuntimeError: a user without a home
        return None


def _serve(services: list[SwitchService]) -> None:
    """Run while the parent lives or a job does; all services end with the first that fails, or that a signal ends."""
    parent = os.pidfd_open(os.getppid()) if hasattr(os, "pidfd_open") else None
    watched = (ORDERS,) if parent is None else (ORDERS, parent)

    def serve(service: SwitchService) -> None:
        orphaned = False

        def keep_going() -> bool:
            nonlocal orphaned
            if not orphaned and is_ready(watched, READABLE):
                orphaned = True
                mute(2)  # a program that reads the parent's output to its end must not wait for this process
            return not orphaned or service.controller.live_jobs > 0

        service.run(keep_going, watched)

    errors: list[Exception] = []

    def run(service: SwitchService) -> None:
        try:
            serve(service)
        except Exception as error:  # a process that serves only a part must not look alive: all of it ends
            errors.append(error)
            stop_all()

    def stop_all() -> None:
        for service in services:
            service.stop()

    others = [threading.Thread(target=run, args=(service,), daemon=True) for service in services[1:]]
    for thread in others:
        thread.start()
    run(services[0])
    if services[0].stopping:  # by a signal, which is meant for all services of the process
        stop_all()
    for thread in others:
        thread.join()
    if errors:
        raise errors[0]


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
