"""Transports that carry a worker's datagrams to its switch. Every module has one transport or one wrapper; they nest:

    faulty(tracer(pcap(udp)))      tracer and capture show what is on the wire, faults included

fanin/transports/transport.py has the interface and its rules.
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
