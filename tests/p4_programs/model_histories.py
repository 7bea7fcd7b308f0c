"""Histories and both sides, model and twin, of tests that compare a compiled TNA program with its model."""

from __future__ import annotations

import dataclasses

import numpy as np

from fanin.protocol.wire import Flag, Kind
from tests.p4_programs.job_histories import History
from tests.p4_programs.sides import Sent, Sides, as_short_as, bare
from tests.p4_programs.wiring import Place, frame_to_switch, payload_for


class ModelSides(Sides):
    """The twin and the model: what the model sends is the same, but that acknowledgements are bare."""

    def say(self, data: bytes, source: Place) -> Sent:
        """See the base class."""
        before = self.twin.counters()
        expected = self.twin_sends(data, source)
        counted = {name for name, count in self.twin.counters().items() if count != before[name]}
        if "duplicates" not in counted:
            expected = {
                place: [bare(payload) if payload[3] == Kind.ANSWER else payload for payload in payloads]
                for place, payloads in expected.items()
            }
        got = self.exchange(data, source)
        if "dropped_ancient" in counted:  # the Tofino program's rings may be deeper, and it may still have the answer
            assert all(payload[3] == Kind.ANSWER for payloads in got.values() for payload in payloads)
        else:
            got = {place: as_short_as(expected.get(place, []), each) for place, each in got.items()}
            assert {place: sorted(each) for place, each in got.items()} == {
                place: sorted(each) for place, each in expected.items()
            }
        return expected

    def exchange(self, data: bytes, source: Place) -> Sent:
        """The model's packets, by destination."""
        got: Sent = {}
        for port, frame in self.subject.exchange(source.port, frame_to_switch(source, data)):
            place, length = Place(port - 1), 14 + int.from_bytes(frame[16:18], "big")
            got.setdefault(place.twin_address, []).append(payload_for(place, frame[:length]))
        return {place: sorted(each) for place, each in got.items()}


class Lawful(History):
    """A history whose workers keep the host rules; what else comes are copies, whole or spoilt, of theirs."""

    def _one(self) -> tuple[bytes, Place]:
        random = self.random
        if self._sent and random.random() < 0.3:
            data, place = random.choice(self._sent[-20:])
            spoilt = self._spoilt(data, place)
            return spoilt if random.random() < 0.5 and len(spoilt[0]) == len(data) else (data, place)
        worker, slot = random.randrange(self.spec.workers), random.randrange(self.spec.slots)
        base = self._next[worker][slot]
        if base > self._closed[slot]:
            return random.choice(self._sent)
        self._next[worker][slot] += 1
        packet = self._contribution(worker, slot, base)
        if not packet.flags & Flag.PASS:
            shape = np.resize(packet.words, self._words[slot])
            packet = dataclasses.replace(packet, signature=7, words=shape)
        self._sent.append((packet.to_bytes(), Place(worker)))
        return self._sent[-1]
