"""The errors of fanin, as types. docs/errors.md says for each who is at fault, within which time, and what to do.

Every error that a user can meet carries its facts as attributes and says the remedy in its text. None of these is a
programming error of ours: those are assertions.
"""

from __future__ import annotations


class FaninError(RuntimeError):
    """Anything fanin reports. Catch this to catch all of it."""

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickle and copy, so that an error reaches another process (multiprocessing, Ray) with its facts.

        Python would call the class with the error's text alone, which constructors with further arguments refuse.
        """
        return _made_again, (type(self), self.args), self.__dict__


def _made_again(kind: type[FaninError], arguments: tuple[object, ...]) -> FaninError:
    basic = OSError if issubclass(kind, OSError) else RuntimeError  # their memory layouts differ
    error: FaninError = basic.__new__(kind)  # without `__init__`, whose arguments differ
    error.args = arguments
    return error


class ConfigurationError(FaninError, ValueError):
    """An option, an address or an environment variable has an illegal value.

    `correct`: what has it (`lanes`), where the remedy is to give another value, which then ends the text. A caller that
    knows from where the value came replaces it by that (`FANIN_LANES`).
    """

    def __init__(self, text: str, correct: str = "") -> None:
        super().__init__(f"{text}. Remedy: correct {correct}" if correct else text)
        self.text = text
        """The text without the remedy that `correct` gives."""
        self.correct = correct


class SwitchUnreachableError(FaninError, ConnectionError):
    """Nothing answers at the switch's address (wrong address, not started, firewall)."""

    def __init__(self, address: str, text: str, remedy: str = "") -> None:
        super().__init__(text)
        self.address = address
        self.remedy = remedy
        """The remedy, where it is known apart from the text: `ip route get` for a host without a route."""


class SwitchLostError(FaninError, ConnectionError):
    """The switch answered before and is now silent, or has restarted and knows nothing of this job."""

    def __init__(self, address: str, text: str) -> None:
        super().__init__(text)
        self.address = address


class PathNarrowedError(SwitchLostError):
    """The switch lives, and short packets come through, but none as long as this rank's: the path's MTU has fallen."""


class WorkerLostError(FaninError, ConnectionError):
    """Workers of this job died, stopped or left while others waited for them. `ranks` are job ranks."""

    def __init__(self, ranks: tuple[int, ...], text: str) -> None:
        super().__init__(text)
        self.ranks = ranks


class EvictedError(WorkerLostError):
    """A switch has taken this rank out of the job, which may go on with it at other switches. `ranks` is this rank."""


class AdmissionError(FaninError):
    """The controller refused the job: no memory, wrong size, another version, a rank taken twice.

    `code` is the refusal's, by its name in docs/errors.md; empty where the controller gave none.
    """

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text)
        self.code = code


class JoinTimeoutError(AdmissionError, TimeoutError):
    """Not all workers of the job came in time. `missing` are the ranks that did not."""

    def __init__(self, missing: tuple[int, ...], text: str) -> None:
        super().__init__(text)
        self.missing = missing


class HandoverError(FaninError, ConnectionError):
    """A process that joined a running job got no weights: no rank that has them was reached, or stayed to the end."""


class StoreSilentError(FaninError):
    """The process that serves the store through which ranks meet has ended, or does not answer.

    `ended`: it is known to have ended.
    """

    def __init__(self, text: str, *, ended: bool = False) -> None:
        super().__init__(text)
        self.ended = ended


class CollectiveMismatchError(FaninError):
    """Ranks called different collectives, or the same one with other sizes, dtypes or lanes."""


class CollectiveTimeoutError(FaninError, TimeoutError):
    """A collective did not finish within the process group's timeout."""


class ReplicasDifferError(FaninError):
    """`check_replicas` found unlike replicas of a model: `ranks` hold other bits of `parameter` than most do."""

    def __init__(self, parameter: str, ranks: tuple[int, ...], text: str) -> None:
        super().__init__(text)
        self.parameter = parameter
        self.ranks = ranks


class NonFiniteError(FaninError, ArithmeticError):
    """A sum holds NaN or infinities that `ranks` have contributed in optimizer step `step` (on_nonfinite="raise")."""

    def __init__(self, ranks: tuple[int, ...], step: int, parameters: tuple[str | None, ...], text: str) -> None:
        super().__init__(text)
        self.ranks = ranks
        self.step = step
        self.parameters = parameters
        """By rank: the name of the parameter with the first such element; None where it is not known."""


class DivergedError(FaninError, ArithmeticError):
    """Every rank's local steps have led to weights that are not finite, so a meeting has nothing to take."""


class ArgumentError(FaninError, ValueError):
    """A collective's arguments do not go together: sizes, element types, devices, or a rank that there is not."""


class UnsupportedError(FaninError, NotImplementedError):
    """A combination that fanin refuses rather than computing something else."""


class ProgramError(FaninError, ValueError):
    """A compiled P4 program or its P4Info is malformed, or the two do not belong together."""


class PacketError(FaninError):
    """A P4 program does something undefined with this packet; the packet is lost, and nothing else."""
