"""How datagrams travel over ZeroMQ, at either end: several in one message, and bounded queues of those."""

from __future__ import annotations

DATAGRAMS_PER_MESSAGE = 32
"""Most datagrams in one message: enough to make its cost small, few enough not to hold back the first."""
QUEUED_MESSAGES = 256
"""High-water mark in both directions; beyond it messages are dropped, as a socket buffer drops datagrams."""
LINGER_MS = 200
"""How long closing waits for what was sent last (a BYE) to leave."""
