"""The checker beside a switch: reads every step of its machine into the ledgers, and weighs its memory."""

from __future__ import annotations

from fanin.emulation.simulator.ledger import JobLedger
from fanin.emulation.simulator.machines import Switch
from fanin.emulation.simulator.network import Datagrams
from fanin.emulation.simulator.violations import IsolationError, MemoryBoundError
from fanin.job import JobSpec
from fanin.switch.switch_machine import SwitchMachine
from fanin.wire import OFFSET_KIND, WORD_BYTES, Kind, Packet, WireError, parse


class SwitchAuditor:
    """Watches one switch machine, from when it starts empty until it is gone."""

    def __init__(self, address: int, machine: Switch, memory_bytes: int) -> None:
        self.ledgers: dict[int, JobLedger] = {}
        self.contributions = 0
        """Taken in, refused ones included."""
        self._address = address
        self._machine = machine
        self._memory_bytes = memory_bytes

    # --- what the controller does ---

    def admitted(self, spec: JobSpec) -> None:
        """A job was let in."""
        self.ledgers[spec.job] = JobLedger(spec, self._machine)
        taken = sum(ledger.spec.pool_bytes for ledger in self.ledgers.values())
        if taken > self._memory_bytes:
            raise MemoryBoundError(f"jobs with pools of {taken} bytes were admitted to {self._memory_bytes}")

    def removed(self, job: int) -> None:
        """A job was taken off."""
        del self.ledgers[job]

    # --- every step ---

    def stepped(self, address: int, received: tuple[bytes, int] | None, sent: Datagrams) -> None:
        """See fanin.emulation.simulator.network.Watcher."""
        if address != self._address:
            return
        touched = self._take_in(*received) if received is not None else None
        self._put_out(sent)
        if received is None:
            for ledger in self.ledgers.values():
                ledger.counted()
                ledger.settle()
        elif touched is not None:
            touched.settle()
            self._weigh(touched)

    def _take_in(self, data: bytes, source: int) -> JobLedger | None:
        """Enter a packet; the ledger in which it may have changed a slot."""
        try:
            packet = parse(data)
        except WireError:
            return None
        ledger = self.ledgers.get(packet.job)
        if ledger is None:
            return None
        if packet.kind is Kind.CONTRIBUTION:
            self.contributions += 1
            ledger.contribution(packet, source)
            return ledger
        if packet.kind is Kind.HELLO:
            ledger.registered(packet, source)
        ledger.counted()
        return None

    def _put_out(self, sent: Datagrams) -> None:
        position = 0
        while position < len(sent):
            data, destination = sent[position]
            position += 1
            if data[OFFSET_KIND] == Kind.RESULT:
                destinations = [destination]
                while position < len(sent) and sent[position][0] == data:
                    destinations.append(sent[position][1])
                    position += 1
                packet = parse(data)
                self._ledger(packet).result(packet, destinations)
            elif data[OFFSET_KIND] == Kind.ANSWER:
                packet = parse(data)
                self._ledger(packet).answer(packet, destination)

    def _ledger(self, packet: Packet) -> JobLedger:
        ledger = self.ledgers.get(packet.job)
        if ledger is None or ledger.spec.generation != packet.generation:
            raise IsolationError(f"the switch sent a result of job {packet.job}, generation {packet.generation:#x}")
        return ledger

    def _weigh(self, ledger: JobLedger) -> None:
        """The registers of the twin, which can be counted, are no more and no larger than the job's pool."""
        if not isinstance(self._machine, SwitchMachine):
            return
        spec, job = ledger.spec, self._machine._jobs[ledger.spec.job]
        if len(job.slots) > spec.slots:
            raise MemoryBoundError(f"{ledger}: {len(job.slots)} slots of {spec.slots}")
        for index, slot in job.slots.items():
            held_bytes = sum(len(entry.words) for entry in slot.sums) * WORD_BYTES
            depth = max(len(slot.sums), len(slot.arrived))
            if depth > spec.history or held_bytes > spec.history * spec.words_per_packet * WORD_BYTES:
                raise MemoryBoundError(f"{ledger}: slot {index} holds {held_bytes} bytes in rings of {depth}")
