"""How a switch's datagrams reach its workers, where that differs from a worker's end: many peers, and a port to bind.

The interface, and its rules, stand in fanin/transports/transport.py.
"""
