"""Servers of a switch's data ports: the native server, or the pump server, which drives machines over transports."""
