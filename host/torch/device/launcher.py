"""Launches of a Triton kernel without Triton's look at every argument, which takes longer than a small kernel runs.

A kernel is compiled for kinds of arguments: element types, whether addresses and numbers are multiples of 16, numbers
that are 1. Triton finds the compiled kernel anew at every launch (40 us of the calling thread, of which a reduction has
a dozen); here it is kept by the same kinds, and given addresses instead of tensors.
"""

from __future__ import annotations

import threading
import traceback
from dataclasses import dataclass
from typing import Any

import torch

from fanin.errors import UnsupportedError

ALIGNED = 16
"""Alignment by which Triton compiles variants: arguments that are multiples of it are loaded as vectors."""
INT_BITS = 31
COMPILED = "JITFunction"
"""The class of a kernel that is compiled; under TRITON_INTERPRET=1 it is another one."""
DRIVER_MODULE, LOADING = "triton.backends.nvidia.driver", "_init_handles"
"""The module in which Triton calls the CUDA driver, and the function that loads a kernel."""


_compiling = threading.Lock()
"""Held while a kernel is compiled, since streams that are threads (threads.py) launch kernels, too."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How a kernel's work is divided, which changes no bit."""

    tile: int
    """Size of one program's share, in the kernel's own unit; a power of two."""
    warps: int


class Launcher:
    """One kernel, with its compiled variants."""

    keeps = True
    """Whether compiled variants are kept and launched here. False where this Triton launches them in another way than
    those known to us: then it finds the variant itself at every launch."""

    def __init__(self, kernel: Any) -> None:
        """`kernel`: its arguments come first, then what is compiled in."""
        self._kernel = kernel
        self._compiles = type(kernel).__name__ == COMPILED
        self._variants: dict[tuple[Any, ...], Any] = {}

    def __call__(self, launch: Launch, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        """Launch the kernel on the current stream of the arguments' device, which must be the current device."""
        key: tuple[Any, ...] | None = None
        if self._compiles and Launcher.keeps:
            placed: list[Any] = []
            kinds: list[object] = []
            for each in arguments:
                if isinstance(each, torch.Tensor):
                    address = each.data_ptr()
                    placed.append(address)
                    kinds.append((each.dtype, address % ALIGNED == 0, each.device.index))
                else:
                    placed.append(each)
                    kinds.append(_kind(each))
            key = (launch, *kinds, *constants.values())
            variant = self._variants.get(key)
            if variant is not None:
                compiled, tail = variant
                first, second, third = (*grid, 1, 1)[:3]
                compiled[first, second, third](*placed, *tail)
                return
        with _compiling:
            made = self._first(launch, grid, arguments, constants)
        if key is not None and hasattr(made, "packed_metadata"):
            tail = [constants[name] for name in self._kernel.arg_names[len(arguments) :]]
            self._variants[key] = made, tail

    def _first(
        self, launch: Launch, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any]
    ) -> Any:
        """Let Triton find or compile the variant, and launch it. UnsupportedError where it does not compile."""
        try:
            # Never with contraction: the kernels' bits depend on it.
            return self._kernel[grid](*arguments, **constants, num_warps=launch.warps, enable_fp_fusion=False)
        except Exception as error:
            if not self._compiles or _of_driver(error):
                raise
            name = getattr(self._kernel, "__name__", "of unknown name")
            raise UnsupportedError(
                f"Triton does not compile the kernel {name} for {constants}: {type(error).__name__}: {error}. Remedy: "
                "the Triton that this torch was built for, or other lanes or another codec; without Triton, tensors "
                "are quantized on their hosts"
            ) from error


def _of_driver(error: Exception) -> bool:
    """Whether the CUDA driver failed and no compiler did. Triton raises RuntimeError for both, in different places."""
    frames = list(traceback.walk_tb(error.__traceback__))
    if type(error) is not RuntimeError or not frames:
        return False
    last = frames[-1][0]
    return last.f_globals.get("__name__") == DRIVER_MODULE or last.f_code.co_name == LOADING


def _kind(number: int | float) -> tuple[bool, ...] | None:
    """Kind of an integer, by which Triton compiles variants; None for floating point, which has one kind."""
    if not isinstance(number, int):
        return None
    return number % ALIGNED == 0, number == 1, number.bit_length() > INT_BITS
