"""Questions of a member to its job's controller while the job runs: one connection per question, every wait bounded."""

from __future__ import annotations

from fanin.errors import AdmissionError, FaninError
from fanin.host.session.control import ask
from fanin.host.session.failures import MemberNames, join_refused
from fanin.options import Options, Rounds
from fanin.protocol import control
from fanin.protocol.job import JobRounds, facts_of
from fanin.protocol.seal import Credentials

AFTERWARDS_S = 1.0
"""How long a question may take after a failure or on the way out: part of the 10 s in which a wait must raise."""


class Questions:
    """Puts one member's questions to its controller. Any thread may ask."""

    def __init__(self, who: MemberNames, options: Options, credentials: Credentials) -> None:
        """`who`: the rank as this job's controller knows it."""
        self._who, self._options, self._credentials = who, options, credentials

    def tune(self, quorum: int | None, staleness: int | None, known_as: MemberNames) -> Rounds:
        """Change K, S or both; see Session.tune. `known_as`: how errors name this rank (see Session.stands_for).

        Raises AdmissionError, and SwitchUnreachableError without an answer in connect_timeout_s: a controller may have
        a device to program, on a machine that is busy.
        """
        change = control.Tune(job=self._who.job_name, quorum=quorum, staleness=staleness)
        answer = self._ask(change, self._options.connect_timeout_s, known_as)
        if isinstance(answer, control.Refused):
            raise join_refused(known_as, answer)
        if not isinstance(answer, control.Tuned):
            raise AdmissionError(
                f"{known_as.in_words}: {self._who.address} answered {type(answer).__name__} to Tune: it is not a fanin "
                "switch. Remedy: see who listens there (`ss -ltnp`)"
            )
        return Rounds(**facts_of(answer, JobRounds))

    def explain(self, generation: int) -> control.Explanation | None:
        """The controller's account of how that generation of the job ended; None if it does not answer."""
        try:
            answer = self._ask(control.Explain(job=self._who.job_name, generation=generation), AFTERWARDS_S)
        except AdmissionError as error:
            if error.code != control.Refusal.KEY.value:
                return None
            text = "its controller does not have the job's key, so it was restarted, or another switch has the port"
            return control.Explanation(known=False, text=text)
        except FaninError:
            return None
        return answer if isinstance(answer, control.Explanation) else None

    def leave(self, nonce: str, failure: FaninError | None, timeout_s: float, *, own: bool = False) -> None:
        """Leave where the engine could not say BYE, so that the job's memory is freed at once. `own`: as in Leave."""
        reason = control.one_line(str(failure)) if failure is not None else ""
        leave = control.Leave(job=self._who.job_name, rank=self._who.rank, nonce=nonce, reason=reason, own=own)
        self._ask(leave, min(timeout_s, AFTERWARDS_S))

    def _ask(self, question: control.Request, timeout_s: float, known_as: MemberNames | None = None) -> control.Reply:
        return ask(
            self._who.address,
            question,
            curve_server_key=self._options.curve_server_key,
            timeout_s=timeout_s,
            credentials=self._credentials,
            asker=(known_as or self._who).in_words,
        )
