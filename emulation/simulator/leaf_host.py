"""A leaf switch as a process: a switch host whose controller is a leaf's, with a connection to its parent's."""

from __future__ import annotations

from fanin.emulation.simulator.leaf_trains import TrainLeaf
from fanin.emulation.simulator.machines import Switch
from fanin.emulation.simulator.peer_addresses import endpoint
from fanin.emulation.simulator.switch_host import (
    BUFFERS,
    CALLER,
    SimulatedServer,
    SwitchHost,
    SwitchSetup,
)
from fanin.errors import AdmissionError
from fanin.options import SwitchAddress
from fanin.protocol import control
from fanin.protocol.job import JobSpec, ParentRoute
from fanin.protocol.window import DEFAULT_RECEIVE_BUFFER_BYTES
from fanin.switch.controller.controller import AnyController
from fanin.switch.controller.leaf import LeafController, ParentPath

PATH_MTU = 65_536


class LeafHost(SwitchHost):
    """One leaf switch, through all of its lives."""

    def __init__(self, setup: SwitchSetup, parent: SwitchHost, *, address: int, name: str) -> None:
        super().__init__(setup, address=address, name=name)
        self._parent = parent
        self.url = str(_url(address))
        """URL that the leaf announces, and that others reach it at."""

    def _make_machine(self, memory_bytes: int) -> Switch:
        return self._setup.make_leaf(memory_bytes)

    def _make_controller(self) -> AnyController:
        self._leaf = LeafController(
            self._limits,
            _LeafServer(self),
            ParentPath(
                address=_url(self._parent.address),
                host=endpoint(self._parent.address).ip,
                path_mtu=PATH_MTU,
                receive_buffer_bytes=DEFAULT_RECEIVE_BUFFER_BYTES,
                own_address=self.url,
            ),
            BUFFERS,
            random_bits=self._setup.dice.getrandbits,
            started_s=self._network.queue.now,
            engine="simulated",
        )
        return self._leaf

    def _end_train(self) -> None:
        if self._node is not None and isinstance(self.machine, TrainLeaf) and self.machine.amid_train:
            self._network.wake(self._node)

    def _dispatch(self) -> None:
        super()._dispatch()
        for _, request in self._leaf.messages_to_parent():
            self._parent.request(self._peer, self, request)

    # --- as a client of its parent ---

    @property
    def _peer(self) -> bytes:
        return f"{self.address}-{self.lives}".encode()

    def hears(self) -> bool:
        """Implements the protocol `switch_host.Client`."""
        return self._node is None or not self._node.paused

    def replied(self, peer: bytes, reply: control.Reply) -> None:
        """Implements the protocol `switch_host.Client`."""
        if self._node is not None and peer == self._peer:
            self._end_train()
            self._leaf.receive_from_parent(reply, self._network.queue.now, CALLER.key)
            self._dispatch()

    # --- what its controller asks of the machine ---

    def admit_part(self, spec: JobSpec, route: ParentRoute) -> None:
        """Admit a part of a job at the parent; AdmissionError if the parent never had that job."""
        parent = self._parent.books.get((route.job, route.generation))
        if parent is None:
            raise AdmissionError(f"the parent never had job {route.job} of generation {route.generation:#x}")
        uplink = route.uplink(self._parent.address, 0)
        self.machine.admit_leaf(spec, uplink)
        self.auditor.admitted_part(spec, uplink, parent)


class _LeafServer(SimulatedServer):
    """The server of a switch that has a parent."""

    def __init__(self, host: LeafHost) -> None:
        super().__init__(host)
        self._leaf = host

    def admit_leaf(self, spec: JobSpec, parent: ParentRoute, *, share_memory: bool = True) -> None:
        """Admit a part of a parent's job, as fanin.switch.server.any_server.Server says."""
        self._leaf.admit_part(spec, parent)


def _url(address: int) -> SwitchAddress:
    where = endpoint(address)
    return SwitchAddress("udp", where.ip, where.port)
