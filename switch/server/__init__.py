"""Servers of a switch's data ports: the native server, or the pump that drives a machine over a transport."""
