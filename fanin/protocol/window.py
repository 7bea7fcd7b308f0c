"""How large a packet is, and how many may be on their way, so that ordinary socket buffers never overflow.

Rules of this file
------------------
* A packet fits the path MTU in one piece, over IPv4 and IPv6 alike: losing a fragment would lose the packet.
* The window (the slots of a flow) fits the receive buffer of the socket that it arrives at, whole and unread. Linux
  charges a buffer not for payload but for memory: the packet's allocation and its `struct sk_buff`, together called
  truesize. Up to 16 KiB that allocation is rounded up to a power of two, so a 1,448-byte payload from a network card
  costs a page and 256 bytes; longer ones, and trains of packets that GSO keeps together, are charged nearly exactly.
* A packet or two may be in the buffer twice: resent by a timer while whoever reads it was held up (`RESENT_PACKETS`).
* A quarter of the buffer counts as used even when it is not: the kernel returns what was read in lumps of a quarter
  (`udp_rmem_release` in net/ipv4/udp.c).
* A worker has at most a window outstanding, and the switch gives each worker a socket of its own, so the number of
  workers does not matter, unless they share one socket (`senders`).
* A worker of a job over several shards has a flow to each, behind one link: they share what one flow would have, in
  proportion to what they carry, so that all of them end at the same time. A link carries
  contributions one way and results of its own shard as well, each bounded by all flows' windows together, so that many
  full windows would overflow any queue; and one lost contribution holds up as many workers as there are.
* A window beyond a megabyte gains nothing: it leaves the caches, which costs more than a round trip saves. Between
  processes of one machine two flows have one of a megabyte each, and more flows share these: 16 packets keep a thread
  as busy, and every window is memory that every worker's rings hold twice.

docs/performance.md has the measurements behind the numbers.
"""

from __future__ import annotations

from fanin.protocol.pace import LONGEST_FRAME_BYTES
from fanin.protocol.wire import HEADER_BYTES, MAX_DATAGRAM_BYTES, WORD_BYTES, codes_bytes

RECEIVE_BUFFER_REQUEST_BYTES = 4 << 20
"""Receive buffer that a socket asks for with SO_RCVBUF. The kernel grants at most twice net.core.rmem_max: 425,984 on
Debian 12.
"""
DEFAULT_RECEIVE_BUFFER_BYTES = 2 * 212_992
"""Value of SO_RCVBUF after asking where net.core.rmem_max has its default."""
USABLE_QUARTERS = 3
"""Quarters of a receive buffer that are safe to fill (udp_rmem_release returns memory in lumps of one quarter)."""
SMALLEST_MTU = 128
"""Smallest MTU that carries a packet worth sending."""
IP_UDP_HEADER_BYTES = 40 + 8
"""IPv6 and UDP (RFC 8200, RFC 768); IPv4 takes 20 less."""
SKB_BYTES = 256
"""sizeof(struct sk_buff), 232, as the slab allocator hands it out."""
SKB_TAIL_BYTES = 320 + 128
"""struct skb_shared_info behind the payload, and the headroom for link, IP and UDP headers in front of it."""
LINEAR_BYTES = 16_384
"""Longest packet that is one allocation, rounded up to a power of two (SKB_MAX_ALLOC); longer ones are paged."""
PAGE_BYTES = 4096
"""A network card's driver charges at least a page for each packet."""
PAGED_OVERHEAD_BYTES = 1024
"""Linear part of a paged packet: headers, sk_buff, skb_shared_info. Linux 6.18 was seen to charge 832."""
RESENT_PACKETS = 2
"""Room kept for what timers send again while a process is held up: the window then lies in the buffer already."""
MAX_WINDOW_BYTES, WHOLE_WINDOWS = 1 << 20, 2
"""Most payload of a flow's window, and the number of flows that may have so much each. See the rules."""
MAX_FRAMES_WINDOW_BYTES = 1 << 19
"""Most payload of a flow's window where packets are frames of a network: 4 ms at 1 Gbit/s, which covers a host that is
slow to wake up. Where the link is the limit, a window waits in the sender's own queue; one of 1 MiB overflowed a queue
of that size."""
MAX_SHARDS = 64
"""Most shards of one job: each costs every worker a socket, and a thread for each of its flows."""
MIN_SHARE_SLOTS = 16
"""Fewest slots of one of many shards, or flows: with fewer, every wake-up would move a packet or two."""
MAX_SLOTS = 1024
BLOCK_WORDS = 1024
"""Words that share a scale code, about. Smaller blocks lose less precision and cost two bytes each."""
MAX_DEFAULT_CODES = 8
TRAIN_BYTES = 65_487
"""Longest train of packets that one system call sends as one (GSO): 65,535 less IPv6 and UDP headers."""
PACKETS_PER_TRAIN = 4
"""On a path that would take a whole train as one packet, loopback, four are sent: as fast, and a finer window."""


def packet_shape(mtu: int) -> tuple[int, int]:
    """(words_per_packet, codes_per_packet) for a path MTU in bytes (loopback: 65,536), as JobSpec wants them.

    Raises ValueError for an MTU below SMALLEST_MTU.
    """
    if mtu < SMALLEST_MTU:
        raise ValueError(f"MTU {mtu} is too small; IPv4 promises 576 and IPv6 1280")
    payload_bytes = min(mtu - IP_UDP_HEADER_BYTES, TRAIN_BYTES // PACKETS_PER_TRAIN, MAX_DATAGRAM_BYTES)
    words = (payload_bytes - HEADER_BYTES) // WORD_BYTES
    codes = 1
    while codes < MAX_DEFAULT_CODES and words > codes * BLOCK_WORDS:
        codes *= 2
    words = (payload_bytes - HEADER_BYTES - codes_bytes(codes)) // WORD_BYTES
    return words // (8 * codes) * (8 * codes), codes


def words_within(datagram_bytes: int) -> int:
    """words_per_packet of the longest packets of at most that many bytes, such as a narrow path lets pass."""
    words, _ = packet_shape(max(datagram_bytes + IP_UDP_HEADER_BYTES, SMALLEST_MTU))
    return words


def truesize(packet_bytes: int) -> int:
    """Bytes that the kernel charges a receive buffer for one UDP payload, at most (see the rules)."""
    if packet_bytes + SKB_TAIL_BYTES > LINEAR_BYTES:
        return packet_bytes + PAGED_OVERHEAD_BYTES
    return max(PAGE_BYTES, 1 << (packet_bytes + SKB_TAIL_BYTES - 1).bit_length()) + SKB_BYTES


def slots_for(
    receive_buffer_bytes: int, packet_bytes: int, *, senders: int = 1, share: float = 1.0, flows: int = 1
) -> int:
    """Packets that may be on their way at once through a receive buffer (as getsockopt SO_RCVBUF reads it).

    `senders` is how many workers share the buffer: 1 where each has a socket of its own at the switch. At least 1:
    the kernel takes one packet however small the buffer is. `share` is the part of a large sum that goes to this
    switch, of several, which has so many `flows`.
    """
    usable_bytes = receive_buffer_bytes * USABLE_QUARTERS // 4
    slots = usable_bytes // (truesize(packet_bytes) * senders) - RESENT_PACKETS
    window_bytes = MAX_FRAMES_WINDOW_BYTES
    if packet_bytes > LONGEST_FRAME_BYTES:
        window_bytes, share = MAX_WINDOW_BYTES, WHOLE_WINDOWS / max(flows, WHOLE_WINDOWS)
    shared = max(int(window_bytes * share) // packet_bytes, MIN_SHARE_SLOTS)
    return max(1, min(slots, shared, window_bytes // packet_bytes, MAX_SLOTS))
