"""How a switch's datagrams reach its workers, where that differs from a worker's end: many peers, and a port to bind.

The interface, and its rules, stand in fanin/transports/transport.py.
"""

from fanin.switch.transports.udp import UdpServerTransport
from fanin.switch.transports.zmq import ZmqServerTransport

__all__ = ["UdpServerTransport", "ZmqServerTransport"]
