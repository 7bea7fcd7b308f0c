"""How a worker's datagrams reach its switch. Every module has one transport or one wrapper; wrappers nest:

    faulty(tracer(pcap(udp)))      what the tracer and the capture show is what is on the wire, faults included

The interface, and its rules, stand in fanin/transports/transport.py.
"""

from fanin.host.transports.faulty import FaultyTransport
from fanin.host.transports.memory import MemoryTransport
from fanin.host.transports.pcap import PcapTransport, PcapWriter
from fanin.host.transports.stack import open_transport
from fanin.host.transports.tracer import TracingTransport
from fanin.host.transports.udp import UdpTransport
from fanin.host.transports.zmq import ZmqTransport

__all__ = [
    "FaultyTransport",
    "MemoryTransport",
    "PcapTransport",
    "PcapWriter",
    "TracingTransport",
    "UdpTransport",
    "ZmqTransport",
    "open_transport",
]
