"""One ZeroMQ context for all control connections of a process."""

from __future__ import annotations

import threading

import pytest
import zmq

from fanin.errors import FaninError
from fanin.host.session.control import ControlClient
from fanin.host.session.path import Reached
from fanin.host.session.shared_context import CONTROL, THREADS, Context, SharedContext
from fanin.protocol import control
from fanin.transports.path_mtu import LARGEST_MTU
from tests.support.frames import in_module
from tests.support.processes import files_left
from tests.support.services import a_service, address_of


def ended(context: Context) -> bool:
    """Asked anew each time: it changes."""
    return bool(context.closed)


def test_connections_share_a_context_that_ends_with_the_last() -> None:
    shared = SharedContext()
    first, second = shared.open(), shared.open()
    assert first is second
    shared.release(first)
    assert not ended(first)
    shared.release(second)
    assert ended(first)
    third = shared.open()
    assert third is not first
    shared.release(third)


def test_a_child_starts_with_none_and_leaves_its_parents_alone() -> None:
    shared = SharedContext()
    parents = shared.open()
    shared.forget()
    own = shared.open()
    assert own is not parents
    shared.release(parents)
    assert not ended(parents)
    assert not ended(own)
    shared.release(own)
    assert ended(own)
    parents.term()


@pytest.mark.parametrize("files", range(3), ids=["for its socket", "for its monitor", "for its end of the monitor"])
def test_a_client_for_which_there_are_not_enough_files_holds_no_context(
    monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    with a_service() as service:
        kept = ControlClient(address_of(service), curve_server_key=None, timeout_s=5.0)
        kept.ask(control.Ask(), 5.0)  # its context has opened all that it needs
        context = CONTROL.open()
        CONTROL.release(context)
        monkeypatch.setattr("fanin.host.session.control.reach", lambda *_, **__: Reached("127.0.0.1", LARGEST_MTU))
        with files_left(files), pytest.raises(zmq.ZMQError, match="Too many open files"):
            ControlClient(address_of(service), curve_server_key=None, timeout_s=5.0)
        assert not ended(context)
        kept.close()
        assert ended(context)


def test_a_client_that_is_closed_twice_counts_once() -> None:
    with a_service() as service:
        kept = ControlClient(address_of(service), curve_server_key=None, timeout_s=5.0)
        other = ControlClient(address_of(service), curve_server_key=None, timeout_s=5.0)
        context = CONTROL.open()
        other.close()
        other.close()
        CONTROL.release(context)
        assert not ended(context)
        kept.close()
        assert ended(context)


@pytest.mark.parametrize("more", range(THREADS))
def test_a_context_whose_threads_cannot_be_had_is_an_error_and_not_the_end_of_the_process(
    monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    start, left = threading.Thread.start, [more]

    @in_module("threading")
    def refused(thread: threading.Thread) -> None:
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)

    before = threading.active_count()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(FaninError, match=r"raise `ulimit -u`"):
            SharedContext().open()
    assert threading.active_count() == before
