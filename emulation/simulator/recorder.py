"""Records a run for people: its last steps for a violation's text, all steps for `--events`, and captures."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from fanin.emulation.simulator.event_queue import EventQueue
from fanin.emulation.simulator.peer_addresses import endpoint
from fanin.emulation.simulator.virtual_network import Datagrams
from fanin.formats.trace import describe
from fanin.host.transports.pcap import PcapWriter

TAIL_STEPS = 12
"""Number of steps and notes at the end of a violation's text."""

Step = tuple[int, float, int, "tuple[bytes, int] | None", Datagrams]


class Recorder:
    """Keeps the last steps; passes a line per packet and note to `show`, and sent packets to `pcap`, if given."""

    def __init__(
        self, queue: EventQueue, *, show: Callable[[str], None] | None = None, pcap: PcapWriter | None = None
    ) -> None:
        self.names: dict[int, str] = {}
        """Names of switches, by address; every other address is a worker's."""
        self._queue = queue
        self._show = show
        self._pcap = pcap
        self._tail: deque[Step | str] = deque(maxlen=TAIL_STEPS)

    def note(self, text: str) -> None:
        """Record an event that is not a packet."""
        line = f"{self._queue.happened:7d} {self._queue.now:.6f} * {text}"
        self._tail.append(line)
        if self._show is not None:
            self._show(line)

    def stepped(self, address: int, received: tuple[bytes, int] | None, sent: Datagrams) -> None:
        """Implements the protocol `network.Watcher`."""
        if received is None and not sent:
            return
        step = (self._queue.happened, self._queue.now, address, received, sent)
        self._tail.append(step)
        if self._show is not None:
            for line in self._lines(step):
                self._show(line)
        if self._pcap is not None:
            for data, destination in sent:
                self._pcap.write(self._queue.now, endpoint(address), endpoint(destination), [data])

    def tail(self) -> list[str]:
        """The last steps and notes, a line for each packet."""
        return [line for each in self._tail for line in ([each] if isinstance(each, str) else self._lines(each))]

    def _name(self, address: int) -> str:
        return self.names.get(address, f"worker@{address}")

    def _lines(self, step: Step) -> list[str]:
        number, time_s, address, received, sent = step
        when, name = f"{number:7d} {time_s:.6f}", self._name(address)
        lines = []
        if received is not None:
            lines.append(f"{when} {name} < {self._name(received[1])}: {describe(received[0])}")
        return lines + [f"{when} {name} > {self._name(to)}: {describe(data)}" for data, to in sent]
