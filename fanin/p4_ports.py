"""Port numbers with a special meaning, and no wire, in our P4 programs and at v1model's switches."""

CPU_PORT = 510
"""Port to which the programs send packets for the controller (p4/shared/sizes.p4)."""
DROP_PORT = 511
"""Egress port of a packet that is dropped, as at simple_switch: the highest number that a 9-bit port can have."""
