"""Canonical error codes (google.rpc.Code) and the error that carries one to the caller."""

from __future__ import annotations

import enum

from fanin.errors import FaninError
from fanin.switch.p4.actions import TableError, TableProblem


class Code(enum.IntEnum):
    """Values of google.rpc.Code, as sent on the wire."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class StatusError(FaninError):
    """Raised when a request, or one update of it, is refused."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


OF_TABLES = {
    TableProblem.EXISTS: Code.ALREADY_EXISTS,
    TableProblem.NOT_FOUND: Code.NOT_FOUND,
    TableProblem.FULL: Code.RESOURCE_EXHAUSTED,
    TableProblem.IMMUTABLE: Code.PERMISSION_DENIED,
    TableProblem.IN_USE: Code.FAILED_PRECONDITION,
    TableProblem.INVALID: Code.INVALID_ARGUMENT,
}


def from_table(error: TableError) -> StatusError:
    """The StatusError for a table's refusal, with the code of P4Runtime."""
    return StatusError(OF_TABLES[error.problem], str(error))
