"""The kinds of tensors that torch has, times every collective: what fanin makes of them, and gloo, as one table.

`ROWS` is that table for people and for docs/torch.md; kind_checks.py tries every cell of it.
"""

from __future__ import annotations

from dataclasses import dataclass

RESULT = "the result"
"""The values that dense tensors hold after the same collective, in this kind's form."""
NOTHING = "nothing"
"""The collective returns and has changed nothing: there is no memory."""
OTHER = "other values"
RAISES = "an error"
"""Any error but one of fanin's."""
UNSUPPORTED, ARGUMENT = "UnsupportedError", "ArgumentError"
UNTRIED = "not tried"
"""It ends the process, waits for ever, or writes to memory that is not the tensor's."""

TRIED_WITH = "2.13.0"
"""PyTorch's version: gloo's outcomes are those of its groups."""


@dataclass(frozen=True)
class Row:
    """One kind of tensor. Outcomes: of all collectives, then those of others with the collectives that have them."""

    kind: str
    fanin: str
    gloo: str

    def fanin_in(self, collective: str) -> str:
        """The outcome over fanin."""
        return _in(self.fanin, collective)

    def gloo_in(self, collective: str) -> str:
        """The outcome over gloo."""
        return _in(self.gloo, collective)


def _in(told: str, collective: str) -> str:
    first, *others = told.split("; ")
    for other in others:
        outcome, _, names = other.partition(": ")
        if collective in names.split(", "):
            return outcome
    return first


def markdown() -> str:
    """The table as it stands in docs/torch.md."""
    lines = ["| kind of tensor | fanin | gloo |", "|---|---|---|"]
    lines += [f"| {row.kind} | {row.fanin} | {row.gloo} |" for row in ROWS]
    return "\n".join(lines) + "\n"


ROWS: tuple[Row, ...] = (
    Row("plain", "the result", "the result"),
    Row("offset in a storage", "the result", "the result"),
    Row(
        "strided",
        "the result",
        "the result; other values: all_reduce, all_reduce (async), all_reduce (large), all_reduce (MAX), reduce, "
        "broadcast, reduce_scatter, scatter; an error: all_to_all_single, send, recv",
    ),
    Row(
        "transposed",
        "the result",
        "the result; an error: all_gather_into_tensor, all_gather_into_tensor_coalesced, reduce_scatter_tensor, "
        "reduce_scatter_tensor_coalesced, all_to_all_single, send, recv",
    ),
    Row(
        "channels_last",
        "the result",
        "the result; an error: all_gather_into_tensor, reduce_scatter_tensor, reduce_scatter_tensor_coalesced, "
        "send, recv; not tried: all_gather_into_tensor_coalesced; other values: all_to_all_single",
    ),
    Row(
        "0-dim",
        "the result; ArgumentError: all_gather_into_tensor, all_gather_into_tensor_coalesced, "
        "reduce_scatter_tensor, reduce_scatter_tensor_coalesced, all_to_all_single",
        "the result; not tried: all_gather_into_tensor, all_gather_into_tensor_coalesced, reduce_scatter_tensor, "
        "reduce_scatter_tensor_coalesced, all_to_all_single",
    ),
    Row("zero elements", "the result", "the result"),
    Row("on shared memory", "the result", "the result"),
    Row("expanded", "ArgumentError; the result: send", "not tried"),
    Row("overlapping (as_strided)", "ArgumentError; the result: send", "not tried"),
    Row(
        "parameter",
        "the result",
        "the result; an error: all_reduce_coalesced, all_gather, all_gather_into_tensor, all_gather_coalesced, "
        "all_gather_into_tensor_coalesced, reduce_scatter, reduce_scatter_tensor, reduce_scatter_tensor_coalesced, "
        "gather, all_to_all",
    ),
    Row("buffer", "the result", "the result"),
    Row(
        "requires grad",
        "the result",
        "the result; an error: all_reduce_coalesced, all_gather, all_gather_into_tensor, all_gather_coalesced, "
        "all_gather_into_tensor_coalesced, reduce_scatter, reduce_scatter_tensor, reduce_scatter_tensor_coalesced, "
        "gather, all_to_all",
    ),
    Row(
        "result of operations that require grad",
        "the result",
        "the result; an error: all_gather_into_tensor, all_gather_into_tensor_coalesced",
    ),
    Row(
        "made in inference mode",
        "the result",
        "the result; an error: all_reduce_coalesced, all_gather, all_gather_into_tensor, all_gather_coalesced, "
        "all_gather_into_tensor_coalesced, reduce_scatter, reduce_scatter_tensor, reduce_scatter_tensor_coalesced, "
        "gather, all_to_all",
    ),
    Row("bool", "the result", "the result"),
    Row("int64", "the result", "the result"),
    Row("int16", "the result", "an error; the result: send, recv"),
    Row("uint16", "the result", "an error; the result: send, recv"),
    Row("float16", "the result", "the result"),
    Row("float64", "the result", "the result"),
    Row(
        "float8",
        "the result; UnsupportedError: all_reduce, all_reduce (async), all_reduce (large), all_reduce (MAX), "
        "all_reduce_coalesced, reduce, reduce_scatter, reduce_scatter_tensor, reduce_scatter_tensor_coalesced",
        "an error; the result: send, recv",
    ),
    Row(
        "complex",
        "the result; an error: all_reduce (MAX)",
        "the result; an error: all_reduce (MAX), all_gather_coalesced, all_gather_into_tensor_coalesced, gather",
    ),
    Row(
        "conjugated view",
        "an error; the result: reduce, all_gather_coalesced, all_gather_into_tensor_coalesced, reduce_scatter, "
        "reduce_scatter_tensor, reduce_scatter_tensor_coalesced, gather",
        "an error; other values: reduce, reduce_scatter, reduce_scatter_tensor, reduce_scatter_tensor_coalesced",
    ),
    Row("negated view", "the result", "other values; the result: all_gather, all_gather_coalesced, gather, send"),
    Row("zero tensor", "UnsupportedError", "not tried"),
    Row(
        "sparse COO",
        "UnsupportedError; the result: all_reduce, all_reduce (async), all_reduce (large), all_reduce_coalesced",
        "an error; the result: all_reduce, all_reduce (async), all_reduce (large)",
    ),
    Row(
        "sparse COO of int64",
        "UnsupportedError; the result: all_reduce, all_reduce (async), all_reduce (large), all_reduce_coalesced",
        "an error; the result: all_reduce, all_reduce (async), all_reduce (large)",
    ),
    Row("sparse CSR", "UnsupportedError", "an error"),
    Row("MKL-DNN", "UnsupportedError", "an error"),
    Row("quantized", "UnsupportedError", "an error"),
    Row("nested", "UnsupportedError", "an error"),
    Row("nested, jagged", "UnsupportedError", "an error"),
    Row("storage freed", "ArgumentError", "not tried"),
    Row(
        "meta",
        "nothing",
        "nothing; an error: all_reduce_coalesced, all_gather_coalesced, all_gather_into_tensor_coalesced, "
        "reduce_scatter_tensor_coalesced",
    ),
    Row(
        "fake",
        "nothing",
        "nothing; an error: all_reduce_coalesced, all_gather_coalesced, all_gather_into_tensor_coalesced, "
        "reduce_scatter_tensor_coalesced",
    ),
    Row(
        "fake, outside of its mode",
        "nothing",
        "nothing; an error: all_reduce_coalesced, all_gather_coalesced, all_gather_into_tensor_coalesced, "
        "reduce_scatter_tensor_coalesced",
    ),
    Row(
        "plain, in a FakeTensorMode",
        "nothing",
        "nothing; an error: all_reduce_coalesced, all_gather_coalesced, all_gather_into_tensor_coalesced, "
        "reduce_scatter_tensor_coalesced",
    ),
    Row("plain, with meta as default device", "the result", "the result"),
    Row("in torch.func.functionalize", "the result", "the result"),
    Row(
        "in torch.func.grad",
        "the result",
        "the result; an error: reduce_scatter_tensor, reduce_scatter_tensor_coalesced; not tried: scatter, all_to_all",
    ),
    Row(
        "in torch.func.jvp",
        "the result",
        "the result; an error: reduce_scatter_tensor, reduce_scatter_tensor_coalesced; not tried: scatter, all_to_all",
    ),
    Row("in torch.func.vmap", "UnsupportedError", "an error"),
    Row(
        "plain, in torch.func.grad",
        "the result",
        "the result; an error: reduce_scatter_tensor, reduce_scatter_tensor_coalesced",
    ),
    Row("in a FunctionalTensorMode", "UnsupportedError", "an error"),
    Row("in make_fx", "the result", "the result"),
    Row("in a CommDebugMode", "the result", "the result"),
    Row("subclass", "the result", "the result"),
    Row("subclass that wraps another tensor", "the result", "the result"),
    Row("DTensor", "UnsupportedError", "an error"),
    Row("unawaited AsyncCollectiveTensor", "the result", "the result"),
)
