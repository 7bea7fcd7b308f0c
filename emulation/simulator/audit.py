"""The checker beside a switch: reads every step of its machine into the ledgers, and weighs its memory."""

from __future__ import annotations

from fanin.emulation.simulator.leaf_ledger import LeafLedger
from fanin.emulation.simulator.ledger import JobLedger
from fanin.emulation.simulator.machines import Switch
from fanin.emulation.simulator.network import Datagrams
from fanin.emulation.simulator.violations import IsolationError, MemoryBoundError
from fanin.protocol.job import JobSpec, Uplink
from fanin.protocol.wire import OFFSET_KIND, WORD_BYTES, Kind, Packet, WireError, parse
from fanin.switch.machine.switch_machine import SwitchMachine


class SwitchAuditor:
    """Watches one switch machine, from when it starts empty until it is gone."""

    def __init__(self, address: int, machine: Switch, memory_bytes: int) -> None:
        self.ledgers: dict[int, JobLedger] = {}
        self.contributions = 0
        """Taken in, refused ones included."""
        self._uplinks: dict[tuple[int, int, int], LeafLedger] = {}
        """Ledgers of parts of jobs at a parent: by the parent's address, the index there and the generation."""
        self._address = address
        self._machine = machine
        self._memory_bytes = memory_bytes

    # --- what the controller does ---

    def admitted(self, spec: JobSpec) -> None:
        """A job was let in."""
        self._enter(JobLedger(spec, self._machine))

    def admitted_part(self, spec: JobSpec, uplink: Uplink, parent: JobLedger) -> None:
        """Part of a job at a parent was let in; `parent` is the job's ledger there."""
        ledger = LeafLedger(spec, self._machine, parent)
        self._enter(ledger)
        self._uplinks[uplink.parent, uplink.job, uplink.generation] = ledger

    def _enter(self, ledger: JobLedger) -> None:
        self.ledgers[ledger.spec.job] = ledger
        taken = sum(ledger.spec.pool_bytes for ledger in self.ledgers.values())
        if taken > self._memory_bytes:
            raise MemoryBoundError(f"jobs with pools of {taken} bytes were admitted to {self._memory_bytes}")

    def removed(self, job: int) -> None:
        """A job was taken off."""
        gone = self.ledgers.pop(job)
        self._uplinks = {key: ledger for key, ledger in self._uplinks.items() if ledger is not gone}

    # --- every step ---

    def stepped(self, address: int, received: tuple[bytes, int] | None, sent: Datagrams) -> None:
        """Implements the protocol `network.Watcher`."""
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
        if (part := self._uplinks.get((source, packet.job, packet.generation))) is not None:
            part.descended(packet)
            return part
        if any(key[0] == source for key in self._uplinks):
            for each in self._uplinks.values():
                each.counted()  # one of them may have counted the packet of a generation that is over
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
        runs: list[tuple[Packet, list[int]]] = []
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
                if packet.run > 1:
                    runs.append((packet, destinations))
                else:
                    self._ledger(packet).result(packet, destinations)
            elif data[OFFSET_KIND] == Kind.ANSWER:
                packet = parse(data)
                self._ledger(packet).answer(packet, destination)
            elif data[OFFSET_KIND] == Kind.CONTRIBUTION:
                packet = parse(data)
                part = self._uplinks.get((destination, packet.job, packet.generation))
                if part is None:
                    raise IsolationError(f"a round went up to job {packet.job}, generation {packet.generation:#x}")
                part.ascended(packet)
        for packet, destinations in runs:  # at last: bare results go ahead, with others, of the same rounds' whole ones
            ledger = self._ledger(packet)
            for index in range(packet.run):
                ledger.result(packet.part(index, ledger.spec.slots), destinations)

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
