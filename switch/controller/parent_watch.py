"""Watch over a leaf's parent: whether it answers, and accepts the leaf. Pure: time is passed in.

Rules
-----
* A leaf sends Attach every ATTACH_INTERVAL_S, busy or idle. A parent answers Attached; a switch that is a leaf itself
  refuses, since trees have two levels. So switches that name each other as parents in a circle, of any length, refuse
  each other, and a switch that was given as its own parent refuses itself.
* A parent is silent once UNANSWERED_ATTACHES in a row were not answered. Attaches are counted, not seconds, so that a
  leaf that was stopped does not take its own pause for the parent's. Any message from the parent is a sign of life.
* A leaf that is refused before it was ever attached was started wrongly and ends; a later refusal is only passed on to
  ranks that join.
"""

from __future__ import annotations

from typing import Literal

from fanin.options import SwitchAddress
from fanin.protocol import control
from fanin.protocol.control import Refusal, Refused
from fanin.switch.controller.admission import refuse

ATTACH_INTERVAL_S = 0.75
UNANSWERED_ATTACHES = 4
SILENCE_S = ATTACH_INTERVAL_S * UNANSWERED_ATTACHES
"""Silence after which a parent counts as silent, and longest time that a rank waits for it: less than the 5 s within
which a worker needs an answer (Options.connect_timeout_s), since the worker does not know that there is a parent."""

ParentState = Literal["unknown", "answers", "silent", "refuses"]


class ParentWatch:
    """One leaf's knowledge of its parent."""

    def __init__(self, parent: SwitchAddress, leaf: str, own_address: str, now: float) -> None:
        self.address = parent
        self._attach = control.Attach(leaf=leaf, address=own_address)
        self._next_s = now
        self._unanswered = 0
        self._heard_s: float | None = None
        """When it last said something; None: never."""
        self._began_s = now
        self._refused: Refused | None = None
        self.attached = False
        """Whether it ever took this leaf."""

    @property
    def state(self) -> ParentState:
        """The state of the parent at this moment."""
        if self._unanswered >= UNANSWERED_ATTACHES:
            return "silent"
        if self._refused is not None:
            return "refuses"
        return "answers" if self.attached else "unknown"

    def next_timer(self) -> float:
        """Time at which `due` returns the next Attach."""
        return self._next_s

    def due(self, now: float) -> control.Attach | None:
        """The Attach to send now; None if it is not yet time."""
        if now < self._next_s:
            return None
        self._next_s = now + ATTACH_INTERVAL_S
        self._unanswered += 1
        return self._attach

    def take(self, reply: control.Reply, now: float) -> None:
        """Take in a message of the parent; any but Attached and Refused only shows that it lives."""
        self._unanswered, self._heard_s = 0, now
        if isinstance(reply, control.Attached):
            self.attached, self._refused = True, None
        elif isinstance(reply, Refused):
            self._refused = reply

    def misled(self) -> str:
        """The parent's refusal, in words, if it came before this leaf was ever attached; else empty."""
        if self.attached or self._refused is None:
            return ""
        return f"--parent {self.address}: {self._refused.reason}. Remedy: {self._refused.remedy}"

    def objection(self, now: float, waiting_since_s: float) -> Refused | None:
        """The refusal for a rank that waits since then if the parent refuses, or is silent too long; else None."""
        if self.state == "refuses":
            assert self._refused is not None
            return refuse(Refusal.PARENT, f"{self.in_words(now)}", self._refused.remedy)
        if self.state == "silent" and now - waiting_since_s >= SILENCE_S:
            remedy = f"start `fanin switch` at {self.address}, or correct the --parent of the leaf"
            return refuse(Refusal.PARENT, self.in_words(now), remedy)
        return None

    def in_words(self, now: float) -> str:
        """The parent's state with both addresses."""
        whose = f"the parent {self.address} of leaf {self._attach.address}"
        if self.state == "refuses":
            assert self._refused is not None
            return f"{whose} refuses it: {self._refused.reason}"
        if self.state == "silent":
            heard = "it never did" if self._heard_s is None else f"last {now - self._heard_s:.0f} s ago"
            return f"{whose} does not answer ({heard})"
        return f"{whose} answers" if self.state == "answers" else f"{whose} was not heard of yet"

    def report(self, now: float) -> control.ParentReport:
        """The state of the parent, for Stats."""
        return control.ParentReport(
            address=str(self.address),
            state=self.state,
            text=control.one_line(self.in_words(now)),
            silent_s=now - (self._began_s if self._heard_s is None else self._heard_s),
        )


def no_leaves_here(attach: control.Attach, own_identity: str, own_address: str, parent: SwitchAddress) -> Refused:
    """A leaf's refusal of a switch that asks to be its leaf."""
    if attach.leaf == own_identity:
        reason = f"{own_address} is its own parent"
    else:
        reason = f"{own_address} is itself a leaf, of {parent}: trees have two levels, and parents no circles"
    return refuse(Refusal.PARENT, reason, "name a switch that was started without --parent")
