"""Devices that are programmed over BfRt, the control interface of the Tofino SDE. Needs `fanin[p4]`."""
