"""Addresses in a simulated network: numbers, which captures and error texts show as IPv4 addresses."""

from __future__ import annotations

from fanin.formats.capture import SocketAddress

SWITCH_ADDRESS = 0
"""Address of the switch or the root. Leaves come next, then the workers, job after job."""
OPERATOR_ADDRESS = -1
"""Address from which `fanin tune` is run; it has no machine, and no fault cuts it off."""
STRANGER_ADDRESS = 1 << 20
"""Address of strangers; no fault cuts it off."""
PORT = 4919
CAPTURE_NETWORK = "192.0.2"
"""TEST-NET-1 of RFC 5737, in which captures show simulated addresses."""


def endpoint(address: int) -> SocketAddress:
    """Socket address that captures show for simulated address A: 192.0.2.(A % 254 + 1), port PORT + A // 254."""
    return SocketAddress(f"{CAPTURE_NETWORK}.{address % 254 + 1}", PORT + address // 254)
