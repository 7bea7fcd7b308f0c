"""One ZeroMQ context for all control connections of a process."""

from __future__ import annotations

from fanin.host.session.control import ControlClient
from fanin.host.session.shared_context import CONTROL, Context, SharedContext
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
