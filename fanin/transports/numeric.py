"""Socket addresses as numbers in text, and back: a link-local one with the interface that it is of, `fe80::1%eth0`.

Python leaves the interface out of the address's text and has it as a fourth field, which gets lost where only host and
port are handed on: the system then refuses the address (RFC 4007).
"""

from __future__ import annotations

import socket
from typing import Any


def host_of(address: Any) -> str:
    """The number of the host, from a socket address as `getaddrinfo` has it."""
    return socket.getnameinfo(address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0]


def socket_address(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    """The family and the socket address of a numeric host. OSError for what is no number, or no interface here."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)[0]
    return family, address
