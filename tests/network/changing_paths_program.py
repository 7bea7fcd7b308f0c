"""A switch and two ranks in a network namespace of their own, whose paths change while they sum: see its test.

Run by `unshare --net`: what a rule of the firewall does here, nobody else sees.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable

from fanin.errors import FaninError
from fanin.host.session.session import Session
from fanin.options import SwitchAddress
from fanin.protocol.job import SUSPICION_TIMEOUT_S
from tests.support.processes import Mode, cut, join_all, options, reduce_together, reduce_until_it_fails
from tests.support.services import a_service, address_of

LIVENESS_TIMEOUT_S = 3.0
NARROW = "ip protocol udp meta length > 628 drop"
RULES = """
add table inet changing
add chain inet changing arriving {{ type filter hook input priority 0; }}
add rule inet changing arriving {rule}
"""


def rule(text: str) -> None:
    """From now on the firewall does that."""
    subprocess.run(["nft", "-f", "-"], input=RULES.format(rule=text), text=True, check=True)


def in_words(error: BaseException) -> dict[str, str]:
    """Kind and text of the error."""
    return {"kind": type(error).__name__, "text": str(error)}


def joins_by_a_narrow_path(address: SwitchAddress, mode: Mode) -> dict[str, str]:
    """The same before the ranks join: the error of one of them."""
    rule(NARROW)
    try:
        join_all(address, "j", 2, options(mode, shared_memory=False, connect_timeout_s=1.0))
    except FaninError as error:
        return in_words(error)
    return {}


def becomes_narrower(sessions: list[Session]) -> object:
    """Drop packets longer than 600 bytes, without a notice to the sender."""
    rule(NARROW)
    try:
        reduce_together(sessions, count=100_000)
    except FaninError as error:
        return in_words(error)
    return None


def control_port_is_rejected(sessions: list[Session], refusal: str) -> object:
    """Connections to the control port are refused, or dropped, and the ranks' own are broken; then data as well."""
    port = sessions[0].address.port
    rule(f"tcp dport {port} {refusal}")
    for session in sessions:
        cut(session)
    over_s = time.monotonic() + 3 * SUSPICION_TIMEOUT_S
    while time.monotonic() < over_s:
        reduce_together(sessions)
    lives = [session.failure is None for session in sessions]
    rule("ip protocol udp drop")
    return {"lives": lives, **in_words(reduce_until_it_fails(sessions[0]))}


CASES: dict[str, Callable[[list[Session]], object]] = {
    "narrower": becomes_narrower,
    "rejected": lambda sessions: control_port_is_rejected(sessions, "reject with tcp reset"),
    "dropped": lambda sessions: control_port_is_rejected(sessions, "drop"),
}


def main(case: str, mode: Mode) -> None:
    """Print what has become of the job, as JSON."""
    subprocess.run(["ip", "link", "set", "lo", "mtu", "1500", "up"], check=True)
    native = mode.startswith("native")
    with a_service(native=native, liveness_timeout_s=LIVENESS_TIMEOUT_S) as service:
        if case == "narrow":
            print(json.dumps(joins_by_a_narrow_path(address_of(service), mode)))
            return
        sessions = join_all(address_of(service), "j", 2, options(mode, shared_memory=False))
        reduce_together(sessions)
        print(json.dumps(CASES[case](sessions)))
        for session in sessions:
            session.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])  # type: ignore[arg-type]
