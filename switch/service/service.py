"""The switch as a process: control on TCP, data on UDP and ZeroMQ, and one controller for both.

One thread runs `run`: it waits for the control port, for the data servers' events, for a pipe by which other threads
wake it, and for the controller's next timer. Data servers have threads of their own.

Messages of the control port go through the gate (switch/controller/gate.py) to the controller, and no exception that
they cause ends the switch (switch/service/handler_faults.py).
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Annotated, Any

from fanin import files, schemes
from fanin.addresses import host_and_port
from fanin.curve import CurveKeys
from fanin.errors import ConfigurationError, SwitchLostError
from fanin.extension import tag_algorithms
from fanin.formats.zmtp import ZmtpLimits
from fanin.options import LIVENESS_S, MAX_FLOWS, SwitchAddress
from fanin.protocol import control
from fanin.protocol.control import Scheme
from fanin.protocol.job import SWITCH_LIVENESS_TIMEOUT_S
from fanin.protocol.window import DEFAULT_RECEIVE_BUFFER_BYTES, RECEIVE_BUFFER_REQUEST_BYTES
from fanin.schemes import DEFAULT, scheme_of, tree_scheme
from fanin.settings import Bounds, check_bounds
from fanin.switch.controller.controller import AnyController, Controller
from fanin.switch.controller.data_plane import DataPlane, Limits
from fanin.switch.controller.gate import Entered, Gate
from fanin.switch.controller.job_shape import SwitchBuffers
from fanin.switch.controller.leaf import LeafController
from fanin.switch.controller.parent_watch import ParentState, ParentWatch
from fanin.switch.server.any_server import Server
from fanin.switch.server.pump_server import PumpServer
from fanin.switch.server.server import make_server
from fanin.switch.service.handler_faults import Faults, internal
from fanin.switch.service.work_budget import WorkBudget
from fanin.switch.transports.listener import Listener
from fanin.transports.numeric import host_of
from fanin.transports.polling import READABLE

if TYPE_CHECKING:
    # Imported at first use: libzmq, which only leaves and encrypted ports need, takes long to import.
    from fanin.switch.service.parent_link import ParentLink
    from fanin.switch.transports.curve_port import CurvePort

PORT_ATTEMPTS = 16
"""Number of ports tried when any may be used: it must be free for both TCP and UDP."""
REQUESTS_PER_TURN = 64
"""Most control messages that are received before events and timers get their turn."""
CONTROL_LIMITS = ZmtpLimits(frame_bytes=control.MAX_MESSAGE_BYTES, frames=1, message_bytes=control.MAX_MESSAGE_BYTES)
"""Bounds of control messages, each of which is one frame."""
CONTROL_BUFFER_BYTES = 1 << 17
"""Kernel buffer per connection and direction: two of the longest messages."""
LINGER_S = 0.2
"""How long closing waits for the last messages to be sent."""
MAX_WAIT_MS = 60_000

log = logging.getLogger("fanin.switch")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Settings of a switch process."""

    host: str = "0.0.0.0"
    """Name or address to listen on."""
    port: int = control.DEFAULT_PORT
    """TCP for control; data has the same and those after it (fanin/schemes.py). 0: any."""
    ports: tuple[int, int] | None = None
    """With port 0: the least and the greatest port that it may take, for control and data. None: any."""
    memory_bytes: int
    """Aggregation memory in all."""
    flows: Annotated[int, Bounds(1, MAX_FLOWS)] = 1
    """UDP ports, one after another, and threads."""
    native: bool | None = None
    """The C++ engine or an error, or the Python twin. Default: C++ where it is built."""
    schemes: tuple[Scheme, ...] = (DEFAULT,)
    """Schemes of the data; each opens ports, so only requested ones are open."""
    curve: CurveKeys | None = None
    curve_clients: tuple[str, ...] | None = None
    """With `curve`: public keys of the clients that are let in, in Z85. None: any that has the switch's."""
    operator_key: bytes | None = None
    """With which operators ask for everything and change anything. None: nobody can."""
    job_keys: tuple[bytes, ...] | None = None
    """The keys that jobs may have, at a switch that serves only those. None: any."""
    source_share: Annotated[float, Bounds(0, 1)] = 1.0
    """Share of the memory that jobs of one address may hold together, above 0."""
    parent: SwitchAddress | None = None
    """The switch that this one is a leaf of."""
    parent_curve_key: str | None = None
    """The parent's public key in Z85, if it encrypts control."""
    liveness_timeout_s: Annotated[float, LIVENESS_S] = SWITCH_LIVENESS_TIMEOUT_S
    """Silence after which a worker counts as lost."""
    data: Callable[[str, int], DataPlane] | None = None
    """Opens the data plane for `schemes`, which is then one, at a host and port: a programmable switch. None: the
    software switch."""
    shared_memory: bool = True
    """Offer shared memory to workers on this machine, beside sockets."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.source_share:
            raise ConfigurationError("source_share = 0; no job could be admitted. Remedy: a share above 0")


class SwitchService:
    """A switch process: the constructor opens its ports, `run` serves until `stop`."""

    def __init__(self, options: ServiceOptions) -> None:
        """Open all ports. ConfigurationError for a port that is not available, or a host that is not this machine."""
        self.options = options
        self.host: str = _resolve(options.host)
        """Numeric address to which the switch binds."""
        self._control: Listener | CurvePort | None = None
        self._gate = Gate(secrets.randbits, operator_key=options.operator_key, keys=options.job_keys)
        self.faults = Faults(time.monotonic)
        self._budget = WorkBudget(time.monotonic())
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._stopping = threading.Event()
        self._servers: dict[Scheme, Server] = {}
        self._supplied_plane: DataPlane | None = None
        """The data plane that `options.data` has opened; None for a software switch."""
        self._parent: ParentLink | None = None
        self._parent_state: ParentState = "unknown"
        """The parent's state, as last logged for the operator."""
        try:
            if options.parent is not None:
                from fanin.switch.service.parent_link import ParentLink

                self._parent = ParentLink(options.parent, options.parent_curve_key, self.host)
            self.port: int = self._open_ports()
        except BaseException:
            self.close()
            raise
        planes = {scheme: self._plane(scheme, server) for scheme, server in self._servers.items()}
        limits = Limits(
            memory_bytes=options.memory_bytes,
            source_share=options.source_share,
            liveness_timeout_s=options.liveness_timeout_s,
        )
        engine = "; ".join(server.description for server in self._servers.values())
        self.controller: AnyController
        if self._parent is not None:
            plane = planes[tree_scheme()]
            path = self._parent.path(f"{tree_scheme()}://{host_and_port(self.host, self.port)}")
            self.controller = LeafController(
                limits,
                plane.server,
                path,
                plane.buffers,
                random_bits=secrets.randbits,
                started_s=time.monotonic(),
                engine=engine,
                tags=plane.tags,
            )
            return
        controller = self.controller = Controller(
            limits,
            planes,
            random_bits=secrets.randbits,
            started_s=time.monotonic(),
            engine=engine,
            curve=options.curve is not None,
        )
        for scheme, plane in planes.items():
            for spec in plane.running:
                controller.adopt(spec, scheme, time.monotonic())

    @property
    def servers(self) -> Mapping[Scheme, Server]:
        """The data servers, by scheme."""
        return self._servers

    def stop(self) -> None:
        """Make `run` return soon. May be called from any thread or signal handler."""
        self._stopping.set()
        self.wake()

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping.is_set()

    def wake(self) -> None:
        """End a wait of `run`. May be called from any thread or signal handler."""
        with contextlib.suppress(BlockingIOError, OSError):
            self._waker.send(b"\0")

    @property
    def waker_fileno(self) -> int:
        """A descriptor to which writing has the effect of `wake`, for signal.set_wakeup_fd."""
        return self._waker.fileno()

    def run(self, keep_going: Callable[[], bool] = lambda: True, watched: tuple[int, ...] = ()) -> None:
        """Serve until `stop`, or until `keep_going()`, asked each turn, is False.

        `watched`: further descriptors that end a wait, once, when they become readable. RuntimeError if a data server
        has crashed, since a switch that serves only some of its data must not look alive. ConfigurationError if the
        parent refuses this switch as a leaf.
        """
        assert self._control is not None
        poller: Any = select.poll() if self._parent is None else self._parent.poller()
        events = (server.event_fileno for server in self._servers.values())
        for readable in (*events, self._woken.fileno(), *watched):
            poller.register(readable, READABLE)
        try:
            self._serve(poller, keep_going, watched)
        except SwitchLostError:  # the device behind this controller
            self.controller.device_gone()
            self._send_replies()
            raise

    def _serve(self, poller: Any, keep_going: Callable[[], bool], watched: tuple[int, ...]) -> None:
        assert self._control is not None
        while not self._stopping.is_set() and keep_going():
            # Without credit, messages that wait at the control port must not end every wait.
            poller.register(self._control.fileno(), READABLE if self._may_read_control() else 0)
            ready = dict(poller.poll(self._wait_ms()))
            for descriptor in watched:
                if descriptor in ready:
                    poller.unregister(descriptor)  # it stays readable, and would end every wait
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)
            self._turn()

    def close(self) -> None:
        """Close all ports and end the servers' threads. A second call does nothing."""
        self._stopping.set()
        for server in self._servers.values():
            server.close()
        if self._parent is not None:
            self._parent.close()
        if self._control is not None:
            self._control.close(LINGER_S)
        self._woken.close()
        self._waker.close()

    # --- one turn of the loop ---

    def _wait_ms(self) -> int:
        """Milliseconds until the next timer, the longest wait if no message and no event comes."""
        assert self._control is not None
        now = time.monotonic()
        timer = self.controller.next_timer()
        if timer is not None:
            timer = max(timer, self.faults.resume_s)
        rests_until = self._budget.resume_s(now)
        port_timer = rests_until if rests_until > now else self._control.next_timer()
        times = [at for at in (timer, port_timer) if at is not None]
        return ceil(min(max(min(times, default=now + MAX_WAIT_MS / 1000) - now, 0.0) * 1000, MAX_WAIT_MS))

    def _may_read_control(self) -> bool:
        now = time.monotonic()
        return self._budget.resume_s(now) <= now

    def _turn(self) -> None:
        assert self._control is not None
        reads_control = self._may_read_control()
        began_s = time.thread_time()
        requests = self._control.receive(REQUESTS_PER_TURN) if reads_control else []
        replies = list(self._parent.receive()) if self._parent is not None else []
        # Handle events before messages: a rank that the data plane has told of a loss may ask about it.
        for server in self._servers.values():
            while (event := server.next_event(0.0)) is not None:
                with self.faults.contained("an event"):
                    self.controller.handle_event(event, time.monotonic())
        for route, frames, source in requests:
            if len(frames) == 1:
                self._take_request(route, frames[0], source)
        for heard in replies:
            assert isinstance(self.controller, LeafController)
            with self.faults.contained("a reply of the parent"):
                self.controller.receive_from_parent(heard.reply, time.monotonic(), heard.key)
        if time.monotonic() >= self.faults.resume_s:
            with self.faults.contained("a timer", self.faults.pause):
                self.controller.handle_timer(time.monotonic())
        for route in self._control.take_closed():  # after its last messages
            for peer in self._gate.forget(route):
                with self.faults.contained("a hang-up"):
                    self.controller.hung_up(peer, time.monotonic())
        self._send_replies()
        if self._parent is not None:
            assert isinstance(self.controller, LeafController)
            if self._parent.take_closed():
                with self.faults.contained("a hang-up of the parent"):
                    self.controller.parent_hung_up()
            self._parent.send(self.controller.messages_to_parent(), self._gate.key)
            self._look_at_parent(self.controller.watch)
        if reads_control:
            self._budget.spend(time.thread_time() - began_s, time.monotonic())

    def _send_replies(self) -> None:
        assert self._control is not None
        for peer, reply in self.controller.messages_to_send():
            if (sealed := self._gate.sealed(peer, reply)) is not None:
                self._control.send(sealed[0], [sealed[1]])

    def _look_at_parent(self, watch: ParentWatch) -> None:
        """Log when the parent goes and comes. ConfigurationError if it refuses this switch as a leaf."""
        if why := watch.misled():
            raise ConfigurationError(why)
        if watch.state != self._parent_state:
            level = logging.INFO if watch.state == "answers" and self._parent_state == "unknown" else logging.WARNING
            log.log(level, "%s", watch.in_words(time.monotonic()))
            self._parent_state = watch.state

    def _take_request(self, route: bytes, data: bytes, source: str) -> None:
        with self.faults.contained("a request", lambda: self._answer(route, internal())):
            entered = self._gate.enter(route, data, source)
            if not isinstance(entered, Entered):
                self._answer(route, entered)
                return
            # Keep a rank's connection, which is silent while the job runs: its end shows that the rank has died.
            if not entered.caller.is_open or isinstance(entered.request, control.Join):
                assert self._control is not None
                self._control.keep(route)
            self.controller.receive(entered.peer, entered.request, time.monotonic(), entered.caller)

    def _answer(self, route: bytes, reply: control.Reply) -> None:
        """Send a reply without a seal, because the request had no valid one."""
        assert self._control is not None
        if isinstance(reply, control.Refused):
            self.controller.count_refusal(reply.code)
        self._control.send(route, [control.to_bytes(reply)])

    # --- opening ---

    def _open_ports(self) -> int:
        """Bind all ports; return the one of control, which UDP flow 0 also has."""
        if self.options.port != 0:
            self._bind_control(self.options.port)
            self._open_data(self.options.port)
            return self.options.port
        refusal: ConfigurationError | None = None
        for wanted in self._candidates():
            try:
                port = self._bind_control(wanted)
                self._open_data(port)
                return port
            except ConfigurationError as error:  # the port is in use, or the UDP port of the same number
                refusal = error
                if self._control is not None:
                    self._control.close()
                    self._control = None
        if self.options.ports is None and refusal is not None:
            raise refusal
        raise ConfigurationError(
            f"no port of {self._range_in_words()} of {self.host} is free for control and {self.options.flows} flows in "
            f"a row{'' if refusal is None else f' (the last one: {refusal})'}. Remedy: a wider FANIN_PORTS"
        )

    def _candidates(self) -> Iterable[int]:
        """Ports to try, each followed by the ports of further flows. 0: the kernel chooses."""
        options = self.options
        if options.ports is None:
            return [0] * PORT_ATTEMPTS
        return range(options.ports[0], options.ports[1] - options.flows + 2, options.flows)

    def _range_in_words(self) -> str:
        assert self.options.ports is not None
        return "{}-{}".format(*self.options.ports)

    def _bind_control(self, port: int) -> int:
        options = self.options
        try:
            if options.curve is None:
                self._control = Listener(self.host, port, CONTROL_LIMITS, buffer_bytes=CONTROL_BUFFER_BYTES)
            else:
                from fanin.switch.transports.curve_port import CurvePort

                self._control = CurvePort(self.host, port, options.curve.secret, options.curve_clients)
        except OSError as error:
            raise ConfigurationError(f"TCP port {port} of {self.host} cannot be had: {files.of_port(error)}") from None
        return self._control.port

    def _open_data(self, port: int) -> None:
        try:
            for scheme in self.options.schemes:
                self._servers[scheme] = self._open_server(scheme, port)
        except BaseException:
            for server in self._servers.values():
                server.close()
            self._servers.clear()
            raise

    def _plane(self, scheme: Scheme, server: Server) -> DataPlane:
        if self._supplied_plane is not None:
            return self._supplied_plane
        buffers = _buffers(scheme_of(scheme), server)
        return DataPlane(server, buffers, tags=tag_algorithms(self.options.native))

    def _open_server(self, scheme: Scheme, port: int) -> Server:
        options = self.options
        if options.data is not None:
            self._supplied_plane = options.data(self.host, port)
            return self._supplied_plane.server
        after = scheme_of(scheme).port_after_control
        if not after:
            return self._open_at(scheme, port)
        try:
            return self._open_at(scheme, port + after if options.port else 0)
        except ConfigurationError:
            return self._open_at(scheme, 0)  # workers are told the port; adjacent ports only help firewalls

    def _open_at(self, scheme: Scheme, port: int) -> Server:
        options, row = self.options, scheme_of(scheme)
        curve = options.curve if row.curve_protects else None
        return make_server(
            scheme,
            self.host,
            port,
            flows=options.flows if row.flows else 1,
            memory_bytes=options.memory_bytes,
            native=options.native,
            curve_secret_key=None if curve is None else curve.secret,
            curve_clients=options.curve_clients,
            share_memory=options.shared_memory,
            liveness_timeout_s=options.liveness_timeout_s,
        )


def _resolve(host: str) -> str:
    try:
        return host_of(socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][4])
    except OSError as error:
        raise ConfigurationError(
            f"--bind: {host!r} is no name or address of this machine ({error.strerror}). Remedy: 0.0.0.0 listens on all"
        ) from None


def _buffers(row: schemes.Scheme, server: Server) -> SwitchBuffers:
    """Receive buffers of a data server: one for all workers, or one for each worker's connection."""
    if not row.shared_queue:
        return SwitchBuffers(receive_buffer_bytes=DEFAULT_RECEIVE_BUFFER_BYTES, shared=False)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_REQUEST_BYTES)
        granted = probe.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    shared = isinstance(server, PumpServer)
    return SwitchBuffers(receive_buffer_bytes=granted, shared=shared, flows=len(server.ports))
