"""Carries out a group's requests on CUDA memory: which way each goes, and what becomes of a failure.

    lanes of float32, bfloat16 and float16, wide sums too: codes and words made on the device, two stages
    several such averages (Call.together): the same, with one agreement on codes (together.py)
    everything else (exact sums, integers, float64, codecs of the host, moves of bytes): as it is, in pieces

Rules
-----
* Which way a request goes depends on what all ranks have alike, and on whether there is `Means.arithmetic`, on which
  they have agreed (device_agreement.py).
* Requests on host memory that come while pieces wait queue behind them (`queue`): tickets are in program order.
* Each agreement on codes is announced among the words (announcement.py): a rank that sums the same tensor from host
  memory never comes to the session of codes, and is refused there.
* The first error is the group's: streams are let go, outputs become NaN, and every later call raises.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from fanin.errors import FaninError, UnsupportedError
from fanin.host.torch.device import lines
from fanin.host.torch.device.announcement import announce
from fanin.host.torch.device.arithmetic import MARKS, Arithmetic, Plan, plan_of
from fanin.host.torch.device.courier import Courier, CourierThreads, Parcel
from fanin.host.torch.device.pieces import NOWHERE, code_pieces, overlap, placer, raw_pieces
from fanin.host.torch.device.pipeline import Coding, Exchange, Piece
from fanin.host.torch.device.sight import Blocks, Sight
from fanin.host.torch.device.together import Decoding, Together, aligned, each_of, tag_of_all
from fanin.host.torch.device.work import BehindPieces, DeviceWork, Job, land_behind
from fanin.host.torch.handles.host_tensor import as_bytes, writing_to
from fanin.host.torch.handles.timeouts import at_present
from fanin.host.torch.handles.work import FaninWork, LocalWork
from fanin.numerics.reduction import QUANTIZED_LANES, Element, Reduction
from fanin.protocol.wire import CODE_BYTES

if TYPE_CHECKING:
    from fanin.host.session.any_session import AnySession
    from fanin.host.torch.handles.call import Call
    from fanin.host.torch.handles.completion import Completion
    from fanin.host.torch.handles.failures import Failures

log = logging.getLogger("fanin")

CLOSE_TIMEOUT_S = 2.0
"""Longest that closing waits for each thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Sessions, arithmetic and device that a group's reducer works with."""

    words: AnySession
    codes: Callable[[], AnySession] | None
    """The session of codes, made at the first call; None where this group makes no codes on devices."""
    arithmetic: Arithmetic[torch.Tensor] | None
    """Arithmetic on the device; None: all requests travel as they are."""
    make_device: Callable[[torch.device, Callable[[BaseException], None]], Any]
    waits: Callable[[torch.device], str]
    """How streams of a device wait, and why no better way is used (cuda.describe)."""
    divisor: float
    """Divisor of averages; 0: the number of contributions."""
    slots: int = lines.SLOTS


LEFT = "the group was left while this collective was under way. Remedy: wait for collectives before the group is left"


class DeviceReducer:
    """Carries out the requests of one group on CUDA memory."""

    def __init__(self, means: Means, failures: Failures, completion: Completion) -> None:
        self._means, self._failures, self._completion = means, failures, completion
        self._lock = threading.Lock()
        self._lines: dict[torch.device, lines.Line] = {}
        self._jobs: deque[Job] = deque()
        self._closing = False
        self.error: BaseException | None = None
        """The first error, which every later call raises; None while there is none."""
        self._codes: AnySession | None = None
        self._word_courier = Courier(self._fail, self._check)
        self._code_courier = Courier(self._fail, self._check)
        self._word_threads = CourierThreads(self._word_courier, "words")
        self._code_threads = CourierThreads(self._code_courier, "codes")

    @property
    def busy(self) -> bool:
        """Whether pieces wait for their tickets, so that requests on host memory must queue behind them."""
        return self._word_threads.busy

    def submit(self, call: Call) -> FaninWork:
        """Queue a request on the device, and return its handle at once."""
        self.raise_if_failed(call.collective, call.timeout_s)
        if call.empty:
            return LocalWork(self._completion, call.outputs)
        plan = self._plan(call)
        if plan is None and call.residual is not None and not call.residual.is_cpu:
            raise UnsupportedError(
                f"{call.collective}: a residual on {call.residual.device} with lanes that are made on the host. "
                "Remedy: a residual on the host, or a large sum in lanes, with Triton on every rank"
            )
        with self._lock:
            line = self._line(call.device, coded=plan is not None)
            device = line.device
            self._forget()
            owes = call.residual is not None and call.residual.is_cpu and call.source.device.type != "cpu"
            job = Job(device, call.collective, call.timeout, [call], on_host=owes, sight=self._sight(call))
            try:
                exchange = self._exchange(call, plan, line, job)
                self._jobs.append(job)
                job.done = line.pipeline.exchange(device.current(), exchange)
            except BaseException as error:  # no memory, or no kernel: other ranks wait for all pieces of this call
                self._fail(error)
                raise
        return DeviceWork(job, self._failures, self._completion, call.outputs)

    def queue(self, call: Call, hand_over: Callable[[Call], int]) -> FaninWork:
        """Queue a request on host memory behind the pieces that wait for their tickets."""
        self.raise_if_failed(call.collective, call.timeout_s)
        work = BehindPieces(call, self._failures, self._completion, self._means.words)
        # The courier must hold neither the final action nor the tensors that it is for.
        bare = call.but(outputs=(), finish=None)
        land = partial(land_behind, self._means.words, work.host, call.timeout_s)
        with self._lock:
            self._word_threads.put(Parcel(start=partial(hand_over, bare), land=land, over=work.host.end))
        return work

    def raise_if_failed(self, name: str, timeout_s: float) -> None:
        """Raise the first error, in words about the collective `name`, if an earlier call has failed."""
        if self.error is not None:
            raise self._failures.explain(self.error, name, timeout_s) from self.error

    def drain(self) -> None:
        """Wait until the host's part of all that was submitted is over; each for no longer than its timeout."""
        for job in list(self._jobs):
            job.host.over.wait(at_present(job.timeout))

    def close(self) -> None:
        """End the threads; what is under way fails. The sessions have been closed."""
        self._closing = True
        if any(not job.host.over.is_set() for job in list(self._jobs)):
            self._fail(FaninError(LEFT))
        self._word_threads.close(CLOSE_TIMEOUT_S)
        self._code_threads.close(CLOSE_TIMEOUT_S)
        for line in self._lines.values():
            line.close()

    @property
    def arithmetic(self) -> Arithmetic[torch.Tensor] | None:
        """Arithmetic that makes codes and words on the device; None: tensors go as they are, on every rank."""
        return None if self._means.codes is None else self._means.arithmetic

    def describe(self) -> str:
        """How streams wait, why not better, and where numbers are made, by device."""
        made = "quantized on the device" if self._means.arithmetic else "quantized on the host"
        return "; ".join(
            f"{device}: streams wait by {line.device.way!r} ({self._means.waits(device)}), "
            f"{line.slots} slots of {lines.SLOT_BYTES >> 10} KiB, {made}"
            for device, line in self._lines.items()
        )

    # --- which way ---

    def _plan(self, call: Call) -> Plan | None:
        """The arithmetic on the device; None: the request goes as it is."""
        means = self._means
        averages_by_count = call.average and not means.divisor
        if (
            means.arithmetic is None or means.codes is None or call.lanes not in QUANTIZED_LANES or averages_by_count
            or call.scale_code or (call.residual is not None and call.residual.device != call.source.device)
        ):  # fmt: skip
            return None
        count = call.source.numel()
        return plan_of(
            call.element, call.lanes, count, means.words.spec, contributors=means.words.size,
            divisor=means.divisor if call.average else 1.0, factor=call.factor,
        )  # fmt: skip

    def _line(self, device: torch.device, *, coded: bool) -> lines.Line:
        line = self._lines.get(device)
        if line is None:
            means = self._means
            codes = None
            if means.codes is not None:
                if self._codes is None:
                    self._codes = means.codes()
                codes = self._code_threads, self._codes.wait
            made = means.make_device(device, self._fail)
            line = self._lines[device] = lines.Line(made, (self._word_threads, means.words.wait), codes, means.slots)
        return line

    def _exchange(self, call: Call, plan: Plan | None, line: lines.Line, job: Job) -> Exchange:
        if plan is None and not call.together:
            made = self._raw(call, line, job.sight)
        else:
            plans = [each for each in (plan, *map(self._plan, call.together)) if each is not None]
            made = self._coded([call, *call.together], plans, line, job)
        made.over = job.host.end
        return made

    # --- as it is ---

    def _raw(self, call: Call, line: lines.Line, sight: Sight | None) -> Exchange:
        finish: list[Callable[[], object]] = [] if call.finish is None else [call.finish]
        marked = list(call.outputs) or ([] if call.kept is None else [call.kept])
        finish.append(lambda: self._mark(line, marked))
        pieces = raw_pieces(call, self._means.words, self._means.divisor, sight)
        return Exchange(pieces=pieces, timeout_s=call.timeout_s, finish=finish)

    def _mark(self, line: lines.Line, outputs: list[torch.Tensor]) -> None:
        """On the current stream: the outputs become NaN, or the least of integers, where the group has failed."""
        failed = line.failed[0] != 0
        for output in outputs:
            if output.layout is torch.strided and output.dtype is not torch.bool:
                real = torch.view_as_real(output.detach()) if output.is_complex() else output.detach()
                with writing_to(output):
                    real.masked_fill_(failed, _nothing_like(real.dtype))

    # --- codes and words ---

    def _coded(self, calls: list[Call], plans: list[Plan], line: lines.Line, job: Job) -> Exchange:
        """One call, or several averages in place that travel as one (together.py)."""
        arithmetic = self._means.arithmetic
        assert arithmetic is not None
        assert self._codes is not None
        every = Together(calls, plans)
        marked, codes = self._code_buffer(line, every.codes, job.sight)
        words = line.device.allocate(line.leaving, every.words * lines.WORD_BYTES).view(torch.int32)
        job.held = [calls, codes]  # `arriving` reads the codes, which are allocated on `leaving`
        tag = tag_of_all(calls, plans)
        self._word_threads.put(announce(self._means.words, tag, calls[0].timeout_s))
        flat = [(part, part.source, part.residual) for part in every.parts]  # views, or copies made on this stream

        def measure() -> None:
            if every.has_gaps:
                codes.zero_()
                words.zero_()
            for part, source, residual in flat:
                arithmetic.codes(part.plan, source, None if part.call.adds else residual, part.codes(codes))
            self._mark_codes(marked, codes)
            for part, _, _ in flat:
                if part.call.draws is not None:
                    arithmetic.level(part.codes(codes))

        def encode() -> None:
            for part, source, residual in flat:
                own, call = part.words(words), part.call
                own_codes = part.codes(codes)
                arithmetic.quantize(part.plan, source, residual, own_codes, own, adds=call.adds, draws=call.draws)

        if len(calls) > 1:
            pieces = self._several_pieces(every, line, codes, words, tag)
        else:
            pieces = self._word_pieces(calls[0], plans[0], line, codes, words, tag)
        look = self._looking(job.sight, every.blocks)
        return Exchange(
            coding=Coding(measure=measure, pieces=code_pieces(marked, self._codes, tag, look), encode=encode),
            pieces=pieces,
            timeout_s=calls[0].timeout_s,
            finish=[call.finish for call in calls if call.finish is not None],
        )

    def _word_pieces(
        self, call: Call, plan: Plan, line: lines.Line, codes: torch.Tensor, words: torch.Tensor, tag: int
    ) -> Iterator[Piece]:
        count, unit = call.source.numel(), plan.unit_elements
        unit_words = plan.words(unit)
        piece_units = lines.SLOT_BYTES // (unit_words * lines.WORD_BYTES)
        kept = None if call.kept is None else call.kept.detach().reshape(-1)
        back_unit = call.keep_first // unit
        last = plan.words(min(call.keep_first + call.kept_count, count))
        room = line.device.allocate(line.arriving, max(last - back_unit * unit_words, 0) * lines.WORD_BYTES)
        for start in range(0, count, piece_units * unit):
            first_unit = start // unit
            first_word = first_unit * unit_words
            part = words[first_word : first_word + piece_units * unit_words]
            elements = min(piece_units * unit, count - start)
            at, keep = overlap(start, elements, call.keep_first, call.kept_count)
            summed = Reduction(
                source=NOWHERE, destination=NOWHERE, count=len(part), element=Element.INT32, lanes=plan.travels_as,
                tag=tag, keep_count=0,
            )  # fmt: skip
            back, decode, back_first = None, None, 0
            if kept is not None and keep:
                back_first = at // unit * unit_words
                last_word = min(plan.words(at + keep), len(part))
                summed = replace(summed, keep_first=back_first, keep_count=last_word - back_first)
                place = (first_word + back_first - back_unit * unit_words) * lines.WORD_BYTES
                back = room[place : place + (last_word - back_first) * lines.WORD_BYTES]
                begin = start + at - call.keep_first
                first_code = (first_unit + at // unit) * plan.unit_blocks
                decode = self._decoder(
                    plan, line, back, codes[first_code:], kept[begin : begin + keep], at % unit
                )  # fmt: skip
            yield Piece(
                out=as_bytes(part), back=back, back_first=back_first * lines.WORD_BYTES, decode=decode,
                place=placer(self._means.words, summed, 0, back_first * lines.WORD_BYTES),
            )  # fmt: skip

    def _decoder(
        self, plan: Plan, line: lines.Line, words: torch.Tensor, codes: torch.Tensor, out: torch.Tensor, skip: int
    ) -> Callable[[], None]:
        arithmetic = self._means.arithmetic
        assert arithmetic is not None

        def decode() -> None:
            with writing_to(out):
                arithmetic.dequantize(plan, words.view(torch.int32), codes, out, skip=skip, failed=line.failed)

        return decode

    def _several_pieces(
        self, every: Together, line: lines.Line, codes: torch.Tensor, words: torch.Tensor, tag: int
    ) -> Iterator[Piece]:
        sums = line.device.allocate(line.arriving, every.words * lines.WORD_BYTES)
        per_piece = every.words_within(lines.SLOT_BYTES // lines.WORD_BYTES)
        for first in range(0, every.words, per_piece):
            part = words[first : first + per_piece]
            last = first + len(part)
            summed = Reduction(
                source=NOWHERE, destination=NOWHERE, count=len(part), element=Element.INT32, lanes=every.travels_as,
                tag=tag,
            )  # fmt: skip
            decoders = [self._decoder_of(each, line, sums, codes) for each in every.decodings(first, last)]
            yield Piece(
                out=as_bytes(part), back=sums[first * lines.WORD_BYTES : last * lines.WORD_BYTES],
                decode=partial(each_of, decoders), place=placer(self._means.words, summed, 0, 0),
            )  # fmt: skip

    def _decoder_of(
        self, asked: Decoding, line: lines.Line, sums: torch.Tensor, codes: torch.Tensor
    ) -> Callable[[], None]:
        part = asked.part
        assert part.call.kept is not None
        own = sums[asked.words.start * lines.WORD_BYTES : asked.words.stop * lines.WORD_BYTES]
        kept = part.call.kept.detach().reshape(-1)[asked.elements]
        return self._decoder(part.plan, line, own, part.codes(codes)[asked.first_block :], kept, 0)

    # --- who spoils sums ---

    def _sight(self, call: Call) -> Sight | None:
        """A record in which couriers note who has spoiled the call; None where the policy only warns."""
        nonfinite = self._failures.nonfinite
        if nonfinite.policy == "warn":
            return None
        return Sight(nonfinite.begun(sum(each.source.nbytes for each in (call, *call.together))))

    def _code_buffer(self, line: lines.Line, count: int, sight: Sight | None) -> tuple[torch.Tensor, torch.Tensor]:
        """The buffer that travels as codes, and the codes in it: all of it, or what is behind the ranks' marks."""
        marks = 0 if sight is None else aligned(MARKS * self._means.words.size, CODE_BYTES)
        every = line.device.allocate(line.leaving, (marks + count) * CODE_BYTES).view(torch.int16)
        return every, every[marks:]

    def _mark_codes(self, every: torch.Tensor, codes: torch.Tensor) -> None:
        arithmetic, marks = self._means.arithmetic, len(every) - len(codes)
        if marks:
            assert arithmetic is not None
            arithmetic.mark(codes, every[:marks], self._means.words.rank)

    def _looking(self, sight: Sight | None, blocks: list[Blocks]) -> Callable[[int, int], None] | None:
        return None if sight is None else partial(sight.read_marks, blocks, self._means.words.size)

    # --- failures ---

    def _check(self) -> None:
        if self._closing:
            raise FaninError(LEFT)
        for session in (self._means.words, self._codes):
            if session is not None and (failure := session.failure) is not None:
                raise failure

    def _fail(self, error: BaseException) -> None:
        """End all that is under way with the first error, and let go of every stream; from any thread."""
        if self.error is not None:
            return
        self.error = error
        if not self._closing:
            log.error(
                "rank %d: collectives of %s on devices have failed, and outputs under way are NaN: %s",
                self._failures.rank, self._failures.group_name, error,
            )  # fmt: skip
        for line in list(self._lines.values()):
            line.pipeline.release()
        for job in list(self._jobs):
            job.host.end(error)
        self._word_courier.fail(error)
        self._code_courier.fail(error)

    def _forget(self) -> None:
        """Forget the oldest jobs that are through, and let go of their tensors."""
        while self._jobs and self._jobs[0].through:
            self._jobs.popleft().held = None


def _nothing_like(dtype: torch.dtype) -> float | int:
    return float("nan") if dtype.is_floating_point else torch.iinfo(dtype).min
