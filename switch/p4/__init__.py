"""A switch that runs a compiled P4 program: BMv2's JSON format, translated to Python or native code when loaded."""

from fanin.switch.p4.v1model import V1Switch

__all__ = ["V1Switch"]
