"""The checker of one switch: enters every step of its machine into ledgers, and compares its memory with its pool."""

from __future__ import annotations

from fanin.emulation.simulator.leaf_ledger import LeafLedger
from fanin.emulation.simulator.leaf_trains import TrainLeaf
from fanin.emulation.simulator.ledger import JobLedger
from fanin.emulation.simulator.machines import Switch
from fanin.emulation.simulator.violations import IsolationError, MemoryBoundError
from fanin.emulation.simulator.virtual_network import Datagrams
from fanin.protocol.job import JobSpec, Uplink
from fanin.protocol.wire import OFFSET_KIND, WORD_BYTES, Kind, Packet, WireError, parse
from fanin.switch.machine.switch_machine import SwitchMachine


class SwitchAuditor:
    """Watches one switch machine, from its empty start to its end."""

    def __init__(self, address: int, machine: Switch, memory_bytes: int) -> None:
        self.ledgers: dict[int, JobLedger] = {}
        self.contributions = 0
        """Contributions that the machine has received, refused ones included."""
        self._uplinks: dict[tuple[int, int, int], LeafLedger] = {}
        """Ledgers of a leaf's parts of jobs, by the parent's address, the job's index there and its generation."""
        self._address = address
        self._machine = machine
        self._memory_bytes = memory_bytes

    # --- what the controller does ---

    def admitted(self, spec: JobSpec) -> None:
        """Open a ledger for a job that the machine has admitted."""
        self._enter(JobLedger(spec, self._machine))

    def admitted_part(self, spec: JobSpec, uplink: Uplink, parent: JobLedger) -> None:
        """Open a ledger for a part of a parent's job that the leaf has admitted; `parent`: the job's ledger there."""
        ledger = LeafLedger(spec, self._machine, parent)
        self._enter(ledger)
        self._uplinks[uplink.parent, uplink.job, uplink.generation] = ledger

    def _enter(self, ledger: JobLedger) -> None:
        self.ledgers[ledger.spec.job] = ledger
        taken = sum(ledger.spec.pool_bytes for ledger in self.ledgers.values())
        if taken > self._memory_bytes:
            raise MemoryBoundError(f"jobs with pools of {taken} bytes were admitted to {self._memory_bytes}")

    def removed(self, job: int) -> None:
        """Drop the ledger of a job that the machine has removed."""
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
        elif touched is not None and not self._amid_train:
            touched.settle()
            self._weigh(touched)

    @property
    def _amid_train(self) -> bool:
        """Whether the machine keeps what it has to send until a train has ended, which is a step of its own."""
        return isinstance(self._machine, TrainLeaf) and self._machine.amid_train

    def _take_in(self, data: bytes, source: int) -> JobLedger | None:
        """Enter a packet that the machine received; returns the ledger in which it may have changed a slot, or None."""
        try:
            packet = parse(data)
        except WireError:
            return None
        if (part := self._uplinks.get((source, packet.job, packet.generation))) is not None:
            part.descended(packet)
            return part
        if any(key[0] == source for key in self._uplinks):
            for each in self._uplinks.values():
                each.counted()  # an uplink may have counted a packet of an earlier generation
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
        # after all whole results, because runs of bare ones may be sent before the whole ones of their rounds
        for packet, destinations in runs:
            ledger = self._ledger(packet)
            for index in range(packet.run):
                ledger.result(packet.part(index, ledger.spec.slots), destinations)

    def _ledger(self, packet: Packet) -> JobLedger:
        ledger = self.ledgers.get(packet.job)
        if ledger is None or ledger.spec.generation != packet.generation:
            raise IsolationError(f"the switch sent a result of job {packet.job}, generation {packet.generation:#x}")
        return ledger

    def _weigh(self, ledger: JobLedger) -> None:
        """Check that the twin's registers are within the job's pool; a native machine's cannot be counted."""
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
