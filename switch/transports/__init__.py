"""Transports for a switch's end, which has many peers and binds a port, unlike a worker's.

fanin/transports/transport.py defines their interface and its rules.
"""
