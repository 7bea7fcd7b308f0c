"""Addresses in a simulated network: numbers, which captures and error texts show as addresses of the Internet."""

from __future__ import annotations

from fanin.formats.capture import SocketAddress

SWITCH_ADDRESS = 0
"""The switch's, or the root's; leaves come next, then the workers of one job after the other."""
OPERATOR_ADDRESS = -1
"""The address from which `fanin tune` is run: it has no machine, and no fault cuts it off."""
STRANGER_ADDRESS = 1 << 20
"""The address of strangers; no fault cuts it off either."""
PORT = 4919
CAPTURE_NETWORK = "192.0.2"
"""TEST-NET-1 (RFC 5737): a simulated address A is shown as 192.0.2.A."""


def endpoint(address: int) -> SocketAddress:
    """The socket address that stands for a simulated address in captures."""
    return SocketAddress(f"{CAPTURE_NETWORK}.{address % 254 + 1}", PORT + address // 254)
