"""The host's half of a ring: hands pieces to a session in the order of the calls, each once the device has written it.

    program    put ... put                                 in program order, so tickets are alike on all ranks
    departing  wait for `gone`, start (the session's ticket)
    arriving   wait for the ticket, raise `come`           in the same order

Rules
-----
* One courier per session. A request on host memory that comes while pieces are waiting takes its place among them.
* Neither thread asks the device for anything, and a parcel holds nothing of the device's, not even the last reference
  to an event or a tensor: to drop that is a call of the driver, which waits while a program's thread is in a copy that
  waits for the very flag that the courier is to raise.
* The first error ends the courier: all parcels, later ones too, get that error, and `failed` lets the streams go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

LOOK_S = 0.25
"""How often a thread that waits for the device looks whether the group has failed."""


@dataclass(slots=True, eq=False)
class Parcel:
    """A reduction of the session, from its place in the order to its end."""

    start: Callable[[], int]
    """Submits the reduction, and returns its ticket."""
    land: Callable[[int], None]
    """Returns when the ticket is done; raises when it will not be."""
    written: Callable[[float], bool] | None = None
    """Waits so many seconds for the device, and returns whether the memory is ready. None: it is ready."""
    come: Callable[[], None] | None = None
    """Tells the device that the result has come."""
    over: Callable[[BaseException | None], None] | None = None
    """Called once, at the end, with the error that has ended the parcel, or None."""


class Courier:
    """Submits and lands the parcels of one session, in order. Has no threads: CourierThreads calls its methods."""

    def __init__(self, failed: Callable[[BaseException], None], check: Callable[[], None]) -> None:
        """`failed` is called once, with the first error. `check` raises where the group can do nothing any more."""
        self._failed, self._check = failed, check
        self._lock = threading.Lock()
        self._waiting = 0
        self.error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether parcels have not yet got their tickets, so that others must queue behind them."""
        return self._waiting > 0

    def queued(self) -> None:
        """Count a parcel that is put into the queue."""
        with self._lock:
            self._waiting += 1

    def departed(self, parcel: Parcel) -> int | None:
        """Submit the parcel, whose turn it is, once its memory is ready. Returns its ticket; None if it has failed."""
        try:
            while self.error is None and parcel.written is not None and not parcel.written(LOOK_S):
                self._check()
            ticket = None if self.error is not None else parcel.start()
        except Exception as error:
            self.fail(error)
            ticket = None
        with self._lock:
            self._waiting -= 1
        if ticket is None:
            self._end(parcel, self.error)
        return ticket

    def arrived(self, parcel: Parcel, ticket: int) -> None:
        """Wait for the result of the parcel, whose turn it is, and tell the device and `over`."""
        error = self.error
        if error is None:
            try:
                parcel.land(ticket)
            except Exception as raised:
                self.fail(raised)
                error = raised
            else:
                if parcel.come is not None:
                    parcel.come()
        self._end(parcel, error)

    def fail(self, error: BaseException) -> None:
        """End this courier with that error, which all parcels get; only the first call has an effect."""
        with self._lock:
            if self.error is not None:
                return
            self.error = error
        self._failed(error)

    @staticmethod
    def _end(parcel: Parcel, error: BaseException | None) -> None:
        if parcel.over is not None:
            parcel.over(error)


class CourierThreads:
    """Two threads that carry a courier's parcels; started with the first one."""

    def __init__(self, courier: Courier, name: str) -> None:
        self._courier, self._name = courier, name
        self._departing: SimpleQueue[Parcel | None] = SimpleQueue()
        self._arriving: SimpleQueue[tuple[Parcel, int] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    @property
    def busy(self) -> bool:
        """Whether parcels of the courier have not yet got their tickets."""
        return self._courier.busy

    def put(self, parcel: Parcel) -> None:
        """Append a parcel. Calls come in program order, one at a time."""
        self._courier.queued()
        self._departing.put(parcel)
        if not self._threads:
            loops = (self._depart, "departing"), (self._arrive, "arriving")
            self._threads = [
                threading.Thread(target=loop, name=f"fanin-{self._name}-{part}", daemon=True) for loop, part in loops
            ]
            for thread in self._threads:
                thread.start()

    def close(self, timeout_s: float) -> None:
        """End the threads; what is under way ends first, since the session is over."""
        if self._threads:
            self._departing.put(None)
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join(timeout_s)

    def _depart(self) -> None:
        while (parcel := self._departing.get()) is not None:
            ticket = self._courier.departed(parcel)
            if ticket is not None:
                self._arriving.put((parcel, ticket))
        self._arriving.put(None)

    def _arrive(self) -> None:
        while (arriving := self._arriving.get()) is not None:
            self._courier.arrived(*arriving)
