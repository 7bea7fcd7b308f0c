"""Controllers in virtual time over data planes that only take notes: one switch's, and those of a tree."""

from __future__ import annotations

import dataclasses
import random
from collections import defaultdict, deque

from fanin.errors import AdmissionError
from fanin.options import SwitchAddress
from fanin.protocol import control
from fanin.protocol.control import JOIN_INTERVAL_S, Join, Scheme
from fanin.protocol.events import SwitchEvent, WorkerJoined
from fanin.protocol.job import JobSpec, ParentRoute
from fanin.protocol.seal import OPEN
from fanin.protocol.window import DEFAULT_RECEIVE_BUFFER_BYTES
from fanin.protocol.wire import VERSION as WIRE_VERSION
from fanin.switch.controller.controller import Controller
from fanin.switch.controller.data_plane import DataPlane, Limits
from fanin.switch.controller.gate import Caller
from fanin.switch.controller.job_shape import SwitchBuffers
from fanin.switch.controller.leaf import LeafController, ParentPath

EVERYBODY = Caller(key="one key", operator=True, control_key=bytes(32))
"""A caller for tests in which any caller will do."""
BUFFERS = SwitchBuffers(receive_buffer_bytes=DEFAULT_RECEIVE_BUFFER_BYTES, shared=False)


PATH_MTU = 9000
"""Between a leaf and its parent."""


class FakeServer:
    """A data plane that admits what it is told to, up to `jobs_max`."""

    def __init__(self, ports: tuple[int, ...] = (4919,), jobs_max: int = 100) -> None:
        self.description = "a fake"
        self.trouble = ""
        self.ports = ports
        self.jobs_max = jobs_max
        self.specs: dict[int, JobSpec] = {}
        self.routes: dict[int, ParentRoute] = {}
        self.masks: dict[int, tuple[int, int, int]] = {}
        """By job: registered, lost, left. Nothing unless a test says so."""
        self.tuned: list[tuple[str, int, int]] = []
        self.rings = (0, 0)
        self.evicted: list[tuple[int, int]] = []
        self.suspected: list[tuple[int, int]] = []
        self.suspected_parents: list[int] = []
        self.opened: list[tuple[int, int, int]] = []
        self.sharing: set[int] = set()
        """Jobs that were given rings."""
        self.events: deque[SwitchEvent] = deque()
        self.event_fileno = -1
        """Nothing to poll, unless a test gives something."""

    def admit_leaf(self, spec: JobSpec, parent: ParentRoute, *, share_memory: bool = True) -> None:
        self.admit(spec, share_memory=share_memory)
        self.routes[spec.job] = parent

    def admit(self, spec: JobSpec, *, share_memory: bool = True) -> None:
        assert spec.job not in self.specs
        if len(self.specs) >= self.jobs_max:
            raise AdmissionError("the fake is full")
        self.specs[spec.job] = spec
        if share_memory:
            self.sharing.add(spec.job)

    def remove(self, job: int) -> None:
        del self.specs[job]

    def evict(self, job: int, worker: int) -> None:
        assert self.specs[job].survives_loss, "the controller evicts from jobs that go on without, and from no others"
        self.evicted.append((job, worker))

    def suspect(self, job: int, worker: int) -> None:
        assert job in self.specs
        self.suspected.append((job, worker))

    def suspect_parent(self, job: int) -> None:
        assert job in self.specs
        self.suspected_parents.append(job)

    def admit_worker(self, job: int, worker: int, token: int) -> None:
        assert (job, worker) in self.evicted
        self.opened.append((job, worker, token))

    def set_quorum(self, job: int, quorum: int) -> None:
        assert job in self.specs
        self.tuned.append(("quorum", job, quorum))

    def set_staleness(self, job: int, staleness: int) -> None:
        assert job in self.specs
        self.tuned.append(("staleness", job, staleness))

    def next_event(self, timeout_s: float) -> SwitchEvent | None:
        return self.events.popleft() if self.events else None

    def counters(self) -> dict[str, int]:
        return {"packets_in": 7}

    def job_counters(self, job: int) -> dict[str, int]:
        return {"rounds": self.specs[job].slots}

    def member_counters(self, job: int) -> list[dict[str, int]]:
        return [{"last": worker} for worker in range(self.specs[job].workers)]

    def shared_memory(self, job: int) -> tuple[str, ...]:
        return ()

    def ring_bytes(self, job: int) -> tuple[int, int]:
        return self.rings if job in self.sharing else (0, self.rings[1])

    def members(self, job: int) -> tuple[int, int, int]:
        return self.masks.get(job, (0, 0, 0))

    def close(self) -> None:
        pass


def join(rank: int, size: int = 2, **changes: object) -> Join:
    """A Join of a worker on loopback."""
    given: dict[str, object] = {
        "job": "j",
        "nonce": f"nonce-{rank}",
        "process": f"laptop:{1000 + rank}",
        "scheme": "udp",
        "path_mtu": 65_536,
        "receive_buffer_bytes": DEFAULT_RECEIVE_BUFFER_BYTES,
        "wire_version": WIRE_VERSION,
        "software": "test",
    }
    return Join(rank=rank, size=size, **{**given, **changes})  # type: ignore[arg-type]


class World:
    """A controller, its clock and what each peer was told. A peer's name is `<nonce>`."""

    def __init__(
        self,
        memory_bytes: int = 1 << 28,
        servers: dict[Scheme, FakeServer] | None = None,
        buffers: SwitchBuffers = BUFFERS,
        source_share: float = 1.0,
    ) -> None:
        self.now = 0.0
        self.servers: dict[Scheme, FakeServer] = servers if servers is not None else {"udp": FakeServer()}
        self.controller = Controller(
            Limits(memory_bytes=memory_bytes, liveness_timeout_s=5, source_share=source_share),
            {scheme: DataPlane(server, buffers) for scheme, server in self.servers.items()},
            random_bits=random.Random(1).getrandbits,
            started_s=0.0,
            engine="none",
        )
        self.told: defaultdict[str, list[control.Reply]] = defaultdict(list)

    def _collect(self) -> None:
        for peer, reply in self.controller.messages_to_send():
            self.told[peer.decode()].append(reply)

    def say(self, peer: str, request: control.Request, caller: Caller | None = None) -> control.Reply:
        """One request; returns the last thing that this peer is told."""
        self.controller.receive(peer.encode(), request, self.now, caller or EVERYBODY)
        self._collect()
        return self.told[peer][-1]

    def join(self, request: Join) -> control.Reply:
        return self.say(request.nonce, request)

    def refused(self, request: Join) -> control.Refused:
        reply = self.join(request)
        assert isinstance(reply, control.Refused), reply
        assert reply.reason
        assert reply.remedy
        return reply

    def event(self, event: SwitchEvent) -> None:
        self.controller.handle_event(event, self.now)
        self._collect()

    def advance(self, seconds: float) -> None:
        """Time passes, and the controller's timers run."""
        end = self.now + seconds
        while (due := self.controller.next_timer()) is not None and due <= end:
            assert due >= self.now, "a timer that is due stays due"
            self.now = due
            self.controller.handle_timer(self.now)
            self._collect()
        self.now = end

    def admit(self, *joins: Join) -> control.Admitted:
        """All of a job's ranks ask; returns what the last one is told."""
        replies = [self.join(one) for one in joins]
        admitted = replies[-1]
        assert isinstance(admitted, control.Admitted), admitted
        return admitted

    def run(self, *joins: Join) -> control.Admitted:
        """A job that forms and starts."""
        admitted = self.admit(*joins)
        for one in joins:
            self.event(WorkerJoined(admitted.index, one.rank))
        return admitted

    def state_of(self, name: str) -> list[str]:
        return [job.state for job in self.controller.stats(self.now).jobs if job.name == name]


class Grove:
    """A root, leaves 0 and 1, and what each rank was told."""

    def __init__(self, root_flows: int = 1) -> None:
        self.now = 0.0
        limits = Limits(memory_bytes=1 << 28, liveness_timeout_s=5)
        self.root_server = FakeServer(tuple(range(4919, 4919 + root_flows)))
        bits = random.Random(1).getrandbits
        self.root = Controller(
            limits, {"udp": DataPlane(self.root_server, BUFFERS)}, random_bits=bits, started_s=0.0, engine="none"
        )
        self.servers = [FakeServer((5000 + leaf,)) for leaf in range(2)]
        self.leaves = [
            LeafController(limits, server, self._path(leaf), BUFFERS, random_bits=bits, started_s=0.0, engine="none")
            for leaf, server in enumerate(self.servers)
        ]
        self.told: defaultdict[str, list[control.Reply]] = defaultdict(list)
        self.cut: set[int] = set()
        """Leaves that the root cannot talk to."""

    def _path(self, leaf: int) -> ParentPath:
        return ParentPath(
            address=SwitchAddress("udp", "root", 4919),
            host="10.0.0.1",
            path_mtu=PATH_MTU,
            receive_buffer_bytes=DEFAULT_RECEIVE_BUFFER_BYTES,
            own_address=f"udp://leaf{leaf}:4919",
        )

    def settle(self) -> None:
        """Carry messages until there are none."""
        for _ in range(10):
            for number, leaf in enumerate(self.leaves):
                for key, request in leaf.messages_to_parent():
                    assert key == (OPEN.name if isinstance(request, control.Attach) else EVERYBODY.key)
                    if number not in self.cut:
                        self.root.receive(str(number).encode(), request, self.now, EVERYBODY)
                for peer, reply in leaf.messages_to_send():
                    self.told[peer.decode()].append(reply)
            for peer, reply in self.root.messages_to_send():
                if peer.decode().isdigit():
                    self.leaves[int(peer)].receive_from_parent(reply, self.now, EVERYBODY.key)
                else:
                    self.told[peer.decode()].append(reply)

    def say(self, leaf: int, request: control.Request, peer: str) -> control.Reply:
        self.leaves[leaf].receive(peer.encode(), request, self.now, EVERYBODY)
        self.settle()
        return self.told[peer][-1]

    def join(self, leaf: int, request: Join) -> control.Reply:
        return self.say(leaf, request, request.nonce)

    def advance(self, seconds: float) -> None:
        """Time passes, and everybody has turns."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + JOIN_INTERVAL_S, end)
            self.root.handle_timer(self.now)
            for leaf in self.leaves:
                leaf.handle_timer(self.now)
            self.settle()

    def running(self) -> None:
        """A job of four: ranks 0 and 3 at leaf 1, ranks 1 and 2 at leaf 0."""
        for rank, leaf in ((0, 1), (1, 0), (2, 0), (3, 1)):
            self.join(leaf, join(rank, 4))
        for branch in range(2):
            self.root.handle_event(WorkerJoined(0, branch), self.now)
        self.settle()


def as_rank(request: Join, rank: int) -> Join:
    """The same from another rank."""
    return dataclasses.replace(request, rank=rank, nonce=f"nonce-{rank}")
