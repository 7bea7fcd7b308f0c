"""Explicit congestion notification (RFC 3168): what machines and those who move their datagrams tell each other of it.

Rules of this file
------------------
* Datagrams are sent as ECN-capable only where somebody will react to a mark: results, answers and receipts by a switch,
  since every worker does; contributions by a worker whose switch has given a receipt, since those echo marks
  (RECEIPT_MARKED). A pipeline gives none. A Python machine says which by their type, `Capable`.
* Whoever moves datagrams says which have arrived with a mark: `Marked`, or `marked=True` to a native machine.
"""

from __future__ import annotations

ECN_CAPABLE, ECN_CONGESTION, ECN_MASK = 2, 3, 3
"""ECT(0) and CE, in the two low bits of IPv4's type of service and of IPv6's traffic class (section 5)."""


class Capable(bytes):
    """A datagram that a router may mark instead of dropping it."""


class Marked(bytes):
    """A datagram that a router has marked."""

    marked = True
