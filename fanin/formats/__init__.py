"""Formats that others defined, to the byte: Ethernet frames, captures, ZMTP; and the lines of a trace. Pure."""
