"""Leaf switches in trains: two native machines that are asked for packets at the same instants.

Rules of this file
------------------
* Both get the same datagrams: the first one by one, which the ledger judges as they come, and the second in trains.
  Both are asked for packets, events and timers when the train has ended, as a driver asks after it has read a socket.
* Nothing may differ then: packets with their tags, their order and where they go; order numbers of rounds that go up
  and receipts for workers; events; the next timer; members, and every counter of the job and of its workers.
* A leaf that is asked after each datagram is no yardstick, since `Ascents.take` chooses from what is known when it is
  asked. Rounds of one instant then go up as they became complete, and not lowest first
  (tests/simulator/test_leaf_trains.py), so that their order numbers differ. Pace and window may hold back other ones,
  and a round that is to be sent again goes up although its result is in the same train. Each of these changes what
  later receipts from the parent mean, and the round trips that receipts for workers tell.
"""

from __future__ import annotations

from fanin.emulation.simulator.machines import Switch
from fanin.emulation.simulator.trains import SwitchInTrains, Train, TrainSwitch, in_words, same
from fanin.protocol.events import SwitchEvent


class TrainLeaf(TrainSwitch):
    """Two native machines of a leaf, which send at the end of a train: one gets its datagrams one by one."""

    def __init__(self, singly: Switch, in_trains: SwitchInTrains) -> None:
        super().__init__(singly, in_trains)
        self.amid_train = False
        """Whether datagrams have come since the machines were last asked what they send."""

    def receive_datagram(self, data: bytes, source: int, now: float) -> None:
        """Give the first machine a datagram, which the second one gets with all others of this instant."""
        if now != self._at_s:  # only a paused leaf keeps a train for longer
            self._hand_over()
        self._at_s, self.amid_train = now, True
        self._train.append((data, source))
        self._singly.receive_datagram(data, source, now)

    def datagrams_to_send(self, now: float) -> Train:
        """Nothing before the train is whole, and then what both machines send."""
        if self.amid_train:
            return []
        sent = self._singly.datagrams_to_send(now)
        same("sent", sent, self._in_trains.datagrams_to_send(now), in_words)
        same("timer", self._singly.next_timer(), self._in_trains.next_timer())
        for job in self._singly.jobs():
            same("counted", self._singly.job_counters(job), self._in_trains.job_counters(job))
            same("counted", self._singly.member_counters(job), self._in_trains.member_counters(job))
            same("members", self._singly.members(job), self._in_trains.members(job))
        return sent

    def next_timer(self) -> float | None:
        """The end of a train, or else the machines' timer."""
        return self._at_s if self.amid_train else self._singly.next_timer()

    def handle_timer(self, now: float) -> None:
        """End the train, and give both machines the time."""
        self._hand_over()
        self.amid_train = False
        super().handle_timer(now)

    def next_event(self) -> SwitchEvent | None:
        """Nothing before the train is whole, and then what both machines report."""
        return None if self.amid_train else super().next_event()

    def _hand_over(self) -> None:
        """Give the second machine the datagrams that the first one has."""
        train, self._train = self._train, []
        if train:
            self._in_trains.receive_datagrams(train, self._at_s)

    def _end_train(self) -> None:
        """Give the second machine the datagrams before a controller's call; what both send waits for the timer."""
        self._hand_over()
