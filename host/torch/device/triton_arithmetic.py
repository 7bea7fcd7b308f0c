"""The arithmetic of a reduction on a GPU, by Triton: launches of kernels.py and rotation_kernels.py.

Triton comes with torch's CUDA wheels and is no dependency of fanin: `triton_arithmetic` imports it when a GPU asks for
it, and says why where it cannot be used. It is believed only where its kernels have given numpy's bits on that device.
"""

from __future__ import annotations

import functools
import importlib
import logging
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from fanin.errors import UnsupportedError
from fanin.host.codecs.philox import Draws, Purpose
from fanin.host.torch.device.arithmetic import MARKS, NOT_FINITE, Arithmetic, Plan, Rotation
from fanin.host.torch.device.launcher import Launch, Launcher
from fanin.host.torch.device.numpy_arithmetic import NumpyArithmetic
from fanin.numerics.fixed_point import Array, to_bfloat16
from fanin.numerics.lanes import WORD_BITS
from fanin.numerics.reduction import Element

log = logging.getLogger("fanin")

SIXTEEN = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: ""}
"""How a kernel stores elements of a type."""


CODES = Launch(512, 4)
MARK = Launch(1024, 4)
LEVEL = Launch(1024, 4)
QUANTIZE = Launch(128, 4)
DEQUANTIZE = Launch(128, 4)
ROTATE = Launch(1, 4)
ROTATE_BACK = Launch(1, 4)


class TritonArithmetic:
    """`Arithmetic` of tensors in one GPU's memory; under TRITON_INTERPRET=1 of tensors in the host's.

    Launches go to the current stream of the current device, which must be the tensors'.
    """

    def __init__(
        self,
        *,
        codes: Launch = CODES,
        quantize: Launch = QUANTIZE,
        dequantize: Launch = DEQUANTIZE,
        rotate: Launch = ROTATE,
        rotate_back: Launch = ROTATE_BACK,
    ) -> None:
        """Raises ImportError without Triton."""
        kernels: Any = importlib.import_module("fanin.host.torch.device.kernels")
        rotations: Any = importlib.import_module("fanin.host.torch.device.rotation_kernels")
        self._scale_codes, self._quantize = Launcher(kernels.scale_codes), Launcher(kernels.quantize)
        self._dequantize, self._mark = Launcher(kernels.dequantize), Launcher(kernels.mark)
        self._level, self._quantize_at_random = Launcher(kernels.level), Launcher(kernels.quantize_at_random)
        self._rotate, self._rotate_back = Launcher(rotations.rotate), Launcher(rotations.rotate_back)
        self.launches = {
            "codes": codes,
            "quantize": quantize,
            "dequantize": dequantize,
            "rotate": rotate,
            "rotate_back": rotate_back,
        }

    def codes(self, plan: Plan, x: torch.Tensor, residual: torch.Tensor | None, codes: torch.Tensor) -> None:
        """Write the scale codes of x * factor + residual (`Arithmetic.codes`)."""
        if not len(x):
            return
        launch = self.launches["codes"]
        self._scale_codes(
            launch,
            (plan.blocks(len(x)),),
            x,
            x if residual is None else residual,
            codes,
            len(x),
            _float32(plan.factor),
            HAS_FACTOR=plan.factor != 1.0,
            HAS_RESIDUAL=residual is not None,
            POWERS=plan.up == WORD_BITS,
            BLOCK=plan.block_elements,
            TILE=launch.tile,
        )

    def quantize(
        self,
        plan: Plan,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        codes: torch.Tensor,
        words: torch.Tensor,
        *,
        adds: bool = False,
        draws: Draws | None = None,
    ) -> None:
        """Write the words under the agreed codes, and the loss (`Arithmetic.quantize`)."""
        if not len(x):
            return
        launch, blocks = self.launches["quantize"], plan.blocks(len(x))
        grid = (-(-blocks // plan.unit_blocks) * plan.unit_blocks,)
        tensors = x, x if residual is None else residual, codes, words
        layout: dict[str, Any] = {
            "HAS_RESIDUAL": residual is not None,
            "BITS": plan.up,
            "BOUND": plan.bound,
            "BLOCK": plan.block_elements,
            "PACKET": plan.packet_blocks,
            "PACKET_WORDS": plan.packet_words,
            "TILE": launch.tile,
        }
        if draws is not None:
            drawn = draws.random.of_kernels(Purpose.ROUNDING, draws.step, draws.rank)
            self._quantize_at_random(launch, grid, *tensors, len(x), *drawn, **layout)
            return
        self._quantize(
            launch,
            grid,
            *tensors,
            len(x),
            _float32(plan.factor),
            HAS_FACTOR=plan.factor != 1.0,
            ADDS=adds,
            EXPONENT=plan.exponent,
            **layout,
        )

    def dequantize(
        self,
        plan: Plan,
        words: torch.Tensor,
        codes: torch.Tensor,
        out: torch.Tensor,
        *,
        skip: int = 0,
        failed: torch.Tensor | None = None,
    ) -> None:
        """Write the values that summed words stand for (`Arithmetic.dequantize`)."""
        if not len(out):
            return
        count = skip + len(out)
        launch = self.launches["dequantize"]
        self._dequantize(
            launch,
            (plan.blocks(count),),
            words,
            codes,
            words if failed is None else failed,
            as_bits(out),
            count,
            skip,
            _float32(plan.divisor),
            plan.offset,
            WATCHED=failed is not None,
            SIXTEEN=SIXTEEN[out.dtype],
            UP=plan.up,
            DOWN=plan.down,
            BOUND=plan.bound,
            EXPONENT=plan.exponent,
            BLOCK=plan.block_elements,
            PACKET=plan.packet_blocks,
            PACKET_WORDS=plan.packet_words,
            TILE=launch.tile,
        )

    def level(self, codes: torch.Tensor) -> None:
        """Make every code the largest of them (`Arithmetic.level`)."""
        self._level(LEVEL, (1,), codes, len(codes), TILE=LEVEL.tile)

    def mark(self, codes: torch.Tensor, marks: torch.Tensor, rank: int) -> None:
        """Write this rank's marks (`Arithmetic.mark`)."""
        self._mark(MARK, (1,), codes, marks, len(codes), len(marks), rank, TILE=MARK.tile)

    def rotate(
        self,
        rotation: Rotation,
        x: torch.Tensor,
        signs: torch.Tensor,
        owed: torch.Tensor | None,
        sent: torch.Tensor,
        cut: torch.Tensor,
        squares: torch.Tensor,
    ) -> None:
        """Rotate and clip x, and write what was cut (`Arithmetic.rotate`)."""
        if not rotation.rows:
            return
        clips = math.isfinite(rotation.clip)
        launch = self.launches["rotate"]
        self._rotate(
            launch,
            (-(-rotation.rows // launch.tile),),
            x,
            signs,
            sent if owed is None else owed,
            sent,
            cut,
            squares,
            rotation.count,
            rotation.rows,
            _float32(rotation.clip) if clips else 0.0,
            _float32(rotation.block**-0.5),
            HAS_OWED=owed is not None,
            CLIPS=clips,
            ROWS=launch.tile,
            BLOCK=rotation.block,
            LOG=rotation.block.bit_length() - 1,
        )

    def rotate_back(
        self,
        rotation: Rotation,
        mean: torch.Tensor,
        signs: torch.Tensor,
        x: torch.Tensor,
        owed: torch.Tensor | None,
        cut: torch.Tensor | None,
        squares: torch.Tensor | None,
    ) -> None:
        """Rotate a mean back, and settle the residual (`Arithmetic.rotate_back`)."""
        if not rotation.rows:
            return
        has_cut = cut is not None and squares is not None
        launch = self.launches["rotate_back"]
        self._rotate_back(
            launch,
            (-(-rotation.rows // launch.tile),),
            mean,
            signs,
            as_bits(x),
            mean if owed is None else owed,
            cut if has_cut else mean,
            squares if has_cut else mean,
            rotation.count,
            rotation.rows,
            _float32(rotation.block**-0.5),
            HAS_CUT=has_cut,
            HAS_OWED=owed is not None,
            SIXTEEN=SIXTEEN[x.dtype],
            ROWS=launch.tile,
            BLOCK=rotation.block,
            LOG=rotation.block.bit_length() - 1,
        )


def triton_arithmetic(device: torch.device, plans: Iterable[Plan] = (), *, marks: bool = False) -> TritonArithmetic:
    """The arithmetic of that device, after it has given numpy's bits there, under each of the plans as well.

    `marks`: ranks will also be named that spoil sums, which takes a kernel more.

    Raises UnsupportedError, whose text says what is missing and what to do: no Triton, one that does not compile (it
    needs a C compiler), or one whose kernels give other bits.
    """
    try:
        made, differing = _probed(device)
        for plan in plans:
            differing += tuple(f"{name} of {plan}" for name in _tried(device, plan))
        if marks:
            with torch.cuda.device(device):
                differing += tuple(mark_differences(made, device))
    except Exception as error:
        raise UnsupportedError(
            f"Triton cannot be used on {device}: {type(error).__name__}: {error}. Tensors cross to the host whole and "
            "are quantized there. Remedy: the Triton that this torch was built for (pip install torch with CUDA brings "
            "it), and a C compiler"
        ) from error
    if differing:
        raise UnsupportedError(
            f"Triton's kernels give other bits than numpy on {device}: {', '.join(differing)}. Tensors cross to the "
            "host whole and are quantized there. Remedy: the Triton that this torch was built for, and a report"
        )
    return made


@functools.cache
def _probed(device: torch.device) -> tuple[TritonArithmetic, tuple[str, ...]]:
    """An arithmetic for the device, and which buffers it leaves with other bits than numpy."""
    made = TritonArithmetic()
    with torch.cuda.device(device):
        differing = differences(made, device)
        if not differing and not _launched_again(made, device):
            log.warning("this Triton's kernels are launched by Triton alone, which takes longer")
            Launcher.keeps = False
    return made, tuple(differing)


@functools.cache
def _tried(device: torch.device, plan: Plan) -> tuple[str, ...]:
    """The buffers that a plan's kernels, compiled for its lanes and element type, leave with other bits than numpy."""
    with torch.cuda.device(device):
        return tuple(lane_differences(_probed(device)[0], device, plan))


def _launched_again(arithmetic: TritonArithmetic, device: torch.device) -> bool:
    """Whether kernels that have been compiled give the same bits when they are launched as such."""
    try:
        return not differences(arithmetic, device)
    except Exception:
        log.warning("launching a compiled kernel", exc_info=True)
        return False


_PROBE_ELEMENTS = 1500
_PROBE_PLAN = Plan(Element.FLOAT32, 8, 8, 42, 704, 2, 42, divisor=3.0, factor=0.3)

Buffers = dict[str, Any]
"""Buffers by name: arrays of numpy, or tensors of a device."""


def differences(arithmetic: Arithmetic[torch.Tensor], device: torch.device) -> list[str]:
    """The buffers that have other bits than numpy's functions give, of a small tensor; none of a sound arithmetic."""
    return lane_differences(arithmetic, device, _PROBE_PLAN) + _rotation_differences(arithmetic, device)


def lane_differences(arithmetic: Arithmetic[torch.Tensor], device: torch.device, plan: Plan) -> list[str]:
    """`differences` of a plan's codes, words and values, with a residual and without one."""
    count = _PROBE_ELEMENTS
    x = _probe_values()
    if plan.element is not Element.FLOAT32:
        x = to_bfloat16(x) if plan.element is Element.BFLOAT16 else x.astype(np.float16)
    host: Buffers = {
        "x": x,
        "values": np.zeros_like(x),
        "residual": _probe_owed(count),
        "failed": np.zeros(1, np.int32),
    }
    for kind in ("", " with residual"):
        host |= {
            f"codes{kind}": np.zeros(plan.blocks(count), np.int16),
            f"words{kind}": np.zeros(plan.words(count), np.int32),
        }
    if plan.packet_words:
        host["words"][plan.shift_at :: plan.packet_words] = 3

    def steps(own: Arithmetic[Any], b: Buffers) -> None:
        for kind, residual in (("", None), (" with residual", b["residual"])):
            own.codes(plan, b["x"], residual, b[f"codes{kind}"])
            own.quantize(plan, b["x"], residual, b[f"codes{kind}"], b[f"words{kind}"])
        own.dequantize(plan, b["words"], b["codes"], b["values"], failed=b["failed"])

    return _differing(arithmetic, device, host, steps)


def mark_differences(arithmetic: Arithmetic[torch.Tensor], device: torch.device) -> list[str]:
    """`differences` of the marks of ranks that spoil sums early, late and not at all."""
    count, ranks = 2 * MARK.tile + 5, 3
    host: Buffers = {f"codes {place}": np.zeros(count, np.int16) for place in (0, count - 1, count)}
    for place in (0, count - 1):
        host[f"codes {place}"][place:] = NOT_FINITE
    host |= {f"marks {place}": np.zeros(MARKS * ranks, np.int16) for place in (0, count - 1, count)}

    def steps(own: Arithmetic[Any], b: Buffers) -> None:
        for place in (0, count - 1, count):
            own.mark(b[f"codes {place}"], b[f"marks {place}"], 1)

    return _differing(arithmetic, device, host, steps)


def _rotation_differences(arithmetic: Arithmetic[torch.Tensor], device: torch.device) -> list[str]:
    rotation = Rotation(_PROBE_ELEMENTS, 1024, 2.0)
    x, padded = _probe_values(), rotation.padded
    host: Buffers = {
        "x": x,
        "signs": np.arange(-(-_PROBE_ELEMENTS // 32), dtype=np.int32) * 12345,
        "owed": _probe_owed(padded),
    }
    for kind in ("", " with residual"):
        host |= {f"{name}{kind}": np.zeros(padded, np.float32) for name in ("sent", "cut")}
        host |= {
            f"squares{kind}": np.zeros(rotation.rows, np.float32),
            f"mean{kind}": _probe_owed(padded),  # which may be written over
            f"back{kind}": np.zeros_like(x),
        }

    def steps(own: Arithmetic[Any], b: Buffers) -> None:
        for kind, owed in (("", None), (" with residual", b["owed"])):
            sent, cut, squares, mean, back = (b[f"{each}{kind}"] for each in ("sent", "cut", "squares", "mean", "back"))
            own.rotate(rotation, b["x"], b["signs"], owed, sent, cut, squares)
            again = (None, None) if owed is None else (cut, squares)
            own.rotate_back(rotation, mean, b["signs"], back, owed, *again)

    return [name for name in _differing(arithmetic, device, host, steps) if not name.startswith("mean")]


def _probe_values() -> Array:
    """Elements, some of which are subnormal, and rows and blocks whose squares are."""
    x = (np.random.default_rng(1).standard_normal(_PROBE_ELEMENTS) * 1e-3).astype(np.float32)
    x[::97] *= np.float32(1e-40)
    x[1024:] *= np.float32(1e-18)
    return x


def _probe_owed(count: int) -> Array:
    return np.random.default_rng(2).standard_normal(count).astype(np.float32)


def _differing(
    arithmetic: Arithmetic[torch.Tensor],
    device: torch.device,
    host: Buffers,
    steps: Callable[[Arithmetic[Any], Buffers], None],
) -> list[str]:
    """The buffers that `steps` leaves with other bits on the device than in numpy's hands."""
    own = {name: _placed(each, device) for name, each in host.items()}
    steps(arithmetic, own)
    with np.errstate(all="ignore"):
        steps(NumpyArithmetic(), host)
    return [
        name
        for name, ours in host.items()
        if not np.array_equal(ours.view(np.uint8), own[name].view(torch.uint8).cpu().numpy())
    ]


def _placed(array: Array, device: torch.device) -> torch.Tensor:
    """A copy on the device; uint16 are the bits of bfloat16."""
    sixteen = array.dtype == np.uint16
    tensor = torch.from_numpy(array.view(np.int16).copy() if sixteen else array.copy())
    return (tensor.view(torch.bfloat16) if sixteen else tensor).to(device)


def _float32(value: float) -> float:
    return float(np.float32(value))


def as_bits(x: torch.Tensor) -> torch.Tensor:
    """Elements of 16 bits as integers: kernels round them themselves."""
    return x if x.dtype == torch.float32 else x.view(torch.int16)
