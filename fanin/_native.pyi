"""Types of the native extension (native/, C++20). Same names, same verbs and same results as the Python twins."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fanin.numerics.reduction import Reduction
from fanin.protocol.events import SwitchEvent, WorkerEvent
from fanin.protocol.job import JobSpec, ParentRoute, Uplink

# --- kernels (native/bind_kernels.cpp) ---

_Bytes = npt.NDArray[np.uint8]

class Codec:
    """The twin is fanin.numerics.fixed_point.Codec. Elements and words (in wire order) are bytes in uint8 arrays."""

    def __init__(self, element: int, lanes: int = 32, contributions: int = 1) -> None: ...
    @property
    def lanes(self) -> int: ...
    @property
    def contributions(self) -> int: ...
    @property
    def bound(self) -> int: ...
    @property
    def exponent(self) -> int: ...
    def words_for(self, count: int) -> int: ...
    def elements_per_packet(self, words: int) -> int: ...
    def codes(
        self, x: _Bytes, block_elements: int, factor: float = 1.0, residual: npt.NDArray[np.float32] | None = None
    ) -> npt.NDArray[np.uint16]: ...
    def quantize_into(
        self,
        x: _Bytes,
        codes: npt.NDArray[np.uint16],
        block_elements: int,
        words_be: _Bytes,
        factor: float = 1.0,
        residual: npt.NDArray[np.float32] | None = None,
    ) -> None: ...
    def dequantize_into(
        self,
        words_be: _Bytes,
        codes: npt.NDArray[np.uint16],
        block_elements: int,
        count: int,
        contributors: int,
        out: _Bytes,
        divisor: float = 1.0,
        skip: int = 0,
    ) -> None:
        """Fills `out` with the elements from `skip` on."""
    def residual_after(
        self,
        x: _Bytes,
        codes: npt.NDArray[np.uint16],
        block_elements: int,
        factor: float = 1.0,
        residual: npt.NDArray[np.float32] | None = None,
    ) -> npt.NDArray[np.float32]: ...

def exact_encode_into(
    element: int,
    x: _Bytes,
    words_be: _Bytes,
    factor: float = 1.0,
    residual: npt.NDArray[np.float32] | None = None,
) -> None: ...
def exact_residual_after(
    element: int, x: _Bytes, factor: float, residual: npt.NDArray[np.float32] | None
) -> npt.NDArray[np.float32]: ...
def exact_decode_into(
    element: int,
    operator: int,
    ranks: int,
    words_be: _Bytes,
    count: int,
    out: _Bytes,
    divisor: float = 1.0,
    skip: int = 0,
    present: int = ...,
) -> None: ...
def store_words(sum: npt.NDArray[np.uint32], words_be: _Bytes) -> None: ...
def add_words(sum: npt.NDArray[np.uint32], words_be: _Bytes) -> None: ...
def finish_words(sum: npt.NDArray[np.uint32], words_be: _Bytes) -> None: ...
def to_wire(sum: npt.NDArray[np.uint32]) -> None: ...
def max_codes(codes_be: _Bytes, in_be: _Bytes) -> None: ...
def crc32(data: _Bytes, start: int = 0) -> int: ...
def hadamard_in_place(x: npt.NDArray[np.float32], block: int) -> None:
    """As fanin.host.codecs.rotation.hadamard."""

def philox_into(key: Sequence[int], counter: Sequence[int], words: npt.NDArray[np.uint32]) -> None:
    """As fanin.host.codecs.philox.words."""

def word_codecs() -> list[str]:
    """The word codecs of this engine (host/codecs/words has the twins), in no particular order."""

def kernels_in_use() -> str:
    """One of "avx512", "avx2" or "portable"; FANIN_KERNELS names another at import."""

def use_kernels(name: str) -> bool:
    """Take another implementation from here on; False, and no change, where this processor lacks it."""

# --- switch machine (native/bind_switch_machine.cpp) ---

class SwitchMachine:
    """Twin of fanin.switch.machine.switch_machine.SwitchMachine, which documents the verbs."""

    def __init__(self, memory_bytes: int) -> None: ...
    def admit(self, spec: JobSpec) -> None: ...
    def admit_leaf(self, spec: JobSpec, uplink: Uplink) -> None: ...
    def remove(self, job: int) -> None: ...
    def evict(self, job: int, worker: int, now: float) -> None: ...
    def suspect(self, job: int, worker: int, now: float) -> None: ...
    def overdue(self, now: float) -> list[int]: ...
    def sign_of_life(self, source: int, now: float) -> None: ...
    def set_quorum(self, job: int, quorum: int, now: float) -> None: ...
    def set_staleness(self, job: int, staleness: int, now: float) -> None: ...
    def admit_worker(self, job: int, worker: int, token: int) -> None: ...
    def jobs(self) -> list[int]: ...
    def members(self, job: int) -> tuple[int, int, int]: ...
    def counters(self) -> dict[str, int]: ...
    def job_counters(self, job: int) -> dict[str, int]: ...
    def receive_datagram(self, data: bytes, source: int, now: float) -> None: ...
    def datagrams_to_send(self, now: float) -> list[tuple[bytes, int]]: ...
    def next_timer(self) -> float | None: ...
    def handle_timer(self, now: float) -> None: ...
    def next_event(self) -> SwitchEvent | None: ...

# --- worker machine (native/bind_worker_machine.cpp) ---

class WorkerMachine:
    """The twin is fanin.host.machine.worker_machine.WorkerMachine: same datagrams for the same inputs and times."""

    def __init__(
        self,
        spec: JobSpec,
        worker: int,
        *,
        switch: int,
        token: int,
        flow: int = 0,
        flow_count: int = 1,
        connect_timeout_s: float = 5.0,
        newcomer: bool = False,
    ) -> None: ...
    def submit(self, reduction: Reduction) -> int: ...
    def begin(self, base: int) -> None: ...
    def leave(self, now: float) -> None: ...
    def receive_datagram(self, data: bytes | bytearray | memoryview, source: int, now: float) -> None: ...
    def datagrams_to_send(self, now: float) -> list[tuple[bytes, int]]: ...
    def next_timer(self) -> float | None: ...
    def handle_timer(self, now: float) -> None: ...
    def next_event(self) -> WorkerEvent | None: ...
    def outstanding(self) -> int: ...
    def counters(self) -> dict[str, int]: ...
    def buffer_bytes(self) -> int: ...
    @property
    def ready(self) -> bool: ...
    @property
    def failed(self) -> bool: ...

# --- batched UDP: switch server and worker engine (native/bind_udp.cpp) ---

class SwitchServer:
    """A switch's data ports: one machine and one thread per flow. See native/switch_server.hpp."""

    def __init__(
        self,
        host: str,
        port: int,
        flows: int,
        memory_bytes: int,
        *,
        receive_buffer_bytes: int = ...,
        offload: bool = True,
        share_memory: bool = True,
    ) -> None:
        """Open the ports; packets are served from `start` on. OSError when an address cannot be had.

        Flow 0 takes `port` (0: any free one), the others any. `memory_bytes` is for all flows together. `offload`
        False does without GSO and GRO, `share_memory` False offers no job shared memory.
        """

    @property
    def description(self) -> str: ...
    @property
    def ports(self) -> tuple[int, ...]: ...
    @property
    def receive_buffer_bytes(self) -> int:
        """What the kernel granted each socket, as getsockopt(SO_RCVBUF) reads it: fanin.protocol.window.slots_for."""

    def start(self) -> None: ...
    def admit(self, spec: JobSpec, *, share_memory: bool = True) -> None:
        """Take a job in on every flow, or on none: AdmissionError."""

    def admit_leaf(self, spec: JobSpec, parent: ParentRoute, *, share_memory: bool = True) -> None:
        """The same for a part of a job at a parent."""

    def shared_memory(self, job: int) -> tuple[str, ...]:
        """Where the job's workers on this machine find shared memory, a path per flow; empty if there is none."""

    def ring_bytes(self, job: int) -> tuple[int, int]:
        """What its rings there hold of the switch's memory, over all flows, and what they want: it has all or none."""

    def remove(self, job: int) -> None: ...
    def evict(self, job: int, worker: int) -> None: ...
    def suspect(self, job: int, worker: int) -> None: ...
    def set_quorum(self, job: int, quorum: int) -> None: ...
    def set_staleness(self, job: int, staleness: int) -> None: ...
    def admit_worker(self, job: int, worker: int, token: int) -> None: ...
    def jobs(self) -> list[int]: ...
    def members(self, job: int) -> tuple[int, int, int]:
        """Bit masks: registered on every flow, lost on any, left on any."""

    def counters(self) -> dict[str, int]:
        """The machines' counters added up, and of the sockets: socket_overflows (receive buffer full), ..."""

    def job_counters(self, job: int) -> dict[str, int]: ...
    @property
    def event_fileno(self) -> int: ...
    def next_event(self, timeout_s: float) -> SwitchEvent | None: ...
    def close(self) -> None: ...

class WorkerEngine:
    """A worker's share of a job: fanin.host.engines.engine.Engine, its loop in C++. See native/worker_engine.hpp."""

    def __init__(
        self,
        spec: JobSpec,
        worker: int,
        token: int,
        host: str,
        ports: Sequence[int],
        connect_timeout_s: float = 5.0,
        *,
        receive_buffer_bytes: int = ...,
        offload: bool = True,
        shared_memory: Sequence[str] = (),
        newcomer: bool = False,
    ) -> None:
        """Open one socket per port (flow). OSError when the host does not resolve or has no route.

        `shared_memory` is what SwitchServer.shared_memory says, or nothing; used where it can be mapped.
        """

    @property
    def shares_memory(self) -> bool:
        """Whether packets go through shared memory, on every flow."""

    @property
    def description(self) -> str: ...
    @property
    def receive_buffer_bytes(self) -> int: ...
    @property
    def failed(self) -> bool: ...
    @property
    def trouble(self) -> str: ...
    def start(self) -> None:
        """Start the threads, which say HELLO."""

    def submit(self, reduction: Reduction) -> int:
        """Send what the window takes, from the calling thread, and return the ticket. Keeps `reduction` until done."""

    def sum_in_place(
        self, address: int, count: int, element: int, lanes: int, tag: int, timeout_s: float, owner: object
    ) -> int:
        """One call without the GIL; signals are seen."""

    def begin(self, base: int) -> None: ...
    def wait(self, ticket: int, timeout_s: float) -> bool:
        """Without the GIL; signals are seen."""

    def done(self, ticket: int) -> bool: ...
    def subscribe(self) -> None: ...
    def next_event(self, timeout_s: float) -> WorkerEvent | None: ...
    def counters(self) -> dict[str, int]: ...
    def buffer_bytes(self) -> int:
        """Heap memory of the engine: machine, receive and send buffers of all flows."""

    def leave(self, timeout_s: float) -> bool: ...
    def close(self) -> None: ...

class Wires:
    def __init__(self) -> None: ...
    def join(
        self,
        fd_a: int,
        fd_b: int,
        *,
        delay_s: float = 0.0,
        jitter_s: float = 0.0,
        loss: float = 0.0,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        seed: int = 0,
    ) -> int: ...
    def start(self) -> None: ...
    def cut(self, wire: int, down: bool) -> None: ...
    def counters(self, wire: int) -> tuple[dict[str, int], dict[str, int]]: ...
    def close(self) -> None: ...
