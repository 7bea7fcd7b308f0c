"""Types of the native extension (native/, C++20). Same names, same verbs and same results as the Python twins."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fanin.numerics.reduction import Brief, Reduction
from fanin.protocol.events import SwitchEvent, WorkerEvent
from fanin.protocol.job import JobSpec, ParentRoute, Uplink

# --- kernels (native/bind/bind_kernels.cpp) ---

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
def add_words(sum_be: npt.NDArray[np.uint8], *args: _Bytes, starts: bool = False) -> None: ...
def accumulate_lanes(sums: npt.NDArray[np.uint8], bytes_each: int, lanes: int, *args: _Bytes, first: bool) -> int: ...
def narrow_lanes(
    sums: npt.NDArray[np.uint8], bytes_each: int, lanes: int, most: int, words_be: npt.NDArray[np.uint8]
) -> int: ...
def max_codes(codes_be: _Bytes, in_be: _Bytes) -> None: ...
def crc32(data: _Bytes, start: int = 0) -> int: ...
def packet_tags(keys: Sequence[bytes], datagrams: Sequence[bytes], to_switch: bool) -> list[int]:
    """Tag each datagram as fanin.protocol.packet_tag.tag does; those of one length in a row side by side."""

def hadamard_in_place(x: npt.NDArray[np.float32], block: int) -> None:
    """Transform in place as fanin.host.codecs.rotation.hadamard does."""

def philox_into(key: Sequence[int], counter: Sequence[int], words: npt.NDArray[np.uint32]) -> None:
    """Write the words of fanin.host.codecs.philox.words."""

def block_squares_into(x: npt.NDArray[np.float32], block: int, squares: npt.NDArray[np.float32]) -> None:
    """Write the results of fanin.host.codecs.blocks.block_squares."""

def nonzero_blocks_into(x: npt.NDArray[np.float32], block: int, nonzero: npt.NDArray[np.bool_]) -> None:
    """Write the results of fanin.host.codecs.blocks.nonzero_blocks."""

def rotate_and_clip_into(
    x: npt.NDArray[np.float32],
    signs: npt.NDArray[np.uint32],
    block: int,
    owed: npt.NDArray[np.float32],
    clip: float,
    sent: npt.NDArray[np.float32],
    cut: npt.NDArray[np.float32],
    squares: npt.NDArray[np.float32],
) -> None:
    """Rotate and clip in place as fanin.host.codecs.rotation.rotate_and_clip does."""

def rotate_back_into(
    mean: npt.NDArray[np.float32],
    signs: npt.NDArray[np.uint32],
    block: int,
    lost: npt.NDArray[np.float32],
    owed: npt.NDArray[np.float32],
    squares: npt.NDArray[np.float32],
    x: npt.NDArray[np.float32],
) -> None:
    """Rotate in place as fanin.host.codecs.rotation.rotate_back does."""

def shifted_encode_into(
    x: npt.NDArray[np.float32],
    bucket: int,
    bits: int,
    shifts: npt.NDArray[np.float32],
    into: npt.NDArray[np.uint8],
) -> tuple[float, float]:
    """Encode as fanin.host.codecs.shifted_weights.ShiftedWeights.encode does; squared norms of the elements and of the
    error.
    """

def shifted_decode_into(
    encoded: npt.NDArray[np.uint8], count: int, bucket: int, bits: int, first: int, out: npt.NDArray[np.float32]
) -> None:
    """Decode as fanin.host.codecs.shifted_weights.ShiftedWeights.decode_rows does."""

def word_codecs() -> list[str]:
    """The word codecs of this engine (host/codecs/words has the twins), in no particular order."""

def kernels_in_use() -> str:
    """One of "avx512", "avx2" or "portable"; FANIN_KERNELS names another at import."""

def use_kernels(name: str) -> bool:
    """Take another implementation from here on; False, and no change, where this processor lacks it."""

# --- switch machine (native/bind/bind_switch_machine.cpp) ---

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
    def use_memory(self, spec: JobSpec, lasting: npt.NDArray[np.uint8]) -> None: ...
    def waits_in(self, job: int, memory: npt.NDArray[np.uint8]) -> bool: ...
    def let_go(self, job: int, memory: npt.NDArray[np.uint8]) -> None: ...
    def receive_datagram(self, data: bytes, source: int, now: float) -> None: ...
    def receive_datagrams(self, datagrams: Sequence[tuple[bytes, int]], now: float) -> None: ...
    def datagrams_to_send(self, now: float) -> list[tuple[bytes, int]]: ...
    def next_timer(self) -> float | None: ...
    def handle_timer(self, now: float) -> None: ...
    def next_event(self) -> SwitchEvent | None: ...

# --- worker machine (native/bind/bind_worker_machine.cpp) ---

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
    def receive_datagrams(self, datagrams: Sequence[tuple[bytes, int]], now: float) -> None: ...
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

# --- batched UDP: switch server and worker engine (native/bind/bind_udp.cpp) ---

class SwitchServer:
    """A switch's data ports: one machine and one thread per flow. See native/io/switch_server.hpp."""

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
        """The receive buffer that the kernel granted each socket, as getsockopt(SO_RCVBUF) reads it:
        fanin.protocol.window.slots_for.
        """

    def start(self) -> None: ...
    def admit(self, spec: JobSpec, *, share_memory: bool = True) -> None:
        """Take a job in on every flow, or on none: AdmissionError."""

    def admit_leaf(self, spec: JobSpec, parent: ParentRoute, *, share_memory: bool = True) -> None:
        """The same for a part of a job at a parent."""

    def shared_memory(self, job: int) -> tuple[str, ...]:
        """Paths of the shared memory for the job's workers on this machine, one per flow; empty if there is none."""

    def ring_bytes(self, job: int) -> tuple[int, int]:
        """Bytes of the switch's memory in the job's rings, over all flows, and the bytes that they want: a job has all
        or none.
        """

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
    """A worker's share of a job: fanin.host.engines.engine.Engine, its loop in C++. See native/io/worker_engine.hpp."""

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

    def at_once(self, brief: Brief, timeout_s: float, owner: object) -> int:
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

# --- carriers, for their contract tests (native/bind/bind_carriers.cpp) ---

def carriers() -> list[str]:
    """Names of the rows of native/io/carriers.cpp: the base carrier, then the bypasses by preference."""

class CarrierRig:
    """Both ends of a carrier on loopback, without machines: a switch's, and one for each worker of `spec`."""

    def __init__(self, name: str, spec: JobSpec) -> None: ...
    @property
    def offer(self) -> str: ...
    @property
    def overflows(self) -> int: ...
    @property
    def skipped(self) -> int: ...
    @property
    def let_go_bytes(self) -> int: ...
    waits: bool
    def join(self, worker: int) -> None: ...
    def up(self, worker: int, datagrams: Sequence[bytes]) -> tuple[int, bool]: ...
    def at_switch(self) -> list[tuple[bytes, int]]: ...
    def down(self, workers: Sequence[int], datagrams: Sequence[bytes]) -> bool: ...
    def idle(self) -> None: ...
    def gone(self, worker: int) -> None: ...
    def close_switch(self) -> None: ...
    def switch_may_sleep(self, missing: int) -> bool: ...
    def at_worker(self, worker: int) -> list[bytes]: ...
    def may_sleep(self, worker: int, on_bell: bool = False) -> bool: ...
    def awake(self, worker: int) -> None: ...
    def bell(self, worker: int) -> int | None: ...
    def close_worker(self, worker: int) -> None: ...
    def works(self, worker: int) -> bool: ...
    def worker_fd(self, worker: int) -> int: ...
    def silence(self, worker: int) -> None: ...
    def trouble(self, worker: int) -> str: ...
    def source_of(self, worker: int) -> int: ...
    def worker_counters(self, worker: int) -> dict[str, int]: ...
    def switch_counters(self) -> dict[str, int]: ...

# --- compiled P4 programs (native/bind/bind_p4.cpp) ---

P4_OPERATIONS: tuple[str, ...]

class P4Machine:
    def __init__(self, program: dict[str, object]) -> None: ...
    def put(
        self,
        table: int,
        value: list[int],
        mask: list[int],
        ranges: list[tuple[int, int, int, int]],
        position: int,
        action: int,
        next: int,
        data: list[int],
        counts: Any,
    ) -> int: ...
    def take(self, table: int, number: int) -> None: ...
    def set_miss(self, table: int, action: int, next: int, data: list[int]) -> None: ...
    def set_group(self, number: int, replicas: Sequence[tuple[int, int]] | None) -> None: ...
    def set_mirror(self, number: int, replicas: Sequence[tuple[int, int]] | None, cut: int) -> None: ...
    def process(
        self, packets: list[tuple[int, bytes]], now_us: int
    ) -> tuple[list[tuple[int, bytes]], int, int, int, int, str]: ...
    def process_ports(
        self, ports: P4Ports, now_us: int
    ) -> tuple[list[tuple[int, bytes]], int, int, int, int, str, int]: ...

class P4Ports:
    def __init__(self) -> None: ...
    def add_udp(self, fd: int, number: int, address: int, udp_port: int) -> None: ...
    def add_raw(self, fd: int, number: int) -> None: ...
    def receive(self) -> int: ...
    def frames(self) -> list[tuple[int, bytes]]: ...
    def flush(self) -> int: ...
    def stop(self) -> None: ...

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
