"""Somebody else's switch beside the twin, packet by packet: `fanin conformance` (docs/conformance.md)."""
